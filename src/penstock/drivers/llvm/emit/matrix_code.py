"""Writes the functions of matrix products."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from penstock.drivers.llvm.emit.assembler import (
    Function,
    Index,
    Reg,
    mask_of,
    vector,
)
from penstock.drivers.llvm.emit.data_sums import data_sums, pays
from penstock.drivers.llvm.emit.matrix import LINE, Loop, Matrix
from penstock.drivers.llvm.emit.matrix_results import Results
from penstock.drivers.llvm.emit.parts import divided, span_of
from penstock.drivers.llvm.emit.writer import Writer
from penstock.drivers.llvm.isa.instructions import GROUP

MANY_PRODUCTS = 1 << 20
"""Products from which on the flag that stops a run is read before them: tens of microseconds."""

SHORT = 48
"""Taps of a sum that is written without loops over its segments."""


class Code(Results):
    """Writes the function of a matrix product."""

    def __init__(self, dense: Matrix, function: Function) -> None:
        super().__init__(dense, function)
        self.count = 0
        self.next: Index = 0
        self.ahead = pays(dense.shape, self.m) and dense.fold == 1

    def write(self) -> None:
        full, rest = divmod(self.shape.channels, self.panel)
        outer = self.shape.positions[:-1]
        if self.dense.by_panels:
            blocks = self.dense.blocks

            def panel(number: Index, count: int) -> None:
                self._walk(outer, [], lambda indexes: self._line(indexes, number, count))

            def block(unit: Index, count: int) -> None:
                number, part = divided(self.f, unit, blocks)
                self._block(full if count == rest else number, part, count)

            if blocks > 1:
                self.f.share(full * blocks, lambda u: block(u, self.panel))
                if rest:
                    whole = (full + 1) * blocks
                    self.f.share(whole, lambda u: block(u, rest), first=full * blocks)
                return
            last = (lambda: panel(full, rest)) if rest else None
            self.f.share(full, lambda p: panel(p, self.panel), last)
        elif outer:
            self.f.share(
                outer[0].size,
                lambda y: self._walk(
                    outer[1:], [y], lambda at: self._panels(lambda p, n: self._line(at, p, n))
                ),
            )
        else:
            size = self.shape.positions[-1].size
            whole, left = divmod(size, self.rows)

            def part(x: Index, panel: Index, count: int) -> None:
                self._poll(self.rows)
                self._tile([x], panel, count)

            def tile(x: Index) -> None:
                self._panels(lambda p, n: part(x, p, n))

            # The last tile overlaps the one before it.
            last = (lambda: tile(size - self.rows)) if left else None
            self.f.share(whole, lambda u: tile(self.f.mul(u, self.rows)), last)

    def _poll(self, positions: int) -> None:
        """Ends a stopped run, before the products of one panel with so many *positions*."""
        taps = math.prod(n for n, _ in self.shape.segments) * self.shape.length
        if positions * self.panel * taps > MANY_PRODUCTS:
            self.f.poll()

    def _panels(self, body: Callable[[Index, int], None]) -> None:
        full, rest = divmod(self.shape.channels, self.panel)
        if full:
            self.f.each(0, full, 1, lambda p: body(p, self.panel))
        if rest:
            body(full, rest)

    def _walk(
        self, loops: Sequence[Loop], indexes: list[Index], inner: Callable[[list[Index]], None]
    ) -> None:
        if not loops:
            inner(indexes)
            return

        def body(index: Index, _: list[Reg]) -> list[Reg]:
            self._walk(loops[1:], [*indexes, index], inner)
            return []

        self.f.loop(0, loops[0].size, 1, body)

    def _line(self, indexes: list[Index], panel: Index, count: int) -> None:
        """All tiles along the innermost positions."""
        size, rows = self.shape.positions[-1].size, self.rows
        self._poll(size)
        full = size // rows * rows

        def tile(x: Index) -> None:
            self._look_ahead(indexes, x)
            self._tile([*indexes, x], panel, count)

        self.f.each(0, full, rows, tile)
        if full < size:
            self._look_ahead(indexes, full)
            self._tile([*indexes, size - rows], panel, count)

    def _block(self, panel: Index, part: Index, count: int) -> None:
        """A panel's tiles in one *part* of the outermost positions."""
        f, turns, blocks = self.f, self.dense.turns, self.dense.blocks
        begin, end = span_of(f, part, blocks, turns)
        outer = self.shape.positions[:-1]
        if outer:
            f.each(
                begin, end, 1,
                lambda y: self._walk(outer[1:], [y], lambda at: self._line(at, panel, count)),
            )  # fmt: skip
            return
        self._poll(-(-turns // blocks) * self.rows)
        last = Reg(str(self.shape.positions[-1].size - self.rows), "i64")

        def tile(turn: Index) -> None:
            # The last tile overlaps the one before it.
            at = Reg(str(f.mul(turn, self.rows)), "i64")
            x = f.call("llvm.smin.i64", "i64", at, last).name
            self._look_ahead([], x)
            self._tile([x], panel, count)

        f.each(begin, end, 1, tile)

    def _look_ahead(self, outer: Sequence[Index], x: Index) -> None:
        """Has a tile fetch its share of the weights of the next panel, if that is worth it."""
        f, dense = self.f, self.dense
        if not dense.ahead_lines:
            return
        number: Index = 0
        for loop, index in zip(self.shape.positions, outer, strict=False):
            number = f.add(f.mul(number, loop.size), index)
        number = f.mul(number, -(-self.shape.positions[-1].size // self.rows))
        turn: Index = (
            x // self.rows
            if isinstance(x, int)
            else f.value(f"udiv i64 {x}, {self.rows}", "i64").name
        )
        lines = f.mul(f.add(number, turn), LINE * dense.ahead_lines)
        self.next = f.add(lines, dense.panel_bytes)

    def _tile(self, indexes: list[Index], panel: Index, count: int) -> None:
        f, m = self.f, self.m
        data = self.pointer("%data", self.dense.product.data, lambda p: p.data, indexes)
        self.count = count
        streamed = self.dense.product.streamed
        if streamed is None:
            weights = f.at("%w", f.mul(panel, self.dense.panel_bytes))
        else:
            first = f.mul(panel, self.panel)
            weights = self.pointer("%w", streamed, lambda p: p.weights, indexes, first)
        if self.dense.kernel.order == "fused":
            start = self._starts(indexes, panel, count)
        elif self.scale is None:
            start = [Reg("zeroinitializer", m.floats)] * self.columns
        else:
            bias = f.at("%bias", f.mul(panel, self.panel * 4))
            width = m.isa.width
            start = [f.load(m.words, f.at(bias, width * j), width) for j in range(self.columns)]
        sums = [start[j] for _ in range(self.rows) for j in range(self.columns)]
        tile = len(sums)
        sums += [Reg("zeroinitializer", sums[0].type)] * (tile * (self.dense.parts - 1))
        if self.scale is not None and self.scale.surplus:
            if self.ahead:
                more = data_sums(f, m, self.shape, self.rows, data, self.scale.surplus)
                for at in range(tile):
                    row = more[at // self.columns]
                    sums[at] = f.value(f"add {sums[at]}, {row.name}", m.words)
            else:
                sums += [Reg("zeroinitializer", m.words)] * self.rows
        if self.dense.apart is not None:
            sums = self._apart(data, panel, sums)
        sums = self._joined(self._segments(0, data, weights, sums), tile)
        if self.merges:
            total = [v for part in (sums[:tile], sums[tile:]) for v in self._merged(part)]
        else:
            total = [self._unfolded(v) for v in sums]
        if self.scale is not None and self.scale.surplus and not self.ahead:
            total = self._corrected(total, self.scale.surplus)
        self.finish(total, indexes, panel, count)

    def _starts(self, indexes: list[Index], panel: Index, count: int) -> list[Reg]:
        """What ordered sums begin with, by column."""
        writer = Writer(self.f, self.lanes, self.m, self.table)
        made = []
        for j in range(self.columns):
            left = min(self.lanes, count - self.lanes * j)
            if left <= 0:
                made.append(Reg("zeroinitializer", self.m.floats))
                continue
            place = self.f.add(self.f.mul(panel, self.panel), self.lanes * j)
            made.append(self.given(writer, 0, indexes, place, mask_of(left, self.lanes)))
        return made

    def _joined(self, sums: list[Reg], tile: int) -> list[Reg]:
        """The sums of a tile, from those of its parts; sums of the data follow."""
        add = "fadd" if self.scale is None else "add"
        parts = self.dense.parts
        while parts > 1:
            parts //= 2
            half = tile * parts
            pairs = zip(sums[:half], sums[half : 2 * half], strict=True)
            joined = [self.f.value(f"{add} {a}, {b.name}", a.type) for a, b in pairs]
            sums = [*joined, *sums[2 * half :]]
        return sums

    @property
    def merges(self) -> bool:
        """Whether the sums of as many rows as groups of taps were folded become one vector."""
        scale = self.scale
        makes_bytes = scale is not None and scale.scaled is not None and scale.offset is not None
        return self.dense.fold > 1 and makes_bytes

    def _merged(self, sums: Sequence[Reg]) -> list[Reg]:
        """The sums of the channels of several rows, side by side, from those of the groups of taps
        of each row.
        """
        made, fold = list(sums), self.dense.fold
        while fold > 1:
            made += made[-1:] * (len(made) % 2)
            halves = [
                [self.f.mixed(a, b, range(odd, 2 * self.lanes, 2)) for odd in (0, 1)]
                for a, b in zip(made[::2], made[1::2], strict=True)
            ]
            made = [self.f.value(f"add {a}, {b.name}", a.type) for a, b in halves]
            fold //= 2
        return made

    def _unfolded(self, total: Reg) -> Reg:
        """The sums of the channels, from those of the groups of taps of each."""
        fold = self.dense.fold
        while fold > 1:
            parts = [
                self.f.chosen(total, [min(2 * i + odd, self.lanes - 1) for i in range(self.lanes)])
                for odd in (0, 1)
            ]
            add = "fadd" if self.scale is None else "add"
            total = self.f.value(f"{add} {parts[0]}, {parts[1].name}", total.type)
            fold //= 2
        return total

    def _corrected(self, sums: list[Reg], surplus: int) -> list[Reg]:
        """The sums plus the surplus of the weights times the sum of the data."""
        f, m = self.f, self.m
        rows = len(sums) // (self.columns + 1)
        factor = ", ".join([f"i32 {surplus}"] * self.lanes)
        made: list[Reg] = []
        for r in range(rows):
            more = f.value(f"mul {sums[rows * self.columns + r]}, <{factor}>", m.words)
            made += [
                f.value(f"add {sums[r * self.columns + j]}, {more.name}", m.words)
                for j in range(self.columns)
            ]
        return made

    def _apart(self, data: str, panel: Index, sums: list[Reg]) -> list[Reg]:
        """Adds the products of the weights of *panel* that are apart."""
        f, dense = self.f, self.dense
        begins = f.at("%begins", f.mul(panel, 8))
        size = self.m.weight_bytes * self.columns

        def body(number: Index, carried: list[Reg]) -> list[Reg]:
            place = f.load("i64", f.at("%places", f.mul(number, 8)), 8).name
            weights = f.at("%rest", f.mul(number, size))
            return self._products(f.at(data, place), weights, 0, dense.unit, carried)

        first, last = (f.load("i64", f.at(begins, 8 * i), 8).name for i in (0, 1))
        return f.turns(first, last, body, sums)

    def _segments(self, depth: int, data: str, weights: str, sums: list[Reg]) -> list[Reg]:
        """The sums over the segments from *depth* on."""
        dense, f, segments = self.dense, self.f, self.shape.segments
        if depth == len(segments):
            return self._taps(data, weights, sums)
        size, step = segments[depth]
        inside = math.prod(s for s, _ in segments[depth + 1 :])
        stride = inside * dense.taps * dense.tap_bytes

        def body(index: Index, carried: list[Reg]) -> list[Reg]:
            moved = f.at(data, f.mul(index, step * dense.item))
            return self._segments(depth + 1, moved, f.at(weights, f.mul(index, stride)), carried)

        if math.prod(s for s, _ in segments) * dense.taps <= SHORT:
            for index in range(size):
                sums = body(index, sums)
            return sums
        return f.loop(0, size, 1, body, sums)

    def _taps(self, data: str, weights: str, sums: list[Reg]) -> list[Reg]:
        f, dense = self.f, self.dense
        step = dense.unit
        whole = self.shape.length // step * step
        unrolled = dense.unrolled
        # Behind the last tap is no data: a unit with fewer taps is not in the loop.
        full = whole // unrolled * unrolled

        def body(k: Index, carried: list[Reg]) -> list[Reg]:
            a = f.at(data, f.mul(k, dense.item))
            w = f.at(weights, f.mul(k, dense.tap_bytes))
            ahead = f.at(w, self.next)
            for line in range(dense.ahead_lines):
                f.fetch(f.at(ahead, LINE * line))
            for u in range(0, unrolled, step):
                carried = self._products(a, w, u, step, carried)
            return carried

        sums = f.loop(0, full, unrolled, body, sums) if full else sums
        for u in range(full, dense.taps, step):
            left = min(step, self.shape.length - u)
            if left < step and dense.overlaps:
                back = f.at(data, left - step)
                taps = [int(t >= step - left) for t in range(step)]
                sums = self._products(back, weights, u, step, sums, taps)
            else:
                sums = self._products(data, weights, u, left, sums)
        return sums

    def _products(
        self, data: str, weights: str, tap: int, left: int, sums: list[Reg],
        taps: list[int] | None = None,
    ) -> list[Reg]:  # fmt: skip
        """Adds the products of one unit of taps, *left* of which are there, to every sum of the
        tile. *taps* says which of them count (None: all).
        """
        f, m, dense, columns = self.f, self.m, self.dense, self.columns
        position = self.shape.positions[-1].data * dense.item
        base, made = f.at(weights, tap * dense.tap_bytes), list(sums)
        tile = self.rows * columns
        part = tile * (tap // dense.unit % dense.parts)
        if dense.is_float:
            width = m.isa.width
            if self.shape.stream is None:
                w = [f.load(m.floats, f.at(base, width * j), width) for j in range(columns)]
            else:
                w = [self._streamed(base, j) for j in range(columns)]
            for r in range(self.rows):
                x = self._some(f.at(data, r * position + tap * 4), left)
                for j in range(columns):
                    at = part + r * columns + j
                    made[at] = f.multiplied(x, w[j], made[at], dense.kernel.order)
            return made

        def weights_of(column: int) -> list[Reg]:
            return m.weights(f, f.at(base, m.weight_bytes * column))

        def groups_of(row: int) -> list[Reg]:
            return self._groups(f.at(data, row * position + tap), left)

        def multiply(row: int, column: int, groups: list[Reg], packed: list[Reg]) -> None:
            at = part + row * columns + column
            made[at] = m.product(f, made[at], groups, packed)

        # Registers hold whichever there is less of, data or weights.
        if self.rows < columns and m.parts > 1:
            given = [groups_of(r) for r in range(self.rows)]
            for j in range(columns):
                some = weights_of(j)
                for r, groups in enumerate(given):
                    multiply(r, j, groups, some)
            self._summed(made, dict(enumerate(given)), taps)
            return made
        packed = [weights_of(j) for j in range(columns)]
        for r in range(self.rows):
            groups = groups_of(r)
            for j in range(columns):
                multiply(r, j, groups, packed[j])
            self._summed(made, {r: groups}, taps)
        return made

    def _summed(
        self, made: list[Reg], rows: Mapping[int, list[Reg]], taps: list[int] | None
    ) -> None:
        """Adds the *taps* of some rows to the sums of their data, where weights have a surplus."""
        dense, m = self.dense, self.m
        if self.scale is None or not self.scale.surplus or self.ahead:
            return
        ones = m.repeated(taps or [1] * dense.unit)
        for r, groups in rows.items():
            at = self.rows * self.columns * dense.parts + r
            made[at] = m.product(self.f, made[at], groups, ones)

    def _streamed(self, base: str, column: int) -> Reg:
        """A vector of weights where they lie."""
        left = self.count - self.lanes * column
        if left <= 0:
            return Reg("zeroinitializer", self.m.floats)
        pointer = self.f.at(base, self.m.isa.width * column)
        return self.f.masked_load(self.m.floats, pointer, mask_of(left, self.lanes))

    def _some(self, pointer: str, left: int) -> Reg:
        """*left* floats, and zeros up to a unit, side by side again and again."""
        f, fold = self.f, self.dense.fold
        if fold == 1:
            return f.splat(f.load("float", pointer, 4), self.lanes)
        type_ = vector(fold, "float")
        if left == fold:
            few = f.load(type_, pointer, 4)
        else:
            few = Reg("zeroinitializer", type_)
            for i in range(left):
                one = f.load("float", f.at(pointer, 4 * i), 4)
                few = f.value(f"insertelement {few}, {one}, i32 {i}", type_)
        return f.chosen(few, [i % fold for i in range(self.lanes)])

    def _groups(self, pointer: str, left: int) -> list[Reg]:
        """*left* bytes, and zeros up to a unit, in every lane as products take them."""
        f, m, fold = self.f, self.m, self.dense.fold
        if fold == 1:
            return m.broadcast(f, self._group(pointer, left))
        type_ = vector(fold, "i32")
        if left == self.dense.unit:
            few = f.load(type_, pointer)
        else:
            few = Reg("zeroinitializer", type_)
            for i in range(-(-left // GROUP)):
                one = self._group(f.at(pointer, GROUP * i), left - GROUP * i)
                few = f.value(f"insertelement {few}, {one}, i32 {i}", type_)
        wide = f.chosen(few, [i % fold for i in range(self.lanes)])
        return m.spread(f, f.value(f"bitcast {wide} to {m.bytes}", m.bytes))

    def _group(self, pointer: str, left: int) -> Reg:
        """A group of taps, as an i32. Nothing behind the last of *left* taps is read."""
        f = self.f
        if left >= GROUP:
            return f.load("i32", pointer)
        if left == 1:
            return f.value(f"zext {f.load('i8', pointer)} to i32", "i32")
        low = f.value(f"zext {f.load('i16', pointer)} to i32", "i32")
        if left == 2:
            return low
        high = f.value(f"zext {f.load('i8', f.at(pointer, 2))} to i32", "i32")
        return f.value(f"or {low}, {f.value(f'shl {high}, 16', 'i32').name}", "i32")
