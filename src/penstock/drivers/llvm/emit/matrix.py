"""Matrix products as they are computed: loops, tiles, and packed weights."""

from __future__ import annotations

import math

import numpy as np
from msgspec import Struct

from penstock.compiler.program import Kernel, Program
from penstock.drivers.llvm.emit import parts
from penstock.drivers.llvm.emit.apart import apart
from penstock.drivers.llvm.emit.product import Product, Scaling
from penstock.drivers.llvm.isa import Instructions, Isa
from penstock.drivers.llvm.isa.instructions import GROUP
from penstock.ir import NDArray

FEW_POSITIONS = 400
"""With fewer positions, the weights of a panel are read once, for all positions."""

CACHED = 640 * 1024
"""Bytes of weights that stay in the second cache beside data."""

UNCACHED = 1.15

LINE = 64
"""Bytes that are fetched from memory at once."""

LEAST_AHEAD = 128 * 1024
"""Bytes of weights that another layer may have pushed out of the second cache."""

FEW_TILES, MANY_TILES = 3, 32
"""Tiles of a panel between which it pays to fetch the next one."""

MOST_FOLDED = 4

FLOAT_BYTES = 4

MOST_PARTS = 4

LEAST_UNIT = 1 << 15
"""Products of a unit: about a microsecond."""

ENOUGH_SUMS = 8
"""So many sums keep the multipliers busy while each waits for its last product."""


class Loop(Struct, frozen=True):
    """A loop over positions: its size, and the steps of data, result, extras and streamed weights,
    in elements.
    """

    size: int
    data: int
    write: int
    extras: tuple[int, ...]
    weights: int = 0


class Shape(Struct, frozen=True):
    """A matrix product: *positions* (outermost first) by *channels*, over *segments*, (size, step)
    each, of *length* adjacent taps. *stream*: the step between taps of weights that are read where
    they lie.
    """

    positions: tuple[Loop, ...]
    channels: int
    channel_loop: int
    segments: tuple[tuple[int, int], ...]
    length: int
    stream: int | None = None


