"""The contract suites catch what they promise to catch: each broken device fails the check of its
fault.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import pytest
from msgspec import structs

from penstock import errors, hal
from penstock.drivers.reference import create as reference
from penstock.drivers.sample import create as sample
from penstock.ir import Model, validate
from penstock.memory import Mapping, map_memory
from penstock.testing import contract
from penstock.testing.doubles import (
    FaultyDevice,
    InterceptingDevice,
    LyingDevice,
    ScribblingDevice,
    SlowDevice,
    SubsetDevice,
    WrongDevice,
)
from penstock.testing.doubles.lying import Fault
from penstock.testing.loopback import LoopbackDevice

T = TypeVar("T")
MODULES = (
    contract.support,
    contract.prepare,
    contract.caching,
    contract.caching_security,
    contract.memory,
    contract.execute,
    contract.bursts,
    contract.executors,
)


BY_NAME = {check.__name__: check for check in contract.CHECKS}


def failing(device: hal.Device, *names: str) -> set[str]:
    """Which of the checks *names* fail on *device*: the same ones when they share models."""

    def failed(checks: Iterable[contract.Check]) -> set[str]:
        results = [contract.run_check(device, check) for check in checks]
        return {r.check for r in results if r.outcome == "failed"}

    checks = [BY_NAME[name] for name in names]
    found = failed(checks)
    sharing = contract.SHARING.intersection(checks)
    with contract.SharedModels(device):
        assert failed(sharing) == found & {check.__name__ for check in sharing}
    return found


class Changed(InterceptingDevice):
    """The sample device with one answer replaced."""

    def __init__(self, **answers: Any) -> None:
        super().__init__(sample())
        self._answers = answers

    def __getattribute__(self, name: str) -> Any:
        answers = object.__getattribute__(self, "__dict__").get("_answers", {})
        return answers[name] if name in answers else object.__getattribute__(self, name)


def test_every_check_is_listed_once_and_documented_by_its_name() -> None:
    for module in MODULES:
        found = {
            value
            for name, value in vars(module).items()
            if name.startswith("check_") and value.__module__ == module.__name__
        }
        assert found <= set(contract.CHECKS)
        assert found
    assert len({c.__name__ for c in contract.CHECKS}) == len(contract.CHECKS)
    assert {c.__name__ for c in contract.CHECKS} >= contract.VALUE_CHECKS
    assert sum(len(checks) for checks in contract.SUITES.values()) == len(contract.CHECKS)


def test_checks_are_callable_with_a_device_alone() -> None:
    for check in contract.CHECKS:
        parameters = inspect.signature(check).parameters
        assert list(parameters) == ["device"]


def test_check_cycle_fails_a_device_that_accepts_a_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    device = reference()
    assert not failing(device, "check_cycle")
    monkeypatch.setattr(validate, "validate", lambda _: None)
    assert failing(device, "check_cycle")


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        (LyingDevice(sample(), "support_length"), "check_support_has_one_answer_per_operation"),
        (LyingDevice(sample(), "support_changes"), "check_support_is_pure"),
        (LyingDevice(sample(), "refuses_after_all"), "check_supported_models_prepare"),
        (LyingDevice(sample(), "output_count"), "check_values"),
        (LyingDevice(sample(), "output_shapes"), "check_unknown_output_shapes_are_reported"),
        (LyingDevice(sample(), "insufficient"), "check_values"),
        (LyingDevice(sample(), "values"), "check_values"),
        (LyingDevice(sample(), "timing"), "check_timing_is_plausible"),
        (WrongDevice(reference(), "SOFTMAX", "much"), "check_values"),
        (ScribblingDevice(sample(), "inputs"), "check_values"),
        (ScribblingDevice(sample(), "behind"), "check_values"),
        (ScribblingDevice(sample(), "before"), "check_values_at_any_offset"),
        (Changed(name=""), "check_get_device_name"),
        (Changed(version=""), "check_get_device_version_string"),
        (Changed(type="cpu"), "check_get_device_type"),
        (Changed(feature_level=9), "check_levels"),
        (Changed(hal_version=0), "check_levels"),
        (Changed(capabilities=hal.Capabilities(alignment=48)), "check_get_capabilities"),
        (
            Changed(capabilities=hal.Capabilities(performance={"int8": hal.PerformanceInfo(-1.0)})),
            "check_get_capabilities",
        ),
        (
            Changed(capabilities=hal.Capabilities(performance={"int9": hal.PerformanceInfo()})),
            "check_get_capabilities",
        ),
        (Changed(capabilities=hal.Capabilities(memory_kinds=("ashmem",))), "check_memory_kinds"),
        (Changed(check=lambda: ""), "check_check_gives_a_reason"),
        (Changed(cache_files_needed=lambda: (33, 0)), "check_get_number_of_cache_files_needed"),
        (
            Changed(supported_operations=lambda m: [hal.Support(True)] * len(m.operations)),
            "check_operations_on_constants_of_other_kinds_are_refused",
        ),
        (
            Changed(supported_operations=lambda m: [hal.Support(False)] * len(m.operations)),
            "check_support_gives_reasons",
        ),
    ],
    ids=lambda v: v if isinstance(v, str) else type(v).__name__,
)
def test_a_broken_device_fails_the_check_of_its_fault(device: hal.Device, expected: str) -> None:
    assert failing(device, expected) == {expected}


def test_an_honest_device_around_another_passes_everything() -> None:
    device = LoopbackDevice(InterceptingDevice(LoopbackDevice(sample())))
    assert [r for r in contract.run_contract(device) if r.outcome == "failed"] == []


def test_a_device_that_supports_little_passes_with_what_it_has() -> None:
    only_relu = SubsetDevice(
        reference(), "relu", lambda model, i: model.operations[i].type == "RELU"
    )
    results = contract.run_contract(only_relu)
    assert [r.check for r in results if r.outcome == "failed"] == []
    assert {r.check for r in results if r.outcome == "not_covered"} >= {
        "check_inputs_may_share_memory",
        "check_unknown_output_shapes_are_reported",
    }


def test_a_device_that_supports_nothing_covers_little() -> None:
    nothing = SubsetDevice(sample(), "nothing", lambda _model, _index: False)
    results = contract.run_contract(nothing)
    assert [r.check for r in results if r.outcome == "failed"] == []
    report = contract.Report.of(results)
    assert report.not_covered > report.passed > 0
    assert report.failed == 0


class Careless(InterceptingDevice):
    """Looks at nothing it is given before it uses it."""

    def prepare_model(self, model: Model, config: hal.PrepareConfig) -> hal.PreparedModel:
        return CarelessModel(self.device.prepare_model(model, hal.PrepareConfig()))


class CarelessModel:
    def __init__(self, prepared: hal.PreparedModel) -> None:
        self._prepared = prepared

    def __getattr__(self, name: str) -> Any:
        return getattr(self._prepared, name)

    def execute(self, request: hal.Request, config: hal.ExecutionConfig) -> hal.ExecutionResult:
        try:
            return self._prepared.execute(request, hal.ExecutionConfig())
        except errors.InvalidArgument:
            return hal.ExecutionResult()


def test_a_device_without_validation_is_caught() -> None:
    expected = {
        "check_prepare_refuses_bad_configurations",
        "check_execute_refuses_every_mutation",
        "check_a_refused_request_leaves_the_model_usable",
        "check_tokens_nobody_gave_are_refused",
        "check_host_memory_for_a_pools_only_device",
    }
    assert failing(Careless(sample()), *expected) == expected


class Keeping(InterceptingDevice):
    """Keeps a mapping of every pool it is given."""

    def __init__(self) -> None:
        super().__init__(sample())
        self.kept: list[Mapping] = []

    def intercept(self, method: str, arguments: tuple[Any, ...], proceed: Callable[[], T]) -> T:
        if method.endswith("execute") and arguments[0].pools:
            try:
                self.kept.append(map_memory(arguments[0].pools[0]))
            except errors.GeneralFailure:
                return proceed()
        return proceed()


def test_a_device_that_keeps_mappings_is_caught() -> None:
    check = "check_runs_leave_nothing_behind"
    assert failing(Keeping(), check) == {check}


class Remembering(InterceptingDevice):
    """Adds one to the first output for every run before: state in a prepared model."""

    def __init__(self) -> None:
        super().__init__(sample())
        self.runs = 0

    def intercept(self, method: str, arguments: tuple[Any, ...], proceed: Callable[[], T]) -> T:
        result = proceed()
        if isinstance(result, hal.ExecutionResult):
            self.runs += 1
            argument = arguments[0].outputs[0]
            if self.runs > 1 and isinstance(argument, hal.PoolArgument):
                with map_memory(arguments[0].pools[argument.location.pool]) as mapping:
                    mapping.array[argument.location.offset] += 1
        return result


def test_a_device_with_a_memory_of_its_runs_is_caught() -> None:
    check = "check_runs_do_not_depend_on_earlier_ones"
    assert failing(Remembering(), check) == {check}


class Rough(InterceptingDevice):
    """Adds wrongly, by *fault*, where the class *accuracy* is asked for."""

    def __init__(self, accuracy: hal.AccuracyClass, fault: Fault) -> None:
        super().__init__(reference())
        self.accuracy, self.wrong = accuracy, WrongDevice(reference(), "ADD", fault)

    def prepare_model(self, model: Model, config: hal.PrepareConfig) -> hal.PreparedModel:
        is_wrong = config.accuracy == self.accuracy
        return (self.wrong if is_wrong else self.device).prepare_model(model, config)


@pytest.mark.parametrize(
    ("accuracy", "fault", "said"),
    [
        ("stepwise", "much", "add_int8 in stepwise: off by"),
        ("exact", "little", "add_int8 in exact: off by 1 steps"),
        ("stepwise", "little", ""),
        ("relaxed", "much", ""),
    ],
)
def test_a_device_that_is_wrong_in_one_class_alone_is_caught(
    accuracy: hal.AccuracyClass, fault: Fault, said: str
) -> None:
    result = contract.run_check(
        Rough(accuracy, fault), contract.prepare.check_prepare_keeps_the_class_that_is_asked_for
    )
    assert result.outcome == ("failed" if said else "passed")
    assert said in result.message


class Impatient(InterceptingDevice):
    """Answers a fenced request with a fence that has signalled, and runs nothing."""

    def intercept(self, method: str, arguments: tuple[Any, ...], proceed: Callable[[], T]) -> T:
        if method != "execute_fenced":
            return proceed()
        made: Any = hal.EventFence()
        made.signal()
        return made  # type: ignore[no-any-return]


class Ignorant(InterceptingDevice):
    """Starts fenced requests without looking at the fences."""

    def prepare_model(self, model: Model, config: hal.PrepareConfig) -> hal.PreparedModel:
        return IgnorantModel(self.device.prepare_model(model, config))


class IgnorantModel(CarelessModel):
    def execute(self, request: hal.Request, config: hal.ExecutionConfig) -> hal.ExecutionResult:
        return self._prepared.execute(request, config)

    def execute_fenced(
        self,
        request: hal.Request,
        wait_for: Sequence[hal.Fence],
        config: hal.ExecutionConfig,
        timeout_after_fence_ns: int | None = None,
    ) -> hal.Fence:
        return self._prepared.execute_fenced(request, [], config)


def test_devices_that_do_not_wait_for_fences_are_caught() -> None:
    values = "check_fenced_gives_the_values_of_execute"
    assert failing(Impatient(sample()), values) == {values}
    waits = {"check_fenced_waits_for_every_fence", "check_fenced_fails_with_a_failed_fence"}
    assert failing(Ignorant(sample()), *waits) == waits


class Caching(InterceptingDevice):
    """Saves a digest's worth of the model and loads it; *checks* says whether it looks at what it
    loads.
    """

    def __init__(self, *, checks: bool) -> None:
        super().__init__(sample())
        self.checks = checks
        self.saved: dict[bytes, Model] = {}

    def cache_files_needed(self) -> tuple[int, int]:
        return 1, 1

    def prepare_model(self, model: Model, config: hal.PrepareConfig) -> hal.PreparedModel:
        prepared = super().prepare_model(model, self._without_files(config))
        if (len(config.model_cache), len(config.data_cache)) == (1, 1):
            content = model.digest.structure + config.token + config.binding
            self.saved[content] = model
            try:
                for handle in (*config.model_cache, *config.data_cache):
                    self._write(handle, content)
            except OSError:
                return prepared
        return prepared

    def prepare_model_from_cache(self, config: hal.PrepareConfig) -> hal.PreparedModel:
        import os

        if (len(config.model_cache), len(config.data_cache)) != (1, 1):
            raise errors.InvalidArgument("one file of each is needed")
        contents = set()
        try:
            for handle in (*config.model_cache, *config.data_cache):
                os.lseek(handle.fd, 0, os.SEEK_SET)
                contents.add(os.read(handle.fd, 1000))
        except OSError as error:
            raise errors.GeneralFailure(str(error)) from error
        content = contents.pop()
        known = not contents and content in self.saved
        if self.checks and not (known and content[32:] == config.token + config.binding):
            raise errors.GeneralFailure("these are not the bytes that were saved")
        model = self.saved.get(content) or next(reversed(self.saved.values()))
        return super().prepare_model(model, self._without_files(config))

    @staticmethod
    def _without_files(config: hal.PrepareConfig) -> hal.PrepareConfig:
        return structs.replace(config, model_cache=(), data_cache=())

    @staticmethod
    def _write(handle: hal.CacheHandle, content: bytes) -> None:
        import os

        os.ftruncate(handle.fd, 0)
        os.lseek(handle.fd, 0, os.SEEK_SET)
        os.write(handle.fd, content)


class Rereading(Caching):
    """Looks at what it loads, and then executes what the files hold by then."""

    def __init__(self) -> None:
        super().__init__(checks=True)

    def prepare_model_from_cache(self, config: hal.PrepareConfig) -> hal.PreparedModel:
        super().prepare_model_from_cache(config).close()
        return RereadingModel(self, config)

    def read_again(self, config: hal.PrepareConfig) -> hal.PreparedModel:
        return super().prepare_model_from_cache(config)


class RereadingModel(CarelessModel):
    def __init__(self, device: Rereading, config: hal.PrepareConfig) -> None:
        self._device, self._config = device, config

    def execute(self, request: hal.Request, config: hal.ExecutionConfig) -> hal.ExecutionResult:
        self._device.checks = False
        try:
            return self._device.read_again(self._config).execute(request, config)
        finally:
            self._device.checks = True

    def close(self) -> None:
        """Nothing to release: the handles are the caller's."""


