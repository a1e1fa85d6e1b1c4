"""The suites of the ways to execute catch what they promise to catch."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace

from penstock import hal
from penstock.drivers.reference import create as reference
from penstock.drivers.sample import create as sample
from penstock.errors import GeneralFailure, InvalidArgument, MissedDeadlineTransient
from penstock.testing.contract import CHECKS, SHARING, SharedModels, run_check
from penstock.testing.contract.executors import EXECUTORS
from penstock.testing.contract.promise import NotCovered
from penstock.testing.contract.trial import memory_kinds, pool_of
from penstock.testing.doubles import FaultyDevice, InterceptingDevice, SlowDevice

T = TypeVar("T")
BY_NAME = {check.__name__: check for check in CHECKS}
GENERAL = {
    "execute": ("check_general_sync", "check_general_async"),
    "burst_execute": ("check_general_burst",),
    "reusable_execute": ("check_general_reusable", "check_general_reusable_async"),
    "execute_fenced": ("check_fenced_compute",),
}


def outcome(device: hal.Device, name: str) -> str:
    """The outcome of the check *name* on *device*: the same when it uses shared models."""
    check = BY_NAME[name]
    result = run_check(device, check)
    assert (
        result.outcome != "failed" or "unexpected" not in result.message or "told" in result.message
    )
    if check in SHARING:
        with SharedModels(device):
            assert run_check(device, check).outcome == result.outcome
    return result.outcome


class Altering(InterceptingDevice):
    """Does *alter* to the arguments of *method*, and *after* to its result."""

    def __init__(
        self,
        device: hal.Device,
        method: str,
        after: Callable[[Any], Any] = lambda result: result,
        before: Callable[[tuple[Any, ...]], None] = lambda _: None,
    ) -> None:
        super().__init__(device)
        self.method, self.after, self.before = method, after, before

    def intercept(self, method: str, arguments: tuple[Any, ...], proceed: Callable[[], T]) -> T:
        if method != self.method:
            return proceed()
        self.before(arguments)
        result: T = self.after(proceed())
        return result


@pytest.mark.parametrize("method", GENERAL)
def test_failing_executor_fails_only_its_own_checks(method: str) -> None:
    device = FaultyDevice(sample(), {method: "always"})
    for way, checks in GENERAL.items():
        for check in checks:
            assert outcome(device, check) == ("failed" if way == method else "passed"), check


def test_a_measured_run_that_is_refused_is_caught() -> None:
    def refuse(arguments: tuple[Any, ...]) -> None:
        if arguments[1].measure:
            raise GeneralFailure("as told: no times here")

    device = Altering(sample(), "execute", before=refuse)
    assert outcome(device, "check_general_sync") == "failed"


@pytest.mark.parametrize("method", GENERAL)
def test_each_memory_and_each_model_is_run_with_and_without_timing(method: str) -> None:
    seen: set[tuple[object, bool]] = set()

    def record(arguments: tuple[Any, ...]) -> None:
        request = arguments[0]
        (config,) = (a for a in arguments if isinstance(a, hal.ExecutionConfig))
        hosted = [a.array.shape for a in request.inputs if isinstance(a, hal.HostMemory)]
        shapes = hosted or [a.dimensions for a in request.inputs]
        seen.add(("host" if hosted else request.pools[0].name, config.measure))
        seen.add((tuple(shapes), config.measure))

    device = Altering(reference(), method, before=record)
    assert outcome(device, GENERAL[method][0]) == "passed"
    assert {("ashmem", True), ("mmap_fd", True), ("host", True)} <= seen
    assert {what for what, is_measured in seen if is_measured} == {
        what for what, is_measured in seen if not is_measured
    }


@pytest.mark.parametrize(
    "timing",
    [
        hal.Timing(2, 1),
        hal.Timing(0, 10**18),
        hal.Timing(operations=(hal.OperationTiming((0,), "kernel", 0, 1),)),
    ],
)
def test_times_that_cannot_be_are_caught(timing: hal.Timing) -> None:
    def change(result: hal.ExecutionResult) -> hal.ExecutionResult:
        return replace(result, timing=timing)

    assert outcome(Altering(sample(), "execute", change), "check_general_sync") == "failed"


def test_a_burst_that_holds_to_the_memory_of_its_first_run_is_caught() -> None:
    first: list[hal.Request] = []

    class Stale(InterceptingDevice):
        def intercept(self, method: str, arguments: tuple[Any, ...], proceed: Callable[[], T]) -> T:
            if method == "burst_execute":
                first.append(arguments[0])
                if len(first) > 1:
                    done: Any = hal.ExecutionResult()
                    return done  # type: ignore[no-any-return]
            return proceed()

    assert outcome(Stale(sample()), "check_every_way_reads_memory_that_is_there") == "failed"


@pytest.mark.parametrize("method", ["execute", "burst_execute", "reusable_execute"])
def test_executor_that_accepts_invalid_requests_fails_the_contract(method: str) -> None:
    """One that looks at nothing but the first argument's kind."""

    class Believing(InterceptingDevice):
        def intercept(self, called: str, arguments: tuple[Any, ...], proceed: Callable[[], T]) -> T:
            try:
                return proceed()
            except InvalidArgument:
                if called != method:
                    raise
                done: Any = hal.ExecutionResult()
                return done  # type: ignore[no-any-return]

    assert outcome(Believing(sample()), "check_every_way_refuses_every_mutation") == "failed"
    assert outcome(sample(), "check_every_way_refuses_every_mutation") == "passed"