def tile_of(
    positions: int, channels: int, isa: Isa, *, is_float: bool, weights: int = 0
) -> tuple[int, int]:
    """(rows, columns) of a tile: little waste, sums that fit the registers, and weights, so many
    bytes a channel, that fit the second cache.
    """
    lanes, best, found = isa.lanes, math.inf, (1, 1)
    fewest = isa.registers * 7 // 16
    for columns, heights, base in isa.float_tiles if is_float else isa.byte_tiles:
        for place, height in enumerate(heights):
            rows = min(height, positions)
            wide = -(-channels // (lanes * columns)) * lanes * columns / channels
            tall = -(-positions // rows) * rows / positions
            few = max(0, fewest - rows * columns)
            cost = base * wide * tall * (1 + 0.008 * place) * (1 + 0.03 * few)
            if lanes * columns * weights > CACHED and positions > rows:
                cost *= UNCACHED
            if cost < best - 1e-9:
                best, found = cost, (rows, columns)
    return found


def fold_of(shape: Shape, isa: Isa, group: int) -> int:
    """How many groups of adjacent taps lie side by side in a vector of sums, where it has lanes for
    more channels than there are.
    """
    best, fold = -(-shape.length // group), 1
    tried = 2
    while tried * shape.channels <= isa.lanes and tried <= MOST_FOLDED:
        steps = -(-shape.length // (group * tried))
        if steps < best:
            best, fold = steps, tried
        tried *= 2
    return fold


class Matrix:
    """A matrix product. *unit* taps are multiplied at once, *fold* groups of them side by side."""

    name = "dense"

    def __init__(
        self,
        program: Program,
        kernel: Kernel,
        isa: Isa,
        product: Product,
        shape: Shape,
        weights: NDArray,
        scale: Scaling | None,
    ) -> None:
        self.program, self.kernel, self.machine = program, kernel, Instructions(isa)
        self.product, self.shape, self.scale = product, shape, scale
        self.lanes, self.is_float = isa.lanes, scale is None
        self.stored = weights if scale is None else scale.weights
        inner = shape.positions[-1]
        self.item = 4 if self.is_float else 1
        self.depth = math.prod(size for size, _ in shape.segments) * shape.length
        self.weights = self.depth * (4 if self.is_float else self.machine.weight_type.itemsize)
        self.rows, self.columns = tile_of(
            inner.size, shape.channels, isa, is_float=self.is_float, weights=self.weights
        )
        group = 1 if self.is_float else GROUP
        single = shape.stream is not None or kernel.ordered
        self.fold = 1 if single else fold_of(shape, isa, group)
        lacking = None if scale is None else scale.rest
        if lacking is not None and group * self.fold > shape.length:
            self.fold = 1
        if self.fold > 1:
            self.rows, self.columns = min(inner.size, isa.registers * 7 // 16), 1
        # Few sums wait for each other: they are taken in parts, unit by unit in turn.
        self.parts = 1
        units = shape.length // (group * self.fold)
        most = 1 if kernel.ordered else min(MOST_PARTS, units)
        while 2 * self.parts <= most and self.parts * self.rows * self.columns < ENOUGH_SUMS:
            self.parts *= 2
        self.panel = self.lanes * self.columns // self.fold
        self.unit = group * self.fold
        self.taps = -(-shape.length // self.unit) * self.unit
        # The last unit of bytes begins where it ends with the last tap; weights are 0 for taps of
        # the one before it.
        rest = shape.length % self.unit
        self.overlaps = not self.is_float and rest > 0 and shape.length > self.unit
        size = isa.width if scale is None else self.machine.weight_bytes
        self.tap_bytes = size * self.columns // self.unit
        if shape.stream is not None:
            self.tap_bytes = shape.stream * FLOAT_BYTES
        self.apart = None
        if lacking is not None:
            self.apart = apart(lacking, shape.segments, self.panel, self.unit)
        self.tables = list(dict.fromkeys(program.root(t) for t in kernel.finish.tables))

    @property
    def tensors(self) -> tuple[int, ...]:
        accesses = (self.product.data, self.product.write, *self.product.extras)
        streamed = self.product.streamed
        weights = () if streamed is None else (self.program.root(streamed.tensor),)
        return (*(self.program.root(a.tensor) for a in accesses), *self.tables, *weights)

    @property
    def key(self) -> object:
        scale = self.scale
        if scale is None:
            return None
        scaled, proof = scale.scaled, scale.proof
        known = None if scaled is None else (scaled.zero_point, scaled.limits, scaled.value)
        lines = None if proof is None else (*proof.constants, proof.lifted is None)
        return lines, known, self.rounds, scale.surplus, scale.offset, self.apart is not None

    @property
    def rounds(self) -> int:
        """How many sums of a channel are patched at most."""
        proof = None if self.scale is None else self.scale.proof
        return 0 if proof is None else len(proof.patches)

    @property
    def arguments(self) -> list[str]:
        """The names of the arguments of the function."""
        extras = [f"e{i}" for i in range(len(self.product.extras))]
        tables = [f"t{i}" for i in range(len(self.tables))]
        constants = ["w"] if self.is_float else ["w", "bias"]
        if self.scale is not None and self.scale.proof is not None:
            constants += self.scale.proof.constants
            constants += [f"{n}{i}" for i in range(self.rounds) for n in ("s", "x")]
        if self.apart is not None:
            constants += ["begins", "places", "rest"]
        return ["data", "out", *extras, *tables, *constants]

    @property
    def panels(self) -> int:
        return -(-self.shape.channels // self.panel)

    @property
    def by_panels(self) -> bool:
        """Whether panels are the units of work; otherwise positions are."""
        positions = math.prod(p.size for p in self.shape.positions)
        if positions <= FEW_POSITIONS:
            return True
        weights = self.weights * self.shape.channels
        data = math.prod(self.program.tensors[self.product.data.tensor].shape) * self.item
        return weights > CACHED and weights * self.turns > data * self.panels

    @property
    def blocks(self) -> int:
        """The parts of the outermost positions that are units of work in each panel, where there
        are few panels.
        """
        products = math.prod(p.size for p in self.shape.positions) * self.panel * self.depth
        most = self.turns, products // LEAST_UNIT
        return parts.count_of(self.panels, *most) if self.by_panels else 1

    @property
    def turns(self) -> int:
        """The outermost positions; tiles where there is one loop over positions."""
        size = self.shape.positions[0].size
        return size if len(self.shape.positions) > 1 else -(-size // self.rows)

    @property
    def panel_bytes(self) -> int:
        """The packed weights of a panel."""
        return math.prod(size for size, _ in self.shape.segments) * self.taps * self.tap_bytes

    @property
    def ahead_lines(self) -> int:
        """How many lines of the next panel are fetched beside each few taps of a tile: together the
        tiles of a panel fetch it all. 0 where weights stay in the second cache, or where there is
        little to compute meanwhile.
        """
        weights = self.panels * self.panel_bytes
        if self.shape.stream is not None or weights <= LEAST_AHEAD:
            return 0
        *outer, inner = self.shape.positions
        tiles = math.prod(p.size for p in outer) * -(-inner.size // self.rows)
        if not self.by_panels or not FEW_TILES <= tiles <= MANY_TILES:
            return 0
        return -(-self.unrolled * self.tap_bytes // (LINE * tiles))

    @property
    def unrolled(self) -> int:
        """The taps of a turn of the innermost loop."""
        return (4 if self.fold == 1 else 2) * self.unit

    @property
    def units(self) -> int:
        return self.panels * self.blocks if self.by_panels else self.turns

    def constants(self) -> tuple[NDArray, ...]:
        if self.shape.stream is not None:
            return ()
        channels, panel, panels = self.shape.channels, self.panel, self.panels
        pieces = self.stored.shape[1]
        scale = self.scale
        kind = np.dtype(np.float32) if scale is None else self.machine.weight_type
        length, places = self.shape.length, (panels * panel, pieces, self.taps)
        whole = length - length % self.unit if self.overlaps else length
        full = self.stored
        if (full.shape, full.dtype, whole) != (places, kind, length):
            full = np.zeros(places, kind)
            full[:channels, :, :whole] = self.stored[:, :, :whole]
            if whole < length:
                full[:channels, :, whole - length :] = self.stored[:, :, whole:]
        packs = scale is not None and scale.offset is not None and self.fold == 1
        order = self.machine.order(self.columns) if packs else np.arange(panel)
        shaped = full.reshape(panels, panel, pieces * self.taps)
        if packs:
            shaped = np.take(shaped, order, axis=1)
        # Units of a size that is a number's are moved as numbers, which is faster.
        number = {4: np.int32, 8: np.int64}.get(self.unit * kind.itemsize, np.void)
        unit = np.dtype((number, self.unit * kind.itemsize) if number is np.void else number)
        units = shaped.view(unit).reshape(panels, panel, -1).transpose(0, 2, 1)
        grouped = np.ascontiguousarray(units).reshape(-1).view(kind)
        if scale is None:
            return (grouped.reshape(panels, -1, panel, self.fold, self.unit // self.fold),)

        def packed(units: NDArray) -> NDArray:
            shaped = units.reshape(-1, self.columns, self.lanes, GROUP)
            return self.machine.packed_weights(shaped)

        def padded(values: NDArray, kind: type) -> NDArray:
            some: NDArray = np.zeros(panels * panel, kind)
            some[:channels] = np.broadcast_to(values, channels)
            return np.tile(some.reshape(panels, panel)[:, order], self.fold)

        start = padded(scale.start, np.int32)
        if self.fold > 1:
            start = np.zeros((panel, self.fold), np.int32)
            start[:, 0] = padded(scale.start, np.int32)[0, :panel]
        found = [packed(grouped), start]
        proof = scale.proof
        if proof is not None:
            found += [padded(v, np.float32) for v in proof.constants.values()]
            found += [padded(v, np.int32) for pair in proof.patches for v in pair]
        if self.apart is not None:
            rest = np.take(self.apart.weights, order, axis=1)
            found += [self.apart.begins, self.apart.places, packed(rest)]
        return tuple(found)
