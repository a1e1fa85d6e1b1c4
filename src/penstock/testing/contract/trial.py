"""One execution on a device: its memory with sentinels, its kinds of memory, and the comparison."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from penstock import hal
from penstock.closing import Closing
from penstock.ir import DataLocation, NDArray, Operand
from penstock.ir.types import agrees, is_static, static_shape
from penstock.memory import HardwareBuffer, MemoryPool
from penstock.testing.contract.cases import Case, every_case, one_case, with_other_inputs
from penstock.testing.contract.promise import NotCovered, describe_array, require
from penstock.testing.contract.sharing import PREPARE, shared_models, support_of

OFFSET: Final = 8192
"""Where an `mmap_fd` pool begins in its file."""


def memory_kinds(device: hal.Device) -> tuple[str, ...]:
    """The mappable kinds of memory that *device* claims, those of NNAPI's tests first."""
    known = ("ashmem", "mmap_fd", "hardware_buffer_blob")
    return tuple(kind for kind in known if kind in device.capabilities.memory_kinds)


def pool_of(kind: str, nbytes: int) -> MemoryPool:
    """A writable pool of *nbytes* of that *kind*; `NotCovered` if it cannot be created."""
    if kind == "ashmem":
        return MemoryPool.anonymous(nbytes)
    if kind == "mmap_fd":
        with tempfile.TemporaryFile() as file:
            os.truncate(file.fileno(), OFFSET + nbytes)
            return MemoryPool.from_file(file.fileno(), OFFSET, nbytes)
    if kind == "hardware_buffer_blob":
        with HardwareBuffer.allocate(nbytes) as buffer:
            return MemoryPool.from_hardware_buffer(buffer)
    raise NotCovered(f"there is no way here to make memory of kind {kind}")


Kind: TypeAlias = Literal["host", "pool", "mixed"]

GUARD: Final = 64
"""Sentinel bytes on either side of an output."""
SENTINEL: Final = 0xA5
UNWRITTEN: Final = 0x5A
PLAIN: Final = hal.ExecutionConfig()


def kinds(device: hal.Device) -> tuple[Kind, ...]:
    """The kinds of argument that *device* accepts."""
    return ("pool", "host", "mixed") if device.capabilities.accepts_host_memory else ("pool",)


class PreparedCase(Closing):
    """A case and its prepared model on a device."""

    def __init__(self, device: hal.Device, case: Case, prepared: hal.PreparedModel) -> None:
        self.device, self.case, self.prepared = device, case, prepared

    @cached_property
    def is_relaxed(self) -> bool:
        """Whether the device supports an operation of the case in the class `relaxed` only."""
        answers = support_of(self.device, self.case.model)
        return any(answer.accuracy == "relaxed" for answer in answers)

    def trial(self, kind: Kind = "pool", **options: Any) -> Trial:
        """A trial of the case; *options* are the trial's."""
        return Trial(self.case, kind, on=self, **options)

    def trials(self, **options: Any) -> Iterator[Trial]:
        """A trial for each kind of argument of the device, closed before the next one."""
        for kind in kinds(self.device):
            with self.trial(kind, **options) as trial:
                yield trial

    def check(self, what: str, config: hal.ExecutionConfig = PLAIN, **options: Any) -> None:
        """One run, whose answer must be right; *options* are the trial's."""
        with self.trial(**options) as trial:
            trial.check(what, config=config)

    def answers(self, seed: int) -> list[NDArray]:
        """The outputs of one run on other inputs."""
        with self.trial() as trial:
            return trial.answers(seed)

    def compare(
        self, found: Sequence[NDArray], what: str, wanted: Sequence[NDArray] | None = None
    ) -> None:
        """*found* must equal *wanted* (default: the case's outputs), or be within 1 % where the
        device answers `relaxed`.
        """
        wanted = self.case.outputs if wanted is None else wanted
        name = self.case.name
        require(len(found) == len(wanted), f"{name}: {len(found)} outputs {what}")
        for index, (a, b) in enumerate(zip(found, wanted, strict=True)):
            near = a.shape == b.shape and a.dtype == b.dtype
            if near and self.is_relaxed:
                near = np.allclose(a.astype(np.float64), b.astype(np.float64), rtol=1e-2, atol=1e-2)
            elif near:
                near = np.array_equal(a, b)
            got = "" if near else f"{describe_array(a)}, not {describe_array(b)}"
            require(near, f"{name}, output {index} {what}: {got}")

    def close(self) -> None:
        self.prepared.close()


class SharedCase(PreparedCase):
    """A prepared case that other checks use too. `close` leaves it open."""

    def close(self) -> None:
        """Does nothing: `SharedModels` closes it."""


