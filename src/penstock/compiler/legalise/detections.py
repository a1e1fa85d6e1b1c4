"""Detections: boxes relative to anchors, suppressed to the best ones, as a routine. TFLite's custom
operation and NNAPI's differ in the numbers of a `Detector` and in how boxes are decoded.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from msgspec import Struct

from penstock.compiler.expression import Expression, Value
from penstock.compiler.legalise.boxes import WORDS, Candidate, Corners, Overlap, Queue
from penstock.compiler.legalise.builder import Operation
from penstock.compiler.legalise.routines import BOOL, F32, I32, RoutineWriter, Variable
from penstock.compiler.legalise.suppression import MOST_BOXES
from penstock.compiler.program import Access, Position, along
from penstock.driverkit.site import require
from penstock.errors import GeneralFailure


class Detector(Struct, frozen=True):
    """What the two operations share, and how they differ.

    Scores have *first* classes that are not detected, and then *classes* that are. A box whose
    score is *least*, or above it unless *inclusive*, is a candidate. It is dropped if it overlaps a
    chosen box by *iou* or, if *inclusive*, by more than that.

    *regular*: each class chooses at most *each* boxes, and the best *most* of all classes are kept.
    Otherwise at most *most* boxes are chosen by their best class. Each is listed with its best
    *each* classes, *step* places behind the one before, and counts as *counted* detections.

    Outputs have *places* for detections. *label* is the number of the first class.
    """

    first: int
    classes: int
    least: float
    iou: float
    inclusive: bool
    regular: bool
    most: int
    each: int
    places: int
    step: int = 1
    counted: int = 1
    label: int = 0


class Detection(Struct, frozen=True):
    """Image *image*: its *count* boxes of *row* encoded numbers each, their scores, and *anchors*.

    *read* has the real value of an element of each of the three. *decode* computes a coordinate of
    a corner: of an axis, a sign, and (centre, size) of the box and of its anchor. *overlap* is that
    of two boxes.
    """

    detector: Detector
    scores: int
    boxes: int
    anchors: int
    count: int
    row: int
    image: int
    read: tuple[Expression, Expression, Expression]
    decode: Callable[..., Value]
    overlap: Overlap


class Found(Struct, frozen=True):
    """The memory of a routine that has run, and where it has what: corners, classes and scores of
    the detections, zero beyond the last one, and their number.
    """

    memory: int
    corners: int
    classes: int
    scores: int
    total: int


def require_sizes(detector: Detector, count: int) -> None:
    """Refuses numbers that no routine is written for."""
    require(math.isfinite(detector.least), "a score threshold that is no number")
    require(detector.most > 0 and detector.each > 0, f"at most {detector.most} detections")
    require(max(count, detector.places) <= MOST_BOXES, f"more than {MOST_BOXES} boxes")


def detect(operation: Operation, detection: Detection) -> Found:
    """Adds the kernels of *detection*."""
    best = None if detection.detector.regular else _best(operation, detection)
    return _Writing(operation, detection, best).write()


def _best(operation: Operation, detection: Detection) -> int:
    """A tensor with the best score of each box."""
    build, d = operation.build, detection.detector
    made = build.tensor(F32, (detection.count,))
    places = (Position(detection.image), Position(0, ((0, 1),)), Position(d.first, ((1, 1),)))
    read = [Access(detection.scores, places)]
    build.emit(
        "best scores", (detection.count,), read, detection.read[0], Access(made, along(0)),
        reduced=(d.classes,), combine="maximum",
    )  # fmt: skip
    return made


class _Writing:
    """Writes the routine of one image. Its memory has what is found, the corners of the boxes that
    are chosen, and the queue. *best* has the best score of each box.
    """

    def __init__(self, operation: Operation, detection: Detection, best: int | None) -> None:
        d = detection.detector
        self.d, self.detection, self._best = d, detection, best
        chosen = min(detection.count, d.each if d.regular else d.most)
        self._classes, self._scores, self._total = (k * d.places for k in (4, 5, 6))
        self._chosen = self._total + 1
        queue = self._chosen + 4 * chosen
        self.w = RoutineWriter(operation.build, queue + WORDS * detection.count)
        self._queue = Queue(self.w, queue, detection.count, stable=True)
        self._least = self.w.number(d.least, F32)
        self._iou = self.w.number(d.iou, F32)
        self._most = chosen

    def write(self) -> Found:
        w, d, detection = self.w, self.d, self.detection
        zero = w.number(0)
        with w.each(self._chosen) as word:
            w.keep(0, word, zero)
        total = self._each_class() if d.regular else self._each_box()
        w.keep(self._total, zero, total)
        rounds = d.classes if d.regular else 1
        turns = rounds * detection.count * (16 + self._most) + d.most * d.each * d.classes
        w.emit("detections", turns)
        return Found(w.memory, 0, self._classes, self._scores, self._total)

    def _score(self, box: Variable, label: Variable) -> Variable:
        """The score of a class, by its number among those that are detected."""
        w, d = self.w, self.d
        row = d.first + d.classes
        first = self.detection.image * self.detection.count * row + d.first
        place = w.let(lambda b, c: b * row + c + first, box, label)
        score = self._real(0, w.load(self.detection.scores, place))
        if d.inclusive:
            return score
        # Here NaN is a score below all others.
        return w.let(
            lambda s: s.scope.select(
                s.scope.compare("equal", s, s), s, s.scope.constant(-math.inf, F32)
            ),
            score,
        )

    def _real(self, which: int, stored: Variable) -> Variable:
        """What operand *which* stores, as float32."""
        read = self.detection.read[which]
        if read.is_identity:
            return stored
        return self.w.let(lambda s: s.scope.inline(read, s), stored)

    def _corners(self, box: Variable) -> Corners:
        w, detection = self.w, self.detection
        begin = detection.image * detection.count * detection.row
        first = w.let(lambda b: b * detection.row + begin, box)
        second = w.let(lambda b: b * 4, box)
        encoded = [self._real(1, w.load(detection.boxes, p)) for p in self._four(first)]
        anchor = [self._real(2, w.load(detection.anchors, p)) for p in self._four(second)]
        found, decode = list[Variable](), detection.decode
        for sign in (-1, 1):
            for axis in (0, 1):
                given = [part[k] for part in (encoded, anchor) for k in (axis, axis + 2)]
                found.append(w.let(lambda *v, a=axis, s=sign: decode(a, s, *v), *given))
        return found

    def _four(self, first: Variable) -> list[Variable]:
        return [self.w.let(lambda f, k=k: f + k, first) for k in range(4)]

    def _stored_corners(self, base: int, place: Variable) -> list[Variable]:
        first = self.w.let(lambda p: p * 4, place)
        return [self.w.recall(base + k, first, F32) for k in range(4)]

    def _keep_corners(self, base: int, place: Variable, corners: Corners) -> None:
        first = self.w.let(lambda p: p * 4, place)
        for k, corner in enumerate(corners):
            self.w.keep(base + k, first, corner)

    def _push(self, box: Variable, score: Variable) -> None:
        w = self.w
        if self.d.inclusive:
            wanted = w.let(lambda least, s: least <= s, self._least, score)
        else:
            wanted = w.let(lambda least, s: least < s, self._least, score)
        with w.when(lambda holds: holds, wanted):
            self._queue.push(Candidate(score, box, w.number(0)))

    def _choose(self, limit: int, take_one: Callable[[Candidate, Variable, Corners], None]) -> None:
        """Empties the queue: chooses at most *limit* boxes, the best first, and calls *take_one*
        for each, with its place among them.
        """
        w, queue = self.w, self._queue
        chosen = w.number(0)

        def goes_on() -> Variable:
            return w.let(
                lambda size, c: (size.scope.constant(0, I32) < size).apply("and", c < limit),
                queue.size, chosen,
            )  # fmt: skip

        with w.loop(goes_on):
            candidate = queue.pop()
            corners = self._corners(candidate.box)
            alive, rival = w.number(True, BOOL), w.number(0)
            with w.loop(lambda: w.let(lambda a, r, c: a.apply("and", r < c), alive, rival, chosen)):
                other = self._stored_corners(self._chosen, rival)
                overlap = w.let(self.detection.overlap, *corners, *other)
                if self.d.inclusive:
                    w.set(alive, lambda o, iou: o <= iou, overlap, self._iou)
                else:
                    w.set(alive, lambda o, iou: (iou <= o).apply("not"), overlap, self._iou)
                w.set(rival, lambda r: r + 1, rival)
            with w.when(lambda a: a, alive):
                self._keep_corners(self._chosen, chosen, corners)
                take_one(candidate, chosen, corners)
                w.set(chosen, lambda c: c + 1, chosen)
        w.set_number(queue.size, 0)

    def _keep(self, place: Variable, label: Variable, score: Variable, corners: Corners) -> None:
        w = self.w
        self._keep_corners(0, place, corners)
        w.keep(self._classes, place, label)
        w.keep(self._scores, place, score)

    def _each_box(self) -> Variable:
        """Chooses boxes by their best score. Returns how many detections that are."""
        w, d = self.w, self.d
        best = self._best
        if best is None:
            raise GeneralFailure("the routine of detections has no best scores")
        with w.each(self.detection.count) as box:
            self._push(box, w.load(best, box))
        total = w.number(0)

        def take_one(candidate: Candidate, place: Variable, corners: Corners) -> None:
            first = w.let(lambda p: p * d.step, place)
            self._best_classes(candidate.box, first, min(d.each, d.classes), corners)
            w.set(total, lambda t: t + d.counted, total)

        self._choose(d.most, take_one)
        return total

    def _best_classes(self, box: Variable, first: Variable, each: int, corners: Corners) -> None:
        """Lists the *each* best classes of a box: each is the first of those behind the last."""
        w, d = self.w, self.d
        last_score, last = w.number(math.inf, F32), w.number(-1)
        with w.each(each) as number:
            best_score, best = w.number(0.0, F32), w.number(-1)
            with w.each(d.classes) as label:
                score = self._score(box, label)
                follows = w.let(_follows, score, label, last_score, last)
                better = w.let(
                    lambda f, b, s, best: f.apply("and", (b < 0).apply("or", _above(s, best))),
                    follows, best, score, best_score,
                )  # fmt: skip
                with w.when(lambda holds: holds, better):
                    w.copy(best_score, score)
                    w.copy(best, label)
            w.copy(last_score, best_score)
            w.copy(last, best)
            place = w.let(lambda f, n: f + n, first, number)
            self._keep(place, w.let(lambda b: b + d.label, best), best_score, corners)

    def _each_class(self) -> Variable:
        """Chooses boxes of each class, and keeps the best detections of all, in their order. Equal
        scores keep the order in which they were found. Returns how many there are.
        """
        w, d = self.w, self.d
        total = w.number(0)
        with w.each(d.classes) as label:
            with w.each(self.detection.count) as box:
                self._push(box, self._score(box, label))

            def take_one(candidate: Candidate, _: Variable, corners: Corners) -> None:
                place = w.let(lambda t: t - 1, total)
                score = w.number(0.0, F32)

                def lower() -> Variable:
                    inside = w.let(lambda p: p.apply("maximum", 0), place)
                    w.copy(score, w.recall(self._scores, inside, F32))
                    return w.let(
                        lambda p, s, mine: (p.scope.constant(0, I32) <= p).apply("and", s < mine),
                        place, score, candidate.score,
                    )  # fmt: skip

                with w.loop(lower):
                    self._shift(place)
                    w.set(place, lambda p: p - 1, place)
                w.set(place, lambda p: p + 1, place)
                with w.when(lambda p: p < d.most, place):
                    shown = w.let(lambda c: c + d.label, label)
                    self._keep(place, shown, candidate.score, corners)
                w.set(total, lambda t: (t + 1).apply("minimum", d.most), total)

            self._choose(d.each, take_one)
        return total

    def _shift(self, place: Variable) -> None:
        """Moves a detection to the next place, if there is one."""
        w, d = self.w, self.d
        following = w.let(lambda p: p + 1, place)
        with w.when(lambda f: f < d.most, following):
            self._keep_corners(0, following, self._stored_corners(0, place))
            for base in (self._classes, self._scores):
                w.keep(base, following, w.recall(base, place))


def _above(score: Value, other: Value) -> Value:
    """Whether a score comes before another one. NaN comes last."""
    scope = score.scope
    known = scope.compare("equal", score, score)
    unknown = scope.compare("equal", other, other).apply("not")
    return (other < score).apply("or", known.apply("and", unknown))


def _follows(score: Value, label: Value, last_score: Value, last: Value) -> Value:
    """Whether a class comes after the last one: any does, if there is none."""
    tied = _above(score, last_score).apply("or", _above(last_score, score)).apply("not")
    behind = _above(last_score, score).apply("or", tied.apply("and", last < label))
    return (last < 0).apply("or", behind)
