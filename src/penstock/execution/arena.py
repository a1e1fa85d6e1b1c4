"""Memory of a run: arena, memory shared with other processes, double-buffered state."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from penstock.errors import ResourceExhaustedTransient
from penstock.hal import HostMemory, PaddedBytes, Request, RequestArgument
from penstock.ir import DType, Model, NDArray, Operand
from penstock.ir.types import is_static, static_shape
from penstock.memory.layout import MIN_ALIGNMENT, ArenaLayout

MOST_BESIDE: Final = 1 << 16
"""Bytes up to which an array shares its memory block; a larger array has its own block."""


class Slot(Struct, frozen=True):
    """The place of a temporary of known size in the arena."""

    operand: int
    offset: int
    nbytes: int
    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]


class Places:
    """Preallocated buffers of a run, by operand index. Used by one run at a time.

    Each operand has its array and the arguments to read it and to write it. *requests* are the kept
    requests, by step: those of steps that use only these buffers, or of all steps if *keeps_all*.
    """

    __slots__ = ("keeps_all", "readable", "requests", "values", "writable")

    def __init__(
        self,
        values: dict[int, NDArray],
        readable: dict[int, RequestArgument],
        writable: dict[int, RequestArgument],
    ) -> None:
        self.values, self.readable, self.writable = values, readable, writable
        self.requests: dict[object, Request] = {}
        self.keeps_all = False

    def joined(self, other: Places) -> Places:
        """The buffers of both this object and *other*."""
        both = Places(
            self.values | other.values,
            self.readable | other.readable,
            self.writable | other.writable,
        )
        both.requests = self.requests
        return both


class Arena(Places):
    """One memory block, with its slots as arrays. Uses the aligned memory *raw* if given."""

    __slots__ = ()

    def __init__(
        self,
        slots: Sequence[Slot] = (),
        nbytes: int = 0,
        alignment: int = 1,
        *,
        raw: NDArray | None = None,
    ) -> None:
        if raw is None:
            raw = np.empty(nbytes + alignment, np.uint8)
        block = raw[-raw.ctypes.data % alignment :] if alignment > 1 else raw
        values: dict[int, NDArray] = {
            s.operand: block[s.offset : s.offset + s.nbytes].view(s.dtype).reshape(s.shape)
            for s in slots
        }
        super().__init__(values, *_arguments(values, values))


def _arguments(
    read: dict[int, NDArray], written: dict[int, NDArray]
) -> tuple[dict[int, RequestArgument], dict[int, RequestArgument]]:
    readable: dict[int, RequestArgument] = {i: HostMemory(lent(a)) for i, a in read.items()}
    return readable, {i: HostMemory(a) for i, a in written.items()}


NO_PLACES: Final = Places({}, {}, {})
"""The buffers of a plan without temporaries of known size."""


def slots_of(model: Model, layout: ArenaLayout) -> tuple[Slot, ...]:
    """The arena slots of *model*'s temporaries."""
    operands = model.entry.operands
    return tuple(
        Slot(i, offset, nbytes, operands[i].dtype.numpy, shape)
        for i, (offset, nbytes) in layout.offsets.items()
        if (shape := static_shape(operands[i].shape)) is not None
    )


def is_sized(operand: Operand) -> bool:
    """Whether the size of an output is known before the run."""
    return is_static(operand.shape) and operand.dtype is not DType.STRING


def allocate(
    shape: Sequence[int],
    dtype: np.dtype[np.generic],
    make: Callable[[Sequence[int], np.dtype[np.generic]], NDArray] = np.empty,
) -> NDArray:
    """New memory. Raises `ResourceExhaustedTransient` if the allocation fails."""
    try:
        return make(shape, dtype)
    except (MemoryError, ValueError) as error:
        text = f"no memory for an output of shape {tuple(shape)} of {dtype}"
        raise ResourceExhaustedTransient(text) from error


def side_by_side(kinds: Sequence[tuple[Sequence[int], np.dtype[np.generic]]]) -> list[NDArray]:
    """New arrays of zeros, the small ones packed in one memory block, in order.

    Each array starts at a multiple of 64 bytes, for fast copies. A device that keeps its own arrays
    in the same layout can copy them all at once. Raises `ResourceExhaustedTransient` as `allocate`
    does.
    """
    sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in kinds]
    small = [
        0 if size > MOST_BESIDE or dtype.hasobject else size
        for size, (_, dtype) in zip(sizes, kinds, strict=True)
    ]
    starts, end = _starts(small)
    memory = allocate((end + MIN_ALIGNMENT,), np.dtype(np.uint8))
    begin = -memory.ctypes.data % MIN_ALIGNMENT
    shared = memory[begin : begin + end].view(PaddedBytes)
    shared.fill(0)
    found: list[NDArray] = []
    for start, size, (shape, dtype) in zip(starts, sizes, kinds, strict=True):
        if size <= MOST_BESIDE and not dtype.hasobject:
            found.append(shared[start : start + size].view(np.ndarray).view(dtype).reshape(shape))
        else:
            found.append(allocate(shape, dtype, np.zeros))
    return found


