"""NNAPI's own tests of executions, by their names: TestExecution, TestMemory, TestControlFlow,
TestUnspecifiedDimensions, TestUnknownDimensions and TestFree (NNAPI sections 5.4, 6.8, 7.3 and
10.6).
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import pytest

from penstock import nnapi
from penstock.drivers.reference import ReferenceDevice
from penstock.errors import ErrorStatus
from penstock.hal import Device, ExecutionResult, Timing
from penstock.hal.fence import fence_pair
from penstock.memory import PROT_READ, PROT_WRITE, HardwareBuffer
from penstock.nnapi.codes import STATUS_CODES
from penstock.testing.doubles import FaultyDevice, InterceptingDevice, RecordingDevice, SlowDevice
from tests.checked import does_not_raise
from tests.support_devices import NumpyDevice
from tests.support_nnapi_drivers import DOMAINS, EXECUTES, STATUS_LEVELS, STATUSES, StatusDriver
from tests.unit.nnapi.building import FLOAT, MODES, answers, compiled, finished, fuse, unary

BOTH: Final = PROT_READ | PROT_WRITE
X: Final = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.mark.parametrize("reusable", [False, True], ids=["once", "reusable"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("level", STATUS_LEVELS)
@pytest.mark.parametrize("door", ["in process", "isolated"])
@pytest.mark.parametrize("status", ErrorStatus, ids=lambda s: s.name)
class TestExecution:
    def test_wait(
        self,
        status: ErrorStatus,
        level: int,
        mode: str,
        reusable: bool,
        door: str,
        request: pytest.FixtureRequest,
    ) -> None:
        out = np.full_like(X, -1)
        device: Device = StatusDriver(level, status)
        if door == "isolated":
            hosted = request.getfixturevalue("nnapi_host")
            device = hosted[len(DOMAINS) + STATUSES.index((level, status))]
        with compiled(finished(), [device]) as compilation:
            execution = nnapi.Execution(compilation)
            execution.set_reusable(reusable)
            execution.set_input(0, X)
            execution.set_input(1, X)
            execution.set_output(0, out)
            for _ in range(2 if reusable else 1):
                if status is ErrorStatus.NONE:
                    MODES[mode](execution)
                    assert out.tolist() == (X + X).tolist()
                    assert execution.get_output_operand_dimensions(0) == (2, 3)
                    continue
                with pytest.raises(nnapi.NnapiError) as caught:
                    MODES[mode](execution)
                assert caught.value.code in _codes(status)
                with answers(nnapi.ResultCode.BAD_STATE):
                    execution.get_output_operand_rank(0)
            if not reusable:
                with answers(nnapi.ResultCode.BAD_STATE):
                    MODES[mode](execution)


def _codes(status: ErrorStatus) -> set[nnapi.ResultCode]:
    """What a run may answer whose device answers *status*."""
    if status is ErrorStatus.OUTPUT_INSUFFICIENT_SIZE:
        # Of outputs of known sizes that is no answer that can be believed.
        return {nnapi.ResultCode.OP_FAILED, nnapi.ResultCode.OUTPUT_INSUFFICIENT_SIZE}
    return {STATUS_CODES[status]}


class TestFallback:
    """A compilation for no devices in particular repeats on the reference device what another fails
    at.
    """

    @pytest.mark.parametrize("mode", MODES)
    def test_a_step_that_fails(self, mode: str, only: Callable[..., None]) -> None:
        quick = NumpyDevice("faulty", {"ADD"}, {"float32": (0.5, 2.0)})
        only(FaultyDevice(quick, dict.fromkeys(EXECUTES, "always")), ReferenceDevice())
        out = np.empty_like(X)
        with compiled(finished()) as compilation:
            execution = nnapi.Execution(compilation)
            execution.set_input(0, X)
            execution.set_input(1, X)
            execution.set_output(0, out)
            MODES[mode](execution)
            assert out.tolist() == (X + X).tolist()
            (step,) = execution.receipt.steps
            assert (step.device, step.fallback_from) == ("reference", "faulty")


class TestReuse:
    def test_drivers_bind_what_comes_again(self) -> None:
        device = RecordingDevice(ReferenceDevice(), "recording")
        x, out = X.copy(), np.empty_like(X)
        with compiled(finished(), [device]) as compilation:
            execution = nnapi.Execution(compilation)
            execution.set_reusable(True)
            execution.set_input(0, x)
            execution.set_input(1, X)
            execution.set_output(0, out)
            for k in range(6):
                x[:] = k
                MODES["async" if k % 2 else "sync"](execution)
                assert out.tolist() == (X + k).tolist()
                assert execution.receipt.copies == ()
            called = Counter(c.method for c in device.calls)
            assert called["create_reusable_execution"] == 1
            assert called["reusable_execute"] >= 3
            assert called["execute"] + called["reusable_execute"] == 6
            execution.close()

    def test_memory_that_is_closed_meanwhile(self) -> None:
        with HardwareBuffer.allocate(64) as buffer:
            memory = nnapi.Memory.create_from_hardware_buffer(buffer)
        with compiled(unary()) as compilation, nnapi.Execution(compilation) as execution:
            execution.set_reusable(True)
            execution.set_input_from_memory(0, memory, 0, 24)
            execution.set_output(0, np.empty_like(X))
            execution.compute()
            memory.close()
            with answers(nnapi.ResultCode.BAD_STATE):
                execution.compute()

    def test_no_thread_is_left(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(_: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        with compiled(unary()) as compilation:
            execution = nnapi.Execution(compilation)
            execution.set_input(0, X)
            execution.set_output(0, np.empty_like(X))
            with monkeypatch.context() as patched:
                patched.setattr(threading.Thread, "start", refuse)
                with answers(nnapi.ResultCode.RESOURCE_EXHAUSTED_TRANSIENT):
                    execution.start_compute()
            execution.compute()

    @pytest.mark.parametrize("priority", nnapi.Priority)
    def test_the_priority_reaches_the_driver(self, priority: nnapi.Priority) -> None:
        device = RecordingDevice(ReferenceDevice(), "recording")
        with nnapi.Compilation.create_for_devices(unary(), [device]) as compilation:
            compilation.set_priority(priority)
            compilation.finish()
            execution = nnapi.Execution(compilation)
            execution.set_input(0, X)
            execution.set_output(0, np.empty_like(X))
            execution.set_loop_timeout(10**12)
            execution.compute()
        (config,) = [c.arguments[1] for c in device.calls if c.method == "execute"]
        assert config.priority == priority.name.lower()
        assert config.loop_timeout_ns == nnapi.get_maximum_loop_timeout()


class Timed(InterceptingDevice):
    """The reference device; it says what its executions took."""

    def __init__(self, timing: Timing) -> None:
        super().__init__(ReferenceDevice(), "timed")
        self.timing = timing

    def intercept(self, method: str, arguments: tuple[Any, ...], proceed: Callable[[], Any]) -> Any:
        result = proceed()
        if isinstance(result, ExecutionResult):
            return ExecutionResult(result.output_shapes, self.timing)
        return result


class TestTiming:
    @pytest.mark.parametrize("mode", ["sync", "async", "burst"])
    @pytest.mark.parametrize(
        ("timing", "expected"),
        [
            (Timing(10, 30), (10, 30)),
            (Timing(), (nnapi.UNKNOWN_DURATION, nnapi.UNKNOWN_DURATION)),
            (Timing(None, 7), (nnapi.UNKNOWN_DURATION, 7)),
            (Timing(2**64, 2**65), (2**64 - 2, 2**64 - 2)),
        ],
        ids=["both", "neither", "driver", "huge"],
    )
    def test_get_duration(self, mode: str, timing: Timing, expected: tuple[int, int]) -> None:
        with compiled(finished(), [Timed(timing)]) as compilation:
            execution = nnapi.Execution(compilation)
            execution.set_measure_timing(True)
            execution.set_input(0, X)
            execution.set_input(1, X)
            execution.set_output(0, np.empty_like(X))
            MODES[mode](execution)
            for first in (nnapi.DurationCode.ON_HARDWARE, nnapi.DurationCode.FENCED_ON_HARDWARE):
                found = execution.get_duration(first), execution.get_duration(first + 1)
                assert found == expected

    def test_a_run_that_failed_has_none(self) -> None:
        with compiled(finished(), [StatusDriver(8, ErrorStatus.GENERAL_FAILURE)]) as compilation:
            execution = nnapi.Execution(compilation)
            execution.set_measure_timing(True)
            execution.set_input(0, X)
            execution.set_input(1, X)
            execution.set_output(0, np.empty_like(X))
            with answers(nnapi.ResultCode.OP_FAILED):
                execution.compute()
            with answers(nnapi.ResultCode.BAD_STATE):
                execution.get_duration(0)


class TestDeadlines:
    def test_none_that_is_left(self) -> None:
        """Persistent where no time was left at first, transient where it ran out."""
        slow = SlowDevice(ReferenceDevice(), dict.fromkeys(EXECUTES, 30.0), "slow")
        with compiled(finished(), [slow]) as compilation:
            for duration, code, words in (
                (1, nnapi.ResultCode.MISSED_DEADLINE_PERSISTENT, "the timeout of 1 ns had passed"),
                (30_000_000, nnapi.ResultCode.MISSED_DEADLINE_TRANSIENT, None),
            ):
                execution = nnapi.Execution(compilation)
                execution.set_input(0, X)
                execution.set_input(1, X)
                execution.set_output(0, np.empty_like(X))
                execution.set_timeout(duration)
                began = time.monotonic()
                with answers(code, words):
                    execution.compute()
                assert time.monotonic() - began < 20

    def test_devices_below_level_4_know_none(self) -> None:
        with compiled(finished(), [StatusDriver(3, ErrorStatus.NONE)]) as compilation:
            execution = nnapi.Execution(compilation)
            execution.set_input(0, X)
            execution.set_input(1, X)
            out = np.empty_like(X)
            execution.set_output(0, out)
            execution.set_timeout(1)
            execution.compute()
            assert out.tolist() == (X + X).tolist()

    def test_a_duration_after_the_fences(self) -> None:
        signal, fence = fence_pair()
        with (
            compiled(endless(), ["reference"]) as compilation,
            nnapi.Event.create_from_sync_fence_fd(fence.fileno()) as dependency,
        ):
            execution = nnapi.Execution(compilation)
            execution.set_loop_timeout(nnapi.get_maximum_loop_timeout())
            execution.set_input(0, np.zeros(1, np.float32))
            execution.set_output(0, np.zeros(1, np.float32))
            with execution.start_compute_with_dependencies([dependency], 40_000_000) as event:
                # What passes before the fences have signalled does not count.
                with pytest.raises(TimeoutError):
                    event.outcome(80_000_000)
                began = time.monotonic()
                signal.signal()
                with answers(nnapi.ResultCode.MISSED_DEADLINE_TRANSIENT):
                    event.wait()
                assert 0.03 < time.monotonic() - began < 10
        fence.close()


@pytest.mark.usefixtures("nothing_left_open")
class TestMemory:
    """z = (x + c1) * c2, its constants, input and output in memories of one kind."""

    @staticmethod
    def constants(memory: nnapi.Memory, offsets: tuple[int, int]) -> nnapi.Model:
        model = nnapi.Model()
        x, c1, h, c2, z = (model.add_operand(FLOAT, (3, 4)) for _ in range(5))
        for operand, offset in zip((c1, c2), offsets, strict=True):
            model.set_operand_value_from_memory(operand, memory, offset, 48)
        model.add_operation("ADD", [x, c1, fuse(model)], [h])
        model.add_operation("MUL", [h, c2, fuse(model)], [z])
        model.identify_inputs_and_outputs([x], [z])
        model.finish()
        return model

    def check(self, memories: list[nnapi.Memory], at: tuple[int, int]) -> None:
        weights, inputs, outputs = memories
        x = np.arange(12, dtype=np.float32)
        inputs.store.content()[8:56].view(np.float32)[:] = x
        for k, offset in enumerate(at):
            weights.store.content()[offset : offset + 48].view(np.float32)[:] = k + 2
        with compiled(self.constants(weights, at)) as compilation:
            execution = nnapi.Execution(compilation)
            execution.set_input_from_memory(0, inputs, 8, 48)
            execution.set_output_from_memory(0, outputs, 20, 48)
            execution.compute()
            assert execution.receipt.copies == ()
        found = outputs.store.content()
        assert found[20:68].view(np.float32).tolist() == ((x + 2) * 3).tolist()
        assert not found[:20].any()
        assert not found[68:].any()

    def test_fd(self) -> None:
        fds = [os.memfd_create("test") for _ in range(3)]
        for fd in fds:
            os.ftruncate(fd, 8192)
        memories = [
            nnapi.Memory.create_from_fd(size, protect, fd, offset)
            for fd, size, protect, offset in zip(
                fds, (4096, 64, 80), (BOTH, BOTH, BOTH), (4096, 0, 4096), strict=True
            )
        ]
        for fd in fds:
            os.close(fd)
        self.check(memories, at=(20, 100))
        for memory in memories:
            memory.close()

    def test_a_hardware_buffer(self) -> None:
        memories = []
        for size in (256, 64, 80):
            with HardwareBuffer.allocate(size) as buffer:
                memories.append(nnapi.Memory.create_from_hardware_buffer(buffer))
        self.check(memories, at=(20, 100))
        for memory in memories:
            memory.close()

    def test_elements_at_odd_places(self) -> None:
        """They are copied, and the receipt says so."""
        fd = os.memfd_create("test")
        os.ftruncate(fd, 64)
        with nnapi.Memory.create_from_fd(64, BOTH, fd) as memory, compiled(unary()) as compilation:
            os.close(fd)
            memory.store.content()[1:25] = X.reshape(-1).view(np.uint8)
            execution = nnapi.Execution(compilation)
            execution.set_input_from_memory(0, memory, 1, 24)
            execution.set_output_from_memory(0, memory, 31, 24)
            execution.compute()
            assert memory.store.content()[31:55].tobytes() == X.tobytes()
            assert [c.nbytes for c in execution.receipt.copies] == [24, 24]
            execution.close()


class TestControlFlow:
    def test_duration(self) -> None:
        assert nnapi.get_default_loop_timeout() == 2_000_000_000
        assert nnapi.get_maximum_loop_timeout() == 15_000_000_000

    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize("devices", [None, ["reference"]], ids=["any", "reference"])
    def test_infinite_loop(self, mode: str, devices: list[str] | None) -> None:
        with compiled(endless(), devices) as compilation:
            execution = nnapi.Execution(compilation)
            execution.set_loop_timeout(50_000_000)
            execution.set_input(0, np.zeros(1, np.float32))
            execution.set_output(0, np.zeros(1, np.float32))
            began = time.monotonic()
            with answers(nnapi.ResultCode.MISSED_DEADLINE_TRANSIENT):
                MODES[mode](execution)
            assert time.monotonic() - began < 1.9


def endless() -> nnapi.Model:
    """while x == x: x = x + x."""
    condition = nnapi.Model()
    x = condition.add_operand(FLOAT, (1,))
    go = condition.add_operand(nnapi.OperandType.TENSOR_BOOL8, (1,))
    condition.add_operation("EQUAL", [x, x], [go])
    condition.identify_inputs_and_outputs([x], [go])
    condition.finish()
    body = nnapi.Model()
    x, y = body.add_operand(FLOAT, (1,)), body.add_operand(FLOAT, (1,))
    body.add_operation("ADD", [x, x, fuse(body)], [y])
    body.identify_inputs_and_outputs([x], [y])
    body.finish()
    model = nnapi.Model()
    parts = [model.add_operand(nnapi.OperandType.SUBGRAPH) for _ in range(2)]
    for part, made in zip(parts, (condition, body), strict=True):
        model.set_operand_value_from_model(part, made)
    x, y = model.add_operand(FLOAT, (1,)), model.add_operand(FLOAT, (1,))
    model.add_operation("WHILE", [*parts, x], [y])
    model.identify_inputs_and_outputs([x], [y])
    model.finish()
    return model


KINDS: Final = {
    "float32": (FLOAT, np.float32, 0.0),
    "quant8": (nnapi.OperandType.TENSOR_QUANT8_ASYMM, np.uint8, 1.0),
    "float16": (nnapi.OperandType.TENSOR_FLOAT16, np.float16, 0.0),
}
KNOWN: Final = {"specified": (3, 4), "dimension": (3, 0), "dimensions": (0, 0), "rank": ()}
"""What a model or an execution says of dimensions (3, 4)."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("at_model", KNOWN)
@pytest.mark.parametrize("at_execution", ["nothing", *KNOWN])
class TestUnspecifiedDimensions:
    """Every combination of what the model and the execution say of an input's and an output's
    dimensions.
    """

    def test_input(self, kind: str, at_model: str, at_execution: str) -> None:
        operand, dtype, scale = KINDS[kind]
        x = np.arange(12, dtype=dtype).reshape(3, 4)
        out = np.empty_like(x)
        model = unary(dimensions=KNOWN[at_model], kind=operand, scale=scale)
        with compiled(model) as compilation:
            execution = nnapi.Execution(compilation)
            given = None
            if at_execution != "nothing":
                given = nnapi.OperandDesc(operand, KNOWN[at_execution], scale)
            whole = "specified" in {at_model, at_execution}
            valid = _refines(KNOWN[at_model], given)
            if not valid or not whole or (given and at_execution != "specified"):
                with answers(nnapi.ResultCode.BAD_DATA):
                    execution.set_input(0, x, type=given)
                return
            execution.set_input(0, x, type=given)
            execution.set_output(0, out)
            execution.compute()
            assert out.tolist() == x.tolist()
            assert execution.get_output_operand_dimensions(0) == (3, 4)

    def test_output(self, kind: str, at_model: str, at_execution: str) -> None:
        operand, dtype, scale = KINDS[kind]
        x = np.arange(12, dtype=dtype).reshape(3, 4)
        model = unary(dimensions=(0, 0), output=KNOWN[at_model], kind=operand, scale=scale)
        with compiled(model) as compilation:
            execution = nnapi.Execution(compilation)
            execution.set_input(0, x, type=nnapi.OperandDesc(operand, (3, 4), scale))
            given = None
            if at_execution != "nothing":
                given = nnapi.OperandDesc(operand, KNOWN[at_execution], scale)
            out = np.empty_like(x)
            if not _refines(KNOWN[at_model], given):
                with answers(nnapi.ResultCode.BAD_DATA):
                    execution.set_output(0, out, type=given)
                return
            execution.set_output(0, out, type=given)
            execution.compute()
            assert out.tolist() == x.tolist()
            assert execution.get_output_operand_dimensions(0) == (3, 4)


