"""Loads and stores vectors at the positions of accesses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from penstock.compiler.program import Program
from penstock.drivers.llvm.emit.assembler import (
    SCALARS,
    Function,
    Index,
    Reg,
    mask_of,
    splatted,
    suffix_of,
    vector,
)
from penstock.drivers.llvm.emit.flat import Axis, Flat, Turn
from penstock.drivers.llvm.emit.loads import load_where
from penstock.drivers.llvm.emit.writer import Writer
from penstock.drivers.llvm.isa import Instructions
from penstock.ir import DType


class Span(Struct, frozen=True):
    """The elements that are loaded or stored at once: *lanes* along loop *along*, from *shift*
    behind its index on; only the first *tail* of them where that is given.
    """

    lanes: int
    along: int | None
    shift: int = 0
    tail: int | None = None

    @property
    def mask(self) -> Reg | None:
        return None if self.tail is None else mask_of(self.tail, self.lanes)


class _Base(Struct, frozen=True):
    """What is known of the *place* of an access within some loops: the parts that *loops* and the
    *axes* of these numbers add to it.
    """

    place: Index
    loops: frozenset[int]
    axes: frozenset[int]


NO_BASE: Final = _Base(0, frozenset(), frozenset())


class Places:
    """Writes loads and stores into *function*. *indexes* has the index of each loop."""

    def __init__(
        self, program: Program, machine: Instructions, function: Function, tensors: tuple[int, ...]
    ) -> None:
        self.program, self.machine, self.function = program, machine, function
        self._tensors = tensors
        self.indexes: dict[int, Index] = {}
        self._bases: Mapping[Flat, _Base] = {}

    def pointer(self, tensor: int) -> str:
        return f"%t{self._tensors.index(self.program.root(tensor))}"

    def table(self, tensor: int) -> tuple[str, DType]:
        return self.pointer(tensor), self.program.tensors[tensor].dtype

    def writer(self, lanes: int, active: Reg | None = None) -> Writer:
        """Writes expressions on vectors of *lanes* elements, those of *active* where not all
        matter.
        """
        writer = Writer(self.function, lanes, self.machine, self.table)
        writer.active = active
        return writer

    @contextmanager
    def within(self, loop: int, accesses: Iterable[Flat]) -> Iterator[None]:
        """Has the loads and stores that are written meanwhile, whose places all change along *loop*
        alone or inside of it, go on from what is computed here, once for each of its turns.
        """
        outer = self._bases
        self._bases = {
            access: self._extended(access, outer.get(access, NO_BASE), loop)
            for access in accesses
            if access.turn is None
        }
        try:
            yield
        finally:
            self._bases = outer

    def _extended(self, access: Flat, base: _Base, loop: int) -> _Base:
        """*base* with what *loop* adds to the place of *access*."""
        function, place, axes = self.function, base.place, set(base.axes)
        loops = base.loops | {loop}
        if step := access.steps[loop] if loop < len(access.steps) else 0:
            place = function.add(place, function.mul(self.indexes[loop], step))
        for number, axis in enumerate(access.axes):
            own = {each for each, factor in axis.steps if factor}
            if axis.through is not None and number not in axes and own and own <= loops:
                position: Index = axis.offset
                for each, factor in axis.steps:
                    position = function.add(position, function.mul(self.indexes[each], factor))
                found = self._through(axis, position, 0, 1, None)
                place = function.add(place, function.mul(found.name, axis.stride))
                axes.add(number)
        return _Base(place, loops, frozenset(axes))

    def index(self, loop: int, span: Span) -> Index:
        index = self.indexes[loop]
        return self.function.add(index, span.shift) if loop == span.along else index

    def load(self, access: Flat, span: Span) -> Reg:
        """The elements of *access*, as values in registers."""
        function, lanes = self.function, span.lanes
        writer = self.writer(lanes)
        if access.turn is not None and access.turn.loop == span.along and lanes > 1:
            return writer.loaded(self._turned(access, access.turn, span), access.dtype)
        place = self._place(access, span)
        step = _step(access, span)
        varied = any(axis.step_of(span.along) for axis in access.axes)
        mask = span.mask if step or varied else None
        offsets: Reg | None = None
        known = self._bases.get(access, NO_BASE).axes
        for number, axis in enumerate(access.axes):
            if number in known:
                continue
            position: Index = axis.offset
            for loop, factor in axis.steps:
                position = function.add(position, function.mul(self.index(loop, span), factor))
            factor = axis.step_of(span.along)
            if axis.through is None:
                if isinstance(position, int) and factor:
                    inner = [0 <= position + i * factor < axis.size for i in range(lanes)]
                    if all(inner):
                        continue
                    bits = ", ".join(f"i1 {str(bit).lower()}" for bit in inner)
                    inside = Reg(f"<{bits}>" if lanes > 1 else bits[3:], vector(lanes, "i1"))
                else:
                    inside = self._inside(position, axis.size, factor, lanes)
                mask = inside if mask is None else writer.op("and", DType.BOOL, mask, inside)
                continue
            found = self._through(axis, position, factor, lanes, mask)
            if not factor or lanes == 1:
                place = function.add(place, function.mul(found.name, axis.stride))
                continue
            stride = writer.constant(axis.stride, DType.INT64)
            scaled = writer.op("mul", DType.INT64, found, stride)
            more = offsets is not None
            offsets = writer.op("add", DType.INT64, offsets, scaled) if offsets and more else scaled
        return writer.loaded(self._loaded(access, place, step, offsets, mask, lanes), access.dtype)

    def _loaded(
        self, access: Flat, place: Index, step: int, offsets: Reg | None, mask: Reg | None,
        lanes: int,
    ) -> Reg:  # fmt: skip
        """The elements from *place* on, as they lie in memory."""
        function, scalar = self.function, SCALARS[access.dtype]
        pointer = self.pointer(access.tensor)
        fill = None
        if access.fill is not None:
            fill = self.writer(lanes).constant(access.fill, access.dtype)
            if access.dtype is DType.BOOL:
                fill = splatted(str(int(access.fill)), scalar, lanes)
        address = function.at(pointer, function.mul(place, access.dtype.numpy.itemsize))
        if lanes == 1:
            return self._scalar(address, scalar, mask, fill)
        if offsets is None and step == 0 and mask is None:
            return function.splat(function.load(scalar, address), lanes)
        if offsets is None and step == 1:
            type_ = vector(lanes, scalar)
            return load_where(function, self.machine.isa, type_, address, mask, fill)
        if offsets is None and step == -1 and mask is None and access.fill is None:
            last = function.at(address, -(lanes - 1) * access.dtype.numpy.itemsize)
            return function.chosen(function.load(vector(lanes, scalar), last), range(lanes)[::-1])
        if offsets is None and step == 2 and mask is None and access.fill is None:
            # The last element is the last of the second vector: nothing behind it is read.
            behind = function.at(address, (lanes - 1) * access.dtype.numpy.itemsize)
            both = [function.load(vector(lanes, scalar), p) for p in (address, behind)]
            half = -(-lanes // 2)
            places = [2 * i if i < half else 2 * i + 1 for i in range(lanes)]
            return function.mixed(both[0], both[1], places)
        return self._gathered(address, step, offsets, mask, fill, lanes, scalar)

    def _turned(self, access: Flat, turn: Turn, span: Span) -> Reg:
        """The elements of an access along whose loop they come again. The span begins at a multiple
        of its lanes.
        """
        function, scalar, lanes = self.function, SCALARS[access.dtype], span.lanes
        if turn.cycle and turn.cycle <= lanes:
            # Each span begins with the first of the elements.
            access = replace(access, turn=None, steps=_still(access.steps, turn.loop))
        place = self._place(access, span)
        address = function.at(
            self.pointer(access.tensor), function.mul(place, access.dtype.numpy.itemsize)
        )
        is_constant = self.program.root(access.tensor) in self.program.constants
        if turn.hold >= lanes:
            return function.splat(function.load(scalar, address), lanes)
        if turn.cycle >= lanes:
            return function.load(vector(lanes, scalar), address)
        if turn.cycle:
            type_ = vector(turn.cycle, scalar)
            load = function.early if is_constant and place == 0 else function.load
            found = load(type_, address)
            return function.chosen(found, [i % turn.cycle for i in range(lanes)])
        count = lanes // turn.hold
        mask = None if span.tail is None else mask_of(-(-span.tail // turn.hold), count)
        if count == 1:
            return function.splat(function.load(scalar, address), lanes)
        found = function.masked_load(vector(count, scalar), address, mask)
        return function.chosen(found, [i // turn.hold for i in range(lanes)])

    def store(self, value: Reg, access: Flat, span: Span) -> None:
        """Stores a vector, as it lies in memory."""
        function, scalar = self.function, SCALARS[access.dtype]
        place, step = self._place(access, span), _step(access, span)
        address = function.at(
            self.pointer(access.tensor), function.mul(place, access.dtype.numpy.itemsize)
        )
        if span.lanes == 1 or step == 1:
            function.masked_store(value, address, span.mask)
            return
        pointers = self._pointers(address, step, None, span.lanes, scalar)
        held = span.mask or splatted("true", "i1", span.lanes)
        name = f"llvm.masked.scatter.{suffix_of(value.type)}.v{span.lanes}p0"
        function.declarations.add(
            f"declare void @{name}({value.type}, {pointers.type}, {held.type})"
        )
        function.line(f"call void @{name}({value}, {pointers}, {held})")

    def _place(self, access: Flat, span: Span) -> Index:
        """The element at which *access* begins, but for the axes that go through tables."""
        base = self._bases.get(access, NO_BASE)
        place = self.function.add(base.place, access.offset)
        for loop, step in enumerate(access.steps):
            if step and loop not in base.loops:
                index = self.index(loop, span)
                if access.turn is not None and access.turn.loop == loop:
                    index = self._of_turn(access.turn, index)
                place = self.function.add(place, self.function.mul(index, step))
        return place

    def _of_turn(self, turn: Turn, index: Index) -> Index:
        """The element at *index* of the loop of a turn."""
        if isinstance(index, int):
            return index % turn.cycle if turn.cycle else index // turn.hold
        name, by = ("urem", turn.cycle) if turn.cycle else ("udiv", turn.hold)
        return self.function.value(f"{name} i64 {index}, {by}", "i64").name

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

    def _pointers(self, base: str, step: int, offsets: Reg | None, lanes: int, scalar: str) -> Reg:
        """Pointers to elements that are *step* apart, plus *offsets*."""
        steps = ", ".join(f"i64 {i * step}" for i in range(lanes))
        places = Reg(f"<{steps}>", vector(lanes, "i64"))
        if offsets is not None:
            places = self.writer(lanes).op("add", DType.INT64, places, offsets)
        text = f"getelementptr {scalar}, ptr {base}, {places}"
        return self.function.value(text, vector(lanes, "ptr"))

    def _gathered(
        self, base: str, step: int, offsets: Reg | None, mask: Reg | None, fill: Reg | None,
        lanes: int, scalar: str,
    ) -> Reg:  # fmt: skip
        pointers = self._pointers(base, step, offsets, lanes, scalar)
        type_ = vector(lanes, scalar)
        held = mask or splatted("true", "i1", lanes)
        other = Reg("zeroinitializer" if fill is None else fill.name, type_)
        name = f"llvm.masked.gather.{suffix_of(type_)}.v{lanes}p0"
        return self.function.call(name, type_, pointers, held, other)

    def _through(
        self, axis: Axis, position: Index, factor: int, lanes: int, mask: Reg | None
    ) -> Reg:
        """The positions that the table of *axis* has, as int64."""
        function = self.function
        address = function.at(self.pointer(axis.through or 0), function.mul(position, 4))
        if not factor or lanes == 1:
            value = self._clamped(axis, function.load("i32", address), 1)
            return function.value(f"sext {value} to i64", "i64")
        if factor == 1:
            value = function.masked_load(vector(lanes, "i32"), address, mask)
        else:
            value = self._gathered(address, factor, None, mask, None, lanes, "i32")
        clamped = self._clamped(axis, value, lanes)
        return self.writer(lanes).cast(clamped, DType.INT32, DType.INT64)

    def _clamped(self, axis: Axis, value: Reg, lanes: int) -> Reg:
        """Positions within *axis*, as int32."""
        if not axis.computed:
            return value
        return self.writer(lanes).clamped(value, 0, axis.size - 1, DType.INT32)

    def _inside(self, position: Index, size: int, factor: int, lanes: int) -> Reg:
        """Whether positions lie in an axis of *size* elements."""
        function = self.function
        if not factor or lanes == 1:
            found = function.value(f"icmp ult i64 {position}, {size}", "i1")
            return function.splat(found, lanes)
        start = function.splat(Reg(str(position), "i64"), lanes)
        steps = f"<{', '.join(f'i64 {i * factor}' for i in range(lanes))}>"
        places = function.value(f"add {start}, {steps}", vector(lanes, "i64"))
        limit = splatted(str(size), "i64", lanes)
        return function.value(f"icmp ult {places}, {limit.name}", vector(lanes, "i1"))


def _still(steps: tuple[int, ...], loop: int) -> tuple[int, ...]:
    """*steps* without that of *loop*."""
    return tuple(0 if i == loop else step for i, step in enumerate(steps))


def _step(access: Flat, span: Span) -> int:
    """The step of *access* along the span."""
    along = span.along
    return access.steps[along] if along is not None and along < len(access.steps) else 0