def test_a_caching_device_is_covered_and_its_trust_is_tested() -> None:
    checks = (*contract.SUITES["caching"], *contract.SUITES["caching_security"])
    names = {c.__name__ for c in checks}
    careful, trusting = Caching(checks=True), Caching(checks=False)
    results = [contract.run_check(careful, c) for c in checks]
    outcomes = {r.check: r.outcome for r in results}
    assert set(outcomes) == names
    for check in ("check_loading_without_a_cache", "check_no_run_waits_for_who_reads_the_entry"):
        assert outcomes.pop(check) == "not_covered"
    assert set(outcomes.values()) == {"passed"}, results
    late = "check_prepare_from_cache_toctou"
    security = {c.__name__ for c in contract.SUITES["caching_security"]}
    assert failing(trusting, *security) == security - {late}
    assert failing(Rereading(), *security) == {late}


def test_a_missed_deadline_and_a_cancellation_are_allowed() -> None:
    slow = SlowDevice(sample(), {"execute": 0.002, "prepare_model": 0.002})
    for check in (
        contract.execute.check_execute_past_its_deadline,
        contract.execute.check_execute_cancelled,
        contract.prepare.check_prepare_cancelled,
        contract.prepare.check_prepare_past_its_deadline,
        contract.execute.check_values,
    ):
        assert contract.run_check(slow, check).outcome == "passed"


