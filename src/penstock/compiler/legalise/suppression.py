"""NON_MAX_SUPPRESSION_V4, and V5, which lowers the scores of boxes that overlap chosen ones."""

from __future__ import annotations

import math
from typing import Final

from penstock.compiler.expression import Scope, Value
from penstock.compiler.legalise.boxes import WORDS, Candidate, Queue, overlap_of_any
from penstock.compiler.legalise.builder import Operation, legal
from penstock.compiler.legalise.routines import BOOL, F32, I32, RoutineWriter, Variable
from penstock.compiler.program import Access, Position
from penstock.driverkit.site import require
from penstock.ir import DType

MOST_BOXES: Final = 1 << 20
SCALARS: Final = ("overlap threshold", "score threshold", "sigma")


@legal("NON_MAX_SUPPRESSION_V4", "NON_MAX_SUPPRESSION_V5")
def non_max_suppression(operation: Operation) -> None:
    """Indexes of the chosen boxes (V5: also their scores), padded with zeros, and their number.

    The memory of the routine has the indexes, their number, the scores, and then the queue.
    """
    site, build = operation.site, operation.build
    soft = site.operation.type.endswith("V5")
    count, places = site.shape(0)[0], site.output_shape(0)[0]
    require(site.shape(0) == (count, 4) and site.shape(1) == (count,), "boxes and scores of shapes")
    require({site.input(i).dtype for i in (0, 1, 3, 4)} == {F32}, "types other than float32")
    require(count <= MOST_BOXES and places <= MOST_BOXES, f"more than {MOST_BOXES} boxes")
    (limit,) = site.integers(2, "the greatest number of boxes")
    require(limit == places, "another number of boxes than its output has")
    w = RoutineWriter(build, 2 * places + 1 + WORDS * count)
    _Suppression(operation, w, count, places, soft=soft).write()
    w.emit("suppression", count * (places + 16))
    memory = w.memory
    take(operation, memory, 0, operation.target(0), I32)
    if soft:
        take(operation, memory, places + 1, operation.target(1), F32)
    take(operation, memory, places, operation.target(2 if soft else 1), I32)


def take(
    operation: Operation, memory: int, first: int, target: int, stored: DType,
    made: DType | None = None, *, image: int | None = None,
) -> None:  # fmt: skip
    """Copies words from *first* on to *target*, or to its image *image*: they are *stored* bits, of
    32 bits, and become *made*.
    """
    shape = operation.shape(target)
    write = operation.whole(target)
    if image is not None:
        shape = (1, *shape[1:])
        write = Access(target, (Position(image), *write.axes[1:]))
    steps = tuple((loop, math.prod(shape[loop + 1 :])) for loop in range(len(shape)))
    scope = Scope(I32)
    body = scope.finish(scope.argument(0).bitcast(stored).cast(made or stored))
    read = Access(memory, (Position(first, steps),))
    operation.build.emit("take", shape, [read], body, write)


class _Suppression:
    """Writes the routine: a greedy choice of at most *places* of *count* boxes."""

    def __init__(
        self, operation: Operation, w: RoutineWriter, count: int, places: int, *, soft: bool
    ) -> None:
        self.w, self._count, self._places, self._soft = w, count, places, soft
        zero = w.number(0)
        self._boxes, self._scores = operation.tensor(0), operation.tensor(1)
        self._iou = w.load(operation.tensor(3), zero)
        self._least = w.load(operation.tensor(4), zero)
        self._decay = w.number(0.0, F32)
        if soft:
            sigma = w.load(operation.tensor(5), zero)
            with w.when(lambda s: s.scope.constant(0.0, F32) < s, sigma):
                w.set(self._decay, lambda s: s.scope.constant(-0.5, F32) / s, sigma)
        self._queue = Queue(w, 2 * places + 1, count, stable=False)

    def write(self) -> None:
        w, queue, places = self.w, self._queue, self._places
        nothing = w.number(0)
        with w.each(2 * places + 1) as word:
            w.keep(0, word, nothing)
        with w.each(self._count) as box:
            score = w.load(self._scores, box)
            with w.when(lambda least, s: least < s, self._least, score):
                queue.push(Candidate(score, box, nothing))
        room = w.let(lambda size: size.apply("minimum", places), queue.size)
        chosen = w.number(0)

        def goes_on() -> Variable:
            return w.let(
                lambda size, c, r: (size.scope.constant(0, I32) < size).apply("and", c < r),
                queue.size, chosen, room,
            )  # fmt: skip

        with w.loop(goes_on):
            self._take_turn(chosen)
        w.keep(places, nothing, chosen)

    def _take_turn(self, chosen: Variable) -> None:
        """Chooses the first candidate, drops it, or returns it to the queue with a lower score."""
        w = self.w
        candidate = self._queue.pop()
        value = w.let(lambda s: s, candidate.score)
        alive, lowering = w.number(True, BOOL), w.number(True, BOOL)
        self._compare(candidate, chosen, value, alive, lowering)
        before = w.let(lambda c: c, chosen)
        kept = w.let(
            lambda a, v, s: a.apply("and", a.scope.compare("equal", v, s)),
            alive, value, candidate.score,
        )  # fmt: skip
        with w.when(lambda k: k, kept):
            w.keep(0, chosen, candidate.box)
            w.keep(self._places + 1, chosen, value)
            w.set(chosen, lambda c: c + 1, chosen)
        returns = w.let(lambda a, v, least: a.apply("and", least < v), alive, value, self._least)
        with w.when(lambda r: r, returns):
            self._queue.push(Candidate(value, candidate.box, before))

    def _compare(
        self, candidate: Candidate, chosen: Variable, value: Variable, alive: Variable,
        lowering: Variable,
    ) -> None:  # fmt: skip
        """Compares a candidate with the boxes chosen since it was in the queue, the latest first:
        lowers its score *value*, or ends its life.
        """
        w = self.w
        corners = self._corners(candidate.box)
        rival = w.let(lambda c: c - 1, chosen)

        def goes_on() -> Variable:
            return w.let(
                lambda a, low, r, seen: a.apply("and", low).apply("and", seen <= r),
                alive, lowering, rival, candidate.mark,
            )  # fmt: skip

        with w.loop(goes_on):
            other = self._corners(w.recall(0, rival))
            overlap = w.let(overlap_of_any, *corners, *other)
            w.set(alive, lambda o, iou: (iou <= o).apply("not"), overlap, self._iou)
            if self._soft:
                decays = w.let(
                    lambda a, d: a.apply("and", d.scope.compare("equal", d, 0.0).apply("not")),
                    alive, self._decay,
                )  # fmt: skip
                with w.when(lambda d: d, decays):
                    w.set(value, _lowered, value, overlap, self._decay)
            w.set(lowering, lambda v, least: (v <= least).apply("not"), value, self._least)
            w.set(rival, lambda r: r - 1, rival)

    def _corners(self, box: Variable) -> list[Variable]:
        w = self.w
        first = w.let(lambda b: b.apply("shift_left", 2), box)
        places = [first, *(w.let(lambda f, k=k: f + k, first) for k in (1, 2, 3))]
        return [w.load(self._boxes, place) for place in places]


def _lowered(value: Value, overlap: Value, decay: Value) -> Value:
    """The score times exp(decay * overlap**2), which is computed in float64 and rounded."""
    exponent = (decay * overlap * overlap).cast(DType.FLOAT64)
    return value * exponent.apply("exp").cast(F32)
