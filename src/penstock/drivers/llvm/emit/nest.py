"""Code for any kernel: its loops as they are, one of them in vectors.

Kernels without a template of their own are printed so: element-wise chains, copies, reductions and
pools. Loops that go on from each other are one. The one that is computed in vectors is an outer
loop along which the result lies contiguous, or the last reduced loop, whose lanes are combined at
the end.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from penstock.compiler.expression import Expression, Step
from penstock.compiler.interpreter import least_of
from penstock.compiler.program import Kernel, Program
from penstock.drivers.llvm.emit import pairs, run_table
from penstock.drivers.llvm.emit.assembler import Function, Index, Reg, first_of, lanes_of, suffix_of
from penstock.drivers.llvm.emit.flat import Flat, loops_of, pointers_of
from penstock.drivers.llvm.emit.places import Places, Span
from penstock.drivers.llvm.emit.scalars import UNSIGNED
from penstock.drivers.llvm.emit.writer import Writer
from penstock.drivers.llvm.isa import Instructions, Isa
from penstock.ir import DType, NDArray

UNROLLED: Final = 4
"""The number of vectors that are computed side by side: sums of a reduction, or short chains."""

SHORT: Final = 8
"""The most steps of a chain that is unrolled."""

PAIR: Final = 16
"""How many steps more a pair of 8-bit values is than one: four vectors of 32 bits are computed."""

LEAST_LANES: Final = 4
"""Fewer elements are computed one by one at the end of a loop."""

FEW_TURNS: Final = 6
"""Turns that are written one by one where each has other elements outside of a tensor."""

FEW: Final = 8
"""A contiguous loop of fewer elements is no loop for vectors if there is another one."""

CHUNK: Final = 1 << 10
"""The elements of a unit of work of a long loop."""

CHUNK_BY_TABLE: Final = 1 << 13
"""The same where each unit computes a table first."""

COMBINES: Final = {"sum": "add", "product": "mul", "any": "or", "all": "and"}
"""The scalar operation of a reduction, where it is named otherwise."""


REDUCES: Final = {"sum": "add", "maximum": "max", "minimum": "min"}
"""What LLVM calls the combination of the integers of a vector."""

MANY_POINTS = 1 << 18
"""Points of a unit from which on the flag that stops a run is read within it."""

MANY_INSIDE = 256
"""Points that take much longer than to read the flag."""


class Nest:
    """A kernel as its loops are: the template of every kernel that has no other."""

    name = "nest"

    def __init__(self, program: Program, kernel: Kernel, isa: Isa) -> None:
        self.program, self.kernel, self.machine = program, kernel, Instructions(isa)
        self.tensors = tuple(pointers_of(program, kernel))
        self.loops = loops_of(program, kernel, isa.width)
        self.vector = self._vector_loop()
        self.lanes = self._lanes()
        self.varying = run_table.varying(program, kernel, self.loops, self.vector, isa)

    @property
    def key(self) -> object:
        """Which tensors are constants: they may be read earlier than they are written otherwise."""
        return tuple(t in self.program.constants for t in self.tensors)

    @property
    def units(self) -> int:
        outer = self.loops.outer
        if self.shared is not None:
            return outer[self.shared]
        return -(-outer[0] // self.chunk) if outer and self.vector == 0 else 1

    @property
    def shared(self) -> int | None:
        """The loop whose turns are units of work."""
        return next((i for i in range(len(self.loops.outer)) if i != self.vector), None)

    @property
    def chunk(self) -> int:
        """The elements of a unit of work, where one loop is all that there is."""
        if self.loops.reduced:
            return self.lanes * self.unrolled
        return CHUNK if self.varying is None else CHUNK_BY_TABLE

    @property
    def unrolled(self) -> int:
        """How many vectors are computed side by side."""
        if self.loops.reduced:
            return UNROLLED
        steps, down = 0, self.machine.isa.rounds_down
        for expression in (self.kernel.body, self.kernel.finish):
            count = sum(n >= len(expression.arguments) for n in _computed(expression, down=down))
            steps += count + PAIR * len(pairs.found(expression, down))
        return UNROLLED if steps <= SHORT else 1

    @property
    def repeats(self) -> bool:
        """Whether elements may be computed twice, in a vector that begins anywhere: nothing that
        is read is written, and no access comes again along vectors. The memory plan may have an
        element-wise kernel write over what it reads.
        """
        program, kernel, loops = self.program, self.kernel, self.loops
        target = program.root(loops.written.tensor)
        given = (*loops.reads, *loops.extras)
        in_place = any(a.axes == kernel.write.axes for a in (*kernel.reads, *kernel.extras))
        return not in_place and all(
            a.turn is None and program.root(a.tensor) != target for a in given
        )

    def constants(self) -> tuple[NDArray, ...]:
        return ()

    def write(self, name: str) -> Function:
        function = Function(name, [f"t{i}" for i in range(len(self.tensors))])
        if 0 not in self.kernel.loops:
            _Code(self, function).write()
        return function

    def _vector_loop(self) -> int | None:
        """The loop that is computed in vectors: contiguous in the result, or else reduced last."""
        loops = self.loops
        outer, sizes = len(loops.outer), loops.sizes
        if self.kernel.ordered:
            return next((i for i in range(outer) if loops.written.steps[i] == 1), None)
        best = next((i for i in range(outer) if loops.written.steps[i] == 1), None)
        last = len(sizes) - 1
        contiguous = bool(loops.reduced) and any(r.steps[last] == 1 for r in loops.reads)
        if contiguous and sizes[last] >= FEW:
            good = (
                best is not None
                and all(_is_contiguous(r, best) for r in loops.reads)
                and sizes[best] >= FEW
            )
            if not good:
                return last
        if best is not None and sizes[best] < FEW:
            # Results that lie apart cost less than vectors that are nearly empty.
            return max(
                filter(self._is_read_along, range(outer)), key=sizes.__getitem__, default=best
            )
        return best

    def _is_read_along(self, loop: int) -> bool:
        """Whether an outer loop is long, and everything is read contiguously along it."""
        loops = self.loops
        reads = (*loops.reads, *loops.extras)
        return loops.outer[loop] >= 2 * self.machine.isa.lanes and all(
            r.steps[loop] in {0, 1} and not r.axes for r in reads
        )

    def _lanes(self) -> int:
        if self.vector is None:
            return 1
        kernel, loops = self.kernel, self.loops
        outer = self.vector < len(loops.outer)
        # The lanes of a reduced loop are one value before the finish.
        dtypes = {r.dtype for r in loops.reads} | ({loops.written.dtype} if outer else set())
        for expression in (kernel.body, kernel.finish) if outer else (kernel.body,):
            values = _computed(expression, down=self.machine.isa.rounds_down)
            dtypes |= {expression.dtype_of(v) for v in values}
        if kernel.combine != "none":
            dtypes.add(kernel.sums)
        widest = max(1 if d is DType.BOOL else d.numpy.itemsize for d in dtypes)
        if outer and loops.written.steps[self.vector] != 1:
            widest = max(4, widest)
        lanes, size = self.machine.isa.width // widest, loops.sizes[self.vector]
        while lanes > 1 and lanes // 2 >= size:
            lanes //= 2
        return max(1, lanes)


def _spans(size: int, lanes: int) -> int:
    """How many vectors of less than *lanes* elements, and single ones, *size* elements take."""
    found = 0
    while lanes > LEAST_LANES:
        lanes //= 2
        found += size // lanes
        size %= lanes
    return found + size


def _is_contiguous(access: Flat, loop: int) -> bool:
    """Whether elements along *loop* are the same one or lie side by side."""
    gathered = any(axis.through is not None and axis.step_of(loop) for axis in access.axes)
    return access.steps[loop] in {0, 1} and not gathered


class _Code:
    """Writes the function of a nest."""

    def __init__(self, nest: Nest, function: Function) -> None:
        self.nest, self.kernel, self.f = nest, nest.kernel, function
        self.loops, self.vector, self.lanes = nest.loops, nest.vector, nest.lanes
        self.places = Places(nest.program, nest.machine, function, nest.tensors)
        self.outer = len(self.loops.outer)
        self.reduces = self.vector is not None and self.vector >= self.outer
        self.varying = nest.varying
        self.table = ""
        if self.varying is not None:
            self.table = function.value(f"alloca [{run_table.VALUES} x i8], align 64", "ptr").name

    def write(self) -> None:
        nest, f = self.nest, self.f
        shared, order = nest.shared, [i for i in range(self.outer) if i != self.vector]
        if shared is not None:

            def unit(index: Index) -> None:
                self.places.indexes[shared] = index
                with self.places.within(shared, self.loops.accesses):
                    self._walk(order[1:])

            f.share(self.loops.outer[shared], unit)
        elif nest.units > 1:
            size, chunk = self.loops.outer[0], nest.chunk
            whole, left = divmod(size, chunk)
            last = (lambda: self._along(whole * chunk, left)) if left else None
            f.share(whole, lambda u: self._along(f.mul(u, chunk), chunk), last)
        else:
            f.share(1, lambda _: self._walk(order))

    def _poll(self, points: int) -> None:
        """Ends a stopped run, before so many *points* of a unit that has very many."""
        if points >= MANY_INSIDE and math.prod(self.loops.sizes) // self.nest.units > MANY_POINTS:
            self.f.poll()

    def _walk(self, order: list[int]) -> None:
        """The outer loops of *order*, and what they surround."""
        if order:
            loop = order[0]

            inside = [i for i in range(len(self.loops.sizes)) if i >= self.outer]
            inside += [*order[1:], *([] if self.vector is None else [self.vector])]
            points = math.prod(self.loops.sizes[i] for i in set(inside))

            def body(index: Index) -> None:
                self.places.indexes[loop] = index
                self._poll(points)
                with self.places.within(loop, self.loops.accesses):
                    self._walk(order[1:])

            self.f.each(0, self.loops.outer[loop], 1, body)
        elif self.vector is None or self.reduces:
            self._points(Span(1, None), 1)
        else:
            self._along(0, self.loops.outer[self.vector])

    def _along(self, begin: Index, size: int) -> None:
        """*size* elements of the loop that is computed in vectors, from *begin* on."""
        f, lanes, done = self.f, self.lanes, 0
        if self.varying is not None and self.vector is not None and size >= run_table.LEAST:
            run_table.write(
                f, self.places, self.kernel, self.loops, self.varying, self.vector, lanes,
                self.table, begin, size,
            )  # fmt: skip
            return
        for count in dict.fromkeys((self.nest.unrolled, 1)):
            done = self._whole(begin, done, size, lanes, count)
        if done == size:
            return
        if self.nest.machine.isa.masks:
            self.places.indexes[self.vector or 0] = f.add(begin, done)
            self._points(Span(lanes, self.vector, tail=size - done), 1)
            return
        # Masks cost much here.
        if done and self.nest.repeats and _spans(size - done, lanes) > 1:
            self.places.indexes[self.vector or 0] = f.add(begin, size - lanes)
            self._points(Span(lanes, self.vector), 1)
            return
        # Ever smaller vectors, and single elements.
        while lanes > LEAST_LANES:
            lanes //= 2
            done = self._whole(begin, done, size, lanes, 1)
        self._whole(begin, done, size, 1, 1)

    def _whole(self, begin: Index, done: int, size: int, lanes: int, count: int) -> int:
        """Computes as many times *count* vectors of *lanes* elements as there are; returns how many
        elements are done then.
        """
        f, span = self.f, lanes * count
        end = done + (size - done) // span * span

        def body(index: Index) -> None:
            self.places.indexes[self.vector or 0] = index
            self._points(Span(lanes, self.vector), count)

        turns = (end - done) // span
        if turns == 1 or (turns <= FEW_TURNS and self._looks_outside):
            for number in range(turns):
                body(f.add(begin, done + number * span))
        elif turns:
            f.each(f.add(begin, done), f.add(begin, end), span, body)
        return end

    @property
    def _looks_outside(self) -> bool:
        """Whether elements along the vectors may lie outside of a tensor: which do is known for
        numbers, and costs much to compute.
        """
        return any(
            axis.through is None and axis.step_of(self.vector)
            for access in (*self.loops.reads, *self.loops.extras)
            for axis in access.axes
        )

    def _points(self, span: Span, count: int) -> None:
        """*count* spans of the outer loops side by side."""
        spans = [replace(span, shift=number * span.lanes) for number in range(count)]
        if self.kernel.combine == "none":
            for each in spans:
                self._finish(self._body(each), each)
            return
        totals = [self._across()] if self.reduces else self._sums(spans)
        for total, each in zip(totals, spans, strict=True):
            self._finish(total, each)

    def _finish(self, total: Reg, span: Span) -> None:
        """The result of *span* from its *total*, stored."""
        writer = self.places.writer(span.lanes, span.mask)
        extras = [self.places.load(e, span) for e in self.loops.extras]
        result = writer.write(self.kernel.finish, [total, *extras])
        written = self.loops.written
        self.places.store(writer.stored(result, written.dtype), written, span)

    def _body(self, span: Span) -> Reg:
        values = [self.places.load(r, span) for r in self.loops.reads]
        return self.places.writer(span.lanes, span.mask).write(self.kernel.body, values)

    def _sums(self, spans: list[Span]) -> list[Reg]:
        """Combines the reduced loops, for *spans* side by side."""
        writer = self.places.writer(spans[0].lanes)

        def level(depth: int, totals: list[Reg]) -> list[Reg]:
            if depth == len(self.loops.reduced):
                add = self._in_order if self.kernel.ordered else self._added
                return [add(writer, *pair) for pair in zip(totals, spans, strict=True)]

            def body(index: Index, carried: list[Reg]) -> list[Reg]:
                self.places.indexes[self.outer + depth] = index
                self._poll(math.prod(self.loops.reduced[depth + 1 :]) * spans[0].lanes)
                return level(depth + 1, carried)

            return self.f.loop(0, self.loops.reduced[depth], 1, body, totals)

        if self.kernel.order == "fused":
            return level(0, [self.places.load(self.loops.extras[0], s) for s in spans])
        return level(0, [self._neutral(writer)] * len(spans))

    def _added(self, writer: Writer, total: Reg, span: Span) -> Reg:
        return self._combined(writer, total, self._body(span))

    def _in_order(self, _writer: Writer, total: Reg, span: Span) -> Reg:
        first, second = (self.places.load(r, span) for r in self.loops.reads)
        return self.f.multiplied(first, second, total, self.kernel.order)

    def _across(self) -> Reg:
        """Combines the reduced loops with the last one in vectors, and then the lanes."""
        lanes, places = self.lanes, self.places
        writer = places.writer(lanes)
        start = self._neutral(writer)
        last = len(self.loops.sizes) - 1
        size = self.loops.sizes[last]
        full = size // lanes * lanes

        def inner(index: Index, carried: list[Reg]) -> list[Reg]:
            places.indexes[last] = index
            return [self._combined(writer, carried[0], self._body(Span(lanes, last)))]

        def level(depth: int, totals: list[Reg]) -> list[Reg]:
            if self.outer + depth == last:
                totals = self.f.loop(0, full, lanes, inner, totals) if full else totals
                if full < size:
                    places.indexes[last] = full
                    value = self._body(Span(lanes, last, tail=size - full))
                    mask = first_of(size - full, lanes)
                    totals = [self._combined(writer, totals[0], writer.choose(mask, value, start))]
                return totals

            def body(index: Index, carried: list[Reg]) -> list[Reg]:
                places.indexes[self.outer + depth] = index
                self._poll(math.prod(self.loops.reduced[depth + 1 :]))
                return level(depth + 1, carried)

            return self.f.loop(0, self.loops.reduced[depth], 1, body, totals)

        (total,) = level(0, [start])
        return self._folded(total, lanes)

    def _folded(self, total: Reg, lanes: int) -> Reg:
        """The lanes of a vector combined: halves, and halves of these."""
        dtype, combine = self.kernel.sums, self.kernel.combine
        if dtype.is_integer and combine in REDUCES and lanes > 1:
            sign = "" if combine == "sum" else "u" if dtype in UNSIGNED else "s"
            name = f"llvm.vector.reduce.{sign}{REDUCES[combine]}.{suffix_of(total.type)}"
            return self.f.call(name, lanes_of(total.type)[1], total)
        while lanes > 1:
            lanes //= 2
            parts = [
                self.f.chosen(total, range(half * lanes, (half + 1) * lanes)) for half in (0, 1)
            ]
            if lanes == 1:
                scalar = lanes_of(total.type)[1]
                parts = [self.f.value(f"extractelement {p}, i32 0", scalar) for p in parts]
            total = self._combined(self.places.writer(lanes), parts[0], parts[1])
        return total

    def _neutral(self, writer: Writer) -> Reg:
        return writer.constant(least_of(self.kernel).item(), self.kernel.sums)

    def _combined(self, writer: Writer, total: Reg, value: Reg) -> Reg:
        dtype, combine = self.kernel.sums, self.kernel.combine
        step = Step(COMBINES.get(combine, combine), (0, 1), dtype)
        # The second of two floats is taken where one is NaN: reductions ignore NaN.
        return writer.step(step, [value, total], [dtype, dtype])


def _computed(expression: Expression, *, down: bool) -> Iterator[int]:
    """The values that are computed or read, those within pairs apart."""
    found, count = pairs.found(expression, down), len(expression.arguments)
    left, seen = [expression.result], set()
    while left:
        number = left.pop()
        if number in seen:
            continue
        seen.add(number)
        yield number
        if number in found:
            left += [found[number].x, found[number].y]
        elif number >= count:
            left += expression.steps[number - count].arguments
