"""Checks that only execute share prepared models; all others prepare for themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from penstock import hal
from penstock.drivers.reference import create as reference
from penstock.drivers.sample import create as sample
from penstock.ir import Model
from penstock.testing import contract
from penstock.testing.contract.cases import Case, endless, every_case
from penstock.testing.contract.mutations import mutated_cases, request_mutations
from penstock.testing.contract.sharing import shared_models
from penstock.testing.contract.trial import Kind, Trial, prepare
from penstock.testing.doubles import FaultyDevice, InterceptingDevice

T = TypeVar("T")
BY_NAME = {check.__name__: check for check in contract.CHECKS}
VALUES = BY_NAME["check_general_sync"]
FENCED = BY_NAME["check_fenced_compute"]
ANEW = BY_NAME["check_values"]
PREPARING = BY_NAME["check_prepare_leaves_the_model_alone"]


class Counting(InterceptingDevice):
    """Counts the calls of each method, and of the `close` of prepared models."""

    def __init__(self, device: hal.Device) -> None:
        super().__init__(device)
        self.calls: Counter[str] = Counter()

    def intercept(self, method: str, arguments: tuple[Any, ...], proceed: Callable[[], T]) -> T:
        self.calls[method] += 1
        return proceed()

    def prepare_model(self, model: Model, config: hal.PrepareConfig) -> hal.PreparedModel:
        return CountingModel(super().prepare_model(model, config), self.calls)


class CountingModel:
    def __init__(self, prepared: hal.PreparedModel, calls: Counter[str]) -> None:
        self._prepared, self._calls = prepared, calls

    def __getattr__(self, name: str) -> Any:
        return getattr(self._prepared, name)

    def close(self) -> None:
        self._calls["close"] += 1
        self._prepared.close()


def prepared_by(device: Counting, check: contract.Check) -> int:
    """How many models *check* prepares on *device*."""
    before = device.calls["prepare_model"]
    check(device)
    return device.calls["prepare_model"] - before


def test_checks_that_only_execute_prepare_each_case_once() -> None:
    device = Counting(sample())
    alone = prepared_by(device, VALUES)
    assert alone > 3
    with contract.SharedModels(device):
        assert [prepared_by(device, check) for check in (VALUES, FENCED, VALUES)] == [alone, 0, 0]


def test_supported_operations_is_asked_once_for_each_model() -> None:
    device = Counting(sample())
    with contract.SharedModels(device):
        VALUES(device)
        asked = device.calls["supported_operations"]
        FENCED(device)
    assert asked == len(every_case())
    assert device.calls["supported_operations"] == asked


@pytest.mark.parametrize("check", [PREPARING, ANEW], ids=["preparing", "values"])
def test_checks_of_preparing_and_of_first_runs_prepare_for_themselves(
    check: contract.Check,
) -> None:
    device = Counting(sample())
    alone = prepared_by(device, check)
    with contract.SharedModels(device):
        VALUES(device)
        assert prepared_by(device, check) == alone > 3


def test_shared_models_are_closed_at_the_end_alone() -> None:
    device = Counting(sample())
    with contract.SharedModels(device):
        VALUES(device)
        FENCED(device)
        assert device.calls["close"] == 0
    assert device.calls["close"] == device.calls["prepare_model"]
    VALUES(device)
    assert device.calls["close"] == device.calls["prepare_model"]


def test_checks_that_damage_cache_files_save_each_model_once() -> None:
    def prepared() -> int:
        return sum(prepared_by(device, BY_NAME[name]) for name in names)

    device, names = Counting(sample()), ("check_wrong_token", "check_corrupted_model_cache")
    alone = prepared()
    with contract.SharedModels(device):
        assert prepared() == alone / 2 > 0


def test_other_devices_configurations_and_models_are_prepared_for_each_check() -> None:
    device, other = Counting(reference()), Counting(reference())

    @contract.sharing.sharing
    def check(on: hal.Device) -> None:
        assert shared_models(device) is not None
        assert shared_models(other) is None
        low = hal.PrepareConfig(priority="low")
        for case in (every_case()[0], endless()):
            prepare(other, case).close()
        prepare(on, every_case()[0], low).close()
        prepare(on, endless()).close()

    with contract.SharedModels(device):
        check(device)
        assert device.calls["prepare_model"] == device.calls["close"] == 2
        assert other.calls["prepare_model"] == other.calls["close"] == 2
    assert shared_models(device) is None


def test_the_runner_shares_up_to_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    suites = {name: contract.SUITES[name] for name in ("burst", "generated")}
    monkeypatch.setattr(contract.runner, "SUITES", suites)

    def prepared(device: Counting) -> int:
        contract.run_contract(device)
        return device.calls["prepare_model"]

    apart, together = Counting(sample()), Counting(sample())
    failing = Counting(FaultyDevice(sample(), {"burst_execute": 1}))
    for _, check in contract.runner.every_check():
        contract.run_check(apart, check)
    shared = prepared(together)
    assert shared < 0.3 * apart.calls["prepare_model"]
    assert shared < prepared(failing) <= shared + len(every_case())


def test_mutated_cases_have_every_mutation_of_all_cases() -> None:
    chosen = mutated_cases(every_case())
    assert len(chosen) < 0.6 * len(every_case())
    assert mutations_of(chosen) == mutations_of(every_case())


def mutations_of(cases: tuple[Case, ...] | list[Case]) -> set[tuple[object, ...]]:
    """(kind of argument, mutation, rank of its argument) of *cases*, and mutations of requests."""
    kinds: tuple[Kind, ...] = "pool", "host", "mixed"
    found: set[tuple[object, ...]] = set()
    for case in cases:
        arrays = (*case.inputs, *case.outputs)
        for kind in kinds:
            with Trial(case, kind) as trial:
                arguments = (*trial.request.inputs, *trial.request.outputs)
                for name, request in request_mutations(trial):
                    changed = (*request.inputs, *request.outputs)
                    pairs = enumerate(zip(changed, arguments, strict=False))
                    places = [place for place, (new, old) in pairs if new is not old]
                    if len(changed) != len(arguments) or not places:
                        found.add((kind, name))
                        continue
                    (place,) = places
                    side, _, what = name.partition(" ")
                    is_pool = isinstance(arguments[place], hal.PoolArgument)
                    found.add((is_pool, side, what.partition(":")[2], arrays[place].ndim))
    return found
