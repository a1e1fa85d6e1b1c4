"""Writes functions in LLVM's textual intermediate representation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache, lru_cache
from typing import Final, NamedTuple, TypeAlias

from penstock.ir import DType
from penstock.ir.rounding import Sums

WORK: Final = ("begin", "end")
"""The arguments of a kernel that say which units of its work it does."""


class Reg(NamedTuple):
    """A value of a function: its name (or a literal) and its LLVM type."""

    name: str
    type: str

    def __str__(self) -> str:
        return f"{self.type} {self.name}"


Index: TypeAlias = "int | str"
"""A 64-bit index: a number, or the name of a value."""

SCALARS = {
    DType.FLOAT32: "float",
    DType.FLOAT64: "double",
    DType.FLOAT16: "half",
    DType.INT8: "i8",
    DType.UINT8: "i8",
    DType.INT16: "i16",
    DType.UINT16: "i16",
    DType.INT32: "i32",
    DType.UINT32: "i32",
    DType.INT64: "i64",
    DType.UINT64: "i64",
    DType.BOOL: "i8",
}
"""The LLVM type of an element in memory."""


BYTES_OF: Final = {"i8": 1, "i16": 2, "i32": 4, "i64": 8, "half": 2, "float": 4, "double": 8}

MOST_PIECES: Final = 3


def vector(lanes: int, scalar: str) -> str:
    return scalar if lanes == 1 else f"<{lanes} x {scalar}>"


def splatted(value: str, scalar: str, lanes: int) -> Reg:
    """A constant vector of equal elements."""
    if lanes == 1:
        return Reg(value, scalar)
    return Reg(f"splat ({scalar} {value})", vector(lanes, scalar))


@cache
def lanes_of(type_: str) -> tuple[int, str]:
    """(number of elements, type of one) of a type."""
    if not type_.startswith("<"):
        return 1, type_
    count, scalar = type_.strip("<>").split(" x ")
    return int(count), scalar


@cache
def suffix_of(type_: str) -> str:
    """How the name of an intrinsic says *type_*."""
    lanes, scalar = lanes_of(type_)
    short = {"float": "f32", "double": "f64", "half": "f16"}.get(scalar, scalar)
    return short if lanes == 1 else f"v{lanes}{short}"


@lru_cache(512)
def shuffle(places: tuple[int, ...]) -> str:
    """The mask of a shuffle that takes the elements at *places*."""
    return f"<{len(places)} x i32> <{', '.join([f'i32 {p}' for p in places])}>"


class Function:
    """One function. Its *arguments* are pointers, and *numbers* follow them.

    A function of a kernel also gets the units of its work that it does, `begin` to `end`, and a
    pointer to a number that is not 0 once the run is stopped.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        *,
        kernel: bool = True,
        numbers: Sequence[str] = (),
        attributes: str = "",
    ) -> None:
        given = [f"ptr noalias %{a}" for a in arguments] + [f"i64 %{n}" for n in numbers]
        if kernel:
            given += [*(f"i64 %{w}" for w in WORK), "ptr %stop"]
        self.name = name
        self.declarations: set[str] = set()
        self._arguments, self._attributes = given, f"noinline nounwind {attributes}".rstrip()
        self._lines: list[str] = []
        self._replaced = ""
        self._block, self._count = "entry", 0
        self._ending: list[str] = []
        self._early: dict[tuple[str, str], Reg] = {}

    def fresh(self, stem: str = "v") -> str:
        self._count += 1
        return f"%{stem}{self._count}"

    def line(self, text: str) -> None:
        self._lines.append(f"  {text}")

    def value(self, text: str, type_: str) -> Reg:
        """The result of an instruction."""
        name = self.fresh()
        self.line(f"{name} = {text}")
        return Reg(name, type_)

    def call(self, name: str, type_: str, *arguments: Reg) -> Reg:
        """The result of an intrinsic."""
        types = ", ".join(a.type for a in arguments)
        self.declarations.add(f"declare {type_} @{name}({types})")
        return self.value(f"call {type_} @{name}({', '.join(map(str, arguments))})", type_)

    def multiplied(self, a: Reg, b: Reg, total: Reg, order: Sums) -> Reg:
        """*total* plus a product of floats, which is rounded first if sums are "ordered"."""
        if order == "ordered":
            product = self.value(f"fmul {a}, {b.name}", a.type)
            return self.value(f"fadd {total}, {product.name}", a.type)
        return self.call(f"llvm.fma.{suffix_of(a.type)}", a.type, a, b, total)

    def add(self, a: Index, b: Index) -> Index:
        if isinstance(a, int) and isinstance(b, int):
            return a + b
        if a == 0 or b == 0:
            return b if a == 0 else a
        return self.value(f"add nsw i64 {a}, {b}", "i64").name

    def mul(self, a: Index, b: Index) -> Index:
        if isinstance(a, int) and isinstance(b, int):
            return a * b
        if 0 in {a, b}:
            return 0
        if a == 1 or b == 1:
            return b if a == 1 else a
        return self.value(f"mul nsw i64 {a}, {b}", "i64").name

    def at(self, pointer: str, offset: Index) -> str:
        """*pointer* plus *offset* bytes."""
        if offset == 0:
            return pointer
        return self.value(f"getelementptr i8, ptr {pointer}, i64 {offset}", "ptr").name

    def load(self, type_: str, pointer: str, align: int = 1) -> Reg:
        return self.value(f"load {type_}, ptr {pointer}, align {align}", type_)

    def early(self, type_: str, pointer: str) -> Reg:
        """What is at *pointer*, an argument of memory that nobody writes: loaded once, at the
        beginning of the function.
        """
        known = self._early.get((type_, pointer))
        if known is None:
            known = Reg(self.fresh(), type_)
            self._early[type_, pointer] = known
        return known

    def store(self, value: Reg, pointer: str, align: int = 1) -> None:
        self.line(f"store {value}, ptr {pointer}, align {align}")

    def fetch(self, pointer: str) -> None:
        """Has the processor load what is at *pointer* into its second cache."""
        self.declarations.add("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
        self.line(f"call void @llvm.prefetch.p0(ptr {pointer}, i32 0, i32 2, i32 1)")

    def splat(self, value: Reg, lanes: int) -> Reg:
        """A vector of *lanes* equal elements."""
        if lanes == 1:
            return value
        type_ = vector(lanes, value.type)
        one = self.value(f"insertelement {type_} poison, {value}, i32 0", type_)
        mask = f"<{lanes} x i32> zeroinitializer"
        return self.value(f"shufflevector {one}, {type_} poison, {mask}", type_)

    def loop(
        self,
        begin: Index,
        end: Index,
        step: int,
        body: Callable[[Index, list[Reg]], Sequence[Reg]],
        carried: Sequence[Reg] = (),
    ) -> list[Reg]:
        """Runs *body* for begin, begin + step ... below end, at least once; returns what it
        carries. A loop of one turn is written without a loop.
        """
        if isinstance(begin, int) and isinstance(end, int):
            if end <= begin:
                return list(carried)
            if end - begin <= step:
                return list(body(begin, list(carried)))
        self._count += 1
        number, before = self._count, self._block
        self.line(f"br label %L{number}")
        self._lines.append(f"L{number}:")
        place, self._block = len(self._lines), f"L{number}"
        self._lines.append("")
        index = f"%i{number}"
        names = [Reg(f"%c{number}_{k}", value.type) for k, value in enumerate(carried)]
        made = list(body(index, list(names)))
        following = self.value(f"add nuw nsw i64 {index}, {step}", "i64").name
        again = self.value(f"icmp slt i64 {following}, {end}", "i1").name
        turn = Reg(index, "i64"), Reg(str(begin), "i64"), Reg(following, "i64")
        phis = [turn, *zip(names, carried, made, strict=True)]
        self._lines[place] = self._entered(before, phis)
        self.line(f"br i1 {again}, label %L{number}, label %X{number}, !llvm.loop !0")
        self._lines.append(f"X{number}:")
        self._block = f"X{number}"
        return made

    def _entered(self, before: str, phis: Sequence[tuple[Reg, Reg, Reg]]) -> str:
        """The head of a loop that is entered from the block *before* and from the present one: of
        each value its register, and what it is from either.
        """
        return "\n".join(
            f"  {name.name} = phi {name.type} [{first.name}, %{before}],"
            f" [{last.name}, %{self._block}]"
            for name, first, last in phis
        )

    def turns(
        self, begin: Index, end: Index, body: Callable[[Index, list[Reg]], Sequence[Reg]],
        carried: Sequence[Reg],
    ) -> list[Reg]:  # fmt: skip
        """As `loop`, a step at a time, and maybe not once."""
        self._count += 1
        number, before = self._count, self._block
        self.line(f"br label %L{number}")
        self._lines.append(f"L{number}:")
        place = len(self._lines)
        self._lines.append("")
        index = f"%i{number}"
        names = [Reg(f"%c{number}_{k}", value.type) for k, value in enumerate(carried)]
        more = self.value(f"icmp slt i64 {index}, {end}", "i1").name
        self.line(f"br i1 {more}, label %M{number}, label %X{number}, !llvm.loop !0")
        self._lines.append(f"M{number}:")
        self._block = f"M{number}"
        made = list(body(index, list(names)))
        following = self.value(f"add nuw nsw i64 {index}, 1", "i64").name
        turn = Reg(index, "i64"), Reg(str(begin), "i64"), Reg(following, "i64")
        phis = [turn, *zip(names, carried, made, strict=True)]
        self._lines[place] = self._entered(before, phis)
        self.line(f"br label %L{number}")
        self._lines.append(f"X{number}:")
        self._block = f"X{number}"
        return names

    def each(self, begin: Index, end: Index, step: int, body: Callable[[Index], object]) -> None:
        """Runs *body* for begin, begin + step ... below end, which carries nothing."""

        def turn(index: Index, _: list[Reg]) -> list[Reg]:
            body(index)
            return []

        self.loop(begin, end, step, turn)

    def when(self, condition: str, body: Callable[[], object]) -> None:
        """Runs *body* if *condition*, an i1, holds."""
        self._count += 1
        number = self._count
        self.line(f"br i1 {condition}, label %T{number}, label %E{number}")
        self._lines.append(f"T{number}:")
        self._block = f"T{number}"
        body()
        self.line(f"br label %E{number}")
        self._lines.append(f"E{number}:")
        self._block = f"E{number}"

    @property
    def block(self) -> str:
        """The name of the block that is being written."""
        return self._block

    def label(self, name: str) -> None:
        """Begins the block *name*; the block before it has branched."""
        self._lines.append(f"{name}:")
        self._block = name

    def later(self) -> Callable[[Iterable[str]], None]:
        """Leaves room for lines at this place, which the result of this call writes."""
        place = len(self._lines)
        self._lines.append("")

        def fill(lines: Iterable[str]) -> None:
            self._lines[place] = "\n".join(f"  {line}" for line in lines)

        return fill

    def leave_if(self, condition: str) -> None:
        """Returns from the function if *condition*, an i1, holds."""
        self._count += 1
        number = self._count
        self.line(f"br i1 {condition}, label %done, label %G{number}")
        self._lines.append(f"G{number}:")
        self._block = f"G{number}"

    def poll(self) -> None:
        """Returns from the function of a kernel if the run is stopped."""
        stopped = self.value("load atomic i32, ptr %stop monotonic, align 4", "i32")
        self.leave_if(self.value(f"icmp ne {stopped}, 0", "i1").name)

    def share(
        self,
        whole: int,
        body: Callable[[Index], object],
        last: Callable[[], object] | None = None,
        first: int = 0,
    ) -> None:
        """Runs *body* for each unit from `begin` to `end` that is below *whole* and not below
        *first*, and *last* if unit *whole* is among them. Ends early once the run is stopped.
        """
        self._count += 1
        number = self._count
        if whole > first:
            begin, end = Reg("%begin", "i64"), Reg("%end", "i64")
            if first:
                begin = self.call("llvm.smax.i64", "i64", begin, Reg(str(first), "i64"))
            limit = self.call("llvm.smin.i64", "i64", end, Reg(str(whole), "i64"))
            some = self.value(f"icmp slt {begin}, {limit.name}", "i1")
            before = self._block
            self.line(f"br {some}, label %U{number}, label %V{number}")
            self._lines.append(f"U{number}:")
            place, self._block = len(self._lines), f"U{number}"
            self._lines.append("")
            index = f"%u{number}"
            stopped = self.value("load atomic i32, ptr %stop monotonic, align 4", "i32")
            left = self.value(f"icmp ne {stopped}, 0", "i1")
            self.line(f"br {left}, label %done, label %W{number}")
            self._lines.append(f"W{number}:")
            self._block = f"W{number}"
            body(index)
            following = self.value(f"add nuw nsw i64 {index}, 1", "i64").name
            again = self.value(f"icmp slt i64 {following}, {limit.name}", "i1").name
            self._lines[place] = (
                f"  {index} = phi i64 [{begin.name}, %{before}], [{following}, %{self._block}]"
            )
            self.line(f"br i1 {again}, label %U{number}, label %V{number}, !llvm.loop !0")
            self._lines.append(f"V{number}:")
            self._block = f"V{number}"
        if last is not None:
            before_it = self.value(f"icmp sle i64 %begin, {whole}", "i1")
            behind = self.value(f"icmp sgt i64 %end, {whole}", "i1")
            both = self.value(f"and {before_it}, {behind.name}", "i1")
            self.line(f"br {both}, label %Y{number}, label %Z{number}")
            self._lines.append(f"Y{number}:")
            self._block = f"Y{number}"
            last()
            self.line(f"br label %Z{number}")
            self._lines.append(f"Z{number}:")
            self._block = f"Z{number}"

    def joined(self, values: Sequence[Reg]) -> Reg:
        """Vectors of one type, a power of two of them, or as many scalars, one behind the other."""
        parts = list(values)
        if len(parts) > 1 and not parts[0].type.startswith("<"):
            type_ = vector(len(parts), parts[0].type)
            made = "poison"
            for lane, part in enumerate(parts):
                made = self.value(f"insertelement {type_} {made}, {part}, i32 {lane}", type_).name
            return Reg(made, type_)
        while len(parts) > 1:
            lanes, scalar = lanes_of(parts[0].type)
            order, type_ = shuffle(tuple(range(2 * lanes))), vector(2 * lanes, scalar)
            parts = [
                self.value(f"shufflevector {a}, {b}, {order}", type_)
                for a, b in zip(parts[::2], parts[1::2], strict=True)
            ]
        return parts[0]

    def chosen(self, value: Reg, places: Sequence[int]) -> Reg:
        """The elements of a vector at *places*."""
        _, scalar = lanes_of(value.type)
        text = f"shufflevector {value}, {value.type} poison, {shuffle(tuple(places))}"
        return self.value(text, f"<{len(places)} x {scalar}>")

    def mixed(self, a: Reg, b: Reg, places: Sequence[int]) -> Reg:
        """The elements of two vectors, one behind the other, at *places*."""
        _, scalar = lanes_of(a.type)
        text = f"shufflevector {a}, {b}, {shuffle(tuple(places))}"
        return self.value(text, f"<{len(places)} x {scalar}>")

    def resized(self, value: Reg, lanes: int) -> Reg:
        """The first *lanes* elements of a vector; those behind its end are of no matter."""
        had, _ = lanes_of(value.type)
        if had == lanes:
            return value
        return self.chosen(value, [i if i < had else 0 for i in range(lanes)])

    def masked_load(
        self, type_: str, pointer: str, mask: Reg | None, fill: Reg | None = None
    ) -> Reg:
        """The elements where *mask* holds (None: all); *fill*, or 0, elsewhere."""
        if mask is None:
            return self.load(type_, pointer)
        other = fill or Reg("zeroinitializer", type_)
        name = f"llvm.masked.load.{suffix_of(type_)}.p0"
        self.declarations.add(f"declare {type_} @{name}(ptr, {mask.type}, {type_})")
        return self.value(
            f"call {type_} @{name}(ptr align 1 {pointer}, {mask}, {type_} {other.name})", type_
        )

    def masked_store(self, value: Reg, pointer: str, mask: Reg | None) -> None:
        """Stores the elements where *mask* holds (None: all)."""
        if mask is None:
            self.store(value, pointer)
            return
        if mask.name == first_of(1, lanes_of(mask.type)[0]).name:
            # LLVM 22 stores all four bytes of a word here that is truncated to a byte.
            _, scalar = lanes_of(value.type)
            self.store(self.value(f"extractelement {value}, i64 0", scalar), pointer)
            return
        pieces = pieces_of(mask)
        if pieces is not None:
            self._store_pieces(value, pointer, pieces)
            return
        name = f"llvm.masked.store.{suffix_of(value.type)}.p0"
        self.declarations.add(f"declare void @{name}({value.type}, ptr, {mask.type})")
        self.line(f"call void @{name}({value}, ptr align 1 {pointer}, {mask})")

    def _store_pieces(self, value: Reg, pointer: str, pieces: Sequence[int]) -> None:
        """Stores the first elements of a vector: so many at a time."""
        _, scalar = lanes_of(value.type)
        size, done = BYTES_OF[scalar], 0
        for count in pieces:
            part = self.chosen(value, range(done, done + count))
            self.store(part, self.at(pointer, done * size))
            done += count

    @property
    def arguments(self) -> tuple[str, ...]:
        """The arguments with their types, in order."""
        return tuple(self._arguments)

    @property
    def body(self) -> str:
        """The instructions, a line each."""
        end = ["  br label %done", "done:", *self._ending, "  ret void"]
        early = [
            f"  {value.name} = load {type_}, ptr {pointer}, align 1"
            for (type_, pointer), value in self._early.items()
        ]
        return self._replaced or "\n".join([*early, *self._lines, *end])

    def replace(self, body: str, argument: str) -> None:
        """Takes *body* for the instructions, which read *argument*, a pointer behind the others."""
        self._arguments.append(f"ptr noalias %{argument}")
        self._replaced = body

    def text(self) -> str:
        given = ", ".join(self._arguments)
        head = f"define internal void @{self.name}({given}) {self._attributes} {{"
        return f"{head}\nentry:\n{self.body}\n}}"

    def at_end(self, text: str) -> None:
        """Adds an instruction that runs before the function of a kernel returns, also early."""
        self._ending.append(f"  {text}")


def pieces_of(mask: Reg) -> list[int] | None:
    """The powers of two, greatest first, whose sum is how many first elements *mask* is of; None if
    it is of others, or they are many. A few plain stores take less time than one of single bytes.
    """
    lanes, _ = lanes_of(mask.type)
    count = mask.name.count("true")
    pieces = [1 << bit for bit in range(lanes.bit_length(), -1, -1) if count >> bit & 1]
    if not pieces or len(pieces) > MOST_PIECES or first_of(count, lanes).name != mask.name:
        return None
    return pieces


def mask_of(count: int, lanes: int) -> Reg | None:
    """The first *count* of *lanes* elements; None for all."""
    return None if count >= lanes else first_of(count, lanes)


def first_of(count: int, lanes: int) -> Reg:
    """A mask of the first *count* of *lanes* elements."""
    bits = ", ".join(f"i1 {'true' if i < count else 'false'}" for i in range(lanes))
    return Reg(f"<{bits}>", vector(lanes, "i1"))


METADATA = '\n!0 = distinct !{!0, !1}\n!1 = !{!"llvm.loop.unroll.disable"}\n'


def module(functions: Sequence[Function], others: Sequence[str] = ()) -> str:
    """The text of a module of *functions*, with the text of *others*."""
    declarations = sorted({d for f in functions for d in f.declarations})
    texts = [f.text() for f in functions]
    return "\n".join([*declarations, *others, *texts, METADATA])