def _starts(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Aligned offsets of values of these *sizes*, one after another, and the end of the last."""
    starts, end = [], 0
    for size in sizes:
        starts.append(end)
        end += size + -size % MIN_ALIGNMENT
    return starts, end


def lent(array: NDArray) -> NDArray:
    """A read-only view of *array* for a driver."""
    if not array.flags.writeable:
        return array
    view = array.view()
    # NumPy takes it so, and by its name it takes twice as long.
    view.setflags(False)  # type: ignore[call-arg]
    return view


def in_a_pool(operands: Sequence[Operand]) -> list[NDArray | None]:
    """An array for each of the *operands* of known size, all in one pool.

    The pool lives as long as any of the arrays. Raises `ResourceExhaustedTransient` if the
    allocation fails.
    """
    shapes = [static_shape(o.shape) if is_sized(o) else None for o in operands]
    sizes = [
        0 if shape is None else math.prod(shape) * o.dtype.numpy.itemsize
        for o, shape in zip(operands, shapes, strict=True)
    ]
    starts, end = _starts(sizes)
    from penstock.memory import MemoryPool

    pool = MemoryPool.anonymous(max(end, 1))
    return [
        None if shape is None else pool.view(o.dtype.numpy, shape, start)
        for o, shape, start in zip(operands, shapes, starts, strict=True)
    ]


def arena_in_a_pool(slots: Sequence[Slot], nbytes: int, alignment: int) -> Arena:
    """An arena in a pool. Raises as `in_a_pool`."""
    from penstock.memory import MemoryPool

    pool = MemoryPool.anonymous(nbytes + alignment)
    return Arena(slots, nbytes, alignment, raw=pool.view(np.uint8, nbytes + alignment))


class BufferedVariable(Struct, frozen=True):
    """A variable, and the operands through which a run reads and writes it (None: it does not)."""

    variable: int
    input: int | None
    output: int | None
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]


def buffered_variables(model: Model) -> tuple[BufferedVariable, ...]:
    """The entry's variables; empty if a size is unknown or values share memory."""
    entry = model.entry
    apart = [*entry.ordinary_inputs, *entry.ordinary_outputs]
    found: list[BufferedVariable] = []
    for port in entry.states:
        used = [i for i in (port.input, port.output) if i is not None]
        operands = [entry.operands[i] for i in used]
        shapes = {static_shape(o.shape) for o in operands}
        dtypes = {o.dtype for o in operands}
        shape = shapes.pop() if len(shapes) == 1 else None
        if shape is None or len(dtypes) != 1 or DType.STRING in dtypes or port.input == port.output:
            return ()
        if any(o.is_constant for o in operands) or any(i in apart for i in used):
            return ()
        apart += used
        dtype = operands[0].dtype.numpy
        found.append(BufferedVariable(port.variable, port.input, port.output, shape, dtype))
    if len({p.variable for p in found}) != len(found):
        return ()
    return tuple(found)


NO_ARRAY: Final = np.empty(0)
"""Takes the place of an array that each run has of its own."""


class StepArguments(Struct, frozen=True, eq=False):
    """The arguments of a step that is the whole model, with buffers of state in *given* and
    *wanted*.

    *inputs* are the other inputs, as (position of the step, position of the model), *outputs* the
    other outputs with their shapes and types. *results* are the positions of the model's outputs.
    """

    given: list[NDArray]
    wanted: list[NDArray]
    inputs: tuple[tuple[int, int], ...]
    outputs: tuple[tuple[int, tuple[int, ...], np.dtype[np.generic]], ...]
    results: tuple[int, ...]


class StateBuffers(Places):
    """The buffers that one run reads and writes for state variables.

    *after* holds the value of every variable after a successful run. *written* are the variables
    that the run changes. *known* is set once a run has written a value to the written buffers.
    *arguments* are those of steps with these buffers.
    """

    __slots__ = ("after", "arguments", "known", "written")

    def __init__(
        self,
        read: dict[int, NDArray],
        written: dict[int, NDArray],
        after: list[NDArray],
        variables: frozenset[int],
    ) -> None:
        super().__init__(read | written, *_arguments(read, written))
        self.after, self.written = after, variables
        self.known = False
        self.arguments: dict[object, StepArguments] = {}


class DoubleBuffer:
    """Double-buffered state: two sets of buffers. The first run reads the present *values*."""

    __slots__ = ("_next", "now", "ports")

    def __init__(self, ports: Sequence[BufferedVariable], values: Sequence[NDArray]) -> None:
        self.ports = ports
        first = list(values)
        second = list(values)
        written = [p for p in ports if p.output is not None]
        fresh = side_by_side([(p.shape, p.dtype) for p in written])
        for port, array in zip(written, fresh, strict=True):
            second[port.variable] = array
        self.now, self._next = _buffers(ports, first, second), _buffers(ports, second, first)

    def swap(self) -> None:
        """Makes the next run read what this run wrote, and write to the other set."""
        self.now, self._next = self._next, self.now


def can_double_buffer(ports: Sequence[BufferedVariable], values: Sequence[NDArray]) -> bool:
    """Whether *values* match the declarations of *ports*, are contiguous and writable."""
    return all(
        (value := values[p.variable]).shape == p.shape
        and value.dtype == p.dtype
        and value.flags.c_contiguous
        and value.flags.writeable
        for p in ports
    )


def _buffers(
    ports: Sequence[BufferedVariable], before: list[NDArray], after: list[NDArray]
) -> StateBuffers:
    read = {p.input: before[p.variable] for p in ports if p.input is not None}
    written = {p.output: after[p.variable] for p in ports if p.output is not None}
    changed = frozenset(p.variable for p in ports if p.output is not None)
    return StateBuffers(read, written, after, changed)
