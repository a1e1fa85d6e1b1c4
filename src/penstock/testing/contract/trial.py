"""One execution on a device: its memory with sentinels, its kinds of memory, and the comparison."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from penstock import hal
from penstock.closing import Closing
from penstock.ir import DataLocation, NDArray, Operand
from penstock.ir.types import is_static, static_shape
from penstock.memory import HardwareBuffer, MemoryPool
from penstock.testing.contract.cases import Case
from penstock.testing.contract.promise import NotCovered, describe_array, require

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
PREPARE: Final = hal.PrepareConfig()


def kinds(device: hal.Device) -> tuple[Kind, ...]:
    """The kinds of argument that *device* accepts."""
    return ("pool", "host", "mixed") if device.capabilities.accepts_host_memory else ("pool",)


class Trial(Closing):
    """The memory of one request for *case*: copies of its inputs, and outputs filled with
    `UNWRITTEN`.

    *capacities* are the bytes of each output (default: the answer's size). Arguments start *skew*
    bytes beyond a multiple of *alignment* or 64. *memory* is the kind of the pool. Arguments are
    surrounded by sentinels. `check_memory` checks the sentinels and the inputs for changes.
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
    ) -> None:
        entry = case.model.entry
        self.case, self.kind = case, kind
        self.inputs = [np.asarray(a, order="C") for a in inputs or case.inputs]
        self.operands: list[Operand] = [entry.operands[i] for i in entry.outputs]
        sizes = list(capacities) if capacities is not None else [a.nbytes for a in case.outputs]
        self._lengths = [a.nbytes for a in self.inputs] + sizes
        self._offsets, total = _lay_out(self._lengths, skew, max(GUARD, alignment))
        self._pool = pool_of(memory if kind != "host" else "ashmem", total)
        self._content = self._pool.view(np.uint8, total)
        self._host = np.empty(total, np.uint8)
        self.fill()
        given = [self._input(i) for i in range(len(self.inputs))]
        wanted = [self._output(len(given) + i, o) for i, o in enumerate(self.operands)]
        self.request = hal.Request(tuple(given), tuple(wanted), (self._pool.memory,))

    def run(
        self, prepared: hal.PreparedModel, config: hal.ExecutionConfig = PLAIN
    ) -> list[NDArray]:
        """Executes once, checks the memory, and returns copies of the outputs."""
        result = prepared.execute(self.request, config)
        self.check_memory()
        return self.outputs(result)

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
            require(_refines(known, operand), f"{name}: {known} reported for {operand.shape}")
            nbytes = int(np.prod(known)) * operand.dtype.numpy.itemsize
            place = len(self.inputs) + index
            require(nbytes <= self._lengths[place], f"{name}: reported larger than its memory")
            data = self._bytes(place)[:nbytes].copy()
            found.append(data.view(operand.dtype.numpy).reshape(known))
        return found

    def check_memory(self, spare: int | None = None) -> None:
        """Raises `Violation` if the run wrote to an input (but *spare*) or to a sentinel."""
        for place, (offset, length) in enumerate(zip(self._offsets, self._lengths, strict=True)):
            memory = self._memory(place)
            guards = (memory[offset - GUARD : offset], memory[offset + length :][:GUARD])
            what = f"{self.case.name} ({self.kind})"
            for side, guard in zip(("before", "behind"), guards, strict=True):
                require(
                    bool((guard == SENTINEL).all()),
                    f"{what}: bytes {side} argument {place} were written",
                )
            if place < len(self.inputs) and place != spare:
                same = self._bytes(place).tobytes() == self.inputs[place].tobytes()
                require(same, f"{what}: input {place} was changed")

    def expect(
        self,
        device: hal.Device,
        result: hal.ExecutionResult,
        what: str,
        wanted: Sequence[NDArray] | None = None,
    ) -> None:
        """Compares the outputs with *wanted* (default: the case's) and checks the memory."""
        self.check_memory()
        answers = self.case.outputs if wanted is None else wanted
        compare(device, self.case, self.outputs(result), answers, what)

    def check_unwritten(self, moment: str) -> None:
        """Raises `Violation` if an output byte was written."""
        for place in range(len(self.inputs), len(self._lengths)):
            require(
                bool((self._bytes(place) == UNWRITTEN).all()),
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

    def fill(self) -> None:
        """Writes inputs, sentinels and `UNWRITTEN` into the pool."""
        for memory in (self._content, self._host):
            memory[:] = SENTINEL
            for place, (offset, length) in enumerate(
                zip(self._offsets, self._lengths, strict=True)
            ):
                target = memory[offset : offset + length]
                if place < len(self.inputs):
                    target[:] = self.inputs[place].reshape(-1).view(np.uint8)
                else:
                    target[:] = UNWRITTEN

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

    def _input(self, place: int) -> hal.RequestArgument:
        array = self.inputs[place]
        if self._in_pool(place):
            location = DataLocation(0, self._offsets[place], self._lengths[place])
            return hal.PoolArgument(location, array.shape)
        return hal.HostMemory(self._bytes(place).view(array.dtype).reshape(array.shape))

    def _output(self, place: int, operand: Operand) -> hal.RequestArgument:
        if self._in_pool(place):
            return hal.PoolArgument(DataLocation(0, self._offsets[place], self._lengths[place]))
        data, shape = self._bytes(place), static_shape(operand.shape)
        if shape is None:
            return hal.HostMemory(data)
        return hal.HostMemory(data.view(operand.dtype.numpy).reshape(shape))


def prepare(
    device: hal.Device, case: Case, config: hal.PrepareConfig = PREPARE
) -> hal.PreparedModel:
    """*case*'s model, prepared."""
    return device.prepare_model(case.model, config)


def each_prepared(
    device: hal.Device, cases: Sequence[Case]
) -> Iterator[tuple[Case, hal.PreparedModel]]:
    """Every case with its prepared model, which is closed before the next one."""
    for case in cases:
        with closing(prepare(device, case)) as prepared:
            yield case, prepared


def each_kind(device: hal.Device, case: Case, **options: Any) -> Iterator[tuple[Kind, Trial]]:
    """A trial of *case* for each kind of argument of *device*; *options* are the trial's."""
    for kind in kinds(device):
        with Trial(case, kind, **options) as trial:
            yield kind, trial


@contextmanager
def ready(
    device: hal.Device,
    case: Case,
    kind: Kind = "pool",
    config: hal.PrepareConfig = PREPARE,
    **options: Any,
) -> Iterator[tuple[hal.PreparedModel, Trial]]:
    """*case*'s model, prepared, and a trial of it; *options* are the trial's."""
    with closing(prepare(device, case, config)) as prepared, Trial(case, kind, **options) as trial:
        yield prepared, trial


def check_run(
    device: hal.Device,
    case: Case,
    prepared: hal.PreparedModel,
    what: str,
    config: hal.ExecutionConfig = PLAIN,
    **options: Any,
) -> None:
    """One run, whose answer must be right; *options* are the trial's."""
    with Trial(case, **options) as trial:
        trial.expect(device, prepared.execute(trial.request, config), what)


def compare(
    device: hal.Device, case: Case, found: Sequence[NDArray], wanted: Sequence[NDArray], what: str
) -> None:
    """*found* must equal *wanted*, or be within 1 % where the device answers `relaxed`."""
    answers = device.supported_operations(case.model)
    relaxed = any(a.accuracy == "relaxed" for a in answers)
    require(len(found) == len(wanted), f"{case.name}: {len(found)} outputs {what}")
    for index, (a, b) in enumerate(zip(found, wanted, strict=True)):
        near = bool(
            a.shape == b.shape
            and a.dtype == b.dtype
            and (
                np.allclose(a.astype(np.float64), b.astype(np.float64), rtol=1e-2, atol=1e-2)
                if relaxed
                else np.array_equal(a, b)
            )
        )
        require(
            near,
            f"{case.name}, output {index} {what}: {describe_array(a)}, not {describe_array(b)}",
        )


def _lay_out(lengths: Sequence[int], skew: int, step: int) -> tuple[list[int], int]:
    offsets, end = [], 0
    for length in lengths:
        start = -(-(end + GUARD) // step) * step + skew
        offsets.append(start)
        end = start + length + GUARD
    return offsets, end


def _refines(shape: tuple[int, ...], operand: Operand) -> bool:
    declared = operand.shape
    return declared is None or (
        len(declared) == len(shape)
        and all(d is None or d == s for d, s in zip(declared, shape, strict=True))
    )