class Trial(Closing):
    """The memory of one request for *case*: copies of its inputs, and outputs filled with
    `UNWRITTEN`.

    *capacities* are the bytes of each output (default: the answer's size). Arguments start *skew*
    bytes beyond a multiple of *alignment* or 64. *memory* is the kind of the pool. Arguments are
    surrounded by sentinels. `check_memory` checks the sentinels and the inputs for changes.
    `execute` and `check` need *on*, the prepared case.
    """

    def __init__(
        self,
        case: Case,
        kind: Kind = "pool",
        *,
        inputs: Sequence[NDArray] | None = None,
        capacities: Sequence[int] | None = None,
        skew: int = 0,
        memory: str = "ashmem",
        alignment: int = 1,
        on: PreparedCase | None = None,
    ) -> None:
        entry = case.model.entry
        self.case, self.kind, self._on = case, kind, on
        self.inputs = [np.asarray(a, order="C") for a in inputs or case.inputs]
        self.operands: list[Operand] = [entry.operands[i] for i in entry.outputs]
        sizes = list(capacities) if capacities is not None else [a.nbytes for a in case.outputs]
        self._lengths = [a.nbytes for a in self.inputs] + sizes
        self._offsets, total = _lay_out(self._lengths, skew, max(GUARD, alignment))
        self._pool = pool_of(memory if kind != "host" else "ashmem", total)
        self._content = self._pool.view(np.uint8, total)
        self._host = np.empty(total, np.uint8)
        self.fill()
        count = len(self.inputs)
        given = [self._argument(i, a.dtype, a.shape) for i, a in enumerate(self.inputs)]
        wanted = [
            self._argument(count + i, o.dtype.numpy, static_shape(o.shape))
            for i, o in enumerate(self.operands)
        ]
        self.request = hal.Request(tuple(given), tuple(wanted), (self._pool.memory,))

    @property
    def on(self) -> PreparedCase:
        assert self._on is not None
        return self._on

    def execute(
        self, request: hal.Request | None = None, config: hal.ExecutionConfig = PLAIN
    ) -> hal.ExecutionResult:
        """Executes *request* (default: the trial's)."""
        return self.on.prepared.execute(request or self.request, config)

    def run(
        self, prepared: hal.PreparedModel, config: hal.ExecutionConfig = PLAIN
    ) -> list[NDArray]:
        """Executes once, checks the memory, and returns copies of the outputs."""
        result = prepared.execute(self.request, config)
        self.check_memory()
        return self.outputs(result)

    def answers(self, seed: int) -> list[NDArray]:
        """The outputs of one run on the case's other inputs of *seed*, in the same memory."""
        self.fill(seed)
        return self.run(self.on.prepared)

    def outputs(self, result: hal.ExecutionResult) -> list[NDArray]:
        """Copies of the outputs, in the shapes that *result* reports or the model declares.

        Checks that the result is valid (NNAPI section 4.7).
        """
        reported = result.output_shapes
        require(
            len(reported) in {0, len(self.operands)},
            f"{self.case.name}: {len(reported)} output shapes for {len(self.operands)} outputs",
        )
        found = []
        for index, operand in enumerate(self.operands):
            name = f"{self.case.name}, output {index}"
            shape = operand.shape
            if reported:
                require(reported[index].is_sufficient, f"{name}: insufficient, and yet a success")
                shape = reported[index].dimensions
            require(is_static(shape), f"{name}: its shape was unknown and is not reported")
            known = tuple(d or 0 for d in shape or ())
            require(agrees(operand.shape, known), f"{name}: {known} reported for {operand.shape}")
            nbytes = int(np.prod(known)) * operand.dtype.numpy.itemsize
            place = len(self.inputs) + index
            require(nbytes <= self._lengths[place], f"{name}: reported larger than its memory")
            data = self._bytes(place)[:nbytes].copy()
            found.append(data.view(operand.dtype.numpy).reshape(known))
        return found

    def check_memory(self, spare: int | None = None) -> None:
        """Raises `Violation` if the run wrote to an input (but *spare*) or to a sentinel."""
        what = f"{self.case.name} ({self.kind})"
        for place, (offset, length) in enumerate(zip(self._offsets, self._lengths, strict=True)):
            memory = self._memory(place)
            for side, start in (("before", offset - GUARD), ("behind", offset + length)):
                untouched = (memory[start : start + GUARD] == SENTINEL).all()
                require(untouched, f"{what}: bytes {side} argument {place} were written")
            if place < len(self.inputs) and place != spare:
                same = self._bytes(place).tobytes() == self.inputs[place].tobytes()
                require(same, f"{what}: input {place} was changed")

    def check(
        self,
        what: str,
        request: hal.Request | None = None,
        config: hal.ExecutionConfig = PLAIN,
        wanted: Sequence[NDArray] | None = None,
    ) -> None:
        """Executes *request* (default: the trial's); the answer must be right, as `expect`."""
        self.expect(self.execute(request, config), what, wanted)

    def expect(
        self, result: hal.ExecutionResult, what: str, wanted: Sequence[NDArray] | None = None
    ) -> None:
        """Compares the outputs with *wanted* (default: the case's) and checks the memory."""
        self.check_memory()
        self.on.compare(self.outputs(result), what, wanted)

    def check_unwritten(self, moment: str) -> None:
        """Raises `Violation` if an output byte was written."""
        for place in range(len(self.inputs), len(self._lengths)):
            require(
                (self._bytes(place) == UNWRITTEN).all(),
                f"{self.case.name}: output {place - len(self.inputs)} was written {moment}",
            )

    def pool_bytes(self) -> bytes:
        """The content of the pool."""
        return self._content.tobytes()

    def take(self, content: bytes) -> None:
        """Copies *content*, which a run wrote to other memory, into the pool."""
        self._content[:] = np.frombuffer(content, np.uint8)

    def snapshot(self) -> bytes:
        """All memory of the trial."""
        return self._content.tobytes() + self._host.tobytes()

    def with_argument(self, index: int, argument: hal.RequestArgument) -> hal.Request:
        """The request with argument *index* (inputs first) replaced."""
        arguments = [*self.request.inputs, *self.request.outputs]
        arguments[index] = argument
        count = len(self.inputs)
        return hal.Request(tuple(arguments[:count]), tuple(arguments[count:]), self.request.pools)

    def fill(self, seed: int | None = None) -> None:
        """Writes inputs, sentinels and `UNWRITTEN` into the pool.

        With *seed* the inputs are the case's other inputs of that seed from now on.
        """
        if seed is not None:
            self.inputs[:] = with_other_inputs(self.case, seed)
        for memory in (self._content, self._host):
            memory[:] = SENTINEL
            for place, offset in enumerate(self._offsets):
                target = memory[offset : offset + self._lengths[place]]
                own = place < len(self.inputs)
                target[:] = self.inputs[place].reshape(-1).view(np.uint8) if own else UNWRITTEN

    def close(self) -> None:
        """Frees the memory."""
        self._pool.close()

    def _in_pool(self, place: int) -> bool:
        return self.kind == "pool" or (self.kind == "mixed" and place % 2 == 0)

    def _memory(self, place: int) -> NDArray:
        return self._content if self._in_pool(place) else self._host

    def _bytes(self, place: int) -> NDArray:
        offset = self._offsets[place]
        return self._memory(place)[offset : offset + self._lengths[place]]

    def _argument(
        self, place: int, dtype: np.dtype[Any], shape: tuple[int, ...] | None
    ) -> hal.RequestArgument:
        if self._in_pool(place):
            location = DataLocation(0, self._offsets[place], self._lengths[place])
            given = shape if shape is not None and place < len(self.inputs) else ()
            return hal.PoolArgument(location, given)
        data = self._bytes(place)
        return hal.HostMemory(data if shape is None else data.view(dtype).reshape(shape))