@pytest.mark.parametrize("error", [RuntimeError, KeyError, ValueError])
def test_an_error_outside_the_contract_is_a_failure_and_no_crash(error: type[Exception]) -> None:
    faulty = FaultyDevice(sample(), {"execute": "always"}, error=error)
    result = contract.run_check(faulty, contract.execute.check_values, "execute")
    assert result.outcome == "failed"
    assert error.__name__ in result.message


def test_failures_say_what_and_where() -> None:
    result = contract.run_check(LyingDevice(sample(), "values"), contract.execute.check_values)
    assert "add, output 0" in result.message
    scribbled = contract.run_check(
        ScribblingDevice(sample(), "behind"), contract.execute.check_values
    )
    assert "bytes behind argument" in scribbled.message
    changed = contract.run_check(
        ScribblingDevice(sample(), "inputs"), contract.execute.check_values
    )
    assert "input 0 was changed" in changed.message


def test_the_report_counts_by_outcome() -> None:
    results = [
        contract.CheckResult("s", "a", "passed", "", 0.0),
        contract.CheckResult("s", "b", "failed", "why", 0.0),
        contract.CheckResult("s", "c", "not_covered", "none", 0.0),
        contract.CheckResult("s", "d", "passed", "", 0.0),
    ]
    assert contract.Report.of(results) == contract.Report(2, 1, 1, (results[1],), {"none": 1})
