"""`Execution`: one run of a compilation, or several with the same arguments."""

from __future__ import annotations

import enum
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from penstock.closing import Closing
from penstock.compilation.receipt import Receipt
from penstock.errors import MissedDeadlinePersistent
from penstock.execution.adapters import ReusedRequests
from penstock.execution.burst import Burst as CompiledBurst, burst_of
from penstock.execution.compiled import CompiledModel
from penstock.execution.interface import Outputs
from penstock.hal import ExtensionAttribute
from penstock.ir.types import is_static
from penstock.nnapi import codes, parameters
from penstock.nnapi.compilation import LEVEL_OF_DEADLINES, Burst, Compilation
from penstock.nnapi.devices import with_attribute
from penstock.nnapi.event import Event, Started, check_events
from penstock.nnapi.memory_kinds import Metadata
from penstock.nnapi.ports import Kind, OperandDesc
from penstock.nnapi.running import Answer, Waiting, carry_out
from penstock.nnapi.values import Binding, bind_buffer, bind_memory

if TYPE_CHECKING:
    from penstock.nnapi.memory import Memory

DEFAULT_LOOP_TIMEOUT_NS: Final = 2_000_000_000
MAXIMUM_LOOP_TIMEOUT_NS: Final = 15_000_000_000

UNKNOWN_DURATION: Final = 2**64 - 1
"""The result of `Execution.get_duration` if the duration is unknown."""


class State(enum.Enum):
    """The state of an execution (NNAPI section 1.4)."""

    PREPARATION = "being prepared"
    COMPUTATION = "under way"
    COMPLETED = "completed"


