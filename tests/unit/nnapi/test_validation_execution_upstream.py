"""NNAPI's validation tests of executions, bursts and events, by their names (NNAPI sections 1.4 and
7).
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import pytest

from penstock import nnapi
from penstock.drivers.reference import ReferenceDevice
from penstock.hal.fence import FenceSignal, fence_pair
from penstock.memory import PROT_READ, PROT_WRITE, HardwareBuffer
from penstock.testing.doubles import InterceptingDevice, RecordingDevice
from tests.checked import does_not_raise
from tests.unit.nnapi.building import (
    BAD_DATA,
    BAD_STATE,
    FLOAT,
    MODES,
    OP_FAILED,
    UNEXPECTED_NULL,
    answers,
    compiled,
    finished,
    unary,
)

X: Final = np.arange(6, dtype=np.float32).reshape(2, 3)
NBYTES: Final = X.nbytes
BOTH: Final = PROT_READ | PROT_WRITE
LOOSE: Final = nnapi.OperandDesc(FLOAT, (2, 3))


class Gate(InterceptingDevice):
    """The reference device; its executions wait until *opened*."""

    def __init__(self) -> None:
        super().__init__(ReferenceDevice(), "gate")
        self.entered, self.opened = threading.Event(), threading.Event()

    def intercept(self, method: str, arguments: tuple[Any, ...], proceed: Callable[[], Any]) -> Any:
        if "execute" in method:
            self.entered.set()
            assert self.opened.wait(30)
        return proceed()


@pytest.fixture
def addition() -> Iterator[nnapi.Compilation]:
    with compiled(finished()) as made:
        yield made


@pytest.fixture
def alone() -> Iterator[nnapi.Compilation]:
    """For a single device."""
    with compiled(finished(), ["reference"]) as made:
        yield made


@pytest.fixture
def memory() -> Iterator[nnapi.Memory]:
    """64 bytes of shared memory."""
    fd = os.memfd_create("test")
    os.ftruncate(fd, 64)
    with nnapi.Memory.create_from_fd(64, BOTH, fd) as made:
        os.close(fd)
        yield made


def ready(
    compilation: nnapi.Compilation,
    out: np.ndarray[Any, Any] | None = None,
    *,
    reusable: bool = False,
) -> nnapi.Execution:
    """An execution of x + x with all arguments."""
    execution = nnapi.Execution(compilation)
    execution.set_reusable(reusable)
    execution.set_input(0, X)
    execution.set_input(1, X)
    execution.set_output(0, np.empty_like(X) if out is None else out)
    return execution


@pytest.mark.usefixtures("nothing_left_open")
class TestValidationTestExecution:
    def test_create(self) -> None:
        with answers(UNEXPECTED_NULL):
            nnapi.Execution(None)  # type: ignore[arg-type]
        with answers(BAD_DATA):
            nnapi.Execution("a compilation")  # type: ignore[arg-type]
        with answers(BAD_STATE):
            nnapi.Execution(nnapi.Compilation(finished()))

    @pytest.mark.parametrize("kind", ["input", "output"])
    def test_set_input_and_set_output(self, addition: nnapi.Compilation, kind: str) -> None:
        execution = nnapi.Execution(addition)
        bind = execution.set_input if kind == "input" else execution.set_output
        room = np.empty_like(X)
        for index in (-1, 2 if kind == "input" else 1, 999, 2**32):
            with answers(BAD_DATA):
                bind(index, room)
        with answers(UNEXPECTED_NULL):
            bind(None, room)  # type: ignore[arg-type]
        with answers(UNEXPECTED_NULL):
            bind(0, None, NBYTES)
        for length in (0, 4, NBYTES - 4, NBYTES + 4, 2**32):
            with answers(BAD_DATA):
                bind(0, room, length)
        for wrong in (
            room.astype(np.float64),
            np.empty(NBYTES + 4, np.uint8),
            np.empty((3, 2), np.float32).T[:, ::2],
            "text",
            np.empty((0,), np.float32),
        ):
            with answers(BAD_DATA):
                bind(0, wrong)
        bind(0, room, NBYTES)
        with answers(BAD_STATE):
            bind(0, room, NBYTES)

    def test_masks_are_not_passed_over(self, addition: nnapi.Compilation) -> None:
        execution, masked = nnapi.Execution(addition), np.ma.masked_array(X, mask=True)
        for bind, plain in ((execution.set_input, "filled"), (execution.set_output, "data")):
            with answers(BAD_DATA, f"is given a masked array, .*; give its {plain}"):
                bind(0, masked)

    def test_an_output_must_be_writable(self, addition: nnapi.Compilation) -> None:
        with answers(BAD_DATA):
            nnapi.Execution(addition).set_output(0, bytes(NBYTES))

    @pytest.mark.parametrize(
        "given",
        [
            nnapi.OperandDesc(nnapi.OperandType.TENSOR_INT32, (2, 3)),
            nnapi.OperandDesc(FLOAT, (2, 3), 0.5),
            nnapi.OperandDesc(FLOAT, (2, 3), 0.0, 1),
            nnapi.OperandDesc(FLOAT, (3, 2)),
            nnapi.OperandDesc(FLOAT, (2, 0)),
            nnapi.OperandDesc(FLOAT, (6,)),
            nnapi.OperandDesc(FLOAT, ()),
            nnapi.OperandDesc(99, (2, 3)),
            (2, 3),
        ],
        ids=str,
    )
    def test_a_type_only_says_what_the_model_leaves_open(
        self, addition: nnapi.Compilation, given: Any
    ) -> None:
        execution = nnapi.Execution(addition)
        for bind in (execution.set_input, execution.set_output):
            with answers(BAD_DATA):
                bind(0, np.empty_like(X), type=given)
            bind(0, np.empty_like(X), type=LOOSE)

    def test_set_input_enable_padding(self, addition: nnapi.Compilation) -> None:
        execution = nnapi.Execution(addition)
        execution.enable_input_and_output_padding(True)
        with answers(BAD_DATA):
            execution.set_input(0, X, NBYTES - 1)
        padded = np.zeros(NBYTES + 8, np.uint8)
        padded[:NBYTES].view(np.float32)[:] = X.reshape(-1)
        execution.set_input(0, padded)
        execution.set_input(1, X)
        out = np.full(NBYTES + 8, 7, np.uint8)
        with answers(BAD_DATA):
            execution.set_output(0, out, NBYTES - 1)
        execution.set_output(0, out)
        execution.compute()
        assert out[:NBYTES].view(np.float32).tolist() == (X + X).reshape(-1).tolist()

    @pytest.mark.parametrize("kind", ["input", "output"])
    def test_set_input_from_memory_and_set_output_from_memory(
        self, addition: nnapi.Compilation, memory: nnapi.Memory, kind: str
    ) -> None:
        execution = nnapi.Execution(addition)
        bind = (
            execution.set_input_from_memory if kind == "input" else execution.set_output_from_memory
        )
        with answers(UNEXPECTED_NULL):
            bind(0, None, 0, NBYTES)  # type: ignore[arg-type]
        with answers(BAD_DATA):
            bind(0, X, 0, NBYTES)  # type: ignore[arg-type]
        for index in (-1, 2 if kind == "input" else 1, 999):
            with answers(BAD_DATA):
                bind(index, memory, 0, NBYTES)
        for offset, length in (
            (0, 0),
            (0, NBYTES - 1),
            (0, NBYTES + 1),
            (64 - NBYTES + 1, NBYTES),
            (64, NBYTES),
            (2**32 - NBYTES, NBYTES),
            (2**32 - 8, NBYTES),
            (-1, NBYTES),
            (0, 2**32),
        ):
            with answers(BAD_DATA):
                bind(0, memory, offset, length)
        bind(0, memory, 4, NBYTES)
        with answers(BAD_STATE):
            bind(0, memory, 4, NBYTES)

    def test_set_input_from_memory_enable_padding(
        self, addition: nnapi.Compilation, memory: nnapi.Memory
    ) -> None:
        execution = nnapi.Execution(addition)
        execution.enable_input_and_output_padding(True)
        with answers(BAD_DATA):
            execution.set_input_from_memory(0, memory, 0, NBYTES - 4)
        with answers(BAD_DATA):
            execution.set_input_from_memory(0, memory, 0, 65)
        execution.set_input_from_memory(0, memory, 0, 32)
        execution.set_input(1, X)
        execution.set_output_from_memory(0, memory, 32, 32)
        execution.compute()
        assert (
            np.frombuffer(memory.store.content(), np.float32)[8:14].tolist()
            == X.reshape(-1).tolist()
        )

    @pytest.mark.parametrize("padded", [False, True], ids=["plain", "EnablePadding"])
    def test_set_input_from_a_hardware_buffer_blob(
        self, addition: nnapi.Compilation, padded: bool
    ) -> None:
        with (
            HardwareBuffer.allocate(64) as buffer,
            nnapi.Memory.create_from_hardware_buffer(buffer) as memory,
        ):
            execution = nnapi.Execution(addition)
            execution.enable_input_and_output_padding(padded)
            for offset, length in ((0, 0), (0, NBYTES - 1), (48, NBYTES), (0, 65)):
                with answers(BAD_DATA):
                    execution.set_input_from_memory(0, memory, offset, length)
            longer = NBYTES + 1
            if not padded:
                with answers(BAD_DATA):
                    execution.set_input_from_memory(0, memory, 0, longer)
                longer = NBYTES
            execution.set_input_from_memory(0, memory, 0, longer)
            execution.set_input(1, X)
            execution.set_output_from_memory(0, memory, 32, NBYTES)
            execution.compute()
            found = np.frombuffer(memory.store.content(), np.float32)[8:14]
            assert found.tolist() == X.reshape(-1).tolist()
            del found

    def test_enable_input_and_output_padding(self, addition: nnapi.Compilation) -> None:
        execution = ready(addition)
        with answers(BAD_STATE):
            execution.enable_input_and_output_padding(True)
        execution.compute()
        with answers(BAD_STATE):
            execution.enable_input_and_output_padding(True)
        with answers(UNEXPECTED_NULL):
            nnapi.Execution(addition).enable_input_and_output_padding(None)  # type: ignore[arg-type]

    def test_set_reusable(self, addition: nnapi.Compilation) -> None:
        execution = ready(addition)
        execution.compute()
        with answers(BAD_STATE):
            execution.set_reusable(True)
        with answers(BAD_STATE):
            execution.compute()

    def test_reusable(self, addition: nnapi.Compilation) -> None:
        x, out = X.copy(), np.empty_like(X)
        execution = nnapi.Execution(addition)
        execution.set_reusable(True)
        execution.set_input(0, x)
        execution.set_input(1, X)
        execution.set_output(0, out)
        for k in range(3):
            x[:] = k
            execution.compute()
            assert out.tolist() == (X + k).tolist()
        with execution.start_compute() as event:
            event.wait()
        with answers(BAD_STATE):
            execution.set_input(0, x)

    @pytest.mark.parametrize("missing", ["input", "output", "both inputs"])
    def test_arguments_that_are_not_set(self, addition: nnapi.Compilation, missing: str) -> None:
        for run in MODES.values():
            execution = nnapi.Execution(addition)
            execution.set_input(0, X)
            if missing == "output":
                execution.set_input(1, X)
            else:
                execution.set_output(0, np.empty_like(X))
            with answers(BAD_DATA):
                run(execution)
            # Nothing has begun: the rest can be set.
            if missing == "output":
                execution.set_output(0, np.empty_like(X))
            else:
                execution.set_input(1, X)
            run(execution)

    def test_start_compute_twice(self) -> None:
        device = Gate()
        with compiled(finished(), [device]) as compilation:
            execution = ready(compilation, reusable=True)
            event = execution.start_compute()
            assert device.entered.wait(30)
            try:
                for run in MODES.values():
                    with answers(BAD_STATE, "under way"):
                        run(execution)
                with answers(BAD_STATE, "under way"):
                    execution.set_loop_timeout(1)
                with answers(BAD_STATE):
                    execution.get_output_operand_rank(0)
            finally:
                device.opened.set()
            event.wait()
            execution.compute()
            event.close()

    def test_event_wait(self, addition: nnapi.Compilation) -> None:
        with ready(addition).start_compute() as event:
            event.wait()
            event.wait()
        event.close()
        with answers(BAD_STATE):
            event.wait()

    def test_get_output_operand_rank_and_dimensions(self, addition: nnapi.Compilation) -> None:
        execution = ready(addition)
        for ask in (
            execution.get_output_operand_rank,
            execution.get_output_operand_dimensions,
            execution.is_output_sufficient,
        ):
            with answers(BAD_STATE):
                ask(0)
        execution.compute()
        assert execution.get_output_operand_rank(0) == 2
        assert execution.get_output_operand_dimensions(0) == (2, 3)
        assert execution.is_output_sufficient(0)
        for index in (-1, 1, 999):
            with answers(BAD_DATA):
                execution.get_output_operand_rank(index)

    def test_set_loop_timeout(self, addition: nnapi.Compilation) -> None:
        execution = ready(addition)
        execution.set_loop_timeout(0)
        execution.set_loop_timeout(2**64 - 1)
        with answers(BAD_DATA):
            execution.set_loop_timeout(-1)
        execution.compute()
        with answers(BAD_STATE):
            execution.set_loop_timeout(1)

    def test_closed(self, addition: nnapi.Compilation) -> None:
        execution = ready(addition)
        execution.close()
        execution.close()
        with answers(BAD_STATE):
            execution.compute()
        with answers(BAD_STATE):
            execution.set_loop_timeout(1)


class TestValidationTestCompilationForDevices:
    def test_execution_set_timeout(
        self, addition: nnapi.Compilation, alone: nnapi.Compilation
    ) -> None:
        with answers(BAD_DATA):
            nnapi.Execution(addition).set_timeout(0)
        with compiled(finished(), ["reference", "xnnpack"]) as two, answers(BAD_DATA):
            nnapi.Execution(two).set_timeout(10**9)
        execution = ready(alone)
        for duration in (0, 1, 2**64 - 1):
            execution.set_timeout(duration)
        with answers(BAD_DATA):
            execution.set_timeout(2**64)
        execution.compute()
        with answers(BAD_STATE):
            execution.set_timeout(0)

    def test_execution_timing(self, addition: nnapi.Compilation, alone: nnapi.Compilation) -> None:
        with answers(BAD_DATA):
            nnapi.Execution(addition).set_measure_timing(True)
        for measured in (False, True):
            execution = ready(alone)
            execution.set_measure_timing(measured)
            with answers(BAD_STATE):
                execution.get_duration(nnapi.DurationCode.ON_HARDWARE)
            execution.compute()
            with answers(BAD_STATE):
                execution.set_measure_timing(True)
            for code in nnapi.DurationCode:
                if measured:
                    assert 0 <= execution.get_duration(code) <= nnapi.UNKNOWN_DURATION
                    assert execution.get_duration(code) == execution.get_duration(code % 2)
                else:
                    with answers(BAD_STATE):
                        execution.get_duration(code)
            for wrong in (4, -1, 999):
                with answers(BAD_DATA):
                    execution.get_duration(wrong)


@pytest.mark.usefixtures("nothing_left_open")
class TestValidationTestBurst:
    def test_burst_compute_null(self, addition: nnapi.Compilation) -> None:
        with answers(UNEXPECTED_NULL):
            ready(addition).burst_compute(None)  # type: ignore[arg-type]
        with answers(UNEXPECTED_NULL):
            nnapi.Burst(None)  # type: ignore[arg-type]

    def test_burst_compute_bad_compilation(self) -> None:
        with answers(BAD_STATE):
            nnapi.Burst(nnapi.Compilation(finished()))
        with answers(BAD_DATA):
            nnapi.Burst("a compilation")  # type: ignore[arg-type]

    def test_burst_compute_different_compilations(self, addition: nnapi.Compilation) -> None:
        with compiled(finished()) as other, nnapi.Burst(other) as burst:
            execution = ready(addition)
            with answers(BAD_DATA):
                execution.burst_compute(burst)
            execution.compute()

    def test_burst_compute_concurrent(self) -> None:
        device = Gate()
        with compiled(finished(), [device]) as compilation, nnapi.Burst(compilation) as burst:
            first, second = ready(compilation), ready(compilation)
            thread = threading.Thread(target=first.burst_compute, args=(burst,))
            thread.start()
            assert device.entered.wait(30)
            try:
                with answers(BAD_STATE, "burst"):
                    second.burst_compute(burst)
            finally:
                device.opened.set()
                thread.join()
            second.burst_compute(burst)

    def test_many_runs(self, addition: nnapi.Compilation) -> None:
        with nnapi.Burst(addition) as burst:
            outs = [np.empty_like(X) for _ in range(3)]
            for out in outs:
                ready(addition, out).burst_compute(burst)
            assert all(out.tolist() == (X + X).tolist() for out in outs)
        with answers(BAD_STATE):
            ready(addition).burst_compute(burst)

    @pytest.mark.parametrize("first", ["burst", "memory"])
    def test_free_burst_before_memory_and_free_memory_before_burst(
        self, addition: nnapi.Compilation, first: str
    ) -> None:
        with HardwareBuffer.allocate(64) as buffer:
            memory = nnapi.Memory.create_from_hardware_buffer(buffer)
        burst = nnapi.Burst(addition)
        execution = nnapi.Execution(addition)
        execution.set_input_from_memory(0, memory, 0, NBYTES)
        execution.set_input(1, X)
        execution.set_output_from_memory(0, memory, 32, NBYTES)
        execution.burst_compute(burst)
        with does_not_raise():
            for made in (burst, memory) if first == "burst" else (memory, burst):
                made.close()
            execution.close()


@pytest.mark.usefixtures("no_descriptor_leaks")
class TestValidationTestEvent:
    def test_create_from_sync_fence_fd(self) -> None:
        for wrong in (-1, -7, 10**6):
            with answers(BAD_DATA):
                nnapi.Event.create_from_sync_fence_fd(wrong)
        with answers(UNEXPECTED_NULL):
            nnapi.Event.create_from_sync_fence_fd(None)  # type: ignore[arg-type]
        read, write = os.pipe()
        with nnapi.Event.create_from_sync_fence_fd(read) as event:
            os.close(read)
            with pytest.raises(TimeoutError):
                event.outcome(0)
            os.write(write, b"x")
            event.wait()
        os.close(write)

    def test_a_fence_in_error(self) -> None:
        read, write = os.pipe()
        with nnapi.Event.create_from_sync_fence_fd(write) as event:
            os.close(read)
            with answers(OP_FAILED):
                event.wait()
        os.close(write)

    def test_get_sync_fence_fd(self, addition: nnapi.Compilation) -> None:
        with ready(addition).start_compute() as event:
            event.wait()
            with answers(BAD_DATA):
                event.get_sync_fence_fd()
        with ready(addition).start_compute_with_dependencies([]) as event:
            fds = [event.get_sync_fence_fd()]
            event.wait()
            fds.append(event.get_sync_fence_fd())
            assert len(set(fds)) == 2
            for fd in fds:
                poll = select.poll()
                poll.register(fd, select.POLLIN)
                ((_, events),) = poll.poll(30_000)
                assert events & select.POLLIN
                with nnapi.Event.create_from_sync_fence_fd(fd) as other:
                    again = other.get_sync_fence_fd()
                    other.wait()
                for each in (fd, again):
                    os.close(each)

    def test_the_fence_of_a_run_that_failed(self) -> None:
        with compiled(unary(dimensions=(0, 3), output=(2, 3)), ["reference"]) as compilation:
            execution = nnapi.Execution(compilation)
            execution.set_input(
                0, np.zeros((4, 3), np.float32), type=nnapi.OperandDesc(FLOAT, (4, 3))
            )
            execution.set_output(0, np.zeros((2, 3), np.float32))
            with execution.start_compute_with_dependencies([]) as event:
                fd = event.get_sync_fence_fd()
                with pytest.raises(nnapi.NnapiError, match="shape") as caught:
                    event.wait()
                with nnapi.Event.create_from_sync_fence_fd(fd) as other, answers(caught.value.code):
                    other.wait()
                os.close(fd)


@pytest.mark.usefixtures("no_descriptor_leaks")
class TestFencedExecution:
    def test_fenced_run_waits_for_its_dependencies(self, addition: nnapi.Compilation) -> None:
        signal, fence = fence_pair()
        dependency = nnapi.Event.create_from_sync_fence_fd(fence.fileno())
        fence.close()
        out = np.zeros_like(X)
        with ready(addition, out).start_compute_with_dependencies([dependency]) as event:
            with pytest.raises(TimeoutError):
                event.outcome(20_000_000)
            assert not out.any()
            signal.signal()
            event.wait()
            assert out.tolist() == (X + X).tolist()
        dependency.close()

    def test_fenced_run_waits_for_the_run_before(self, addition: nnapi.Compilation) -> None:
        middle, out = np.zeros_like(X), np.zeros_like(X)
        second = nnapi.Execution(addition)
        second.set_input(0, middle)
        second.set_input(1, X)
        second.set_output(0, out)
        with (
            ready(addition, middle).start_compute_with_dependencies([]) as first,
            second.start_compute_with_dependencies([first]) as last,
        ):
            last.wait()
        assert out.tolist() == (3 * X).tolist()

    def test_a_failed_dependency_fails_the_run(self, addition: nnapi.Compilation) -> None:
        signal, fence = fence_pair()
        signal.close()
        execution = ready(addition, reusable=True)
        with (
            nnapi.Event.create_from_sync_fence_fd(fence.fileno()) as dependency,
            execution.start_compute_with_dependencies([dependency]) as event,
            answers(OP_FAILED, "waits for"),
        ):
            event.wait()
        fence.close()
        with answers(BAD_STATE):
            execution.get_output_operand_rank(0)
        execution.compute()

    def test_arguments(self, addition: nnapi.Compilation, alone: nnapi.Compilation) -> None:
        for wrong, code in ((None, UNEXPECTED_NULL), ([None], UNEXPECTED_NULL), ([3], BAD_DATA)):
            with answers(code):
                ready(addition).start_compute_with_dependencies(wrong)  # type: ignore[arg-type]
        with answers(BAD_DATA):
            ready(addition).start_compute_with_dependencies([], 10**9)
        with ready(alone).start_compute_with_dependencies([], 60 * 10**9) as event:
            event.wait()

    def test_outputs_must_be_known(self) -> None:
        with compiled(unary(dimensions=(0, 3))) as compilation:
            execution = nnapi.Execution(compilation)
            execution.set_input(0, X, type=LOOSE)
            execution.set_output(0, np.empty(100, np.uint8))
            with answers(BAD_DATA, "unknown shape"):
                execution.start_compute_with_dependencies([])
            execution.compute()

    def test_fenced_execution_reports_output_shapes(self) -> None:
        signal, fence = fence_pair()
        out = np.zeros_like(X)
        with (
            compiled(unary(dimensions=(0, 3))) as compilation,
            nnapi.Event.create_from_sync_fence_fd(fence.fileno()) as dependency,
        ):
            execution = nnapi.Execution(compilation)
            execution.set_input(0, X, type=LOOSE)
            execution.set_output(0, out, type=LOOSE)
            with execution.start_compute_with_dependencies([dependency]) as event:
                with pytest.raises(TimeoutError):
                    event.outcome(20_000_000)
                signal.signal()
                event.wait()
        assert out.tolist() == X.tolist()
        fence.close()

    def test_drivers_get_the_fences(self) -> None:
        """One with fenced execution of its own waits by itself."""
        device = RecordingDevice(ReferenceDevice(), "recording")
        with (
            compiled(finished(), [device]) as compilation,
            ready(compilation).start_compute_with_dependencies([]) as first,
            ready(compilation).start_compute_with_dependencies([first]) as second,
        ):
            second.wait()
        calls = [c.arguments for c in device.calls if c.method == "execute_fenced"]
        assert sorted(len(arguments[1]) for arguments in calls) == [0, 1]

    def test_a_deadline_while_it_waits(self, alone: nnapi.Compilation) -> None:
        signal, fence = fence_pair()
        execution = ready(alone)
        execution.set_timeout(500_000_000)
        with (
            nnapi.Event.create_from_sync_fence_fd(fence.fileno()) as dependency,
            execution.start_compute_with_dependencies([dependency]) as event,
            answers(nnapi.ResultCode.MISSED_DEADLINE_TRANSIENT),
        ):
            event.wait()
        fence.close()
        signal.close()


def test_signals_are_closed() -> None:
    """What the tests above rely on: a signal that is let go of unsignalled fails its fence."""
    signal, fence = fence_pair()
    assert isinstance(signal, FenceSignal)
    signal.close()
    assert fence.error() is not None
    fence.close()
