"""Code for any kernel: its loops as they are, the innermost one in vectors.

Kernels without a template of their own are printed so: element-wise chains, copies, reductions and
pools. One loop is computed in vectors: an outer loop along which the result lies contiguous, or the
last reduced loop, whose lanes are combined at the end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from penstock.compiler.expression import Step
from penstock.compiler.interpreter import least_of
from penstock.compiler.program import Access, Kernel, Program
from penstock.drivers.llvm.emit.assembler import (
    SCALARS,
    Function,
    Index,
    Reg,
    first_of,
    mask_of,
    splatted,
    vector,
)
from penstock.drivers.llvm.emit.writer import Writer
from penstock.drivers.llvm.isa import Instructions, Isa
from penstock.ir import DType, NDArray

UNROLLED = 4
"""The number of vectors that a reduction sums side by side."""

COMBINES: Final = {"sum": "add", "product": "mul", "any": "or", "all": "and"}
"""The scalar operation of a reduction, where it is named otherwise."""


class Axis(Struct, frozen=True):
    """One axis of an access that is more than a stride: its positions come from a table, or lie
    outside the tensor at times. Those of a table that is *computed* are clamped to the axis.
    """

    offset: int
    steps: tuple[tuple[int, int], ...]
    size: int
    stride: int
    through: int | None
    checked: bool
    computed: bool = False


class Flat(Struct, frozen=True):
    """An access as an offset and a step for each loop, in elements; *axes* are those that need
    their position.
    """

    tensor: int
    dtype: DType
    offset: int
    steps: tuple[int, ...]
    axes: tuple[Axis, ...]
    fill: float | int | bool | None


def flat(program: Program, access: Access, sizes: Sequence[int]) -> Flat:
    """*access* in elements of its tensor, which is row-major."""
    tensor = program.tensors[access.tensor]
    strides = [math.prod(tensor.shape[axis + 1 :]) for axis in range(len(tensor.shape))]
    offset, steps, axes = 0, [0] * len(sizes), []
    for position, stride, size in zip(access.axes, strides, tensor.shape, strict=True):
        low, high = position.span(tuple(sizes))
        outside = position.through is None and not (low >= 0 and high < size)
        if position.through is not None:
            computed = program.root(position.through) not in program.constants
            axes.append(
                Axis(
                    position.offset,
                    position.steps,
                    size,
                    stride,
                    position.through,
                    checked=False,
                    computed=computed,
                )
            )
            continue
        offset += position.offset * stride
        for loop, step in position.steps:
            steps[loop] += step * stride
        if outside:
            axes.append(Axis(position.offset, position.steps, size, stride, None, True))
    return Flat(access.tensor, tensor.dtype, offset, tuple(steps), tuple(axes), access.fill)


class Nest:
    """A kernel as its loops are: the template of every kernel that has no other."""

    name = "nest"
    key = None

    def __init__(self, program: Program, kernel: Kernel, isa: Isa) -> None:
        self.program, self.kernel, self.machine = program, kernel, Instructions(isa)
        self.tensors = tuple(pointers_of(program, kernel))
        self.function = Function("", [])
        self.reads = [flat(program, a, kernel.sizes) for a in kernel.reads]
        self.extras = [flat(program, a, kernel.loops) for a in kernel.extras]
        self.written = flat(program, kernel.write, kernel.loops)
        self.indexes: dict[int, Index] = {}
        self.vector = self._vector_loop()
        self.lanes = self._lanes()

    @property
    def units(self) -> int:
        shared = self._shared
        return 1 if shared is None else self.kernel.loops[shared]

    @property
    def _shared(self) -> int | None:
        """The loop whose iterations are units of work."""
        loops = self.kernel.loops
        return next((i for i, n in enumerate(loops) if n > 1 and i != self.vector), None)

    def constants(self) -> tuple[NDArray, ...]:
        return ()

    def write(self, name: str) -> Function:
        self.function = Function(name, [f"t{i}" for i in range(len(self.tensors))])
        if 0 in self.kernel.loops:
            return self.function
        shared = self._shared
        order = [i for i in range(len(self.kernel.loops)) if i not in {self.vector, shared}]
        if shared is None:
            self.function.share(1, lambda _: self._outer(order))
            return self.function

        def unit(index: Index) -> None:
            self.indexes[shared] = index
            self._outer(order)

        self.function.share(self.kernel.loops[shared], unit)
        return self.function

    def _pointer(self, tensor: int) -> str:
        return f"%t{self.tensors.index(self.program.root(tensor))}"

    def _table(self, tensor: int) -> tuple[str, DType]:
        return self._pointer(tensor), self.program.tensors[tensor].dtype

    def _vector_loop(self) -> int | None:
        """The loop that is computed in vectors: contiguous in the result, or else reduced last."""
        outer = len(self.kernel.loops)
        best = [
            loop
            for loop in range(outer)
            if self.written.steps[loop] == 1 and self.kernel.loops[loop] > 1
        ]
        last = outer + len(self.kernel.reduced) - 1
        contiguous = bool(self.kernel.reduced) and any(r.steps[last] == 1 for r in self.reads)
        if contiguous and self.kernel.sizes[last] >= 8:
            good = (
                best
                and all(r.steps[best[0]] in {0, 1} for r in self.reads)
                and self.kernel.loops[best[0]] >= 8
            )
            if not good:
                return last
        return best[0] if best else None

    def _lanes(self) -> int:
        if self.vector is None:
            return 1
        expressions = self.kernel.body, self.kernel.finish
        dtypes = {s.dtype for e in expressions for s in e.steps} | {self.written.dtype}
        dtypes |= {r.dtype for r in self.reads}
        if self.kernel.combine != "none":
            dtypes.add(self.kernel.sums)
        widest = max(1 if d is DType.BOOL else d.numpy.itemsize for d in dtypes)
        lanes = self.machine.isa.width // widest
        size = self.kernel.sizes[self.vector]
        while lanes > 1 and lanes // 2 >= size:
            lanes //= 2
        return max(1, lanes)

    def _outer(self, order: list[int]) -> None:
        if order:
            loop = order[0]

            def body(index: Index, _: list[Reg]) -> list[Reg]:
                self.indexes[loop] = index
                self._outer(order[1:])
                return []

            self.function.loop(0, self.kernel.loops[loop], 1, body)
            return
        if self.vector is None or self.vector >= len(self.kernel.loops):
            self._point(self.lanes if self.vector is not None else 1, None, 1)
            return
        size, lanes = self.kernel.loops[self.vector], self.lanes
        unrolled = UNROLLED if self.kernel.combine != "none" else 1
        done = 0
        for count in {unrolled: None, 1: None}:
            span = lanes * count
            end = done + (size - done) // span * span
            if end > done:
                self._vectors(done, end, count)
            done = end
        if done < size:
            self.indexes[self.vector] = done
            self._point(lanes, size - done, 1)

    def _vectors(self, begin: int, end: int, count: int) -> None:
        def body(index: Index, _: list[Reg]) -> list[Reg]:
            self.indexes[self.vector or 0] = index
            self._point(self.lanes, None, count)
            return []

        self.function.loop(begin, end, self.lanes * count, body)

    def _point(self, lanes: int, tail: int | None, count: int) -> None:
        """*count* vectors of the outer loops, of *tail* elements alone where that is given."""
        outer = len(self.kernel.loops)
        reduces = self.vector is not None and self.vector >= outer
        across = lanes if not reduces else 1
        writer = Writer(self.function, across, self.machine, self._table)
        if self.kernel.combine == "none":
            totals = [self._body(lanes, tail, 0)]
        elif reduces:
            totals = [self._across(lanes)]
        else:
            totals = self._sums(lanes, tail, count)
        for number, total in enumerate(totals):
            shift = number * lanes
            extras = [
                self._load(e, across, tail, shift, self.vector if not reduces else None)
                for e in self.extras
            ]
            result = writer.write(self.kernel.finish, [total, *extras])
            self._store(writer.stored(result, self.written.dtype), across, tail, shift)

    def _sums(self, lanes: int, tail: int | None, count: int) -> list[Reg]:
        """Combines the reduced loops, *count* vectors side by side."""
        writer = Writer(self.function, lanes, self.machine, self._table)
        start = self._neutral(writer)
        first = len(self.kernel.loops)

        def level(depth: int, totals: list[Reg]) -> list[Reg]:
            if depth == len(self.kernel.reduced):
                return [
                    self._combined(writer, total, self._body(lanes, tail, number * lanes))
                    for number, total in enumerate(totals)
                ]

            def body(index: Index, carried: list[Reg]) -> list[Reg]:
                self.indexes[first + depth] = index
                return level(depth + 1, carried)

            return self.function.loop(0, self.kernel.reduced[depth], 1, body, totals)

        return level(0, [start] * count)

    def _across(self, lanes: int) -> Reg:
        """Combines the reduced loops with the last one in vectors, and then the lanes."""
        writer = Writer(self.function, lanes, self.machine, self._table)
        start = self._neutral(writer)
        first, last = len(self.kernel.loops), len(self.kernel.sizes) - 1
        size = self.kernel.sizes[last]
        full = size // lanes * lanes

        def level(depth: int, totals: list[Reg]) -> list[Reg]:
            if first + depth == last:

                def body(index: Index, carried: list[Reg]) -> list[Reg]:
                    self.indexes[last] = index
                    return [self._combined(writer, carried[0], self._body(lanes, None, 0))]

                totals = self.function.loop(0, full, lanes, body, totals) if full else totals
                if full < size:
                    self.indexes[last] = full
                    value = self._body(lanes, size - full, 0)
                    mask = first_of(size - full, lanes)
                    totals = [self._combined(writer, totals[0], writer.choose(mask, value, start))]
                return totals

            def outer(index: Index, carried: list[Reg]) -> list[Reg]:
                self.indexes[first + depth] = index
                return level(depth + 1, carried)

            return self.function.loop(0, self.kernel.reduced[depth], 1, outer, totals)

        (total,) = level(0, [start])
        return self._folded(total, lanes)

    def _folded(self, total: Reg, lanes: int) -> Reg:
        """The lanes of a vector combined: halves, and halves of these."""
        scalar = total.type.rsplit(" x ", 1)[-1].strip("<>")
        while lanes > 1:
            lanes //= 2
            parts = []
            for half in (0, 1):
                numbers = ", ".join(f"i32 {half * lanes + i}" for i in range(lanes))
                text = f"shufflevector {total}, {total.type} poison, <{lanes} x i32> <{numbers}>"
                parts.append(self.function.value(text, f"<{lanes} x {scalar}>"))
            writer = Writer(self.function, lanes, self.machine, self._table)
            if lanes == 1:
                parts = [self.function.value(f"extractelement {p}, i32 0", scalar) for p in parts]
            total = self._combined(writer, parts[0], parts[1])
        return total

    def _neutral(self, writer: Writer) -> Reg:
        return writer.constant(least_of(self.kernel).item(), self.kernel.sums)

    def _combined(self, writer: Writer, total: Reg, value: Reg) -> Reg:
        dtype, combine = self.kernel.sums, self.kernel.combine
        step = Step(COMBINES.get(combine, combine), (0, 1), dtype)
        # The second of two floats is taken where one is NaN: reductions ignore NaN.
        return writer.step(step, [value, total], [dtype, dtype])

    def _body(self, lanes: int, tail: int | None, shift: int) -> Reg:
        writer = Writer(self.function, lanes, self.machine, self._table)
        values = [self._load(r, lanes, tail, shift, self.vector) for r in self.reads]
        return writer.write(self.kernel.body, values)

    def _place(self, access: Flat, shift: int, along: int | None) -> Index:
        """The element at which *access* begins, but for the axes that go through tables."""
        place: Index = access.offset
        for loop, step in enumerate(access.steps):
            if step:
                index = self.indexes[loop]
                if loop == along and shift:
                    index = self.function.add(index, shift)
                place = self.function.add(place, self.function.mul(index, step))
        return place

    def _load(
        self, access: Flat, lanes: int, tail: int | None, shift: int, along: int | None
    ) -> Reg:
        function, scalar = self.function, SCALARS[access.dtype]
        writer = Writer(function, lanes, self.machine, self._table)
        place = self._place(access, shift, along)
        varied = [axis for axis in access.axes if along in {loop for loop, _ in axis.steps}]
        step = access.steps[along] if along is not None and along < len(access.steps) else 0
        mask: Reg | None = None
        if tail is not None and (step or varied):
            mask = mask_of(tail, lanes)
        offsets: Reg | None = None
        for axis in access.axes:
            position: Index = axis.offset
            for loop, factor in axis.steps:
                index = self.indexes[loop]
                if loop == along and shift:
                    index = function.add(index, shift)
                position = function.add(position, function.mul(index, factor))
            factor = dict(axis.steps).get(along, 0) if along is not None else 0
            if axis.through is not None:
                found = self._through(axis, position, factor, lanes, mask)
                if factor and lanes > 1:
                    scaled = writer.op(
                        "mul", DType.INT64, found, writer.constant(axis.stride, DType.INT64)
                    )
                    offsets = (
                        scaled
                        if offsets is None
                        else writer.op("add", DType.INT64, offsets, scaled)
                    )
                else:
                    place = function.add(place, function.mul(found.name, axis.stride))
                continue
            inside = self._inside(position, axis.size, factor, lanes)
            mask = inside if mask is None else writer.op("and", DType.BOOL, mask, inside)
        pointer = self._pointer(access.tensor)
        size = access.dtype.numpy.itemsize
        fill = writer.constant(access.fill or 0, access.dtype) if access.fill is not None else None
        type_ = vector(lanes, scalar)
        if (
            offsets is None
            and step in {0, 1}
            and (step or not varied or mask is None or lanes == 1)
        ):
            address = function.at(pointer, function.mul(place, size))
            if lanes == 1:
                return writer.loaded(self._scalar(address, scalar, mask, fill), access.dtype)
            if step == 0:
                single = Writer(function, 1, self.machine, self._table)
                if mask is None or not access.axes:
                    value = single.loaded(function.load(scalar, address), access.dtype)
                    return function.splat(value, lanes)
            elif mask is None:
                return writer.loaded(function.load(type_, address), access.dtype)
            else:
                return writer.loaded(function.masked_load(type_, address, mask, fill), access.dtype)
        return writer.loaded(
            self._gathered(pointer, place, step, offsets, mask, fill, lanes, scalar, size),
            access.dtype,
        )

    def _scalar(self, address: str, scalar: str, mask: Reg | None, fill: Reg | None) -> Reg:
        """One element; where *mask* does not hold, nothing is read."""
        if mask is None:
            return self.function.load(scalar, address)
        type_ = f"<1 x {scalar}>"
        held = self.function.value(
            f"insertelement <1 x i1> poison, i1 {mask.name}, i32 0", "<1 x i1>"
        )
        other = Reg("zeroinitializer" if fill is None else f"<{scalar} {fill.name}>", type_)
        found = self.function.masked_load(type_, address, held, other)
        return self.function.value(f"extractelement {found}, i32 0", scalar)

    def _gathered(
        self, pointer: str, place: Index, step: int, offsets: Reg | None, mask: Reg | None,
        fill: Reg | None, lanes: int, scalar: str, size: int,
    ) -> Reg:  # fmt: skip
        function = self.function
        writer = Writer(function, lanes, self.machine, self._table)
        base = function.at(pointer, function.mul(place, size))
        if lanes == 1:
            return self._scalar(base, scalar, mask, fill)
        strides = Reg(
            f"<{', '.join(f'i64 {i * step}' for i in range(lanes))}>", vector(lanes, "i64")
        )
        places = strides if offsets is None else writer.op("add", DType.INT64, strides, offsets)
        pointers = function.value(
            f"getelementptr {scalar}, ptr {base}, {places}", vector(lanes, "ptr")
        )
        type_ = vector(lanes, scalar)
        held = mask or splatted("true", "i1", lanes)
        kinds = {"float": "f32", "double": "f64", "half": "f16"}.get(scalar, scalar)
        other = Reg("zeroinitializer" if fill is None else fill.name, type_)
        name = f"llvm.masked.gather.v{lanes}{kinds}.v{lanes}p0"
        return function.call(name, type_, pointers, held, other)

    def _through(
        self, axis: Axis, position: Index, factor: int, lanes: int, mask: Reg | None
    ) -> Reg:
        """The position that the table of *axis* has, as int64."""
        function = self.function
        address = function.at(self._pointer(axis.through or 0), function.mul(position, 4))
        if not factor or lanes == 1:
            value = self._clamped(axis, function.load("i32", address), 1)
            return function.value(f"sext {value} to i64", "i64")
        writer = Writer(function, lanes, self.machine, self._table)
        type_ = vector(lanes, "i32")
        if factor == 1:
            value = function.masked_load(type_, address, mask)
        else:
            value = self._gathered(
                self._pointer(axis.through or 0),
                position,
                factor,
                None,
                mask,
                None,
                lanes,
                "i32",
                4,
            )
        return writer.cast(self._clamped(axis, value, lanes), DType.INT32, DType.INT64)

    def _clamped(self, axis: Axis, value: Reg, lanes: int) -> Reg:
        """Positions within *axis*, as int32."""
        if not axis.computed:
            return value
        writer = Writer(self.function, lanes, self.machine, self._table)
        return writer.clamped(value, 0, axis.size - 1, DType.INT32)

    def _inside(self, position: Index, size: int, factor: int, lanes: int) -> Reg:
        """Whether positions lie in an axis of *size* elements."""
        function = self.function
        if not factor or lanes == 1:
            found = function.value(f"icmp ult i64 {position}, {size}", "i1")
            return function.splat(found, lanes)
        start = function.splat(Reg(str(position), "i64"), lanes)
        steps = f"<{', '.join(f'i64 {i * factor}' for i in range(lanes))}>"
        type_ = vector(lanes, "i64")
        places = function.value(f"add {start}, {steps}", type_)
        limit = f"<{', '.join([f'i64 {size}'] * lanes)}>"
        return function.value(f"icmp ult {places}, {limit}", vector(lanes, "i1"))

    def _store(self, value: Reg, lanes: int, tail: int | None, shift: int) -> None:
        function, access, along = self.function, self.written, self.vector
        inner = along if along is not None and along < len(self.kernel.loops) else None
        place = self._place(access, shift, inner)
        address = function.at(
            self._pointer(access.tensor), function.mul(place, access.dtype.numpy.itemsize)
        )
        function.masked_store(value, address, None if tail is None else mask_of(tail, lanes))


def pointers_of(program: Program, kernel: Kernel) -> list[int]:
    """The tensors that *kernel* touches, each once: the arguments of its function."""
    found = [kernel.write.tensor, *kernel.tensors_read]
    return list(dict.fromkeys(program.root(t) for t in found))
