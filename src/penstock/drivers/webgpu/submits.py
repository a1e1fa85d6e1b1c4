"""Which kernels, and which parts of them, each submit of a run has.

A submit has at most `SUBMIT_NS` of predicted work. Predictions begin as the compiler's estimates
for the slowest device, and follow what runs of the model take.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

from penstock.drivers.webgpu.calls import Call

SUBMIT_NS: Final = 50_000_000
"""The most predicted work of one submit: a run is cancelled between two of them, and no watchdog of
a desktop takes one for hung.
"""

STEADY: Final = 1.5
"""Factor by which work may differ from what the submits were planned for before they are planned
anew. Other work on a device makes its runs longer by as much.
"""


class Piece(Struct, frozen=True):
    """Workgroups of the kernel *call*: *columns* and *rows* of them from *column* and *row* on.

    *is_first* and *is_last* say whether the kernel begins or ends with it.
    """

    call: int
    column: int
    row: int
    columns: int
    rows: int
    is_first: bool = True
    is_last: bool = True

    def share_of(self, call: Call) -> float:
        """Its share of the kernel's workgroups."""
        return self.columns * self.rows / (call.groups[0] * call.groups[1])


class Submit(Struct, frozen=True):
    """The work of one submit, and the nanoseconds predicted for each piece."""

    pieces: tuple[Piece, ...]
    times_ns: tuple[float, ...]

    @property
    def predicted_ns(self) -> float:
        return sum(self.times_ns)


def planned(calls: Sequence[Call], times_ns: Sequence[float]) -> tuple[Submit, ...]:
    """The submits of a run of *calls* that take so long. At least one, which may have no work."""
    found, pieces, times = list[Submit](), list[Piece](), list[float]()
    for at, (call, ns) in enumerate(zip(calls, times_ns, strict=True)):
        for piece in pieces_of(at, call, ns):
            own = ns * piece.share_of(call)
            if pieces and sum(times) + own > SUBMIT_NS:
                found.append(Submit(tuple(pieces), tuple(times)))
                pieces, times = [], []
            pieces.append(piece)
            times.append(own)
    return (*found, Submit(tuple(pieces), tuple(times)))


def pieces_of(at: int, call: Call, ns: float) -> Iterator[Piece]:
    """The kernel number *at* in pieces of at most `SUBMIT_NS`, as far as its workgroups allow: rows
    of workgroups, which are divided where these are too few.
    """
    columns, rows, _ = call.groups
    count = math.ceil(ns / SUBMIT_NS) if call.divides else 1
    down = min(rows, max(count, 1))
    across = min(columns, math.ceil(count / down)) if down else 1
    ranges = list(itertools.product(_ranges(rows, down), _ranges(columns, max(across, 1))))
    for number, ((row, high), (column, wide)) in enumerate(ranges, 1):
        yield Piece(at, column, row, wide, high, number == 1, number == len(ranges))


def _ranges(size: int, count: int) -> list[tuple[int, int]]:
    """Where *count* ranges of about equal length begin, and their lengths."""
    edges = [size * k // count for k in range(count + 1)]
    return [(a, b - a) for a, b in itertools.pairwise(edges)]


class Pace:
    """What the kernels of a model are predicted to take, and the submits that follow. Thread-safe.

    The first run that is learned from replaces the estimates. Later ones move a prediction half of
    the way, on a scale of ratios, because other work on the device makes single runs longer.
    """

    def __init__(self, calls: Sequence[Call]) -> None:
        self._calls, self._lock = calls, threading.Lock()
        self._times = [float(max(call.estimate_ns, 1)) for call in calls]
        self._is_estimate = True
        self.submits = planned(calls, self._times)

    def learn(self, submits: Sequence[Submit], spent_ns: Sequence[float]) -> None:
        """Learns that the *submits* of a run took *spent_ns* each."""
        if len(submits) == 1 and spent_ns[0] <= SUBMIT_NS and not self._is_estimate:
            return
        taken = [0.0] * len(self._calls)
        for submit, spent in zip(submits, spent_ns, strict=True):
            ratio = spent / max(submit.predicted_ns, 1.0)
            for piece, ns in zip(submit.pieces, submit.times_ns, strict=True):
                taken[piece.call] += ratio * ns
        with self._lock:
            if self._is_estimate:
                self._times = [max(1.0, ns) for ns in taken]
            else:
                pairs = zip(self._times, taken, strict=True)
                self._times = [math.sqrt(before * max(1.0, after)) for before, after in pairs]
            if self._is_estimate or self._is_unsteady():
                self.submits = planned(self._calls, self._times)
            self._is_estimate = False

    def _is_unsteady(self) -> bool:
        """Whether the submits were planned for other times than are predicted."""
        before = sum(submit.predicted_ns for submit in self.submits)
        whole = sum(self._times)
        most = max(
            sum(self._times[p.call] * p.share_of(self._calls[p.call]) for p in submit.pieces)
            for submit in self.submits
        )
        has_changed = not before / STEADY <= whole <= before * STEADY
        return has_changed or most > STEADY * SUBMIT_NS