def _refines(known: tuple[int, ...], given: nnapi.OperandDesc | None) -> bool:
    if given is None or not known:
        return True
    return len(given.dimensions) == len(known) and all(
        k in {0, g} for k, g in zip(known, given.dimensions, strict=True)
    )


class TestUnknownDimensions:
    """Outputs whose size only a run tells, in buffers of any length."""

    @pytest.fixture
    def dynamic(self) -> Iterator[nnapi.Compilation]:
        with compiled(unary(dimensions=(0, 3))) as made:
            yield made

    @pytest.mark.parametrize("mode", ["sync", "async", "burst"])
    def test_insufficient(self, dynamic: nnapi.Compilation, mode: str) -> None:
        x = np.arange(12, dtype=np.float32).reshape(4, 3)
        for length in (1, 47):
            execution = nnapi.Execution(dynamic)
            execution.set_input(0, x, type=nnapi.OperandDesc(FLOAT, (4, 3)))
            room = np.full(64, 9, np.uint8)
            execution.set_output(0, room, length)
            with answers(nnapi.ResultCode.OUTPUT_INSUFFICIENT_SIZE):
                MODES[mode](execution)
            assert execution.get_output_operand_rank(0) == 2
            assert execution.get_output_operand_dimensions(0) == (4, 3)
            assert not execution.is_output_sufficient(0)
            assert (room == 9).all()
            with answers(nnapi.ResultCode.BAD_STATE):
                execution.get_duration(0)
        for length in (48, 64):
            again = nnapi.Execution(dynamic)
            again.set_input(0, x, type=nnapi.OperandDesc(FLOAT, (4, 3)))
            room = np.full(64, 9, np.uint8)
            again.set_output(0, room, length)
            MODES[mode](again)
            assert room[:48].view(np.float32).tolist() == x.reshape(-1).tolist()
            assert (room[48:] == 9).all()
            assert again.is_output_sufficient(0)

    def test_another_shape_than_the_execution_says(self, dynamic: nnapi.Compilation) -> None:
        execution = nnapi.Execution(dynamic)
        execution.set_input(0, np.zeros((4, 3), np.float32), type=nnapi.OperandDesc(FLOAT, (4, 3)))
        execution.set_output(0, np.zeros((5, 3), np.float32), type=nnapi.OperandDesc(FLOAT, (5, 3)))
        with answers(nnapi.ResultCode.OP_FAILED):
            execution.compute()

    @pytest.mark.parametrize("shapes", list(itertools.permutations([1, 2, 5])))
    def test_shapes_one_after_another(
        self, dynamic: nnapi.Compilation, shapes: tuple[int, ...]
    ) -> None:
        for rows in shapes:
            x = np.random.default_rng(rows).normal(size=(rows, 3)).astype(np.float32)
            out = np.empty_like(x)
            execution = nnapi.Execution(dynamic)
            execution.set_input(0, x, type=nnapi.OperandDesc(FLOAT, (rows, 3)))
            execution.set_output(0, out)
            execution.compute()
            assert out.tolist() == np.maximum(x, 0).tolist()

    def test_an_output_that_nobody_wants(self) -> None:
        model = nnapi.Model()
        x = model.add_operand(FLOAT, (4,))
        values, places = model.add_operand(FLOAT, (2,)), model.add_operand(3 + 1, (2,))
        k = model.add_operand(nnapi.OperandType.INT32)
        model.set_operand_value(k, 2)
        model.add_operation("TOPK_V2", [x, k], [values, places])
        model.identify_inputs_and_outputs([x], [values, places])
        model.finish()
        with compiled(model) as compilation:
            out = np.zeros(2, np.int32)
            execution = nnapi.Execution(compilation)
            execution.set_input(0, np.array([1, 4, 2, 3], np.float32))
            execution.set_output(0, None)
            execution.set_output(1, out)
            execution.compute()
            assert out.tolist() == [1, 3]


