"""How the template `tile` divides sums of products among threads, and how it lays out filters."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from penstock.compiler.interpreter import constant_elements, product_of
from penstock.compiler.program import Access, Kernel, Program
from penstock.drivers.webgpu.calls import GROUP
from penstock.drivers.webgpu.emit.address import Flat, flat_of, joined
from penstock.ir import DType, NDArray

LANES: Final = 4
"""Channels of a vector, and 8-bit elements of a word."""


class Shape(Struct, frozen=True, array_like=True):
    """How much a thread computes at most, positions and vectors of channels, and the threads of a
    workgroup.
    """

    positions: int = 4
    groups: int = 2
    threads: int = GROUP


DEFAULT: Final = Shape()
"""The shape of every kernel until others were measured."""

LEAST_ROWS: Final = 32
"""Positions from which on the threads of a workgroup have the same channels: all of them read the
same filters.
"""

MOST_GROUPS: Final = 65_535
"""Workgroups of one dimension."""

HALF_ERROR: Final = 2.0**-11
"""The rounding error of a normal float16, relative to the value."""

FACTORS: Final = (1, 1 << 10)
"""Powers of two. The second one makes every value of float16 that is not 0 a normal one. There are
no more, because shaders that differ are compiled apart.
"""

BYTES: Final = frozenset({DType.INT8, DType.UINT8})
TYPES: Final = BYTES | {DType.FLOAT32, DType.FLOAT16, DType.INT32, DType.INT16}


class Form(Struct, frozen=True):
    """How a kernel is divided. A thread computes *many* iterations of the loop *positions* (None:
    1) for *groups* vectors of channels. The sizes of loops are those of joined ones.

    *data* and *filters* are the factors with their *zeros*. *across*: both depend on the channel.
    *words*: four factors of 8 bits are multiplied at once, along the loop *last*. *vectors*: the
    data is read four elements at once, along that loop or, *across*, along the channels.
    *packed*: the filters are constant, and laid out as `packed` does; *halves*: as float16,
    multiplied by so much (0: as float32). A workgroup has so many *threads*.
    """

    loops: tuple[int, ...]
    reduced: tuple[int, ...]
    data: Access
    filters: Access
    zeros: tuple[int, int]
    flats: dict[str, Flat]
    positions: int | None
    many: int
    groups: int
    last: int
    across: bool
    words: bool
    vectors: bool
    packed: bool
    halves: int = 0
    threads: int = GROUP

    def shaped(self, shape: Shape) -> Form:
        """The same with threads of *shape*, as far as the loops allow. Results are the same bits:
        each sum is added in the same order.
        """
        positions = self.positions
        return replace(
            self,
            many=1 if positions is None else min(shape.positions, self.loops[positions]),
            groups=1 if self.across else min(shape.groups, -(-self.loops[self.channel] // LANES)),
            threads=shape.threads,
        )

    @property
    def channel(self) -> int:
        """The loop of the channels, the last outer one."""
        return len(self.loops) - 1

    @property
    def vector(self) -> int:
        """The number of a loop over vectors of channels."""
        return len(self.loops) + len(self.reduced)

    @property
    def blocks(self) -> int:
        """Threads along the channels."""
        return -(-self.loops[self.channel] // (LANES * self.groups))

    @property
    def tiles(self) -> int:
        """Threads for each block of channels."""
        sizes = list(self.loops[:-1])
        if self.positions is not None:
            sizes[self.positions] = -(-sizes[self.positions] // self.many)
        return math.prod(sizes)

    @property
    def in_rows(self) -> bool:
        """Whether the threads of a workgroup have the same channels."""
        return LEAST_ROWS <= self.tiles <= MOST_GROUPS * self.threads


def form_of(program: Program, kernel: Kernel) -> Form | None:
    """How `tile` divides *kernel*; None if it does not match."""
    found = product_of(kernel)
    if found is None or not kernel.reduced or kernel.ordered or not kernel.loops:
        return None
    if kernel.sums not in {DType.INT32, DType.FLOAT32} or 0 in kernel.sizes:
        return None
    data, filters, zeros = found
    channel, outer = len(kernel.loops) - 1, len(kernel.loops)
    if channel not in filters.loops():
        data, filters, zeros = filters, data, (zeros[1], zeros[0])
    write = flat_of(program, kernel.write, kernel.loops)
    read = flat_of(program, data, kernel.sizes)
    weights = flat_of(program, filters, kernel.sizes)
    types = [program.tensors[a.tensor].dtype for a in (data, filters)]
    is_plain = not (read.through or weights.through or weights.bounds or write.through)
    if not is_plain or not TYPES.issuperset(types) or kernel.border is not None:
        return None
    if kernel.loops[channel] < LANES or write.step(channel) != 1 or not weights.step(channel):
        return None
    across = channel in data.loops()
    if across and not read.step(channel) == weights.step(channel) == 1:
        return None
    if read.is_bounded_by(channel):
        return None
    packed = program.root(filters.tensor) in program.constants
    flats = {"x": read, "y": write, "w": _packed_flat(kernel, filters) if packed else weights}
    for number, access in enumerate(kernel.extras):
        flats[f"e{number}"] = flat_of(program, access, kernel.loops)
    names = [*flats]
    first, joint = joined(kernel.loops[:-1], [flats[n] for n in names], 0)
    second, joint = joined(kernel.reduced, joint, outer)
    flats = dict(zip(names, joint, strict=True))
    loops, reduced = (*first, kernel.loops[-1]), tuple(second)
    free = [
        loop
        for loop in range(channel)
        if loops[loop] > 1 and loop in data.loops() and loop not in filters.loops()
    ]
    positions = free[-1] if free else None
    last = outer + max((k for k, size in enumerate(reduced) if size != 1), default=0)
    form = Form(
        loops, reduced, data, filters, zeros, flats, positions, 1, 1, last, across,
        words=False, vectors=False, packed=packed,
    ).shaped(DEFAULT)  # fmt: skip
    return _by_fours(program, kernel, form, types)


def _by_fours(program: Program, kernel: Kernel, form: Form, types: list[DType]) -> Form:
    """*form* with words or vectors where the factors lie so."""
    read, weights = form.flats["x"], form.flats["w"]
    if form.across:
        aligned = types[0] in BYTES and read.is_multiple(LANES, but=form.channel)
        return replace(form, vectors=aligned)
    run = form.reduced[form.last - len(form.loops)]
    inside = all(loop != form.last for b in read.bounds for loop, _ in b.steps)
    whole = run % LANES == 0 and read.step(form.last) == 1 and inside
    if not (whole and read.is_multiple(LANES, but=form.last)):
        return form
    if types[0] in BYTES:
        dense = weights.is_multiple(LANES, but=form.last) and weights.step(form.last) == 1
        same = types[0] is types[1] and kernel.sums is DType.INT32
        return replace(form, words=same and (form.packed or dense))
    elements = math.prod(program.tensors[program.root(form.data.tensor)].shape)
    others = {program.root(t) for t in (*(a.tensor for a in kernel.extras), kernel.write.tensor)}
    others |= {program.root(t) for t in kernel.finish.tables}
    alone = program.root(form.data.tensor) not in others and elements % LANES == 0
    real = types[0] is DType.FLOAT32 and form.packed
    return replace(form, vectors=alone and real)


def _packed_flat(kernel: Kernel, filters: Access) -> Flat:
    """The address of packed filters in vectors: of the outer loops that they depend on, then of the
    reduced ones, then of the channels.
    """
    outer = len(kernel.loops)
    vector = len(kernel.sizes)
    stride, steps = -(-kernel.loops[-1] // LANES), {vector: 1}
    for loop in reversed(range(outer, vector)):
        steps[loop] = stride
        stride *= kernel.sizes[loop]
    for loop in reversed(range(outer - 1)):
        if loop in filters.loops():
            steps[loop] = stride
            stride *= kernel.sizes[loop]
    kept = (pair for pair in sorted(steps.items()) if pair[0] == vector or _moves(kernel, pair[0]))
    return Flat(0, tuple(kept))


def _moves(kernel: Kernel, loop: int) -> bool:
    return kernel.sizes[loop] != 1


def packed(program: Program, kernel: Kernel, form: Form) -> list[NDArray]:
    """The filters, as vectors of the sums' type less their zero point, or as words of four of them;
    and, with words, what each sum begins with so that zero points need not be subtracted.
    """
    values = constant_elements(program, form.filters, kernel.sizes)
    used = form.filters.loops()
    outer, channels = len(kernel.loops), kernel.loops[-1]
    sizes = [
        size if loop >= outer - 1 or loop in used else 1 for loop, size in enumerate(kernel.sizes)
    ]
    spread = np.broadcast_to(values, sizes)
    # Rows are the outer loops, then come the reduced ones, then the channels.
    moved = np.moveaxis(spread, outer - 1, -1)
    count = math.prod(kernel.reduced)
    shaped = moved.reshape(-1, count, channels)
    shaped = np.pad(shaped, [(0, 0), (0, 0), (0, -channels % LANES)])
    if not form.words:
        whole = shaped.astype(kernel.sums.numpy)
        return [np.ascontiguousarray(whole - kernel.sums.numpy.type(form.zeros[1]))]
    rows = shaped.reshape(len(shaped), count // LANES, LANES, shaped.shape[-1])
    words = np.ascontiguousarray(rows.transpose(0, 1, 3, 2))
    of_data, of_filters = form.zeros
    sums = shaped.astype(np.int64).sum(axis=1)
    begin = of_data * (of_filters * count - sums)
    return [words, begin.astype(np.int32)] if begin.any() else [words]


def halves_of(filters: NDArray, *, rounded: bool) -> tuple[NDArray, int] | None:
    """Packed *filters* of float32, of shape (rows, elements, channels), as float16, and the factor
    that they are multiplied by. None if values change; if they may be *rounded*, None if the error
    of a channel, as a root mean square, is larger than the rounding of float16.
    """
    if not rounded and (filters.view(np.uint32) & 0x1FFF).any():
        return None
    for factor in FACTORS:
        scaled = filters * np.float32(factor)
        with np.errstate(over="ignore", invalid="ignore"):
            halves = scaled.astype(np.float16)
            # Devices may read values below the normal ones as 0.
            halves[(np.abs(halves) < np.finfo(np.float16).tiny) & (halves != 0)] = 0
            error = halves.astype(np.float32) - scaled
            if rounded:
                size, off = (np.square(a, dtype=np.float64).sum(axis=1) for a in (scaled, error))
                fits = bool((off <= HALF_ERROR**2 * size).all())
            else:
                fits = not error.any()
        if fits:
            return halves, factor
    return None
