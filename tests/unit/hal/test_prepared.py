"""Defaults of the optional members: fenced execution, bursts, reusable executions, null objects,
fences.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from penstock import errors, hal
from penstock.hal.fence import remaining_ns
from penstock.ir import DType, ModelBuilder

NOTHING = hal.Request((), ())
PLAIN = hal.ExecutionConfig()


class Scripted(hal.PreparedModelBase):
    """Does what it is told, and keeps the configurations it was given."""

    def __init__(self, act: Callable[[], None] = lambda: None) -> None:
        self.act = act
        self.configs: list[hal.ExecutionConfig] = []

    def execute(self, request: hal.Request, config: hal.ExecutionConfig) -> hal.ExecutionResult:
        self.configs.append(config)
        self.act()
        return hal.DONE


def signalled(error: errors.DriverError | None = None) -> hal.EventFence:
    fence = hal.EventFence()
    fence.signal(error)
    return fence


class TestFence:
    def test_event_fence_signals_once(self) -> None:
        fence = hal.EventFence()
        assert not fence.wait(0)
        assert fence.error() is None
        fence.signal()
        fence.signal(errors.GeneralFailure("too late"))
        assert fence.wait()
        assert fence.error() is None

    def test_event_fence_carries_its_error(self) -> None:
        error = errors.GeneralFailure("broken")
        fence = signalled(error)
        assert fence.wait()
        assert fence.error() is error

    def test_waiting_ends_after_its_time(self) -> None:
        began = time.monotonic_ns()
        assert not hal.EventFence().wait(3_000_000)
        assert time.monotonic_ns() - began >= 3_000_000

    def test_a_waiter_wakes_when_it_signals(self) -> None:
        fence, woken = hal.EventFence(), []
        thread = threading.Thread(target=lambda: woken.append(fence.wait()))
        thread.start()
        fence.signal()
        thread.join()
        assert woken == [True]

    def test_remaining_time_of_a_deadline(self) -> None:
        assert remaining_ns(None) is None
        assert remaining_ns(1) == 0
        left = remaining_ns(time.monotonic_ns() + 10**12)
        assert left is not None
        assert 0 < left <= 10**12


class TestFenced:
    def test_default_fenced_execution_runs_and_signals(self) -> None:
        prepared = Scripted()
        fence = prepared.execute_fenced(NOTHING, [signalled(), signalled()], PLAIN)
        assert fence.wait(0)
        assert fence.error() is None
        assert prepared.configs == [PLAIN]

    def test_a_failed_fence_fails_it_before_it_runs(self) -> None:
        prepared = Scripted()
        broken = signalled(errors.ResourceExhaustedTransient("no room"))
        error = prepared.execute_fenced(NOTHING, [signalled(), broken], PLAIN).error()
        assert isinstance(error, errors.GeneralFailure)
        assert "no room" in str(error)
        assert prepared.configs == []

    def test_an_error_of_the_run_is_the_fence_s(self) -> None:
        def fail() -> None:
            raise errors.ResourceExhaustedTransient("no room")

        fence = Scripted(fail).execute_fenced(NOTHING, [], PLAIN)
        assert isinstance(fence.error(), errors.ResourceExhaustedTransient)

    def test_a_fence_that_never_signals_misses_the_deadline(self) -> None:
        prepared = Scripted()
        config = hal.ExecutionConfig(deadline_ns=time.monotonic_ns() + 2_000_000)
        fence = prepared.execute_fenced(NOTHING, [hal.EventFence()], config)
        assert isinstance(fence.error(), errors.MissedDeadlineTransient)
        assert prepared.configs == []

    def test_a_cancel_token_ends_the_wait(self) -> None:
        token = hal.CancelToken()
        threading.Timer(0.005, token.set).start()
        with pytest.raises(errors.Cancelled):
            Scripted().execute_fenced(
                NOTHING, [hal.EventFence()], hal.ExecutionConfig(cancel=token)
            )

    def test_deadline_ends_a_fenced_wait_with_a_cancel_token(self) -> None:
        config = hal.ExecutionConfig(
            deadline_ns=time.monotonic_ns() + 2_000_000, cancel=hal.CancelToken()
        )
        fence = Scripted().execute_fenced(NOTHING, [hal.EventFence()], config)
        assert isinstance(fence.error(), errors.MissedDeadlineTransient)

    def test_time_after_the_fences_becomes_a_deadline(self) -> None:
        prepared = Scripted()
        before = time.monotonic_ns()
        prepared.execute_fenced(NOTHING, [signalled()], PLAIN, 10**9)
        prepared.execute_fenced(NOTHING, [], hal.ExecutionConfig(deadline_ns=before), 10**9)
        given, earlier = (c.deadline_ns for c in prepared.configs)
        assert given is not None
        assert before + 10**9 <= given <= time.monotonic_ns() + 10**9
        assert earlier == before

    def test_outputs_of_unknown_shape_are_refused_where_the_model_is_known(self) -> None:
        b = ModelBuilder()
        x = b.input(DType.FLOAT32, (None,), "x")
        prepared = Scripted()
        prepared.model = b.build(b.operation("RELU", [x], [(DType.FLOAT32, (None,))]))
        with pytest.raises(errors.InvalidArgument, match="unknown shape"):
            prepared.execute_fenced(NOTHING, [hal.EventFence()], PLAIN)


class TestBurst:
    def test_default_burst_executes_each_request(self) -> None:
        prepared = Scripted()
        burst = prepared.configure_burst()
        assert burst.execute(NOTHING, PLAIN) is hal.DONE
        assert burst.execute(NOTHING, PLAIN) is hal.DONE
        assert len(prepared.configs) == 2
        burst.close()

    def test_a_second_run_at_the_same_time_is_refused(self) -> None:
        outcomes: list[type[Exception]] = []

        def again() -> None:
            try:
                burst.execute(NOTHING, PLAIN)
            except errors.GeneralFailure as error:
                outcomes.append(type(error))

        burst = Scripted(again).configure_burst()
        burst.execute(NOTHING, PLAIN)
        assert outcomes == [errors.GeneralFailure]

    def test_a_failed_run_leaves_it_free(self) -> None:
        def fail() -> None:
            raise errors.GeneralFailure("once")

        prepared = Scripted(fail)
        burst = prepared.configure_burst()
        with pytest.raises(errors.GeneralFailure, match="once"):
            burst.execute(NOTHING, PLAIN)
        prepared.act = lambda: None
        assert burst.execute(NOTHING, PLAIN) is hal.DONE

    def test_only_one_of_many_threads_is_inside(self) -> None:
        inside, most = [0], [0]
        lock = threading.Lock()

        def enter() -> None:
            with lock:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
            time.sleep(0.0005)
            with lock:
                inside[0] -= 1

        burst = Scripted(enter).configure_burst()

        def run() -> None:
            for _ in range(20):
                try:
                    burst.execute(NOTHING, PLAIN)
                except errors.GeneralFailure:
                    continue

        threads = [threading.Thread(target=run) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert most == [1]


def test_a_reusable_execution_executes_its_request() -> None:
    prepared = Scripted()
    execution = prepared.create_reusable_execution(NOTHING)
    assert execution.execute(PLAIN) is hal.DONE
    assert execution.execute(PLAIN) is hal.DONE
    execution.close()
    prepared.close()


def test_execute_is_required() -> None:
    with pytest.raises(errors.GeneralFailure, match="PreparedModelBase has no execute"):
        hal.PreparedModelBase().execute(NOTHING, PLAIN)


class TestDefaults:
    def test_device_has_defaults(self) -> None:
        device = hal.DeviceBase()
        assert device.type is hal.DeviceType.OTHER
        assert device.feature_level == 8
        assert device.hal_version == hal.HAL_VERSION
        assert device.capabilities == hal.Capabilities()
        assert device.check() is None
        assert device.cache_files_needed() == (0, 0)
        with pytest.raises(errors.GeneralFailure, match="does not cache"):
            device.prepare_model_from_cache(hal.PrepareConfig())
        with pytest.raises(errors.GeneralFailure, match="no memory domains"):
            device.allocate(hal.BufferDesc(), [])
        assert device.stages == ()
        model = ModelBuilder().build([])
        with pytest.raises(errors.GeneralFailure, match="prints no stages"):
            device.dump(model, hal.PrepareConfig(), "fuse")
        assert device.explain(model, hal.PrepareConfig()) == ()
        device.close()
        device.close()

    def test_capabilities_have_defaults(self) -> None:
        claims = hal.Capabilities(performance={"int8": hal.PerformanceInfo(0.5, 0.25)})
        assert claims.performance_of("int8") == hal.PerformanceInfo(0.5, 0.25)
        assert claims.performance_of("float32") == hal.PerformanceInfo()
        none = hal.Capabilities(default_performance=None)
        assert none.performance_of("float32") is None
        assert claims.accepts_host_memory
        assert claims.shares_host_memory
        assert not claims.only_when_named

    def test_support_has_defaults(self) -> None:
        assert hal.Support(True) == hal.SUPPORTED
        assert hal.SUPPORTED.accuracy == "faithful"
        assert sorted(hal.ACCURACY_RANK, key=hal.ACCURACY_RANK.__getitem__) == [
            "relaxed",
            "stepwise",
            "faithful",
            "exact",
        ]

    def test_messages_are_frozen_values(self) -> None:
        for value in (
            PLAIN,
            hal.PrepareConfig(),
            NOTHING,
            hal.DONE,
            hal.SUPPORTED,
            hal.Memory("ashmem", 1, 2),
        ):
            with pytest.raises(AttributeError):
                value.anything = 1  # type: ignore[union-attr]  # the point
        assert hal.ExecutionConfig() == hal.ExecutionConfig()
        assert hal.Memory("ashmem", 1, 2) == hal.Memory("ashmem", 1, 2)


class TestNullObjects:
    def test_an_invalid_device_refuses_with_its_reason(self) -> None:
        device = hal.InvalidDevice("gone", "it was unplugged")
        b = ModelBuilder()
        x = b.input(DType.FLOAT32, (1,), "x")
        model = b.build(b.operation("RELU", [x], [(DType.FLOAT32, (1,))]))
        assert (device.name, device.check()) == ("gone", "it was unplugged")
        assert list(device.supported_operations(model)) == [hal.Support(False, "it was unplugged")]
        for call in (
            lambda: device.prepare_model(model, hal.PrepareConfig()),
            lambda: device.prepare_model_from_cache(hal.PrepareConfig()),
            lambda: device.allocate(hal.BufferDesc(), []),
        ):
            with pytest.raises(errors.GeneralFailure, match="device gone: it was unplugged"):
                call()


def test_a_cancel_token_is_set_once_and_for_all() -> None:
    token = hal.CancelToken()
    token.check()
    assert not token.is_set()
    token.set()
    token.set()
    assert token.is_set()
    with pytest.raises(errors.Cancelled, match="was set"):
        token.check()


def test_a_request_holds_arrays_as_they_are() -> None:
    from penstock.hal import HostMemory

    array = np.zeros(3)
    assert HostMemory(array).array is array