class TestOmittedInputs:
    """Optional operands that an execution gives no value."""

    @staticmethod
    def looking_up() -> nnapi.Model:
        """An LSH projection, whose weights are optional."""
        model = nnapi.Model()
        hashes = model.add_operand(FLOAT, (4, 2))
        x = model.add_operand(nnapi.OperandType.TENSOR_INT32, (3, 2))
        weight = model.add_operand(FLOAT, (3,))
        kind = model.add_operand(nnapi.OperandType.INT32)
        model.set_operand_value(kind, 2)
        y = model.add_operand(nnapi.OperandType.TENSOR_INT32, (8,))
        model.add_operation("LSH_PROJECTION", [hashes, x, weight, kind], [y])
        model.identify_inputs_and_outputs([hashes, x, weight], [y])
        model.finish()
        return model

    def test_with_and_without(self) -> None:
        random = np.random.default_rng(3)
        hashes = random.normal(size=(4, 2)).astype(np.float32)
        x = random.integers(0, 100, (3, 2)).astype(np.int32)
        found = []
        with compiled(self.looking_up()) as compilation:
            for weight in (np.ones(3, np.float32), None, None):
                out = np.full(8, -1, np.int32)
                execution = nnapi.Execution(compilation)
                execution.set_input(0, hashes)
                execution.set_input(1, x)
                execution.set_input(2, weight)
                execution.set_output(0, out)
                execution.compute()
                found.append(out.tolist())
        assert found[0] == found[1] == found[2]
        assert set(found[0]) <= {0, 1}

    def test_omitting_a_required_operand_is_bad_data(self) -> None:
        with compiled(finished()) as compilation:
            execution = nnapi.Execution(compilation)
            execution.set_input(0, X)
            execution.set_input(1, None)
            execution.set_output(0, np.empty_like(X))
            with answers(nnapi.ResultCode.BAD_DATA):
                execution.compute()


class TestFree:
    def test_unscheduled_execution(self) -> None:
        with does_not_raise(), compiled(finished()) as compilation:
            nnapi.Execution(compilation).close()
            execution = nnapi.Execution(compilation)
            execution.set_input(0, X)
            execution.close()
            nnapi.Burst(compilation).close()

    def test_unfinished_descriptor(self) -> None:
        with does_not_raise():
            desc = nnapi.MemoryDesc()
            desc.close()
            desc.close()

    def test_event_of_a_run_under_way(self) -> None:
        slow = SlowDevice(ReferenceDevice(), dict.fromkeys(EXECUTES, 0.05), "slow")
        out = np.zeros_like(X)
        with compiled(finished(), [slow]) as compilation:
            execution = nnapi.Execution(compilation)
            execution.set_input(0, X)
            execution.set_input(1, X)
            execution.set_output(0, out)
            execution.start_compute().close()
            assert out.tolist() == (X + X).tolist()
