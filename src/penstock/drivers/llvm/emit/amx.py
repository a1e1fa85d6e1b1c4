"""Products of 8 bits by tiles of AMX (Intel's "Architecture Instruction Set Extensions").

A tile has up to 16 rows of 64 bytes. One holds the data of up to 16 positions, another the weights
of 16 channels, and four the sums of 64 channels. Sums go through memory to the code that follows
any product. No processor with AMX ran this: see docs/platforms.md.
"""

from __future__ import annotations

import math
from typing import Final

from penstock.compiler.program import Kernel, Program
from penstock.drivers.llvm.emit import dense
from penstock.drivers.llvm.emit.assembler import Function, Index, Reg
from penstock.drivers.llvm.emit.matrix import Matrix
from penstock.drivers.llvm.emit.matrix_code import Code
from penstock.drivers.llvm.isa import Isa
from penstock.drivers.llvm.isa.instructions import GROUP

FEATURE: Final = "amx-int8"

ROWS: Final = 16
ROW_BYTES: Final = 64
SUMS: Final = 4
"""The tiles of sums: numbers 0 to 3."""

DATA: Final = 4
WEIGHTS: Final = (5, 6)
"""The numbers of the other tiles. Two of weights, so that one is read while the other is used."""

FEWEST_ROWS: Final = 4
FEWEST_TAPS: Final = 16
"""With fewer positions or taps, vectors are faster."""

TOGETHER: Final = 4
"""Rows of sums that are finished at once."""


def match(program: Program, kernel: Kernel, isa: Isa) -> Tiles | None:
    """*kernel* as a product by tiles, or None."""
    if FEATURE not in isa.features:
        return None
    found = dense.match(program, kernel, isa)
    if found is None or found.scale is None or found.scale.surplus or found.apart is not None:
        return None
    shape = found.shape
    step = taps_of(shape.length)
    if found.fold > 1 or step is None or shape.positions[-1].size < FEWEST_ROWS:
        return None
    if shape.positions[-1].data < 0:
        return None
    return Tiles(program, kernel, isa, found, step)


def taps_of(length: int) -> int | None:
    """How many of *length* adjacent taps a tile takes: whole groups, all tiles alike. None where
    they would be few.
    """
    fits = [t for t in range(FEWEST_TAPS, ROW_BYTES + 1, GROUP) if length % t == 0]
    return max(fits, default=None)


