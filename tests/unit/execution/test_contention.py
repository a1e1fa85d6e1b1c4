"""Runs that fail half-way, models that are closed from within, and state that two threads touch."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

import penstock
from penstock import errors, hal
from penstock.drivers.reference import ReferenceDevice
from penstock.execution.adapters import ReusedRequests
from penstock.execution.interface import Outputs
from penstock.ir import DType, Lifetime, Model, ModelBuilder, Operand
from penstock.memory.domain import ManagedBuffer
from penstock.testing.doubles import FaultyDevice, InterceptingDevice

F32 = DType.FLOAT32
X = np.array([1, -2, 3], np.float32)
PATIENCE = 20


def named(name: str) -> Operand:
    return Operand(F32, (3,), Lifetime.TEMPORARY_VARIABLE, name)


def relu_and_negative() -> Model:
    """m = relu(x), y = -m."""
    b = ModelBuilder()
    (m,) = b.operation("RELU", [b.input(F32, (3,), "x")], [named("m")])
    (y,) = b.operation("NEG", [m], [named("y")])
    return b.build([m, y])


def counting() -> Model:
    """total = total + x, seen = relu(total)."""
    b = ModelBuilder()
    x = b.input(F32, (3,), "x")
    before = b.operand(Operand(F32, (3,), Lifetime.SUBGRAPH_INPUT, "before"))
    (after,) = b.operation("ADD", [before, x], [(F32, (3,))])
    (seen,) = b.operation("RELU", [after], [named("seen")])
    b.state(b.variable("total", F32, (3,)), before, after)
    return b.build([seen])


def summing() -> Model:
    b = ModelBuilder()
    x, total = b.input(F32, (3,), "x"), b.input(F32, (3,), "total_in")
    return b.build(b.operation("ADD", [total, x], [named("total_out")]))


class Only(ReferenceDevice):
    """The reference device for one type of operation, with other *claims*."""

    def __init__(self, name: str, kind: str, **claims: Any) -> None:
        super().__init__()
        self.name, self._kind = name, kind
        self.capabilities = replace(self.capabilities, **claims)

    def supported_operations(self, model: Model) -> Any:
        answers = super().supported_operations(model)
        return [
            a if o.type == self._kind else hal.Support(False, "not mine")
            for a, o in zip(answers, model.operations, strict=True)
        ]


class Around(InterceptingDevice):
    """The reference device; *before* is called before each execution."""

    def __init__(self, device: ReferenceDevice, before: Callable[[], object]) -> None:
        super().__init__(device, f"around {device.name}")
        self._before = before

    def intercept(self, method: str, arguments: tuple[Any, ...], proceed: Callable[[], Any]) -> Any:
        if method == "execute":
            self._before()
        return proceed()


def compiled_on(model: Model, *devices: Any, **more: Any) -> penstock.CompiledModel:
    return penstock.compile(model, devices=list(devices), cache=None, **more)


def test_a_repeated_step_s_buffer_is_what_the_next_step_reads() -> None:
    """The device that fails has memory of its own, where its output was to be staged; the one that
    repeats has not.
    """
    private = Only("private", "RELU", shares_host_memory=False)
    faulty = FaultyDevice(private, {"execute": "always"})
    with (
        compiled_on(relu_and_negative(), faulty, Only("other", "NEG")) as compiled,
        compiled.allocate(outputs=["m"]) as m,
    ):
        assert m.device is None
        for times in (1, 2):
            outputs = compiled.run([X * times], out={"m": m})
            assert np.array_equal(outputs["y"], -np.maximum(X * times, 0))
            assert np.array_equal(m.numpy(), np.maximum(X * times, 0))


def test_a_run_that_fails_after_a_buffer_was_written_leaves_it_without_a_value() -> None:
    last = FaultyDevice(Only("last", "NEG"), {"execute": 2})
    policy = penstock.Policy(allow_fallback=False)
    with (
        compiled_on(relu_and_negative(), Only("first", "RELU"), last, policy=policy) as compiled,
        compiled.allocate(outputs=["m"]) as m,
    ):
        compiled.run([X], out={"m": m})
        assert np.array_equal(m.numpy(), np.maximum(X, 0))
        with pytest.raises(errors.GeneralFailure, match="as told"):
            compiled.run([X * 2], out={"m": m})
        assert not m.is_initialized
        with pytest.raises(errors.StateError, match="no value"):
            m.numpy()


def test_a_deadline_that_passes_while_a_later_step_waits_for_a_slot_is_transient() -> None:
    inside, hold = threading.Event(), threading.Event()

    def wait() -> None:
        inside.set()
        hold.wait(PATIENCE)

    last = Around(Only("last", "NEG", concurrent_executions=1), wait)
    with compiled_on(relu_and_negative(), Only("first", "RELU"), last) as compiled:
        running = compiled.submit(X)
        assert inside.wait(PATIENCE)
        try:
            with pytest.raises(errors.MissedDeadlineTransient):
                compiled.run([X], timeout=0.1)
        finally:
            hold.set()
        assert np.array_equal(running.result(PATIENCE)["m"], np.maximum(X, 0))


def test_callback_of_a_run_may_close_a_closing_model() -> None:
    inside, hold = threading.Event(), threading.Event()

    def wait() -> None:
        inside.set()
        hold.wait(PATIENCE)

    compiled = compiled_on(summing(), Around(ReferenceDevice(), wait))
    future = compiled.submit(X, X)
    closed = threading.Event()

    def close(_: object) -> None:
        compiled.close()
        closed.set()

    future.add_done_callback(close)
    assert inside.wait(PATIENCE)
    closer = threading.Thread(target=compiled.close, daemon=True)
    closer.start()
    while not compiled.executable.closing.locked():
        time.sleep(0.001)
    hold.set()
    closer.join(PATIENCE)
    assert not closer.is_alive()
    assert closed.wait(PATIENCE)


class Forgetful(ReferenceDevice):
    """Its buffers can be lost."""

    lost = full = False

    def allocate(self, desc: hal.BufferDesc, roles: Any) -> tuple[int, hal.Buffer]:
        token, buffer = super().allocate(desc, roles)
        return token, _Forgotten(self, buffer)


class _Forgotten:
    def __init__(self, device: Forgetful, buffer: hal.Buffer) -> None:
        self._device, self._buffer = device, buffer

    def copy_to(self, destination: hal.Memory) -> None:
        if self._device.lost:
            raise errors.DeadObject("it is gone")
        self._buffer.copy_to(destination)

    def copy_from(self, source: hal.Memory, dimensions: tuple[int, ...]) -> None:
        if self._device.full:
            raise errors.GeneralFailure("it takes no more")
        self._buffer.copy_from(source, dimensions)

    def close(self) -> None:
        self._buffer.close()


def test_a_model_whose_state_was_lost_with_its_device_closes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    device = Forgetful()
    compiled = compiled_on(counting(), device)
    compiled.bind_state()
    compiled(X)
    device.lost = True
    compiled.close()
    assert "values that were on a device are lost" in caplog.text


def test_bursts_may_be_closed_while_their_model_is() -> None:
    compiled = compiled_on(summing(), ReferenceDevice())
    bursts = [compiled.burst() for _ in range(200)]
    started = threading.Barrier(2)

    def close() -> None:
        started.wait(PATIENCE)
        for burst in bursts:
            burst.close()

    closer = threading.Thread(target=close)
    closer.start()
    started.wait(PATIENCE)
    compiled.close()
    closer.join(PATIENCE)
    assert not len(compiled.executable.bursts)


def test_state_is_bound_once_and_before_bursts() -> None:
    with compiled_on(summing(), ReferenceDevice()) as compiled:
        with compiled.burst(), pytest.raises(errors.StateError, match="before bursts"):
            compiled.bind_state({"total_out": "total_in"})
        compiled.bind_state({"total_out": "total_in"})


def test_state_written_between_runs_of_another_thread_is_kept() -> None:
    with compiled_on(summing(), ReferenceDevice()) as compiled:
        bound = compiled.bind_state({"total_out": "total_in"})
        zeros, stop = np.zeros(3, np.float32), threading.Event()

        def run() -> None:
            while not stop.is_set():
                compiled.run([zeros])

        runner = threading.Thread(target=run)
        runner.start()
        try:
            for value in range(1, 300):
                given = np.full(3, value, np.float32)
                bound.write("total_in", given)
                assert np.array_equal(bound.read("total_in"), given)
        finally:
            stop.set()
            runner.join(PATIENCE)


def test_a_variable_that_was_given_another_value_is_copied_to_its_device_by_receipt() -> None:
    with (
        compiled_on(counting(), ReferenceDevice()) as compiled,
        compiled.allocate(inputs=["x"]) as x,
        compiled.allocate(outputs=["seen"]) as seen,
    ):
        x.copy_from(X)
        state = compiled.new_state()
        compiled.bind_state()
        first = compiled.run([x], out=[seen], state=state).receipt.copies
        assert first[0].reason == "'total' begins with the value that the state has"
        assert {c.operand for c in first} == {1}
        state.replace({0: np.ones(3, np.float32)})
        copy, staged = compiled.run([x], out=[seen], state=state).receipt.copies
        assert (copy.nbytes, copy.source, copy.destination) == (12, "host", "reference")
        assert "the state has another value" in copy.reason
        assert (staged.nbytes, staged.source, staged.destination) == (12, "host", "host")
        assert compiled.run([x], out=[seen], state=state).receipt.copies == ()


def test_an_endless_time_after_fences_is_no_time_at_all() -> None:
    with compiled_on(summing(), ReferenceDevice()) as compiled:
        fence = hal.EventFence()
        fence.signal()
        run = compiled.start_fenced([X, X], [fence], timeout_after_fence=float("inf"))
        outputs: Outputs = run.result(float("inf"))
        assert np.array_equal(outputs[0], X * 2)


def test_a_buffer_that_its_driver_failed_to_fill_has_no_value() -> None:
    device = Forgetful()
    with compiled_on(summing(), device) as compiled, compiled.allocate(inputs=["x"]) as buffer:
        buffer.copy_from(X)
        device.full = True
        with pytest.raises(errors.GeneralFailure, match="takes no more"):
            buffer.copy_from(X * 2)
        assert not buffer.is_initialized
        with pytest.raises(errors.StateError, match="no value"):
            compiled.run([buffer, X])


def test_the_callers_token_cancels_what_was_submitted() -> None:
    inside, token = threading.Event(), hal.CancelToken()

    def wait() -> None:
        inside.set()
        end = time.monotonic() + PATIENCE
        while not token.is_set() and time.monotonic() < end:
            time.sleep(0.001)

    first, last = Around(Only("first", "RELU"), wait), Only("last", "NEG")
    with compiled_on(relu_and_negative(), first, last) as compiled:
        future = compiled.submit(X, cancel=token)
        assert inside.wait(PATIENCE)
        token.set()
        with pytest.raises(errors.Cancelled):
            future.result(PATIENCE)


def test_an_execution_bound_for_reuse_is_of_the_request_that_comes_now() -> None:
    with compiled_on(summing(), ReferenceDevice()) as compiled:
        held = ReusedRequests(compiled.executable.base.compilation.steps[0].prepared)
        for times in (1, 1, 2, 2, 3):
            out = np.zeros(3, np.float32)
            given = hal.HostMemory(X * times)
            request = hal.Request((given, given), (hal.HostMemory(out),))
            for _ in range(3):
                out[:] = 0
                held.execute(request, hal.ExecutionConfig())
                assert np.array_equal(out, X * times * 2)
        held.close()


def test_memory_of_a_value_that_somebody_reads_is_not_written_again() -> None:
    device = ReferenceDevice()
    with compiled_on(summing(), device) as compiled:
        role = hal.BufferRole(compiled.executable.base.compilation.steps[0].prepared, "output", 0)
        _, buffer = device.allocate(hal.BufferDesc(), [role])
        assert isinstance(buffer, ManagedBuffer)
        buffer.publish(X.copy(), (3,), "output ok")
        value = buffer.begin("copy_to")
        buffer.publish(X * 2, (3,), "output ok")
        assert buffer.room((3,)) is not value.content
        buffer.end(value)
        buffer.publish(X * 3, (3,), "output ok")
        buffer.close()
