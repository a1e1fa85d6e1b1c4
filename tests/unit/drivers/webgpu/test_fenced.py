"""Fenced runs of the driver `webgpu`: they wait for each other in the queue of the device."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import Mock, patch

import numpy as np
import pytest

import penstock
from penstock import hal
from penstock.drivers.webgpu.launches import Launch, Launches
from penstock.drivers.webgpu.turns import Turns
from penstock.drivers.webgpu.watchdog import Watchdog
from penstock.errors import DeadObject, DriverError, GeneralFailure, MissedDeadline
from penstock.hal.fence import DescriptorFence
from penstock.ir import DType, ModelBuilder, NDArray, Operand
from penstock.memory import InputRole, OutputRole, allocate
from tests.support_webgpu import needs_webgpu
from tests.unit.drivers.webgpu.test_values import SHAPE, Domain, U, V, content

F32 = DType.FLOAT32
PLAIN = hal.ExecutionConfig()
PATIENCE_NS = 60 * 10**9


class Chain(NamedTuple):
    """A prepared ADD that has run once, and requests: u + v to a buffer, and that + v to another,
    or to `array`.
    """

    prepared: Any
    first: hal.Request
    second: hal.Request
    last: hal.Request
    middle: hal.Buffer
    result: hal.Buffer
    array: NDArray


def chain() -> Chain:
    domain = Domain()
    u, _ = domain.written(U, ("input", 0))
    v, _ = domain.written(V, ("input", 1))
    y, middle = domain.allocate(("output", 0), ("input", 0))
    z, result = domain.allocate(("output", 0))
    domain.execute([u, v], [y])
    array = np.empty(SHAPE, np.float32)
    token = hal.TokenArgument
    return Chain(
        domain.prepared,
        hal.Request((token(u), token(v)), (token(y),)),
        hal.Request((token(y), token(v)), (token(z),)),
        hal.Request((token(y), token(v)), (hal.HostMemory(array),)),
        middle,
        result,
        array,
    )


@contextmanager
def unsignalled() -> Iterator[threading.Event]:
    """A block in which fences of launches signal only once the event is set."""
    released, finish = threading.Event(), Launch.finish

    def later(launch: Launch, error: DriverError | None) -> None:
        assert released.wait(60)
        finish(launch, error)

    with patch.object(Launch, "finish", later):
        try:
            yield released
        finally:
            released.set()


@needs_webgpu
def test_run_is_submitted_behind_another_one_before_the_host_has_seen_that_end() -> None:
    runs = chain()
    with unsignalled() as released:
        one = runs.prepared.execute_fenced(runs.first, [], PLAIN)
        two = runs.prepared.execute_fenced(runs.second, [one], PLAIN)
        assert not one.wait(0)
        assert not two.wait(0)
        # A read of a buffer waits for the device, not for fences.
        assert np.array_equal(content(runs.result), U + V + V)
        released.set()
        for fence in (two, one):
            assert fence.wait(PATIENCE_NS)
            assert fence.error() is None


@needs_webgpu
def test_run_into_an_array_waits_for_the_device_alone() -> None:
    runs = chain()
    launches = runs.prepared.executable.code.gpu.launches
    one = runs.prepared.execute_fenced(runs.first, [], PLAIN)
    with patch.object(launches, "find", wraps=launches.find) as found:
        two = runs.prepared.execute_fenced(runs.last, [one], PLAIN)
    assert found.called
    assert two.wait(0)
    assert two.error() is None
    assert np.array_equal(runs.array, U + V + V)
    assert [(c.out, c.nbytes, c.by_driver) for c in two.copies] == [(True, U.nbytes, True)]


@needs_webgpu
def test_run_waits_for_a_fence_that_is_not_of_its_device() -> None:
    runs, camera, ended = chain(), hal.EventFence(), list[hal.Fence]()
    thread = threading.Thread(
        target=lambda: ended.append(runs.prepared.execute_fenced(runs.first, [camera], PLAIN))
    )
    thread.start()
    time.sleep(0.05)
    assert not ended
    camera.signal()
    thread.join(60)
    assert ended[0].wait(PATIENCE_NS)


@needs_webgpu
def test_uploads_of_a_run_that_ends_with_its_submit_are_listed_by_its_fence() -> None:
    runs = chain()
    request = hal.Request((hal.HostMemory(U), *runs.first.inputs[1:]), runs.first.outputs)
    fence = runs.prepared.execute_fenced(request, [], PLAIN)
    assert isinstance(fence, DescriptorFence)
    assert [(c.argument, c.out, c.nbytes) for c in fence.copies] == [(0, False, U.nbytes)]
    assert fence.wait(PATIENCE_NS)
    assert np.array_equal(content(runs.middle), U + V)


@needs_webgpu
def test_fence_reports_a_device_that_is_lost_after_the_submit() -> None:
    runs = chain()
    gpu = runs.prepared.executable.code.gpu
    with unsignalled() as released:
        one = runs.prepared.execute_fenced(runs.first, [], PLAIN)
        two = runs.prepared.execute_fenced(runs.second, [one], PLAIN)
        gpu._hangs(3.0)
        released.set()
        assert two.wait(PATIENCE_NS)
    error = two.error()
    assert isinstance(error, DeadObject | GeneralFailure)
    assert "is lost: a shader has not ended within 3 s" in str(error)
    with pytest.raises(DeadObject, match="is lost"):
        content(runs.result)


class Queue:
    """Launches of a device whose work ends when the test says so."""

    def __init__(self) -> None:
        self.gpu = Mock(lost="", watchdog=Watchdog(lambda _: None), turns=Turns())
        self.gpu.buffer.side_effect = lambda *_: self._buffer()
        self.launches = Launches(self.gpu)
        self.took = list[int]()
        self.ends = list[threading.Event]()

    def _buffer(self) -> Mock:
        event = threading.Event()
        self.ends.append(event)
        buffer = Mock()
        buffer.map_async.return_value = Mock(_thread_event=event)
        return buffer

    def launch(
        self, config: hal.ExecutionConfig = PLAIN, *behind: DescriptorFence
    ) -> DescriptorFence:
        found = [self.launches.find(fence) for fence in behind]
        ahead = [launch for launch in found if launch is not None]
        assert len(ahead) == len(behind)
        return self.launches.launch(lambda _: None, 60.0, config, ahead, self.took.append)


def test_fences_signal_in_the_order_of_the_queue() -> None:
    queue = Queue()
    one = queue.launch()
    two = queue.launch(PLAIN, one)
    assert queue.launches.seconds == 120.0
    queue.ends[0].set()
    assert one.wait(PATIENCE_NS)
    assert not two.wait(0)
    queue.ends[1].set()
    assert two.wait(PATIENCE_NS)
    assert (one.error(), two.error()) == (None, None)
    assert len(queue.took) == 2
    with queue.gpu.turns.alone():
        assert queue.launches.find(two) is None
    end = time.monotonic() + 60
    while queue.launches.seconds:
        assert time.monotonic() < end
        time.sleep(0.001)
    assert queue.launches.find(one) is None


def test_launch_is_known_by_a_duplicate_of_its_descriptor() -> None:
    queue = Queue()
    one, other = queue.launch(), queue.launch()
    sent = DescriptorFence(one.fileno())
    launch = queue.launches.find(sent)
    assert launch is not None
    assert launch.fence is one
    assert queue.launches.find(hal.EventFence()) is None
    for event in queue.ends:
        event.set()
    assert one.wait(PATIENCE_NS)
    assert other.wait(PATIENCE_NS)


@pytest.mark.parametrize("limit", ["deadline", "token"])
def test_fence_fails_at_the_limits_of_its_run_and_so_does_one_behind_it(limit: str) -> None:
    queue, token = Queue(), hal.CancelToken()
    config = (
        hal.ExecutionConfig(deadline_ns=time.monotonic_ns() + 50_000_000)
        if limit == "deadline"
        else hal.ExecutionConfig(cancel=token)
    )
    one = queue.launch(config)
    two = queue.launch(PLAIN, one)
    assert not one.wait(0)
    token.set()
    assert one.wait(PATIENCE_NS)
    assert isinstance(one.error(), MissedDeadline if limit == "deadline" else GeneralFailure)
    assert not two.wait(0)
    for event in queue.ends:
        event.set()
    assert two.wait(PATIENCE_NS)
    error = two.error()
    assert isinstance(error, GeneralFailure)
    assert "a fence this execution waits for failed: " in str(error)


def test_all_fences_fail_when_the_device_is_lost() -> None:
    queue = Queue()
    fences = [queue.launch() for _ in range(3)]
    queue.gpu.lost = "device webgpu is lost: a test"
    for fence in fences:
        assert fence.wait(PATIENCE_NS)
        assert isinstance(fence.error(), DeadObject)
    assert not queue.took


def test_work_that_ends_with_an_error_of_the_engine_loses_the_device() -> None:
    queue = Queue()

    def lose(reason: str) -> None:
        queue.gpu.lost = reason
        raise DeadObject(reason)

    queue.gpu.lose.side_effect = lose
    fence = queue.launch()
    (launch,) = queue.launches._pending
    launch.promise.sync_wait.side_effect = RuntimeError("no map")
    queue.ends[0].set()
    assert fence.wait(PATIENCE_NS)
    assert "RuntimeError: no map" in str(fence.error())


def larger(kind: str, inputs: str) -> Any:
    """A model of one element-wise operation on 65,536 floats."""
    builder = ModelBuilder()
    given = [builder.input(F32, (1 << 16,), name) for name in inputs]
    return builder.build(builder.operation(kind, given, [Operand(F32, (1 << 16,), name="y")]))


@needs_webgpu
@pytest.mark.skipif(sys.platform != "linux", reason="drivers are isolated on Linux")
@pytest.mark.parametrize("isolate", [False, True])
def test_pipeline_of_two_models_is_given_to_the_device_as_a_whole(isolate: bool) -> None:
    options: Any = {"devices": ["webgpu-software"], "cache": None, "isolate": isolate}
    given = np.linspace(-3, 3, 1 << 16, dtype=np.float32)
    with (
        penstock.compile(larger("TANH", "u"), **options) as first,
        penstock.compile(larger("ADD", "uv"), **options) as second,
        allocate(roles=[OutputRole(first, "y"), InputRole(second, "u")]) as between,
        allocate(roles=[OutputRole(second, "y")]) as result,
    ):
        first.run([given], out=[between])
        second.run({"u": between, "v": given}, out=[result])
        camera, behind = hal.EventFence(), False
        for _ in range(200):
            one = first.start_fenced([given], [camera], out=[between])
            two = second.start_fenced({"u": between, "v": given}, [one.fence], out=[result])
            camera.signal()
            receipts = [run.result(60).receipt for run in (one, two)]
            assert np.allclose(result.numpy(), np.tanh(given) + given, atol=1e-6)
            # Every receipt has the upload of the only array.
            for receipt in receipts:
                assert [c.nbytes for c in receipt.copies if "memory of its own" in c.reason] == [
                    given.nbytes
                ]
            behind = any("got the run before" in note for note in receipts[1].notes)
            if behind:
                break
        assert behind