class Tiles(Matrix):
    """A matrix product by tiles, *step* taps at a time."""

    def __init__(
        self, program: Program, kernel: Kernel, isa: Isa, found: Matrix, step: int
    ) -> None:
        super().__init__(
            program, kernel, isa, found.product, found.shape, found.stored, found.scale
        )
        self.step, self.parts = step, 1
        self.rows = min(ROWS, found.shape.positions[-1].size)
        wanted = -(-found.shape.channels // self.lanes)
        self.columns = next((n for n in (1, 2) if n >= wanted), SUMS)
        self.panel = self.lanes * self.columns
        self.tap_bytes = self.machine.weight_bytes * self.columns // self.unit

    def write(self, name: str) -> Function:
        function = Function(name, self.arguments)
        _Code(self, function).write()
        return function


class _Code(Code):
    """Writes the function of a product by tiles."""

    def __init__(self, tiles: Tiles, function: Function) -> None:
        super().__init__(tiles, function)
        self.tiles = tiles

    def write(self) -> None:
        f, tiles = self.f, self.tiles
        size = tiles.rows * ROW_BYTES * tiles.columns
        self.scratch = f.value(f"alloca [{size} x i8], align 64", "ptr").name
        shapes = dict.fromkeys(range(tiles.columns), (tiles.rows, ROW_BYTES))
        shapes[DATA] = tiles.rows, tiles.step
        shapes |= dict.fromkeys(WEIGHTS, (tiles.step // GROUP, ROW_BYTES))
        self._configure(shapes)
        f.at_end("call void @llvm.x86.tilerelease()")
        super().write()

    def _configure(self, shapes: dict[int, tuple[int, int]]) -> None:
        """Loads the configuration: palette 1, and (rows, bytes of a row) of each tile."""
        content = bytearray(64)
        content[0] = 1
        for number, (rows, columns) in shapes.items():
            content[16 + 2 * number : 18 + 2 * number] = columns.to_bytes(2, "little")
            content[48 + number] = rows
        f = self.f
        place = f.value("alloca [64 x i8], align 64", "ptr").name
        f.line(f"store <64 x i8> <{', '.join(f'i8 {b}' for b in content)}>, ptr {place}, align 64")
        f.declarations |= {
            "declare void @llvm.x86.ldtilecfg(ptr)",
            "declare void @llvm.x86.tilerelease()",
            "declare void @llvm.x86.tilezero(i8)",
            "declare void @llvm.x86.tileloadd64(i8, ptr, i64)",
            "declare void @llvm.x86.tilestored64(i8, ptr, i64)",
            "declare void @llvm.x86.tdpbusd(i8, i8, i8)",
        }
        f.line(f"call void @llvm.x86.ldtilecfg(ptr {place})")

    def _tile(self, indexes: list[Index], panel: Index, count: int) -> None:
        f, tiles = self.f, self.tiles
        data = self.pointer("%data", tiles.product.data, lambda p: p.data, indexes)
        pieces = math.prod(size for size, _ in self.shape.segments)
        weights = f.at("%w", f.mul(panel, pieces * tiles.taps * tiles.tap_bytes))
        for j in range(tiles.columns):
            f.line(f"call void @llvm.x86.tilezero(i8 {j})")
        self._multiplied(0, data, weights)
        size = tiles.rows * ROW_BYTES
        for j in range(tiles.columns):
            place = f.at(self.scratch, j * size)
            f.line(f"call void @llvm.x86.tilestored64(i8 {j}, ptr {place}, i64 {ROW_BYTES})")
        self.count = count
        whole = tiles.rows // TOGETHER * TOGETHER
        f.each(0, whole, TOGETHER, lambda r: self._some_rows(indexes, r, TOGETHER, panel))
        if whole < tiles.rows:
            self._some_rows(indexes, whole, tiles.rows - whole, panel)

    def _multiplied(self, depth: int, data: str, weights: str) -> None:
        """Adds the products of the segments from *depth* on to the tiles of sums."""
        f, tiles, segments = self.f, self.tiles, self.shape.segments
        if depth == len(segments):
            f.each(0, self.shape.length, tiles.step, lambda k: self._step(data, weights, k))
            return
        size, step = segments[depth]
        stride = math.prod(s for s, _ in segments[depth + 1 :]) * tiles.taps * tiles.tap_bytes

        def body(index: Index) -> None:
            moved = f.at(data, f.mul(index, step))
            self._multiplied(depth + 1, moved, f.at(weights, f.mul(index, stride)))

        f.each(0, size, 1, body)

    def _step(self, data: str, weights: str, tap: Index) -> None:
        """The products of one tile of data."""
        f, tiles = self.f, self.tiles
        position = self.shape.positions[-1].data
        base = f.at(weights, f.mul(tap, tiles.tap_bytes))
        load = "call void @llvm.x86.tileloadd64"
        f.line(f"{load}(i8 {DATA}, ptr {f.at(data, tap)}, i64 {position})")
        for j in range(tiles.columns):
            number = WEIGHTS[j % len(WEIGHTS)]
            place = f.at(base, ROW_BYTES * j)
            f.line(f"{load}(i8 {number}, ptr {place}, i64 {ROW_BYTES * tiles.columns})")
            f.line(f"call void @llvm.x86.tdpbusd(i8 {j}, i8 {DATA}, i8 {number})")

    def _some_rows(self, indexes: list[Index], first: Index, rows: int, panel: Index) -> None:
        """Finishes *rows* rows of sums from *first* on."""
        f, m, tiles = self.f, self.m, self.tiles
        bias = f.at("%bias", f.mul(panel, self.panel * 4))
        start = [f.load(m.words, f.at(bias, ROW_BYTES * j), 64) for j in range(tiles.columns)]
        base = f.at(self.scratch, f.mul(first, ROW_BYTES))
        sums: list[Reg] = []
        for row in range(rows):
            for j in range(tiles.columns):
                place = f.at(base, (j * tiles.rows + row) * ROW_BYTES)
                total = f.load(m.words, place, 64)
                sums.append(f.value(f"add {total}, {start[j].name}", m.words))
        self.rows, kept = rows, self.rows
        self.finish(sums, [*indexes[:-1], f.add(indexes[-1], first)], panel, self.count)
        self.rows = kept
