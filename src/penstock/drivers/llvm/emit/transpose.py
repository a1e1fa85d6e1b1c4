"""The template of transposes: copies that read along one loop and write along another.

A tile of both loops is read in vectors, turned around in registers, and written in vectors. The
last tile along a loop overlaps the one before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from penstock.compiler.program import Kernel, Program
from penstock.drivers.llvm.emit.assembler import Function, Index, Reg, lanes_of, vector
from penstock.drivers.llvm.emit.flat import Loops, loops_of, pointers_of
from penstock.drivers.llvm.emit.places import Places, Span
from penstock.drivers.llvm.isa import Instructions, Isa
from penstock.ir import DType, NDArray

MOST: Final = 16
"""The most elements of a side of a tile."""

LEAST: Final = 16
"""The least elements of a tile: smaller ones gain nothing."""

FEW_STEPS: Final = 4
"""The most steps of what is computed on the way: vectors of a tile may be short."""

MANY_POINTS: Final = 1 << 18
"""Points of a unit from which on the flag that stops a run is read within it."""


def match(program: Program, kernel: Kernel, isa: Isa) -> Transpose | None:
    """*kernel* as a transpose, or None."""
    if kernel.combine != "none" or kernel.extras or len(kernel.reads) != 1 or 0 in kernel.loops:
        return None
    if kernel.routine is not None or not _is_light(kernel):
        return None
    loops = loops_of(program, kernel)
    (read,), written = loops.reads, loops.written
    if read.axes or written.axes or DType.BOOL in {read.dtype, written.dtype}:
        return None
    sides = [next((i for i, s in enumerate(a.steps) if s == 1), None) for a in (read, written)]
    row, column = sides
    if row is None or column is None or row == column or not read.steps[column]:
        return None
    widest = max(a.dtype.numpy.itemsize for a in (read, written))
    most = min(MOST, isa.width // widest)
    tile = _power(min(most, loops.outer[row])), _power(min(most, loops.outer[column]))
    if min(tile) < 2 or math.prod(tile) < min(LEAST, most * most):
        return None
    return Transpose(program, kernel, isa, loops, (row, column), tile)


def _is_light(kernel: Kernel) -> bool:
    if kernel.body.is_identity and kernel.finish.is_identity:
        return True
    expressions = kernel.body, kernel.finish
    types = {e.dtype_of(v) for e in expressions for v in range(len(e.arguments) + len(e.steps))}
    return types == {DType.FLOAT32} and sum(len(e.steps) for e in expressions) <= FEW_STEPS


def _power(size: int) -> int:
    """The greatest power of two up to *size*."""
    return 1 << (size.bit_length() - 1)


class Transpose:
    """A kernel that reads along loop *sides[0]* and writes along loop *sides[1]*, with the sizes of
    a tile along both.
    """

    name = "transpose"
    key = None

    def __init__(
        self, program: Program, kernel: Kernel, isa: Isa, loops: Loops, sides: tuple[int, int],
        tile: tuple[int, int],
    ) -> None:  # fmt: skip
        self.program, self.kernel, self.loops = program, kernel, loops
        self.machine, self.sides, self.sizes = Instructions(isa), sides, tile
        self.tensors = tuple(pointers_of(program, kernel))
        others = [i for i in range(len(loops.outer)) if i not in sides]
        # Tiles of the longer side are units where there is no other loop.
        longer = max(sides, key=lambda side: loops.outer[side])
        self.shared = others[0] if others else longer
        self.order = [*others, *sides]
        self.order.remove(self.shared)

    @property
    def units(self) -> int:
        return -(-self.loops.outer[self.shared] // self.step(self.shared))

    def step(self, loop: int) -> int:
        """How many turns of *loop* are done at once."""
        return dict(zip(self.sides, self.sizes, strict=True)).get(loop, 1)

    def constants(self) -> tuple[NDArray, ...]:
        return ()

    def write(self, name: str) -> Function:
        f = Function(name, [f"t{i}" for i in range(len(self.tensors))])
        places = Places(self.program, self.machine, f, self.tensors)
        size, step = self.loops.outer[self.shared], self.step(self.shared)
        large = math.prod(self.loops.outer) // self.units > MANY_POINTS

        def walk(order: Sequence[int]) -> None:
            if not order:
                self._tile(places)
                return

            def body(index: Index) -> None:
                places.indexes[order[0]] = index
                if large and len(order) == len(self.order):
                    f.poll()
                walk(order[1:])

            _tiles(f, self.loops.outer[order[0]], self.step(order[0]), body)

        def unit(index: Index) -> None:
            places.indexes[self.shared] = index
            walk(self.order)

        last = (lambda: unit(size - step)) if size % step else None
        f.share(size // step, lambda u: unit(f.mul(u, step)), last)
        return f

    def _tile(self, places: Places) -> None:
        """One tile, from the indexes of *places* on."""
        f, (row, column), (across, down) = places.function, self.sides, self.sizes
        first = dict(places.indexes)
        writer = places.writer(across)
        parts: list[list[Reg]] = []
        for number in range(down):
            places.indexes[column] = f.add(first[column], number)
            value = places.load(self.loops.reads[0], Span(across, row))
            value = writer.write(self.kernel.finish, [writer.write(self.kernel.body, [value])])
            parts.append([writer.stored(value, self.loops.written.dtype)])
        most = self.machine.isa.width // self.loops.written.dtype.numpy.itemsize
        while len(parts) > 1:
            half = len(parts) // 2
            pairs = zip(parts[:half], parts[half:], strict=True)
            parts = [_mixed(f, a, b, most) for a, b in pairs]
        # Columns side by side, all elements of one behind those of the column before it.
        (whole,) = parts
        joins = self.loops.written.steps[row] == down == self.loops.outer[column]
        for number, value in enumerate(whole):
            lanes, _ = lanes_of(value.type)
            each = lanes if joins else min(lanes, down)
            for begin in range(0, lanes, each):
                turn, place = divmod(number * lanes + begin, down)
                places.indexes[row] = f.add(first[row], turn)
                places.indexes[column] = f.add(first[column], place)
                some = value if each == lanes else f.chosen(value, range(begin, begin + each))
                places.store(some, self.loops.written, Span(each, column))
        places.indexes.update(first)


def _mixed(f: Function, first: Sequence[Reg], second: Sequence[Reg], most: int) -> list[Reg]:
    """The elements of two rows of vectors in turn, as vectors of *most* elements."""
    made = []
    for a, b in zip(first, second, strict=True):
        lanes, scalar = lanes_of(a.type)
        order = [place for i in range(lanes) for place in (i, lanes + i)]
        halves = [order] if 2 * lanes <= most else [order[:lanes], order[lanes:]]
        for half in halves:
            numbers = ", ".join(f"i32 {i}" for i in half)
            text = f"shufflevector {a}, {b}, <{len(half)} x i32> <{numbers}>"
            made.append(f.value(text, vector(len(half), scalar)))
    return made


def _tiles(f: Function, size: int, step: int, body: Callable[[Index], object]) -> None:
    """Runs *body* at the beginning of each part of a loop; the last part overlaps."""
    full = size // step * step
    f.each(0, full, step, body)
    if full < size:
        body(size - step)
