"""The template of depthwise convolutions: each channel has a filter of its own.

Floats: a vector of channels, a multiplication a tap. 8 bits: `depthwise_bytes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from penstock.compiler.program import Kernel, Program
from penstock.drivers.llvm.emit.assembler import SCALARS, Function, Index, Reg, mask_of, vector
from penstock.drivers.llvm.emit.depthwise_bytes import Bytes, Shape
from penstock.drivers.llvm.emit.flat import Flat
from penstock.drivers.llvm.emit.parts import count_of, divided, in_last, span_of
from penstock.drivers.llvm.emit.product import Product, elements, product, scaling
from penstock.drivers.llvm.emit.writer import Writer
from penstock.drivers.llvm.isa import Instructions, Isa
from penstock.ir import DType, NDArray

FLOAT_COLUMNS: Final = 7
"""Columns of output that are computed side by side."""


def match(program: Program, kernel: Kernel, isa: Isa) -> Floats | Bytes | None:
    """*kernel* as a depthwise convolution with constant filters, or None."""
    if len(kernel.loops) != 4 or len(kernel.reduced) != 2:
        return None
    found = product(program, kernel, isa)
    if found is None or found.streamed is not None or not found.weights.loops() <= {3, 4, 5}:
        return None
    data, write = found.data, found.write
    if data.steps[3] != 1 or write.steps[3] != 1:
        return None
    if any(e.axes or e.steps[3] not in {0, 1} for e in found.extras):
        return None
    taps = elements(program, kernel, found.weights, [3, 4, 5])
    n, h, w, channels = kernel.loops
    shape = Shape(
        (n, data.steps[0], write.steps[0]), (h, data.steps[1], write.steps[1]),
        (w, data.steps[2], write.steps[2]), data.steps[4], data.steps[5], channels,
    )  # fmt: skip
    if found.is_float:
        return Floats(program, kernel, isa, found, shape, taps)
    # Where a filter has a rest, one product of many is done twice.
    scale = scaling(program, kernel, found, taps, isa, lambda _: True)
    if scale is None or scale.offset is None or scale.value != kernel.finish.result:
        return None
    return Bytes(program, isa, found, shape, scale)


class _Depthwise:
    """Blocks of channels, images, rows, tiles of columns."""

    name = "depthwise"
    lanes: int
    most: int
    key: object = None

    def __init__(
        self, program: Program, kernel: Kernel, isa: Isa, product: Product, shape: Shape
    ) -> None:
        self.program, self.kernel, self.machine = program, kernel, Instructions(isa)
        self.product, self.shape = product, shape

    @property
    def parts(self) -> int:
        lines = self.shape.images[0] * self.shape.rows[0]
        return count_of(lines, self.shape.channels // self.lanes)

    @property
    def units(self) -> int:
        return self.shape.images[0] * self.shape.rows[0] * self.parts

    def walk(self, f: Function) -> None:
        """Writes the loops; a unit is one row of one image, in all channels or a part of them."""
        shape, (full, rest) = self.shape, divmod(self.shape.channels, self.lanes)
        tile = min(self.most, shape.columns[0])

        def row(unit: Index) -> None:
            image: Index = 0
            unit, part = divided(f, unit, self.parts)
            y = unit
            if shape.images[0] > 1:
                image = f.value(f"udiv i64 {unit}, {shape.rows[0]}", "i64").name
                y = f.value(f"urem i64 {unit}, {shape.rows[0]}", "i64").name
            if full:
                begin, end = span_of(f, part, self.parts, full)
                f.each(begin, end, 1, lambda b: line(image, y, b, self.lanes))
            if rest:
                in_last(f, part, self.parts, lambda: line(image, y, full, rest))

        def line(image: Index, y: Index, block: Index, count: int) -> None:
            size = shape.columns[0]
            whole = size // tile * tile

            def body(x: Index, _: list[Reg]) -> list[Reg]:
                self.tile(f, block, count, (image, y, x), tile)
                return []

            f.loop(0, whole, tile, body)
            if whole < size:
                self.tile(f, block, count, (image, y, size - tile), tile)

        f.share(self.units, row)

    def tile(self, f: Function, block: Index, count: int, at: tuple[Index, ...], tile: int) -> None:
        raise NotImplementedError

    def place(
        self, f: Function, access: Flat, which: int, block: Index, at: Sequence[Index]
    ) -> str:
        """The address of the first channel of *block* at a position; *which*: 1 data, 2 result."""
        place: Index = f.add(access.offset, f.mul(block, self.lanes))
        for loop, index in zip(self.shape.loops, at, strict=True):
            place = f.add(place, f.mul(index, loop[which]))
        base = "%data" if which == 1 else "%out"
        return f.at(base, f.mul(place, access.dtype.numpy.itemsize))


class Floats(_Depthwise):
    """A depthwise convolution of float32."""

    most = FLOAT_COLUMNS

    def __init__(
        self, program: Program, kernel: Kernel, isa: Isa, product: Product, shape: Shape,
        taps: NDArray,
    ) -> None:  # fmt: skip
        super().__init__(program, kernel, isa, product, shape)
        self.taps, self.lanes = taps, isa.lanes
        self.most = min(FLOAT_COLUMNS, isa.registers // 4)
        self.tables = list(dict.fromkeys(program.root(t) for t in kernel.finish.tables))

    @property
    def tensors(self) -> tuple[int, ...]:
        accesses = (self.product.data, self.product.write, *self.product.extras)
        return (*(self.program.root(a.tensor) for a in accesses), *self.tables)

    def constants(self) -> tuple[NDArray, ...]:
        channels, height, width = self.taps.shape
        blocks = -(-channels // self.lanes)
        full = np.zeros((blocks * self.lanes, height, width), np.float32)
        full[:channels] = self.taps
        shaped = full.reshape(blocks, self.lanes, height, width)
        return (np.ascontiguousarray(shaped.transpose(0, 2, 3, 1)),)

    def write(self, name: str) -> Function:
        extras = [f"e{i}" for i in range(len(self.product.extras))]
        tables = [f"t{i}" for i in range(len(self.tables))]
        f = Function(name, ["data", "out", *extras, *tables, "w"])
        self.walk(f)
        return f

    def tile(self, f: Function, block: Index, count: int, at: tuple[Index, ...], tile: int) -> None:
        m, shape, lanes = self.machine, self.shape, self.lanes
        _, height, width = self.taps.shape
        size = m.isa.width
        mask = mask_of(count, lanes)
        data = self.place(f, self.product.data, 1, block, at)
        weights = f.at("%w", f.mul(block, height * width * size))
        writer = Writer(f, lanes, m, self._table)
        writer.active = mask
        sums = self._starts(f, writer, block, at, tile)
        spacing = shape.columns[1]
        for ky in range(height):
            w = [
                f.load(m.floats, f.at(weights, (ky * width + kx) * size), size)
                for kx in range(width)
            ]
            loaded: dict[int, Reg] = {}
            for j in range(tile):
                for kx in range(width):
                    place = ky * shape.row_step + j * spacing + kx * shape.column_step
                    if place not in loaded:
                        loaded[place] = f.masked_load(m.floats, f.at(data, place * 4), mask)
                    sums[j] = f.multiplied(loaded[place], w[kx], sums[j], self.kernel.order)
        for j in range(tile):
            here = (*at[:2], f.add(at[2], j))
            extras = [
                self._extra(f, writer, i, block, here, mask)
                for i in range(len(self.product.extras))
            ]
            result = writer.write(self.kernel.finish, [sums[j], *extras])
            stored = writer.stored(result, self.product.write.dtype)
            f.masked_store(stored, self.place(f, self.product.write, 2, block, here), mask)

    def _starts(
        self, f: Function, writer: Writer, block: Index, at: tuple[Index, ...], tile: int
    ) -> list[Reg]:
        """What the sums of a tile begin with."""
        if self.kernel.order != "fused":
            return [Reg("zeroinitializer", self.machine.floats)] * tile
        places = [(*at[:2], f.add(at[2], j)) for j in range(tile)]
        return [self._extra(f, writer, 0, block, here, writer.active) for here in places]

    def _extra(
        self, f: Function, writer: Writer, number: int, block: Index, at: Sequence[Index],
        mask: Reg | None,
    ) -> Reg:  # fmt: skip
        access = self.product.extras[number]
        place: Index = access.offset
        if access.steps[3]:
            place = f.add(place, f.mul(block, self.lanes))
        for loop, index in enumerate(at):
            place = f.add(place, f.mul(index, access.steps[loop]))
        pointer = f.at(f"%e{number}", f.mul(place, access.dtype.numpy.itemsize))
        scalar = SCALARS[access.dtype]
        if not access.steps[3]:
            single = Writer(f, 1, self.machine, self._table)
            return f.splat(single.loaded(f.load(scalar, pointer), access.dtype), self.lanes)
        value = f.masked_load(vector(self.lanes, scalar), pointer, mask)
        return writer.loaded(value, access.dtype)

    def _table(self, tensor: int) -> tuple[str, DType]:
        place = self.tables.index(self.program.root(tensor))
        return f"%t{place}", self.program.tensors[tensor].dtype
