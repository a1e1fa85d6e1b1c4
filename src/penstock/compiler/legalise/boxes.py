"""Boxes and queues of boxes, as routines compute with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from penstock.compiler.expression import Value
from penstock.compiler.legalise.routines import F32, I32, RoutineWriter, Variable

Corners = Sequence[Variable]
"""Two opposite corners of a box: y, x, y, x."""

Overlap = Callable[..., Value]
"""Intersection over union, of the eight coordinates of two boxes."""


def overlap_of_any(*coordinates: Value) -> Value:
    """The overlap of boxes whose corners come in any order. It is 0 if one has no area, and NaN if
    one has a NaN.
    """
    shared, areas = _shared(coordinates, any_order=True)
    scope = shared.scope
    union = areas[0] + areas[1] - shared
    empty = (areas[0] <= 0.0).apply("or", areas[1] <= 0.0)
    safe = scope.select(empty, scope.constant(1.0, F32), union)
    return scope.select(empty, scope.constant(0.0, F32), shared / safe)


def overlap_of_ordered(*coordinates: Value) -> Value:
    """The overlap of boxes whose first corner is the least one. It is 0 if the union has no area,
    and NaN if a box has a NaN.
    """
    shared, areas = _shared(coordinates, any_order=False)
    scope = shared.scope
    union = areas[0] + areas[1] - shared
    empty = scope.compare("equal", union, 0.0)
    safe = scope.select(empty, scope.constant(1.0, F32), union)
    return scope.select(empty, shared, shared / safe)


def _shared(coordinates: Sequence[Value], *, any_order: bool) -> tuple[Value, list[Value]]:
    """The area that two boxes share, and the areas of both. Where a coordinate is NaN, the area of
    its box is: what is shared then does not matter.
    """
    boxes = coordinates[:4], coordinates[4:]
    lengths: list[Value] = []
    for axis in (0, 1):
        ends = [(box[axis], box[axis + 2]) for box in boxes]
        if any_order:
            ends = [(a.apply("minimum", b), a.apply("maximum", b)) for a, b in ends]
        (low, high), (other_low, other_high) = ends
        length = high.apply("minimum", other_high) - low.apply("maximum", other_low)
        lengths.append(length.apply("maximum", 0.0))
    areas = []
    for y, x, other_y, other_x in boxes:
        sides = other_y - y, other_x - x
        if any_order:
            sides = sides[0].apply("abs"), sides[1].apply("abs")
        areas.append(sides[0] * sides[1])
    return lengths[0] * lengths[1], areas


class Candidate(NamedTuple):
    """A box in a queue: its score, its number, and a number that the routine keeps with it."""

    score: Variable
    box: Variable
    mark: Variable


WORDS: Final = len(Candidate._fields)
"""The words of memory that a queue needs for each candidate."""


class Queue:
    """A heap of at most *room* candidates, in the memory of *writer* from word *base* on. The one
    with the greatest score leaves first.

    Equal scores leave in TFLite's order, that of its heap (`std::priority_queue`): the hole that
    the first one leaves sinks to the bottom, always to the greater child, the second of two equal
    ones. If *stable*, equal scores leave by their numbers.
    """

    def __init__(self, writer: RoutineWriter, base: int, room: int, *, stable: bool) -> None:
        self.writer, self._room, self._stable = writer, room, stable
        self._bases = [base + k * room for k in range(WORDS)]
        self.size = writer.number(0)

    def push(self, item: Candidate) -> None:
        w = self.writer
        at = w.let(lambda size: size, self.size)
        self._rise(at, item)
        w.set(self.size, lambda size: size + 1, self.size)

    def pop(self) -> Candidate:
        """Removes the first candidate. There must be one."""
        w = self.writer
        best = self._at(w.number(0))
        w.set(self.size, lambda size: size - 1, self.size)
        last = self._at(self.size)
        with w.when(lambda size: size.scope.compare("less", size.scope.constant(0, I32), size),
                    self.size):  # fmt: skip
            at, child = w.number(0), w.number(2)
            with w.loop(lambda: w.let(lambda c, size: c < size, child, self.size)):
                left = w.let(lambda c: c - 1, child)
                second, first = (self._rank(place) for place in (child, left))
                with w.when(self._behind, *second, *first):
                    w.copy(child, left)
                self._move(child, at)
                w.copy(at, child)
                w.set(child, lambda a: a + a + 2, at)
            equal = w.let(lambda c, size: c.scope.compare("equal", c, size), child, self.size)
            with w.when(lambda e: e, equal):
                only = w.let(lambda c: c - 1, child)
                self._move(only, at)
                w.copy(at, only)
            self._rise(at, last)
        return best

    def _rise(self, at: Variable, item: Candidate) -> None:
        """Puts *item* in the place *at*, or above it."""
        w = self.writer
        above = w.number(0)

        def rises() -> Variable:
            w.set(above, lambda a: (a - 1).apply("maximum", 0).apply("shift_right", 1), at)
            behind = w.let(self._behind, *self._rank(above), item.score, item.box)
            return w.let(lambda a, b: (a.scope.constant(0, I32) < a).apply("and", b), at, behind)

        with w.loop(rises):
            self._move(above, at)
            w.copy(at, above)
        for base, value in zip(self._bases, item, strict=True):
            w.keep(base, at, value)

    def _behind(self, score: Value, box: Value, other: Value, other_box: Value) -> Value:
        """Whether one candidate leaves behind another one."""
        less = score < other
        if not self._stable:
            return less
        equal = score.scope.compare("equal", score, other)
        return less.apply("or", equal.apply("and", other_box < box))

    def _rank(self, at: Variable) -> tuple[Variable, Variable]:
        w = self.writer
        return w.recall(self._bases[0], at, F32), w.recall(self._bases[1], at)

    def _at(self, at: Variable) -> Candidate:
        score, box = self._rank(at)
        return Candidate(score, box, self.writer.recall(self._bases[2], at))

    def _move(self, source: Variable, target: Variable) -> None:
        w = self.writer
        for base in self._bases:
            w.keep(base, target, w.recall(base, source))