def prepare(
    device: hal.Device,
    case: Case | None = None,
    config: hal.PrepareConfig = PREPARE,
    *,
    anew: bool = False,
) -> PreparedCase:
    """*case* (None: `one_case`), prepared.

    A check that shares models gets a standard case in the default configuration as an earlier check
    left it, unless it asks for one *anew*, which has not run yet.
    """
    case = case or one_case(device)
    shared = None if anew or config != PREPARE else shared_models(device)
    if shared is not None and any(case is known for known in every_case()):
        return SharedCase(device, case, shared.prepared(case.model))
    return PreparedCase(device, case, device.prepare_model(case.model, config))


def each_prepared(
    device: hal.Device, cases: Sequence[Case], *, anew: bool = False
) -> Iterator[PreparedCase]:
    """Every case, prepared as by `prepare`, and closed before the next one."""
    for case in cases:
        with prepare(device, case, anew=anew) as on:
            yield on


@contextmanager
def ready(
    device: hal.Device,
    case: Case | None = None,
    kind: Kind = "pool",
    config: hal.PrepareConfig = PREPARE,
    **options: Any,
) -> Iterator[Trial]:
    """A trial of *case* (None: `one_case`), prepared; *options* are the trial's."""
    with prepare(device, case, config) as on, on.trial(kind, **options) as trial:
        yield trial


def check_times(timing: hal.Timing, elapsed_ns: int, how: str = "execute") -> None:
    """Time on the device <= time in the driver <= *elapsed_ns*, the duration of the call."""
    spans = [t for t in (timing.on_device_ns, timing.in_driver_ns) if t is not None]
    plausible = all(0 <= s <= elapsed_ns for s in spans) and spans == sorted(spans)
    require(plausible, f"{how}: {timing} of a call of {elapsed_ns} ns")


def _lay_out(lengths: Sequence[int], skew: int, step: int) -> tuple[list[int], int]:
    offsets, end = [], 0
    for length in lengths:
        start = -(-(end + GUARD) // step) * step + skew
        offsets.append(start)
        end = start + length + GUARD
    return offsets, end