def test_a_loop_whose_timeout_is_not_heeded_is_caught() -> None:
    class Endless(InterceptingDevice):
        """Ends, after a time of its own, as if the loop had."""

        def intercept(self, method: str, arguments: tuple[Any, ...], proceed: Callable[[], T]) -> T:
            try:
                return proceed()
            except MissedDeadlineTransient:
                done: Any = hal.ExecutionResult()
                return done  # type: ignore[no-any-return]

    assert outcome(Endless(reference()), "check_infinite_loop_timeout") == "failed"
    assert outcome(reference(), "check_infinite_loop_timeout") == "passed"


class TestQuality:
    def test_a_missed_deadline_is_allowed_where_time_is_short(self) -> None:
        slow = SlowDevice(sample(), {"execute": 0.006, "prepare_model": 0.006})
        assert outcome(slow, "check_every_way_by_a_deadline") == "passed"
        assert outcome(slow, "check_prepare_by_a_deadline") == "passed"

    @pytest.mark.parametrize("method", ["execute", "prepare_model"])
    def test_missed_deadline_with_time_left_fails_the_contract(self, method: str) -> None:
        def miss(arguments: tuple[Any, ...]) -> None:
            (config,) = (
                a for a in arguments if isinstance(a, hal.ExecutionConfig | hal.PrepareConfig)
            )
            if config.deadline_ns is not None:
                raise MissedDeadlineTransient("as told: there is never time enough")

        device = Altering(sample(), method, before=miss)
        check = "check_every_way_by_a_deadline"
        if method == "prepare_model":
            check = "check_prepare_by_a_deadline"
        assert outcome(device, check) == "failed"

    def test_error_other_than_missed_deadline_fails_the_contract(self) -> None:
        def fail(arguments: tuple[Any, ...]) -> None:
            deadline = arguments[1].deadline_ns
            if deadline is not None and time.monotonic_ns() >= deadline:
                raise GeneralFailure("as told: late")

        device = Altering(sample(), "execute", before=fail)
        assert outcome(device, "check_every_way_by_a_deadline") == "failed"

    def test_a_priority_that_is_refused_is_caught(self) -> None:
        def refuse(arguments: tuple[Any, ...]) -> None:
            if arguments[1].priority == "high":
                raise InvalidArgument("as told: nobody is more than another")

        device = Altering(sample(), "burst_execute", before=refuse)
        assert outcome(device, "check_every_way_at_every_priority") == "failed"
        assert outcome(sample(), "check_every_way_at_every_priority") == "passed"

    @pytest.mark.parametrize("count", [-1, True, 1.0])
    def test_concurrency_that_is_no_count_is_caught(self, count: Any) -> None:
        class Odd(InterceptingDevice):
            @property
            def capabilities(self) -> hal.Capabilities:
                return hal.Capabilities(concurrent_executions=count)

        assert outcome(Odd(sample()), "check_concurrency_is_a_count") == "failed"


def test_executors_have_unique_names() -> None:
    assert len({executor.name for executor in EXECUTORS}) == len(EXECUTORS) == 6
    assert [e.name for e in EXECUTORS if e.fenced] == ["fenced"]


@pytest.mark.parametrize("kind", ["ashmem", "mmap_fd", "hardware_buffer_blob"])
def test_pools_of_every_kind(kind: str) -> None:
    with pool_of(kind, 5000) as pool:
        assert pool.memory.name == kind
        assert pool.nbytes == 5000
        content = pool.view("uint8", 5000)
        content[:] = 7
        assert pool.view("uint8", 5000)[4999] == 7
        del content


def test_a_memory_kind_that_cannot_be_made_is_not_covered() -> None:
    with pytest.raises(NotCovered):
        pool_of("hardware_buffer", 10)
    assert set(memory_kinds(sample())) >= {"ashmem", "mmap_fd"}


def test_no_request_of_the_suites_claims_to_be_proven() -> None:
    """A driver need not look at those; a suite that made them would test nothing."""
    seen: set[type[hal.Request]] = set()
    device = Altering(sample(), "execute", before=lambda a: seen.add(type(a[0])))
    outcome(device, "check_every_way_refuses_every_mutation")
    assert hal.ProvenRequest not in seen
