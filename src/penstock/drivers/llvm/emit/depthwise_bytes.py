"""Depthwise convolutions of 8 bits, with proved requantisation.

The bytes of up to four rows of data are interleaved once for each column, so that one product
multiplies four taps. Two rows of the result share what they both read. The packs at the end put the
channels back in order.

Where columns lie side by side, a row is one line of bytes: vectors run along it whatever the number
of channels is, and the weights repeat after some of them. Otherwise a vector holds channels of one
column; where there are few, only as many as a vector of sums has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from msgspec import Struct

from penstock.compiler.program import Program
from penstock.drivers.llvm.emit import epilogue
from penstock.drivers.llvm.emit.assembler import Function, Index, Reg, mask_of, vector
from penstock.drivers.llvm.emit.loads import load_where
from penstock.drivers.llvm.emit.parts import count_of, divided, in_last, span_of
from penstock.drivers.llvm.emit.product import Product, Scaling
from penstock.drivers.llvm.isa import Instructions, Isa
from penstock.drivers.llvm.isa.instructions import GROUP
from penstock.ir import NDArray

TOGETHER = 4
"""Vectors of sums that one pack makes bytes of."""

SIDE = 2
"""Vectors of bytes that are computed side by side: weights are read once for them."""


class Shape(Struct, frozen=True):
    """Images, rows and columns of output as (size, step of data, step of result); the steps of data
    between taps, in rows and columns.
    """

    images: tuple[int, int, int]
    rows: tuple[int, int, int]
    columns: tuple[int, int, int]
    row_step: int
    column_step: int
    channels: int

    @property
    def loops(self) -> tuple[tuple[int, int, int], ...]:
        return self.images, self.rows, self.columns


class Bytes:
    """A depthwise convolution of 8 bits.

    *each* vectors of sums are computed for a vector of data: four, or one where there are few
    channels. *rows* rows of the result are computed together. The weights of vector b are those of
    vector b + *phases*, which lies *steps* (of data, of the result) behind it.
    """

    name = "depthwise"

    def __init__(
        self, program: Program, isa: Isa, product: Product, shape: Shape, scale: Scaling
    ) -> None:
        self.program, self.machine = program, Instructions(isa)
        self.product, self.shape, self.scale = product, shape, scale
        if scale.proof is None or scale.scaled is None or scale.offset is None:
            raise ValueError("8-bit sums without a requantisation")
        self.proof, self.scaled, self.offset = scale.proof, scale.scaled, scale.offset
        self.taps = scale.weights
        channels, width = shape.channels, isa.width
        count, data, write = shape.columns
        self.flat = data == shape.column_step == channels and (write == channels or count == 1)
        few = not self.flat and channels <= 2 * isa.lanes and count >= TOGETHER
        self.each = 1 if few else TOGETHER
        self.lanes = isa.lanes * self.each
        self.rows = 2 if shape.rows[0] > 1 and shape.rows[1] == shape.row_step else 1
        if self.flat:
            self.phases = math.lcm(channels, width) // width
            self.steps = self.phases * width, self.phases * width
        else:
            self.phases = -(-channels // self.lanes)
            self.steps = data, write
        self.groups = -(-(self.taps.shape[1] + self.rows - 1) // GROUP)
        # The places of vectors of weights that have a rest, among those of a phase.
        some = None if scale.rest is None else self._laid_out(scale.rest).any((0, 2, 3))
        self.apart = {} if some is None else {p: i for i, p in enumerate(np.flatnonzero(some))}

    @property
    def tensors(self) -> tuple[int, ...]:
        accesses = (self.product.data, self.product.write)
        return tuple(self.program.root(a.tensor) for a in accesses)

    @property
    def key(self) -> object:
        scaled = self.scaled.zero_point, self.scaled.limits
        return (
            self.taps.shape, tuple(self.proof.constants), self.proof.lifted is None, self.rounds,
            scaled, self.offset,            self.scale.surplus, tuple(self.apart),
        )  # fmt: skip

    @property
    def rounds(self) -> int:
        return len(self.proof.patches)

    @property
    def lines(self) -> int:
        """Rows of the result that are computed together, of all images."""
        return self.shape.images[0] * -(-self.shape.rows[0] // self.rows)

    @property
    def blocks(self) -> int:
        """The phases that are whole in every row."""
        return self.phases if self.flat else self.shape.channels // self.lanes

    @property
    def parts(self) -> int:
        """The parts of the channels that are units of work in each line."""
        return count_of(self.lines, self.blocks)

    @property
    def units(self) -> int:
        return self.lines * self.parts

    def _channels(self) -> tuple[NDArray, NDArray]:
        """[phases, lanes]: the channel of each lane, in the order of sums, and whether it is one
        of a phase that is not whole.
        """
        order = self.machine.interleaved_order() if self.each > 1 else np.arange(self.lanes)
        places = np.arange(self.phases * self.lanes).reshape(self.phases, self.lanes)[:, order]
        channels = self.shape.channels
        return places % channels, (places < channels) | self.flat

    def _laid_out(self, weights: NDArray) -> NDArray:
        """Weights [channels, height, width] as [phases, vectors of a phase, lanes, GROUP]. The
        vectors of a phase are those of (group, column, row, quarter).
        """
        (_, height, width), rows = weights.shape, self.rows
        channel, inside = self._channels()
        full = np.zeros((*channel.shape, rows, self.groups * GROUP, width), np.int64)
        for row in range(rows):
            full[:, :, row, row : row + height] = weights[channel]
        full *= inside[:, :, None, None, None]
        lanes = self.machine.isa.lanes
        shaped = full.reshape(self.phases, self.each, lanes, rows, self.groups, GROUP, width)
        ordered = shaped.transpose(0, 4, 6, 3, 1, 2, 5)
        return ordered.reshape(self.phases, -1, lanes, GROUP)

    def constants(self) -> tuple[NDArray, ...]:
        m, (channel, inside) = self.machine, self._channels()

        def packed(weights: NDArray) -> NDArray:
            return m.packed_weights(weights.reshape(-1, 1, m.isa.lanes, GROUP))

        def vector_of(values: NDArray, kind: type) -> NDArray:
            made = np.broadcast_to(values, self.shape.channels)[channel] * inside
            return np.ascontiguousarray(made, kind)

        proof, rest = self.proof, self.scale.rest
        return (
            packed(self._laid_out(self.taps)),
            vector_of(self.scale.start, np.int32),
            *(vector_of(v, np.float32) for v in proof.constants.values()),
            *(vector_of(v, np.int32) for pair in proof.patches for v in pair),
            *(() if rest is None else (packed(self._laid_out(rest)[:, list(self.apart)]),)),
        )

    def write(self, name: str) -> Function:
        patches = [f"{n}{i}" for i in range(self.rounds) for n in ("s", "x")]
        rest = ["rest"] if self.apart else []
        f = Function(name, ["data", "out", "w", "bias", *self.proof.constants, *patches, *rest])
        _Code(self, f).write()
        return f


class _Code:
    """Writes the function of a depthwise convolution."""

    def __init__(self, layer: Bytes, function: Function) -> None:
        self.layer, self.f, self.m = layer, function, layer.machine
        self.shape, self.rows, self.each = layer.shape, layer.rows, layer.each
        self.width = layer.taps.shape[2]

    def write(self) -> None:
        shape, f = self.shape, self.f
        pairs = -(-shape.rows[0] // self.rows)

        def unit(number: Index) -> None:
            image: Index = 0
            number, part = divided(f, number, self.layer.parts)
            y = number
            if shape.images[0] > 1:
                image = f.value(f"udiv i64 {number}, {pairs}", "i64").name
                y = f.value(f"urem i64 {number}, {pairs}", "i64").name
            y = f.mul(y, self.rows)
            if shape.rows[0] % self.rows:
                # The last pair overlaps the one before it.
                top = Reg(str(shape.rows[0] - self.rows), "i64")
                y = f.call("llvm.smin.i64", "i64", Reg(str(y), "i64"), top).name
            bases = []
            for which, access in ((1, self.layer.product.data), (2, self.layer.product.write)):
                place: Index = f.add(access.offset, f.mul(image, shape.images[which]))
                bases.append(f.add(place, f.mul(y, shape.rows[which])))
            self._row(f.at("%data", bases[0]), f.at("%out", bases[1]), part)

        f.share(self.layer.units, unit)

    def _row(self, data: str, out: str, part: Index) -> None:
        """A *part* of the channels of one row of the result, or of a pair."""
        layer, f, lanes = self.layer, self.f, self.layer.lanes
        count, phases = self.shape.columns[0], layer.phases
        begin, end = span_of(f, part, layer.parts, layer.blocks)

        def line(phase: Index, begin: int, end: int, channels: int) -> list[Reg]:
            start = f.mul(phase, lanes)
            self._line(f.at(data, start), f.at(out, start), phase, (begin, end), channels)
            return []

        turns, more, full = count, 0, layer.blocks
        rest = self.shape.channels % lanes
        if layer.flat:
            whole, rest = divmod(count * self.shape.channels, lanes)
            turns, more = divmod(whole, phases)
        if full and turns:
            f.loop(begin, end, 1, lambda b, _: line(b, 0, turns, lanes))

        def others() -> None:
            """What is less than a turn, or than a block."""
            if more:
                f.loop(0, more, 1, lambda b, _: line(b, turns, turns + 1, lanes))
            if rest and layer.flat:
                line(more, turns, turns + 1, rest)
            elif rest:
                line(full, 0, count, rest)

        if more or rest:
            in_last(f, part, layer.parts, others)

    def _line(self, data: str, out: str, phase: Index, span: tuple[int, int], count: int) -> None:
        """The vectors of one phase, *count* bytes each: those from span[0] to span[1]."""
        f, mask, steps = self.f, mask_of(count, self.layer.lanes), self.layer.steps
        begin, end = span
        if self.each == 1:
            whole = begin + (end - begin) // TOGETHER * TOGETHER

            def tile(t: Index, _: list[Reg]) -> list[Reg]:
                at = f.at(data, f.mul(t, steps[0])), f.at(out, f.mul(t, steps[1]))
                self._tile(*at, phase, mask)
                return []

            f.loop(begin, whole, TOGETHER, tile)
            if whole < end:
                tile(end - TOGETHER, [])
            return
        kept, each = self._kept(), self.each * self.layer.groups
        moved = self.width - kept
        first = f.at(data, f.mul(begin, steps[0]))
        carried = [x for column in range(kept) for x in self._column(first, column, mask)]

        def turn(together: int) -> Callable[[Index, list[Reg]], list[Reg]]:
            def body(t: Index, held: list[Reg]) -> list[Reg]:
                at, to = f.at(data, f.mul(t, steps[0])), f.at(out, f.mul(t, steps[1]))
                outs = [f.at(to, j * steps[1]) for j in range(together)]
                if not kept:
                    starts = [f.at(at, j * steps[0]) for j in range(together)]
                    self._apart(starts, outs, phase, mask)
                    return []
                columns = [held[each * i : each * (i + 1)] for i in range(kept)]
                last = self.width + (together - 1) * moved
                columns += [self._column(at, column, mask) for column in range(kept, last)]
                self._vectors(columns, moved, outs, phase, mask)
                return [x for column in columns[last - kept :] for x in column]

            return body

        whole = begin + (end - begin) // SIDE * SIDE
        if whole > begin:
            carried = f.loop(begin, whole, SIDE, turn(SIDE), carried)
        if whole < end:
            f.loop(whole, end, 1, turn(1), carried)

    def _kept(self) -> int:
        """The columns that one vector shares with the next."""
        moved, rest = divmod(self.layer.steps[0], self.shape.column_step)
        return 0 if rest or self.shape.columns[0] == 1 else max(0, self.width - moved)

    def _loaded(self, data: str, place: int, mask: Reg | None) -> list[list[Reg]]:
        """The data of all rows at *place*, by group of taps."""
        f, layer = self.f, self.layer
        count = layer.taps.shape[1] + self.rows - 1
        type_ = vector(layer.lanes, "i8")
        rows = [
            load_where(f, self.m.isa, type_, f.at(data, r * self.shape.row_step + place), mask)
            for r in range(count)
        ]
        return [rows[g : g + GROUP] for g in range(0, count, GROUP)]

    def _column(self, data: str, column: int, mask: Reg | None) -> list[Reg]:
        """The vectors of one column of taps: four for each group."""
        groups = self._loaded(data, column * self.shape.column_step, mask)
        return [x for rows in groups for x in self.m.interleaved(self.f, rows)]

    def _narrow(self, data: str, place: int, mask: Reg | None) -> list[Reg]:
        """The vectors of one column where there are few channels: one for each group."""
        f, lanes = self.f, self.layer.lanes
        made = []
        for rows in self._loaded(data, place, mask):
            filled = [*rows, *[rows[-1]] * (GROUP - len(rows))]
            order = [tap * lanes + lane for lane in range(lanes) for tap in range(GROUP)]
            made.append(f.chosen(f.joined(filled), order))
        return made

    def _summed(
        self, sums: list[list[Reg]], row: int, column: int, mixed: Sequence[Sequence[Reg]],
        phase: Index,
    ) -> None:  # fmt: skip
        """Adds the products of one column of taps to the sums of vectors side by side, for one row
        of the result.
        """
        f, m, each = self.f, self.m, self.each
        for group in range(self.layer.groups):
            for q in range(each):
                weights = self._weights(row, column, group, q, phase)
                for total, data in zip(sums, mixed, strict=True):
                    if weights:
                        x = m.spread(f, data[group * each + q])
                        total[q] = self._multiplied(total[q], x, weights)

    def _weights(self, row: int, column: int, group: int, q: int, phase: Index) -> list[list[Reg]]:
        """What quarter *q* of the data of a group of taps is multiplied by for one row of the
        result, each vector as products take it. Empty where the row has none of these taps.
        """
        layer, f, m, each = self.layer, self.f, self.m, self.each
        taps = [0 <= group * GROUP + t - row < layer.taps.shape[1] for t in range(GROUP)]
        if not any(taps):
            return []
        size = layer.groups * self.width * self.rows * each * m.weight_bytes
        number = ((group * self.width + column) * self.rows + row) * each + q
        base = f.at("%w", f.mul(phase, size))
        made = [m.weights(f, f.at(base, number * m.weight_bytes))]
        if number in layer.apart:
            rest = f.at("%rest", f.mul(phase, len(layer.apart) * m.weight_bytes))
            made.append(m.weights(f, f.at(rest, layer.apart[number] * m.weight_bytes)))
        return made + [m.repeated([s * tap for tap in taps]) for s in self._surplus()]

    def _multiplied(self, total: Reg, data: list[Reg], weights: list[list[Reg]]) -> Reg:
        for w in weights:
            total = self.m.product(self.f, total, data, w)
        return total

    def _surplus(self) -> list[int]:
        """What is added to every weight, in numbers that fit those of products."""
        surplus = self.layer.scale.surplus
        if surplus == 128:
            return [64, 64]
        return [surplus] if surplus else []

    def _starts(self, phase: Index) -> list[Reg]:
        return [self._start(phase, q) for q in range(self.each)]

    def _start(self, phase: Index, q: int) -> Reg:
        """What the sums of quarter *q* begin with."""
        f, m, size = self.f, self.m, self.m.isa.width
        bias = f.at("%bias", f.mul(phase, self.each * size))
        return f.load(m.words, f.at(bias, size * q), size)

    def _vectors(
        self, columns: Sequence[list[Reg]], moved: int, outs: Sequence[str], phase: Index,
        mask: Reg | None,
    ) -> None:  # fmt: skip
        """Vectors of bytes side by side, of each row of the result. Each has *moved* columns that
        the one before it does not have.
        """
        if self.m.parts > 1:
            for j, out in enumerate(outs):
                self._quarters(columns[j * moved : j * moved + self.width], out, phase, mask)
            return
        for row in range(self.rows):
            start = self._starts(phase)
            sums = [list(start) for _ in outs]
            for column in range(self.width):
                mixed = [columns[j * moved + column] for j in range(len(outs))]
                self._summed(sums, row, column, mixed, phase)
            self._stored(sums, row, outs, phase, mask)

    def _quarters(
        self, columns: Sequence[list[Reg]], out: str, phase: Index, mask: Reg | None
    ) -> None:
        """One vector of bytes of each row of the result, a quarter of its sums after the other: all
        rows multiply the same parts of the data, which takes instructions to make.
        """
        f, m, each = self.f, self.m, self.each
        whole: list[list[Reg]] = [[] for _ in range(self.rows)]
        for q in range(each):
            sums = [self._start(phase, q)] * self.rows
            for column, mixed in enumerate(columns):
                for group in range(self.layer.groups):
                    x = m.spread(f, mixed[group * each + q])
                    for row in range(self.rows):
                        weights = self._weights(row, column, group, q, phase)
                        sums[row] = self._multiplied(sums[row], x, weights)
            line = self._line_of(phase, q)
            for row, total in enumerate(sums):
                whole[row].append(self._scaled(total, phase, q, line))
        for row, values in enumerate(whole):
            to = f.at(out, row * self.shape.rows[2])
            f.masked_store(self._packed(values), to, mask)

    def _apart(
        self, starts: Sequence[str], outs: Sequence[str], phase: Index, mask: Reg | None
    ) -> None:
        """As `_vectors`, where no two have a column of data in common."""
        start = self._starts(phase)
        sums = [[list(start) for _ in outs] for _ in range(self.rows)]
        for column in range(self.width):
            mixed = [self._column(at, column, mask) for at in starts]
            for row in range(self.rows):
                self._summed(sums[row], row, column, mixed, phase)
        for row in range(self.rows):
            self._stored(sums[row], row, outs, phase, mask)

    def _stored(
        self, sums: list[list[Reg]], row: int, outs: Sequence[str], phase: Index, mask: Reg | None
    ) -> None:
        """Writes the results of vectors side by side."""
        lines = [self._line_of(phase, q) for q in range(self.each)]
        for total, out in zip(sums, outs, strict=True):
            whole = [self._scaled(t, phase, q, lines[q]) for q, t in enumerate(total)]
            self.f.masked_store(self._packed(whole), self.f.at(out, row * self.shape.rows[2]), mask)

    def _tile(self, data: str, out: str, phase: Index, mask: Reg | None) -> None:
        """Four columns of the result, a vector of sums each."""
        f, m, (spacing, apart) = self.f, self.m, self.layer.steps
        step = self.shape.column_step
        loaded: dict[int, list[Reg]] = {}
        whole: list[list[Reg]] = [[] for _ in range(self.rows)]
        for j in range(TOGETHER):
            sums = [self._starts(phase) for _ in range(self.rows)]
            for column in range(self.width):
                place = j * spacing + column * step
                if place not in loaded:
                    loaded[place] = self._narrow(data, place, mask)
                for row in range(self.rows):
                    self._summed([sums[row]], row, column, [loaded[place]], phase)
            line = self._line_of(phase, 0)
            for row in range(self.rows):
                whole[row].append(self._scaled(sums[row][0], phase, 0, line))
        for row in range(self.rows):
            packed = self._packed(whole[row])
            for j in range(TOGETHER):
                at = f.at(out, j * apart + row * self.shape.rows[2])
                f.masked_store(f.chosen(packed, m.part_of(j, 1)), at, mask)

    def _line_of(self, phase: Index, q: int) -> dict[str, Reg]:
        """The constants of the proof."""
        f, size = self.f, self.m.isa.width
        place = f.add(f.mul(phase, self.each * size), size * q)
        return epilogue.held(f, self.m, self.layer.proof, place)

    def _scaled(self, total: Reg, phase: Index, q: int, line: Mapping[str, Reg]) -> Reg:
        f, m, layer, size = self.f, self.m, self.layer, self.m.isa.width
        value = epilogue.scaled_sum(f, m, layer.proof, total, line)
        place = f.add(f.mul(phase, self.each * size), size * q)
        rounds = [(f.at(f"%s{i}", place), f.at(f"%x{i}", place)) for i in range(layer.rounds)]
        return epilogue.patched(f, m, value, total, rounds)

    def _packed(self, whole: list[Reg]) -> Reg:
        layer = self.layer
        dtype = layer.product.write.dtype
        return epilogue.packed(self.f, self.m, whole, layer.scaled, layer.offset, dtype)