class Execution(Closing):
    """Arguments and settings of a run: `ANeuralNetworksExecution` (NNAPI section 1.4).

    *compilation* must be finished, else BAD_STATE. Arguments and settings are set before the first
    run, each argument once: BAD_STATE otherwise. A run needs all arguments. An execution runs once
    unless it is reusable, by `compute`, `start_compute`, `start_compute_with_dependencies` or
    `burst_compute`; only one run is in flight at a time. Each run reads and writes the caller's
    buffers without a copy.
    """

    def __init__(self, compilation: Compilation) -> None:
        self.compilation = parameters.instance(compilation, Compilation, "the compilation")
        _ = compilation.compiled
        self._bindings: dict[Kind, list[Binding | None]] = {
            kind: [None] * len(ports) for kind, ports in compilation.ports.items()
        }
        self._timeout_ns = 0
        self._loop_timeout_ns = DEFAULT_LOOP_TIMEOUT_NS
        self._measure = self._reusable = self._padded = self._closed = False
        self._attributes: tuple[ExtensionAttribute, ...] = ()
        self._state = State.PREPARATION
        self._answer: Answer | None = None
        self._series: CompiledBurst | None = None
        self._changed = threading.Condition()

    def set_input(
        self, index: int, buffer: Any, length: int | None = None, *, type: OperandDesc | None = None
    ) -> None:
        """Sets input *index* to the value in *buffer*. None omits an optional operand.

        *buffer* is an array of the operand's dtype, or any contiguous buffer of its bytes. *length*
        in bytes is by default that of the buffer. It must be exactly the value's size, or at least
        that size if padding is enabled. *type* states the dimensions that the model leaves unknown;
        then all must be known.
        """
        self._bind("input", index, partial(bind_buffer, type, buffer, length))

    def set_output(
        self, index: int, buffer: Any, length: int | None = None, *, type: OperandDesc | None = None
    ) -> None:
        """Sets the buffer that output *index* is written to, as for an input. None drops the
        output.

        If the shape is unknown, *buffer* may have any length from 1 byte. A run whose value does
        not fit raises OUTPUT_INSUFFICIENT_SIZE.
        """
        self._bind("output", index, partial(bind_buffer, type, buffer, length))

    def set_input_from_memory(
        self,
        index: int,
        memory: Memory,
        offset: int = 0,
        length: int = 0,
        *,
        type: OperandDesc | None = None,
    ) -> None:
        """Sets input *index* to the value in *length* bytes of *memory* from byte *offset*.

        Both must be 0 for hardware buffers that are not BLOBs, and for memory made from a
        descriptor. The latter must have the role. Raises BAD_DATA for bytes outside *memory*.
        """
        bind = partial(bind_memory, self.compilation, type, memory, offset, length)
        self._bind("input", index, bind)

    def set_output_from_memory(
        self,
        index: int,
        memory: Memory,
        offset: int = 0,
        length: int = 0,
        *,
        type: OperandDesc | None = None,
    ) -> None:
        """Sets the memory that output *index* is written to, as for an input."""
        bind = partial(bind_memory, self.compilation, type, memory, offset, length)
        self._bind("output", index, bind)

    def set_timeout(self, duration: int) -> None:
        """Limits a run to *duration* nanoseconds; 0 is no limit.

        Raises BAD_DATA unless the compilation names a single device. Devices below feature level 4
        ignore deadlines.
        """
        with self._preparing():
            nanoseconds = parameters.nanoseconds(duration, "the timeout")
            self.compilation.only_device("a timeout")
            self._timeout_ns = nanoseconds

    def set_loop_timeout(self, duration: int) -> None:
        """Limits each WHILE to *duration* nanoseconds, at most `get_maximum_loop_timeout`."""
        with self._preparing():
            nanoseconds = parameters.nanoseconds(duration, "the loop timeout")
            self._loop_timeout_ns = min(nanoseconds, MAXIMUM_LOOP_TIMEOUT_NS)

    def set_measure_timing(self, measure: bool) -> None:
        """Sets whether runs are timed. BAD_DATA unless the compilation names a single device."""
        with self._preparing():
            wanted = parameters.flag(measure, "measure")
            self.compilation.only_device("a measurement")
            self._measure = wanted

    def set_reusable(self, reusable: bool) -> None:
        """Sets whether the execution may run several times, with the same arguments."""
        with self._preparing():
            self._reusable = parameters.flag(reusable, "reusable")

    def enable_input_and_output_padding(self, enable: bool) -> None:
        """Sets whether buffers may be longer than their values.

        The device may use the rest as scratch space. BAD_STATE once an argument is set.
        """
        with self._preparing():
            wanted = parameters.flag(enable, "enable")
            if self._bound("input") or self._bound("output"):
                raise codes.bad_state("padding is enabled before any argument is set")
            self._padded = wanted

    def add_extension_attribute(
        self,
        extension_name: str,
        attribute_code_within_extension: int,
        data: object,
        length: int | None = None,
    ) -> None:
        """Adds a hint for the device to each run, as `Compilation.add_extension_attribute`."""
        given = extension_name, attribute_code_within_extension, data, length
        with self._preparing():
            device = self.compilation.only_device("an extension's attribute")
            self._attributes = with_attribute(self._attributes, device, given)

    def compute(self) -> None:
        """Runs, and returns when the outputs are written.

        Raises BAD_STATE; BAD_DATA for a missing argument; OP_FAILED for an input whose memory holds
        no value or one of another shape; OUTPUT_INSUFFICIENT_SIZE if an output does not fit (its
        shape is then available); a missed deadline; or the result code of the device that failed.
        """
        self._carry_out(self._begin())

    def start_compute(self) -> Event:
        """Runs in a thread. The event's `wait` raises the errors of the run."""
        return self._started(partial(self._carry_out, self._begin()), fenced=False)

    def start_compute_with_dependencies(
        self, dependencies: Sequence[Event], duration: int = 0
    ) -> Event:
        """Runs after every event of *dependencies* has succeeded. The returned event has a sync
        fence.

        A failed dependency fails the run with OP_FAILED. *duration* limits the run after the wait,
        in nanoseconds; 0 is no limit. Raises BAD_DATA for a *duration* unless the compilation names
        a single device, and for an output of unknown shape.
        """
        events = check_events(dependencies)
        after_ns = parameters.nanoseconds(duration, "the duration")
        if after_ns:
            self.compilation.only_device("a duration")
        waiting = Waiting(tuple(event.fence for event in events), after_ns)
        work = partial(self._carry_out, self._begin(fenced=True), waiting=waiting)
        return self._started(work, fenced=True)

    def burst_compute(self, burst: Burst) -> None:
        """As `compute`, in *burst*. BAD_DATA if the burst belongs to another compilation,
        BAD_STATE if it is busy.
        """
        used = parameters.instance(burst, Burst, "the burst")
        with used.executing(self.compilation) as entered:
            self._carry_out(self._begin(), entered)

    def get_output_operand_rank(self, index: int) -> int:
        """The rank of output *index* in the last run, even if the output did not fit.

        BAD_STATE unless a run has succeeded, or an output was too small.
        """
        return len(self._shape(index))

    def get_output_operand_dimensions(self, index: int) -> tuple[int, ...]:
        """Its dimensions; BAD_DATA for a scalar, which has none."""
        shape = self._shape(index)
        if not shape:
            raise codes.bad_data(f"output {index} has no dimensions")
        return shape

    def is_output_sufficient(self, index: int) -> bool:
        """Whether output *index* fitted in the last run.

        If it did not, NNAPI returns OUTPUT_INSUFFICIENT_SIZE together with rank and dimensions.
        """
        answer, place = self._answered(index)
        return answer.sufficient[place]

    def get_duration(self, duration_code: codes.DurationCode | int) -> int:
        """Nanoseconds of the last run; `UNKNOWN_DURATION` if the device did not report them.

        BAD_STATE unless the run was timed and succeeded.
        """
        code = parameters.code(codes.DurationCode, duration_code, "the duration's code")
        with self._changed:
            answer = self._answer if self._state is State.COMPLETED else None
            if answer is None or not all(answer.sufficient) or not self._measure:
                raise codes.bad_state("only a measured run that has succeeded has a duration")
        on_hardware = code.name.endswith("ON_HARDWARE")
        reported = [s.device_ns if on_hardware else s.driver_ns for s in answer.receipt.steps]
        known = [duration for duration in reported if duration is not None]
        if not known or len(known) < len(reported):
            return UNKNOWN_DURATION
        return min(sum(known), UNKNOWN_DURATION - 1)

    @property
    def receipt(self) -> Receipt:
        """The receipt of the last run. BAD_STATE unless it succeeded, or lacked room."""
        with self._changed:
            if self._answer is None:
                raise codes.bad_state("no run has answered")
            return self._answer.receipt

    def close(self) -> None:
        """Waits for a run in flight and frees the execution. A second call has no effect."""
        with self._changed:
            self._changed.wait_for(lambda: self._state is not State.COMPUTATION)
            self._closed = True
            self._bindings = {kind: [None] * len(held) for kind, held in self._bindings.items()}
            series, self._series = self._series, None
        if series is not None:
            series.close()

    @contextmanager
    def _preparing(self) -> Iterator[None]:
        """A block for a call that is legal only before the first run. No run begins in it."""
        with self._changed:
            if self._closed:
                raise codes.bad_state("the execution is closed")
            if self._state is not State.PREPARATION:
                raise codes.bad_state(
                    f"the execution is {self._state.value} and can no longer be changed"
                )
            yield

    def _bind(self, kind: Kind, index: object, bind: Callable[..., Binding]) -> None:
        with self._preparing():
            port = self.compilation.port(kind, index)
            held = self._bindings[kind]
            if held[port.index] is not None:
                raise codes.bad_state(f"{port} is set already")
            held[port.index] = bind(port, padded=self._padded)

    def _begin(self, *, fenced: bool = False) -> int | None:
        """Enters the computation state; returns the deadline (monotonic, in nanoseconds).

        Raises BAD_STATE if a run is not legal now.
        """
        with self._changed:
            if self._closed:
                raise codes.bad_state("the execution is closed")
            if self._state is State.COMPUTATION:
                raise codes.bad_state("the execution is under way")
            if self._state is State.COMPLETED and not self._reusable:
                raise codes.bad_state("the execution has completed, and is not reusable")
            for kind, held in self._bindings.items():
                if missing := [i for i, b in enumerate(held) if b is None]:
                    raise codes.bad_data(f"{kind} {missing[0]} is not set")
            for binding in self._bound("output"):
                if fenced and not is_static(binding.shape):
                    raise codes.bad_data(
                        f"{binding.port} has an unknown shape; a fenced run needs it known"
                    )
            for binding in self._bound("input"):
                if binding.memory is not None:
                    binding.memory.rules.check_read(binding.shape)
            self._state, self._answer = State.COMPUTATION, None
        device = self.compilation.single_device
        if self._timeout_ns == 0 or device is None or device.feature_level < LEVEL_OF_DEADLINES:
            return None
        return time.monotonic_ns() + self._timeout_ns

    def _started(self, work: Callable[[], None], *, fenced: bool) -> Event:
        """Starts *work*, the run that `_begin` began, in a thread."""
        try:
            return Started(work, fenced=fenced)
        except RuntimeError as error:
            with self._changed:
                self._state = State.PREPARATION
                self._changed.notify_all()
            code = codes.ResultCode.RESOURCE_EXHAUSTED_TRANSIENT
            raise codes.NnapiError(code, f"no thread for the run: {error}") from error

    def _carry_out(
        self,
        deadline_ns: int | None,
        burst: CompiledBurst | None = None,
        waiting: Waiting | None = None,
    ) -> None:
        """Carries out the run that `_begin` began."""
        inputs, outputs = self._bound("input"), self._bound("output")
        answer: Answer | None = None
        try:
            omitted = frozenset(b.port.index for b in inputs if b.is_omitted)
            compiled = self.compilation.compiled_without(omitted)
            if omitted:
                burst = None
            if burst is None and waiting is None and self._reusable:
                if self._series is None:
                    # A burst that keeps the arguments of runs. Drivers bind the arguments.
                    with codes.translated():
                        self._series = burst_of(compiled.executable, ReusedRequests)
                burst = self._series
            run = partial(self._run, compiled, deadline_ns, burst, waiting)
            answer = carry_out(inputs, outputs, compiled.outputs, run)
            if not all(answer.sufficient):
                place = answer.sufficient.index(False)
                raise codes.NnapiError(
                    codes.ResultCode.OUTPUT_INSUFFICIENT_SIZE,
                    f"{outputs[place].port} of shape {answer.shapes[place]} does not fit into its "
                    "buffer",
                )
        finally:
            succeeded = answer is not None and all(answer.sufficient)
            for place, binding in enumerate(outputs):
                if (memory := binding.memory) is not None and memory.is_managed:
                    if answer is not None and succeeded:
                        memory.rules.take(Metadata(shape=answer.shapes[place]))
                    memory.rules.initialized = succeeded
            with self._changed:
                self._answer, self._state = answer, State.COMPLETED
                self._changed.notify_all()

    def _run(
        self,
        compiled: CompiledModel,
        deadline_ns: int | None,
        burst: CompiledBurst | None,
        waiting: Waiting | None,
        values: list[Any],
        out: list[Any] | None,
    ) -> Outputs:
        left = None if deadline_ns is None else deadline_ns - time.monotonic_ns()
        if left is not None and left <= 0:
            raise MissedDeadlinePersistent(
                f"the timeout of {self._timeout_ns} ns had passed before a device began"
            )
        settings: dict[str, Any] = {
            "timeout": None if left is None else left / 1e9,
            "measure": self._measure,
            # A timeout of 0 becomes the shortest one, 1 ns.
            "loop_timeout": max(self._loop_timeout_ns, 1) / 1e9,
            "extension_attributes": self._attributes,
        }
        if waiting is not None:
            return waiting.run(compiled, values, out, settings)
        return (compiled if burst is None else burst).run(values, out=out, **settings)

    def _bound(self, kind: Kind) -> list[Binding]:
        return [binding for binding in self._bindings[kind] if binding is not None]

    def _answered(self, index: object) -> tuple[Answer, int]:
        port = self.compilation.port("output", index)
        with self._changed:
            if self._answer is None or self._state is not State.COMPLETED:
                raise codes.bad_state("no run has reported the shapes of the outputs")
            return self._answer, port.index

    def _shape(self, index: object) -> tuple[int, ...]:
        answer, place = self._answered(index)
        return answer.shapes[place]


def get_default_loop_timeout() -> int:
    """Default timeout of each WHILE in nanoseconds."""
    return DEFAULT_LOOP_TIMEOUT_NS


def get_maximum_loop_timeout() -> int:
    """Greatest timeout of a WHILE in nanoseconds."""
    return MAXIMUM_LOOP_TIMEOUT_NS
