"""The reference device in a process of its own, and the one of this process, which comes after
it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock import CompiledModel, Outputs, Policy
from penstock.distribution import LAST_RESORT
from penstock.errors import DeadObject, PlacementError
from penstock.ipc import supervision
from penstock.runtime import isolation
from penstock.runtime.discovery import Manager
from penstock.runtime.entries import Entry
from tests import support_isolated as support

MODEL = support.add_one()
X = np.full(support.SHAPE, 3, np.float32)
ALONE = Policy(allow_fallback=False)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A state directory, and so hosts, of one's own; both drivers are ready to be isolated."""
    monkeypatch.setenv("PENSTOCK_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("PENSTOCK_KEY_STORE", "file")
    # Once it died twice in a row, no test waits for its process to be started again.
    monkeypatch.setattr(supervision, "FIRST_PAUSE", 60.0)
    entries = (
        Entry("misbehaving", support.ENTRY, "somebody-elses"),
        Entry("reference", "penstock.drivers.reference:create", "penstock-nn"),
    )
    monkeypatch.setattr("penstock.runtime.session.manager", Manager(lambda: entries))
    monkeypatch.setattr(isolation, "_supervisors", {})
    yield
    isolation.close_hosts()


def kill(count: int) -> None:
    """Has the processes of all drivers die, *count* times in a row."""
    for supervisor in isolation.supervisors():
        for _ in range(count - 1):
            supervisor._count("was ended by SIGKILL")
        link = supervisor.running
        assert link is not None
        os.kill(link.pid, signal.SIGKILL)
        link.settle()


def compiled(devices: list[str], policy: Policy | None = None) -> CompiledModel:
    return penstock.compile(
        MODEL, devices=devices, isolate=True, cache=False, policy=policy or Policy()
    )


def in_a_burst(model: CompiledModel) -> Outputs:
    with model.burst() as burst:
        return burst.run(X)


def fenced(model: CompiledModel) -> Outputs:
    return model.start_fenced([X], []).result()


WAYS: list[Callable[[CompiledModel], Outputs]] = [lambda model: model(X), in_a_burst, fenced]


@pytest.mark.parametrize("way", WAYS, ids=["run", "burst", "fenced"])
def test_a_run_ends_in_this_process(way: Callable[[CompiledModel], Outputs]) -> None:
    with compiled(["reference"]) as model:
        assert model.plan.steps[0].fallbacks == (LAST_RESORT,)
        np.testing.assert_array_equal(model(X)[0], X + 1)
        kill(supervision.MOST_DEATHS)
        for _ in range(2):
            outputs = way(model)
            np.testing.assert_array_equal(outputs[0], X + 1)
            (step,) = outputs.receipt.steps
            assert (step.device, step.fallback_from) == (LAST_RESORT, "reference")
            assert step.error is not None
            assert step.error.startswith("DeadObject: ")


def test_two_deaths_in_one_call_end_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time that the run reaches the process, that is killed first."""
    with compiled(["reference"]) as model:
        np.testing.assert_array_equal(model(X)[0], X + 1)
        (supervisor,) = isolation.supervisors()
        link_of = supervisor.connection
        killed = []

        def dying(*given: Any, **more: Any) -> Any:
            link = link_of(*given, **more)
            killed.append(link.pid)
            os.kill(link.pid, signal.SIGKILL)
            return link

        monkeypatch.setattr(supervisor, "connection", dying)
        kill(1)
        outputs = model(X)
        np.testing.assert_array_equal(outputs[0], X + 1)
        assert [s.device for s in outputs.receipt.steps] == [LAST_RESORT]
        assert killed


def test_own_process_is_the_last_fallback() -> None:
    # Of devices that declare the same, NNAPI's rule takes the reference device.
    with compiled(["misbehaving", "reference"], Policy(placement="nnapi")) as model:
        assert model.plan.steps[0].fallbacks == ("misbehaving", LAST_RESORT)
        np.testing.assert_array_equal(model(X)[0], X + 1)
        kill(supervision.MOST_DEATHS)
        outputs = model(X)
        np.testing.assert_array_equal(outputs[0], X + 1)
        (step,) = outputs.receipt.steps
        assert step.device == LAST_RESORT
        assert step.fallback_from == "reference"


def test_device_isolated_by_the_knob_falls_back_to_this_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PENSTOCK_ISOLATE", "misbehaving, reference")
    with penstock.compile(MODEL, devices=["misbehaving"], cache=False) as model:
        kill(supervision.MOST_DEATHS)
        first = model(X)
        np.testing.assert_array_equal(first[0], X + 1)
        assert first.receipt.steps[0].device == "reference"
        (reference,) = [s for s in isolation.supervisors() if s.place.name == "reference"]
        for _ in range(supervision.MOST_DEATHS - 1):
            reference._count("was ended by SIGKILL")
        link = reference.running
        assert link is not None
        os.kill(link.pid, signal.SIGKILL)
        link.settle()
        outputs = model(X)
        np.testing.assert_array_equal(outputs[0], X + 1)
        assert outputs.receipt.steps[0].device == LAST_RESORT


def test_a_compile_without_a_process_ends_in_this_process() -> None:
    with compiled(["reference"]):
        kill(supervision.MOST_DEATHS)
    with compiled(["reference"]) as model:
        outputs = model(X)
        np.testing.assert_array_equal(outputs[0], X + 1)
        for receipt in (model.receipt, outputs.receipt):
            (step,) = receipt.steps
            assert (step.device, step.fallback_from) == (LAST_RESORT, "reference")


def test_without_a_fall_back_the_death_is_the_error() -> None:
    with compiled(["reference"], ALONE) as model:
        assert model.plan.steps[0].fallbacks == ()
        kill(supervision.MOST_DEATHS)
        with pytest.raises(DeadObject, match="no fallback is allowed"):
            model(X)
    with pytest.raises((PlacementError, DeadObject), match="reference"):
        compiled(["reference"], ALONE)


def test_in_this_process_nothing_comes_after_reference() -> None:
    with penstock.compile(MODEL, devices=["reference"], cache=False) as model:
        (step,) = model.plan.steps
        assert (step.fallbacks, step.no_fallback) == ((), "no device comes after reference")
