"""Addresses of elements: sums of loops, printed where the loops open."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from msgspec import Struct
from msgspec.structs import replace

from penstock.compiler.program import Access, Program

Steps = tuple[tuple[int, int], ...]


class Bound(Struct, frozen=True):
    """A position, which lies inside its tensor from 0 to below *size*."""

    offset: int
    steps: Steps
    size: int


class Through(Struct, frozen=True):
    """A position that is an element of the int32 vector *tensor*: its number there, the size of the
    axis, and how many elements of the axis' tensor one position is.
    """

    tensor: int
    offset: int
    steps: Steps
    size: int
    stride: int


class Flat(Struct, frozen=True):
    """The number of the element that an access names: *offset* plus the sum of loop * step, plus
    what *through* adds. A read lies inside its tensor if all of *bounds* hold.
    """

    offset: int
    steps: Steps
    bounds: tuple[Bound, ...] = ()
    through: tuple[Through, ...] = ()

    def step(self, loop: int) -> int:
        return dict(self.steps).get(loop, 0)

    def is_bounded_by(self, loop: int) -> bool:
        """Whether a read may lie inside or outside as *loop* goes on."""
        return any(loop == other for b in self.bounds for other, _ in b.steps)

    def shifted(self, loop: int, by: int) -> Flat:
        """The same where *loop* is *by* iterations further."""

        def offset(before: int, steps: Steps) -> int:
            return before + by * dict(steps).get(loop, 0)

        return Flat(
            offset(self.offset, self.steps),
            self.steps,
            tuple(replace(b, offset=offset(b.offset, b.steps)) for b in self.bounds),
            tuple(replace(t, offset=offset(t.offset, t.steps)) for t in self.through),
        )

    def stepping(self, loop: int, step: int) -> Flat:
        """The same with another step for *loop*."""
        others = [pair for pair in self.steps if pair[0] != loop]
        return replace(self, steps=tuple(sorted([*others, *[(loop, step)] * (step != 0)])))

    def divided(self, by: int) -> Flat:
        """The same in units of *by* elements. All steps are multiples of that."""
        steps = tuple((loop, step // by) for loop, step in self.steps)
        return replace(self, offset=self.offset // by, steps=steps)

    def is_multiple(self, of: int, *, but: int | None = None) -> bool:
        """Whether the offset and all steps, except that of the loop *but*, are multiples of *of*,
        and nothing is read through a vector.
        """
        steps = (step for loop, step in self.steps if loop != but)
        return not self.through and all(n % of == 0 for n in (self.offset, *steps))

    def without(self, loops: Iterable[int]) -> Flat:
        """The same where *loops*, which have one iteration, are 0."""
        gone = frozenset(loops)

        def kept(steps: Steps) -> Steps:
            return tuple(pair for pair in steps if pair[0] not in gone)

        return Flat(
            self.offset,
            kept(self.steps),
            tuple(replace(b, steps=kept(b.steps)) for b in self.bounds),
            tuple(replace(t, steps=kept(t.steps)) for t in self.through),
        )


def flat_of(program: Program, access: Access, sizes: tuple[int, ...]) -> Flat:
    """The address of *access* in loops of *sizes*."""
    shape = program.tensors[access.tensor].shape
    offset, steps, stride = 0, dict[int, int](), 1
    bounds, through = list[Bound](), list[Through]()
    for size, position in zip(reversed(shape), reversed(access.axes), strict=True):
        if position.through is not None:
            chosen = position.through, position.offset, position.steps
            through.append(Through(*chosen, size, stride))
        else:
            offset += position.offset * stride
            for loop, step in position.steps:
                steps[loop] = steps.get(loop, 0) + step * stride
            low, high = position.span(sizes)
            if access.fill is not None and (low < 0 or high >= size):
                bounds.append(Bound(position.offset, position.steps, size))
        stride *= size
    kept = tuple(sorted((loop, step) for loop, step in steps.items() if step))
    flat = Flat(offset, kept, tuple(bounds), tuple(through))
    return flat.without(loop for loop, size in enumerate(sizes) if size == 1)


def joined(sizes: Sequence[int], flats: Sequence[Flat], first: int) -> tuple[list[int], list[Flat]]:
    """*sizes*, those of loops from *first* on, and *flats*. Where every address goes through
    several loops as through one, the last of them has all iterations and the others have one.
    """
    parts = [b.steps for flat in flats for b in flat.bounds]
    parts += [t.steps for flat in flats for t in flat.through]
    held = {loop for steps in parts for loop, _ in steps}
    found, gone = list(sizes), set[int]()
    real = [loop for loop, size in enumerate(sizes, first) if size != 1]
    for outer, inner in pairwise(real):
        size = sizes[inner - first]
        if {outer, inner} & held:
            continue
        if all(flat.step(outer) == flat.step(inner) * size for flat in flats):
            found[inner - first] *= found[outer - first]
            found[outer - first] = 1
            gone.add(outer)
    return found, [flat.without(gone) for flat in flats]


def sum_of(offset: int, steps: Sequence[tuple[int, int]]) -> str:
    """The text of the sum of loops times steps, and *offset*."""
    text = ""
    for loop, step in steps:
        size = f"i{loop}" if abs(step) == 1 else f"i{loop} * {abs(step)}"
        text += f" {'-' if step < 0 else '+'} {size}"
    if offset or not text:
        text += f" {'-' if offset < 0 else '+'} {abs(offset)}"
    return text[3:] if text.startswith(" + ") else f"0{text}"


class Walk:
    """Prints addresses as loops open, each part as far outside as it can be: compilers of shaders
    move nothing out of loops.

    *flats* are addresses by name, *variable* is what names of variables begin with. A thread
    computes *many* iterations of the loop *moving* at once, from `i{moving}` on.
    """

    def __init__(
        self,
        flats: Mapping[str, Flat],
        moving: int | None = None,
        many: int = 1,
        variable: str = "q",
    ) -> None:
        self._variable = variable
        self._flats, self._moving, self._many = dict(flats), moving, many
        self._open: set[int] = set()
        self._texts: dict[str, str] = {}
        self._inside: dict[str, list[str]] = {name: [""] * many for name in flats}
        self._bounds = {name: [(b, "") for b in flat.bounds] for name, flat in flats.items()}
        self._count = 0

    def enter(self, loops: Iterable[int]) -> list[str]:
        """Statements for where *loops*, and those of earlier calls, are known."""
        opened, lines = frozenset(loops), list[str]()
        self._open |= opened
        for name, flat in self._flats.items():
            known = self._texts.get(name)
            self._texts[name] = self._sum(lines, flat.offset, flat.steps, opened, known)
            self._bounds[name] = [
                part
                for bound, text in self._bounds[name]
                if (part := self._bounded(lines, name, bound, text, opened)) is not None
            ]
        return lines

    def _sum(
        self, lines: list[str], offset: int, steps: Steps, opened: frozenset[int], known: str | None
    ) -> str:
        terms = [pair for pair in steps if pair[0] in opened]
        if known is None:
            return self._named(lines, sum_of(offset, terms)) if terms else str(offset)
        return self._named(lines, f"{known} + {sum_of(0, terms)}") if terms else known

    def _bounded(
        self, lines: list[str], name: str, bound: Bound, text: str, opened: frozenset[int]
    ) -> tuple[Bound, str] | None:
        """*bound* as far as it is known; None once its conditions are printed."""
        text = self._sum(lines, bound.offset, bound.steps, opened, text or None)
        if any(loop not in self._open for loop, _ in bound.steps):
            return bound, text
        step, printed = dict(bound.steps).get(self._moving or 0, 0), dict[str, str]()
        step = 0 if self._moving is None else step
        for p, before in enumerate(self._inside[name]):
            place = text if step * p == 0 else f"{text} + {step * p}"
            condition = f"bitcast<u32>({place}) < {bound.size}u"
            if before:
                condition = f"{before} & ({condition})"
            if condition not in printed:
                printed[condition] = self._named(lines, condition)
            self._inside[name][p] = printed[condition]
        return None

    def _named(self, lines: list[str], text: str) -> str:
        self._count += 1
        name = f"{self._variable}{self._count}"
        lines.append(f"let {name} = {text};")
        return name

    def at(self, name: str, p: int = 0, more: int = 0) -> str:
        """The address, an i32, of iteration *p* of the moving loop, and *more* elements further."""
        step = 0 if self._moving is None else self._flats[name].step(self._moving)
        offset = step * p + more
        text = self._texts[name]
        return text if offset == 0 else f"{text} {'-' if offset < 0 else '+'} {abs(offset)}"

    def inside(self, name: str, p: int = 0) -> str:
        """The condition that the read lies inside its tensor; "" if it always does."""
        return self._inside[name][p]
