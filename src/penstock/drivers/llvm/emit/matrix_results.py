"""Writes what becomes of the sums of matrix products: the finish, requantisation and stores."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.drivers.llvm.emit import epilogue
from penstock.drivers.llvm.emit.assembler import (
    SCALARS,
    Function,
    Index,
    Reg,
    mask_of,
    splatted,
    vector,
)
from penstock.drivers.llvm.emit.flat import Flat
from penstock.drivers.llvm.emit.matrix import Loop, Matrix
from penstock.drivers.llvm.emit.product import Scaling
from penstock.drivers.llvm.emit.writer import Writer
from penstock.ir import DType


class Results:
    """Writes the results of the tiles of a matrix product."""

    def __init__(self, dense: Matrix, function: Function) -> None:
        self.dense, self.f, self.m = dense, function, dense.machine
        self.rows, self.columns, self.panel = dense.rows, dense.columns, dense.panel
        self.scale, self.shape, self.lanes = dense.scale, dense.shape, dense.lanes

    def finish(self, sums: list[Reg], indexes: list[Index], panel: Index, count: int) -> None:
        """The results of a tile, and where they go."""
        f, dense, lanes = self.f, self.dense, self.lanes
        channel = f.mul(panel, self.panel)
        writer = Writer(f, lanes, self.m, self.table)
        held = self._held(panel)
        scale = self.scale
        if scale is not None and scale.scaled is not None and scale.offset is not None:
            self._bytes(sums, indexes, panel, count, held, scale)
            return
        write = dense.product.write
        for j in range(self.columns):
            left = min(lanes, count - lanes * j)
            if left <= 0:
                break
            writer.active = mask = mask_of(left, lanes)
            for r in range(self.rows):
                at = [*indexes[:-1], f.add(indexes[-1], r)]
                place = f.add(channel, lanes * j)
                extras = [
                    self.given(writer, i, at, place, mask) for i in range(len(dense.product.extras))
                ]
                result = self._value(writer, sums[r * self.columns + j], j, extras, held, panel)
                pointer = self.pointer("%out", write, lambda p: p.write, at, place)
                f.masked_store(writer.stored(result, write.dtype), pointer, mask)

    def _bytes(
        self, sums: list[Reg], indexes: list[Index], panel: Index, count: int,
        held: list[dict[str, Reg]], scale: Scaling,
    ) -> None:  # fmt: skip
        """The results of a tile as bytes, four vectors of sums at a time: those of one row, or of
        several.
        """
        f, m, each, fold = self.f, self.m, self.columns, self.dense.fold
        scaled, finish = scale.scaled, self.dense.kernel.finish
        if scaled is None or scale.proof is None or scale.offset is None:
            raise ValueError("8-bit sums without a requantisation")
        together, last = 4 // each, len(sums) // each - 1
        for first in range(0, last + 1, together):
            whole = []
            for vectors in (min(first + i, last) for i in range(together)):
                for j in range(each):
                    total = sums[vectors * each + j]
                    value = epilogue.scaled_sum(f, m, scale.proof, total, held[j])
                    whole.append(epilogue.patched(f, m, value, total, self._rounds(panel, j)))
            made = epilogue.packed(f, m, whole, scaled, scale.offset, finish.dtype_of(scale.value))
            # Of each row: its number, and the places of its bytes.
            rows = [
                (min((first + i) * fold + k, self.rows - 1), part[k * self.panel :][: self.panel])
                for i, part in enumerate(m.part_of(i, each) for i in range(together))
                for k in range(fold)
            ]
            places = [[*indexes[:-1], f.add(indexes[-1], row)] for row, _ in rows]
            if scale.value != finish.result:
                parts = [part for _, part in rows]
                made = self._rest(made, scale.value, places, parts, panel, count)
            new = min(len(rows), self.rows - first * fold)
            self._stored_rows(made, [p for _, p in rows[:new]], places, panel, count)

    def _stored_rows(
        self, made: Reg, parts: Sequence[list[int]], places: list[list[Index]], panel: Index,
        count: int,
    ) -> None:  # fmt: skip
        """Stores the bytes of rows, each at its *parts* of *made*: all at once where the result has
        them side by side.
        """
        f, write = self.f, self.dense.product.write
        channel, width = f.mul(panel, self.panel), self.m.isa.width
        adjacent = self.shape.positions[-1].write == count == self.shape.channels
        if adjacent and len(parts) > 1:
            parts = [[place for part in parts for place in part[:count]]]
            count = len(parts[0])
        size = self.panel if count <= self.panel else width
        for part, place in zip(parts, places, strict=False):
            order = [*part, *[0] * (size - len(part))]
            some = made if order == [*range(width)] else f.chosen(made, order)
            at = self.pointer("%out", write, lambda p: p.write, place, channel)
            f.masked_store(some, at, mask_of(count, size))

    def _rest(
        self, packed: Reg, value: int, places: list[list[Index]], parts: Sequence[list[int]],
        panel: Index, count: int,
    ) -> Reg:  # fmt: skip
        """What the finish makes of *packed*, its value *value*: bytes of the rows at *places*, each
        at its *parts*.
        """
        f, m, finish = self.f, self.m, self.dense.kernel.finish
        size = self.panel
        mask, channel = mask_of(count, size), f.mul(panel, size)
        order = [0] * m.isa.width
        for i, part in enumerate(parts):
            for k, place in enumerate(part):
                order[place] = i * size + k
        values = {value: packed}
        single = Writer(f, size, m, self.table)
        for number in range(len(self.dense.product.extras)):
            if self._is_read(number + 1):
                loaded = [self.given(single, number, at, channel, mask) for at in places]
                whole = f.joined(loaded)
                values[number + 1] = f.chosen(whole, order) if len(loaded) > 1 else whole
        writer = Writer(f, m.isa.width, m, self.table)
        made = writer.value(finish, values, finish.result)
        return writer.stored(made, self.dense.product.write.dtype)

    def _held(self, panel: Index) -> list[dict[str, Reg]]:
        """The constants of the proof, by column."""
        f = self.f
        if self.scale is None or self.scale.proof is None:
            return []
        place = f.mul(panel, self.panel * 4)
        return [
            epilogue.held(f, self.m, self.scale.proof, f.add(place, self.m.isa.width * j))
            for j in range(self.columns)
        ]

    def _value(
        self, writer: Writer, total: Reg, column: int, extras: list[Reg],
        held: list[dict[str, Reg]], panel: Index,
    ) -> Reg:  # fmt: skip
        finish, scale = self.dense.kernel.finish, self.scale
        if scale is None or scale.scaled is None or scale.proof is None:
            return writer.write(finish, [total, *extras])
        i32, scaled = DType.INT32, scale.scaled
        whole = epilogue.scaled_sum(self.f, self.m, scale.proof, total, held[column])
        whole = epilogue.patched(self.f, self.m, whole, total, self._rounds(panel, column))
        moved = writer.op("add", i32, whole, writer.constant(scaled.zero_point, i32))
        bounded = writer.clamped(moved, *scaled.limits, i32)
        # The rest of the expression, with the value that was found in its place.
        values: dict[int, Reg] = dict(enumerate([total, *extras]))
        values[scaled.value] = bounded
        return writer.value(finish, values, finish.result)

    def _rounds(self, panel: Index, column: int) -> list[tuple[str, str]]:
        """Pointers to the sums that are patched and to what they add, for one vector."""
        f = self.f
        place = f.add(f.mul(panel, self.panel * 4), self.m.isa.width * column)
        return [(f.at(f"%s{i}", place), f.at(f"%x{i}", place)) for i in range(self.dense.rounds)]

    def table(self, tensor: int) -> tuple[str, DType]:
        """The pointer to a constant that the finish looks up, and its type."""
        place = self.dense.tables.index(self.dense.program.root(tensor))
        return f"%t{place}", self.dense.program.tensors[tensor].dtype

    def given(
        self, writer: Writer, number: int, indexes: list[Index], channel: Index, mask: Reg | None
    ) -> Reg:
        """The elements of an extra for the channels from *channel* on, as *writer* takes them."""
        f, access = self.f, self.dense.product.extras[number]
        step = access.steps[self.shape.channel_loop]
        if not self._is_read(number + 1):
            return Reg("poison", writer.type_of(access.dtype))
        more = channel if step else 0
        pointer = self.pointer(f"%e{number}", access, lambda p: p.extras[number], indexes, more)
        scalar, lanes = SCALARS[access.dtype], writer.lanes
        if not step:
            single = Writer(f, 1, self.m, self.table).loaded(f.load(scalar, pointer), access.dtype)
            return f.splat(single, lanes)
        fill = None
        if access.axes:
            fill = writer.constant(access.fill or 0, access.dtype)
            mask = self._inside(access, channel, lanes, mask)
        value = f.masked_load(vector(lanes, scalar), pointer, mask, fill)
        return writer.loaded(value, access.dtype)

    def _inside(self, access: Flat, channel: Index, lanes: int, mask: Reg | None) -> Reg:
        """Which of the channels from *channel* on lie inside the tensor of an extra."""
        f, type_ = self.f, vector(lanes, "i32")
        first = (
            f.value(f"trunc i64 {channel} to i32", "i32")
            if isinstance(channel, str)
            else Reg(str(channel), "i32")
        )
        numbers = ", ".join(f"i32 {i}" for i in range(lanes))
        at = f.value(f"add {f.splat(first, lanes)}, <{numbers}>", type_)
        for axis in access.axes:
            limit = splatted(str(axis.size), "i32", lanes)
            moved = f.value(f"add {at}, {splatted(str(axis.offset), 'i32', lanes).name}", type_)
            inside = f.value(f"icmp ult {moved}, {limit.name}", vector(lanes, "i1"))
            mask = inside if mask is None else f.value(f"and {mask}, {inside.name}", inside.type)
        return mask or Reg("zeroinitializer", vector(lanes, "i1"))

    def _is_read(self, argument: int) -> bool:
        """Whether what follows the requantisation reads an argument; constants have the others."""
        scale, known = self.scale, None
        if argument == 1 and self.dense.kernel.order == "fused":
            return True
        if scale is not None and scale.scaled is not None:
            known = scale.scaled.value if scale.offset is None else scale.value
        return argument in epilogue.needed(self.dense.kernel.finish, known)

    def pointer(
        self,
        base: str,
        access: Flat,
        which: Callable[[Loop], int],
        indexes: Sequence[Index],
        more: Index = 0,
    ) -> str:
        """A pointer from *base* to the element of *access* at the positions *indexes*, and *more*
        elements behind it. *which* chooses the step of the access in each loop.
        """
        f = self.f
        place: Index = f.add(access.offset, more)
        for loop, index in zip(self.shape.positions, indexes, strict=True):
            place = f.add(place, f.mul(index, which(loop)))
        return f.at(base, f.mul(place, access.dtype.numpy.itemsize))
