"""Fenced runs on device buffers: their driver gets them before the runs that they wait for end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, TypeVar

import numpy as np
import pytest

from penstock import errors, hal
from penstock.drivers.reference import ReferenceDevice
from penstock.execution.relay import RunFence
from penstock.memory import InputRole, OutputRole, allocate
from penstock.testing.doubles.intercepting import InterceptingDevice
from tests.unit.execution.test_device_buffers import VALUE, add, compiled_on, relu

PATIENCE_S = 30
T = TypeVar("T")


class Late(InterceptingDevice):
    """Executes behind fences in threads of its own, once `go` is set. `launched` has the fences
    that each execution waits for, `fences` its own. `failure` is what the first of them fails with.
    """

    def __init__(self) -> None:
        super().__init__(ReferenceDevice())
        self.go = threading.Event()
        self.launched = list[list[hal.Fence]]()
        self.fences = list[hal.EventFence]()
        self.failure: errors.DriverError | None = None
        self.copies: tuple[hal.ArgumentCopy, ...] = ()

    def intercept(self, method: str, arguments: tuple[Any, ...], proceed: Callable[[], T]) -> T:
        if not method.endswith("execute_fenced"):
            return proceed()
        failure = None if self.launched else self.failure
        done: Any = hal.EventFence()
        done.copies = self.copies
        self.fences.append(done)
        self.launched.append([*arguments[1]])

        def work() -> None:
            assert self.go.wait(PATIENCE_S)
            if failure is not None:
                done.signal(failure)
                return
            fence: Any = proceed()
            fence.wait()
            done.signal(fence.error())

        threading.Thread(target=work, daemon=True).start()
        return done  # type: ignore[no-any-return]

    def await_launches(self, count: int) -> None:
        end = time.monotonic() + PATIENCE_S
        while len(self.launched) < count:
            assert time.monotonic() < end
            time.sleep(0.001)


class Pipeline:
    """RELU into a device buffer, and ADD of that and another into a third."""

    def __init__(self, held: ExitStack) -> None:
        self.device = Late()
        held.callback(self.device.go.set)
        self.first = held.enter_context(compiled_on(relu(), self.device))
        self.second = held.enter_context(compiled_on(add(), self.device))
        self.between = held.enter_context(
            allocate([OutputRole(self.first, "y"), InputRole(self.second, "u")])
        )
        self.result = held.enter_context(self.second.allocate(outputs=["sum"]))

    def start(self, *fences: hal.Fence, **options: Any) -> tuple[Any, Any]:
        one = self.first.start_fenced([VALUE], fences, out=[self.between])
        given = {"u": self.between, "v": VALUE}
        return one, self.second.start_fenced(given, [one.fence], out=[self.result], **options)


@pytest.fixture
def pipeline() -> Iterator[Pipeline]:
    with ExitStack() as held:
        yield Pipeline(held)


def test_run_is_launched_behind_the_drivers_fence_of_the_run_that_it_waits_for(
    pipeline: Pipeline,
) -> None:
    device, camera = pipeline.device, hal.EventFence()
    one, two = pipeline.start(camera)
    time.sleep(0.02)
    assert not device.launched
    camera.signal()
    device.await_launches(2)
    assert device.launched == [[], [device.fences[0]]]
    assert not one.fence.wait(0)
    assert not two.fence.wait(0)
    device.go.set()
    notes = [run.result(PATIENCE_S).receipt.notes for run in (one, two)]
    assert [any("got the run before those" in note for note in each) for each in notes] == [
        False,
        True,
    ]
    assert np.array_equal(pipeline.result.numpy(), np.maximum(VALUE, 0) + VALUE)


def test_run_fails_with_one_that_fails_after_its_launch(pipeline: Pipeline) -> None:
    device = pipeline.device
    device.failure = errors.GeneralFailure("a test")
    one, two = pipeline.start()
    device.await_launches(2)
    device.go.set()
    with pytest.raises(errors.GeneralFailure, match="a test"):
        one.result(PATIENCE_S)
    with pytest.raises(errors.GeneralFailure, match="a fence this execution waits for failed"):
        two.result(PATIENCE_S)
    assert not pipeline.between.is_initialized
    assert not pipeline.result.is_initialized


def test_run_ends_at_its_limits_while_its_driver_goes_on(pipeline: Pipeline) -> None:
    token = hal.CancelToken()
    pipeline.device.go.set()
    pipeline.start()[1].result(PATIENCE_S)
    pipeline.device.go.clear()
    given: Any = {"u": pipeline.between, "v": VALUE}
    late = pipeline.second.start_fenced(given, [], out=[pipeline.result], timeout=0.05)
    with pytest.raises(errors.MissedDeadlineTransient):
        late.result(PATIENCE_S)
    other = pipeline.second.start_fenced(given, [], out=[pipeline.result], cancel=token)
    pipeline.device.await_launches(4)
    token.set()
    with pytest.raises(errors.Cancelled):
        other.result(PATIENCE_S)
    assert not pipeline.result.is_initialized


def test_receipt_has_the_copies_that_the_drivers_fence_lists(pipeline: Pipeline) -> None:
    pipeline.device.copies = (hal.ArgumentCopy(0, False, 24, 5, 7, by_driver=True),)
    pipeline.device.go.set()
    for run in pipeline.start():
        (copy,) = run.result(PATIENCE_S).receipt.copies
        assert (copy.nbytes, copy.wall_ns, copy.source) == (24, 7, "host")
        assert "has memory of its own" in copy.reason


def test_no_driver_stands_for_a_run_that_has_ended() -> None:
    fence, driver = RunFence(), hal.EventFence()
    fence.launch(driver)
    assert fence.driver_fence(hal.ExecutionConfig()) is driver
    fence.signal()
    assert fence.driver_fence(hal.ExecutionConfig()) is None
    with pytest.raises(errors.MissedDeadlineTransient):
        RunFence().driver_fence(hal.ExecutionConfig(deadline_ns=time.monotonic_ns()))
