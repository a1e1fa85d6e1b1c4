"""Exact requantisation in float32, by proof.

TFLite scales a sum by a fixed-point multiplier with two roundings. The result rises with the sum.
So does floor(a * sum + c), for the real value of the product and sum: an addition that rounds down
never crosses a whole number. So does the nearest whole number to the nearest float32 to that sum,
where no instruction rounds down. Two rising functions with whole results in [low, high] are equal
everywhere if they are equal where the one steps, and just before. There are at most 255 steps a
channel: `solve` computes them, and a and c from them, and proves each.

A channel whose sums below 0 round the other way gets a second c for these. A channel that cannot be
proved is computed in whole numbers.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct

from penstock.driverkit.fixed_point import rescale
from penstock.drivers.llvm.proof.lifted import REACH, Lifted, lifted
from penstock.interrupts import polled
from penstock.ir import NDArray

CANDIDATES: Final = sorted(range(-12, 13), key=abs)
"""Distances, in units in the last place, from the rounded multiplier, of those that are tried where
it is not right itself.
"""

FEW: Final = 4
"""The channels for which all of these are tried at once."""

FAR: Final = 1e9

BLOCK: Final = 48
"""The channels that are solved at once: arrays of their steps stay in the nearest cache."""

DEEPEST: Final = 20
"""The greatest right shift: beyond it, the arithmetic here would not be exact in float64."""

MOST_EXCEPTIONS: Final = 6
"""The most sums of a channel that are patched one by one."""

WINDOW: Final = 4
"""How far from a step both functions are compared where they differ."""


class Proof(Struct, frozen=True, eq=False):
    """result = floor(a * sum + (above if sum >= 0 else below)) + zero point, clamped, for every sum
    of the channels where *proved* holds. *single*: *below* is not needed.

    *exceptions* [rounds, 2, channels] are sums with another result, and what is added to it there;
    rounds in which a channel has none add 0.

    *lifted* are lines without exceptions, for sums that are floats as they stand; None if those of
    a channel are not proved.
    """

    a: NDArray
    above: NDArray
    below: NDArray
    proved: NDArray
    single: bool
    exceptions: NDArray
    lifted: Lifted | None = None

    @property
    def constants(self) -> dict[str, NDArray]:
        """The vectors that code reads, by the names that it has for them: a, and what is added to
        all sums, or to those from 0 on and to those below.
        """
        if self.lifted is not None:
            return {"a": self.lifted.a, "c": self.lifted.c}
        if self.single:
            return {"a": self.a, "c": self.above}
        return {"a": self.a, "c": self.above, "d": self.below}

    @property
    def patches(self) -> NDArray:
        """The exceptions of the lines whose `constants` code reads."""
        return self.exceptions if self.lifted is None else self.exceptions[:0]


def solve(
    mantissas: NDArray,
    shifts: NDArray,
    zero_point: int,
    limits: tuple[int, int],
    least: NDArray,
    greatest: NDArray,
    *,
    down: bool,
    lines: bool = True,
) -> Proof:
    """A proof for each channel, whose sums lie within *least* and *greatest*. *down*: instructions
    round down, otherwise to the nearest. Without *lines*, lines are solved only where lifted ones
    are not proved: they are 0 otherwise.
    """
    low, high = limits
    levels = np.arange(low + 1, high + 1, dtype=np.int64) - zero_point
    single = zero_point <= low
    # Channels of one multiplier share a proof, for the sums of all of them.
    _, chosen, place = np.unique(
        mantissas.astype(np.int64) * 128 + shifts, return_index=True, return_inverse=True
    )
    count = len(chosen)
    lowest, most = np.full(count, 2**62), np.full(count, -(2**62))
    np.minimum.at(lowest, place, least)
    np.maximum.at(most, place, greatest)
    if not levels.size:
        zeros = np.zeros(len(place), np.float32)
        none = np.zeros((0, 2, len(place)), np.int32)
        return Proof(zeros, zeros, zeros, np.ones(len(place), bool), True, none)
    blocks, lifts, rises = [], [], single
    for first in polled(range(0, count, BLOCK)):
        some = slice(first, first + BLOCK)
        multiplier = Multiplier(
            mantissas[chosen[some]].astype(np.int64), shifts[chosen[some]].astype(np.int64)
        )
        steps = Steps.of(multiplier, levels, lowest[some], most[some])
        blocks.append((multiplier, steps))
        if rises:
            reach = np.maximum(np.abs(lowest[some]), np.abs(most[some]))
            rounded = multiplier.scales.astype(np.float32)
            lifts.append(_lifted(rounded, multiplier, levels, steps, reach, down=down))
            # A channel that is not lifted keeps those of the other blocks from being so.
            rises = bool((lifts[-1][1] | ~steps.live.any(axis=1)).all())
    flat, value = _constant(Multiplier(mantissas, shifts), levels, least, greatest)
    middle = (value + 0.5 * down).astype(np.float32)
    raised = None
    if rises and (np.concatenate([holds for _, holds in lifts])[place] | flat).all():
        own_a, own_c, start = (
            np.concatenate([getattr(made, name) for made, _ in lifts])[place]
            for name in ("a", "c", "start")
        )
        own_a, own_c = np.where(flat, np.float32(0), own_a), np.where(flat, middle, own_c)
        raised = Lifted(own_a, own_c, start)
        if not lines:
            none = np.zeros((0, 2, len(place)), np.int32)
            zeros = np.zeros(len(place), np.float32)
            return Proof(zeros, zeros, zeros, np.ones(len(place), bool), single, none, raised)
    parts = [_solved(m, levels, steps, single=single, down=down) for m, steps in polled(blocks)]
    made = [np.concatenate([getattr(p[0], n) for p in parts]) for n in ("a", "above", "below")]
    proved = np.concatenate([p[1] for p in parts])
    differ = [d for p in parts for d in p[2]]
    exceptions = _table(differ)[:, :, place]
    a, above, below = (m[place] for m in made)
    a = np.where(flat, np.float32(0), a)
    above, below = np.where(flat, middle, above), np.where(flat, middle, below)
    exceptions[:, 0, flat], exceptions[:, 1, flat] = np.iinfo(np.int32).min, 0
    exceptions = exceptions[exceptions[:, 1].any(axis=1)]
    return Proof(a, above, below, proved[place] | flat, single, exceptions, raised)


def _constant(
    multiplier: Multiplier, levels: NDArray, least: NDArray, greatest: NDArray
) -> tuple[NDArray, NDArray]:
    """Which channels have one result for all their sums, and that result before the zero point."""
    ends = np.clip(multiplier.of(np.stack([least, greatest], 1)), levels[0] - 1, levels[-1])
    reach = np.maximum(np.abs(least), np.abs(greatest))
    rises = (multiplier.shifts <= 0) & (reach < 2**31)
    return (ends[:, 0] == ends[:, 1]) & rises, ends[:, 0]


class Multiplier(Struct, frozen=True, eq=False):
    """A quantised multiplier a channel (`penstock.driverkit.fixed_point`)."""

    mantissas: NDArray
    shifts: NDArray

    @property
    def scales(self) -> NDArray:
        return self.mantissas.astype(np.float64) * 2.0 ** (self.shifts.astype(np.float64) - 31)

    def chosen(self, channels: NDArray | slice) -> Multiplier:
        return Multiplier(self.mantissas[channels], self.shifts[channels])

    def of(self, sums: NDArray) -> NDArray:
        """The exact results for *sums* [channels, any number]."""
        return rescale(sums, self.mantissas[:, None], self.shifts[:, None])


class Steps(Struct, frozen=True, eq=False):
    """The least sum that reaches each level, [channels, levels]; *live*: whether it and the sum
    before it can occur. *known*: whether the arithmetic of a channel is exact here.
    """

    at: NDArray
    live: NDArray
    known: NDArray

    @classmethod
    def of(
        cls, multiplier: Multiplier, levels: NDArray, least: NDArray, greatest: NDArray
    ) -> Steps:
        """The inverse of both roundings: first that of the shift, which rounds halves away from 0,
        then that of the product, which rounds halves up.
        """
        mantissas, shifts = multiplier.mantissas, multiplier.shifts
        right, left = np.clip(-shifts, 0, DEEPEST)[:, None], np.clip(shifts, 0, 31)[:, None]
        half = (np.int64(1) << right) >> 1
        product = (levels << right) - half
        product += (product < 0) & (half > 0)
        divisor = np.maximum(mantissas, 1)[:, None] << left
        at = ((product << 31) - (1 << 30) + divisor - 1) // divisor
        live = (at <= greatest[:, None]) & (at > least[:, None])
        reach = np.maximum(np.abs(least), np.abs(greatest)).astype(np.float64)
        scales = multiplier.scales
        known = (-shifts <= DEEPEST) & (mantissas > 0) & (scales > 2.0**-DEEPEST)
        # Left shifts wrap, and conversions to whole numbers must not overflow.
        known &= (reach * 2.0 ** np.maximum(shifts, 0) < 2.0**31) & (reach * scales < 2.0**31)
        # Conversions of greater sums round, but rise: only those at steps must be exact.
        known &= ~(live & ((at >= 2**24) | (at <= -(2**24)))).any(axis=1)
        return cls(at, live, known)

    def chosen(self, channels: NDArray | slice) -> Steps:
        return Steps(self.at[channels], self.live[channels], self.known[channels])


class Line(Struct, frozen=True, eq=False):
    """a * sum + (above or below), as `solve` finds it and instructions round it."""

    a: NDArray
    above: NDArray
    below: NDArray
    down: bool

    def at(self, sums: NDArray) -> NDArray:
        """The whole numbers for *sums*, [channels, any number]. The products and additions of
        float32 numbers are exact in float64 near the steps (`Steps.known`).
        """
        a, above, below = (
            v.astype(np.float64).reshape(-1, 1) for v in (self.a, self.above, self.below)
        )
        real = sums * a + np.where(sums < 0, below, above)
        if self.down:
            return np.floor(real)
        return np.rint(real.astype(np.float32)).astype(np.float64)


class Bounds(Struct, frozen=True, eq=False):
    """The least c, and the first that is too great, for sums from 0 on and for those below."""

    above: tuple[NDArray, NDArray]
    below: tuple[NDArray, NDArray]

    def chosen(self, channels: NDArray) -> Bounds:
        above, below = ((x[channels], y[channels]) for x, y in (self.above, self.below))
        return Bounds(above, below)

    @property
    def width(self) -> NDArray:
        """How much room there is; not above 0: none."""
        result: NDArray = np.minimum(self.above[1] - self.above[0], self.below[1] - self.below[0])
        return result

    def line(self, a: NDArray, *, down: bool) -> Line:
        """The line in the middle of the room."""
        made = [((x + y) / 2).astype(np.float32) for x, y in (self.above, self.below)]
        if not down:
            made = [c - np.float32(0.5) for c in made]
        return Line(a, made[0], made[1], down)

    def holds(self, line: Line) -> NDArray:
        """Whether a line that rounds down is right for every sum."""
        result: NDArray = (self.above[0] <= line.above) & (line.above < self.above[1])
        result &= (self.below[0] <= line.below) & (line.below < self.below[1])
        return result


def _solved(
    multiplier: Multiplier, levels: NDArray, steps: Steps, *, single: bool, down: bool
) -> tuple[Line, NDArray, list[dict[int, int]]]:
    """The lines, which channels they are proved for, and the exceptions of each."""
    rounded = multiplier.scales.astype(np.float32)
    line, right = _tried(rounded, multiplier, levels, steps, single=single, down=down)
    wrong = np.flatnonzero(~right & steps.known)
    differ: list[dict[int, int]] = [{} for _ in right]
    if not wrong.size:
        return line, right & steps.known, differ
    some = multiplier.chosen(wrong)
    left = steps.chosen(wrong)
    a = np.concatenate(
        [
            _best(rounded[wrong[i : i + FEW]], some.chosen(slice(i, i + FEW)), levels,
                  left.chosen(slice(i, i + FEW)), single=single)
            for i in range(0, len(wrong), FEW)
        ]
    )  # fmt: skip
    other, holds = _tried(a, some, levels, left, single=single, down=down)
    for name in ("a", "above", "below"):
        getattr(line, name)[wrong] = getattr(other, name)
    right[wrong] = holds
    for place, channel in enumerate(wrong):
        if not holds[place]:
            found = _differing(line, int(channel), multiplier, levels, steps)
            right[channel] = found is not None
            differ[channel] = found or {}
    return line, right & steps.known, differ


def _best(
    rounded: NDArray, multiplier: Multiplier, levels: NDArray, steps: Steps, *, single: bool
) -> NDArray:
    """Of each channel, the multiplier near the rounded one that leaves most room."""
    each = np.repeat(np.arange(len(rounded)), len(CANDIDATES))
    tried = (rounded.view(np.int32)[:, None] + np.array(CANDIDATES, np.int32)).view(np.float32)
    bounds = _bounds(
        tried.reshape(-1), multiplier.chosen(each), levels, steps.chosen(each), single=single
    )
    places = bounds.width.reshape(tried.shape).argmax(axis=1)
    return np.take_along_axis(tried, places[:, None], 1)[:, 0]


def _tried(
    a: NDArray, multiplier: Multiplier, levels: NDArray, steps: Steps, *, single: bool, down: bool
) -> tuple[Line, NDArray]:
    """The best line with the multipliers *a*, and the channels for which it is right."""
    bounds = _bounds(a, multiplier, levels, steps, single=single)
    line = bounds.line(a.copy(), down=down)
    return line, _is_right(line, bounds, multiplier, levels, steps, single=single)


def _is_right(
    line: Line, bounds: Bounds, multiplier: Multiplier, levels: NDArray, steps: Steps, *,
    single: bool,
) -> NDArray:  # fmt: skip
    """The channels whose line is right for every sum."""
    if line.down:
        return bounds.holds(line)
    reached = line.at(steps.at) >= levels
    missed = line.at(steps.at - 1) < levels
    right = np.asarray((~steps.live | (reached & missed)).all(axis=1))
    if not single:
        # Where c changes, both sides of 0 must be right.
        sides = np.broadcast_to(np.array([[-1, 0]]), (len(line.a), 2))
        agree: NDArray = line.at(sides) == multiplier.of(sides)
        right &= np.asarray(agree.all(axis=1))
    return right


def _lifted(
    a: NDArray, multiplier: Multiplier, levels: NDArray, steps: Steps, reach: NDArray, *, down: bool
) -> tuple[Lifted, NDArray]:
    """The lines for lifted sums with one constant, and for which channels they are proved: with the
    multipliers *a*, or with those that leave most room. Sums are at most *reach* from 0.
    """

    def tried(a: NDArray, channels: NDArray) -> tuple[Lifted, NDArray]:
        some, left = multiplier.chosen(channels), steps.chosen(channels)
        bounds = _bounds(a, some, levels, left, single=True)
        low, high = bounds.above

        def right(places: NDArray, c: NDArray) -> NDArray:
            given = some.chosen(places), levels, left.chosen(places)
            line, within = Line(a[places], c, c, down), bounds.chosen(places)
            return _is_right(line, within, *given, single=True)

        # Without room no constant is right.
        within = np.where(high > low, reach[channels], REACH)
        made, holds = lifted(a, (low + high) / 2 - (not down) * 0.5, within, right)
        return made, holds & left.known

    made, holds = tried(a, np.arange(len(a)))
    wrong = np.flatnonzero(~holds & steps.known & (reach < REACH))
    if wrong.size:
        best = _best(
            made.a[wrong], multiplier.chosen(wrong), levels, steps.chosen(wrong), single=True
        )
        other, holds[wrong] = tried(best, wrong)
        for name in ("a", "c", "start"):
            getattr(made, name)[wrong] = getattr(other, name)
    return made, holds


def _bounds(
    a: NDArray, multiplier: Multiplier, levels: NDArray, steps: Steps, *, single: bool
) -> Bounds:
    """At each step the level is reached, and just before it, a less, it is not."""
    wide = a.astype(np.float64)
    reach = levels - wide[:, None] * steps.at

    def within(here: NDArray, before: NDArray) -> tuple[NDArray, NDArray]:
        low = np.where(here, reach, -FAR).max(axis=1)
        high = np.where(before, reach, FAR).min(axis=1) + wide
        return low, high

    live = steps.live
    if single:
        low, high = within(live, live)
        low, high = np.maximum(low, -1.0), np.minimum(high, 2.0)
        return Bounds((low, high), (low, high))
    # A sum of 0 gives 0, and that of -1 what it gives: each line is right on its side of 0.
    above = within(live & (steps.at >= 0), live & (steps.at >= 1))
    below = within(live & (steps.at < 0), live & (steps.at < 1))
    last = multiplier.of(np.full((len(a), 1), -1))[:, 0]
    return Bounds(
        (np.maximum(above[0], 0.0), np.minimum(above[1], 1.0)),
        (np.maximum(below[0], last + wide), np.minimum(below[1], last + wide + 1)),
    )


def _differing(
    line: Line, channel: int, multiplier: Multiplier, levels: NDArray, steps: Steps
) -> dict[int, int] | None:
    """The sums of one channel whose result differs, and by how much; None if they are too many.

    Both functions rise, and the true one is constant between its steps: if they agree just before
    and at a step, or at the ends of a window around it, they agree between.
    """
    a, above, below = (v[channel] for v in (line.a, line.above, line.below))
    one = Line(a, above, below, line.down)
    live = steps.live[channel]
    at = steps.at[channel][live]
    wrong = (one.at(at[None])[0] < levels[live]) | (one.at(at[None] - 1)[0] >= levels[live])
    centres = at[wrong]
    # Where c changes, a window as well.
    around = np.append(centres, 0)[:, None] + np.arange(-WINDOW, WINDOW + 1)
    sums = np.unique(around.reshape(-1))
    true = rescale(sums, multiplier.mantissas[channel], multiplier.shifts[channel])
    low, high = int(levels[0]) - 1, int(levels[-1])
    delta = np.clip(true, low, high) - np.clip(one.at(sums[None, :])[0], low, high)
    ends = np.isin(sums, around[:, [0, -1]])
    places = np.flatnonzero(delta)
    if len(places) > MOST_EXCEPTIONS or ends[places].any():
        return None
    return {int(sums[p]): int(delta[p]) for p in places}


def _table(differ: list[dict[int, int]]) -> NDArray:
    """The exceptions of all channels, [rounds, 2, channels]."""
    rounds = max((len(d) for d in differ), default=0)
    table = np.zeros((rounds, 2, len(differ)), np.int32)
    table[:, 0] = np.iinfo(np.int32).min
    for channel, found in enumerate(differ):
        for place, (total, delta) in enumerate(found.items()):
            table[place, :, channel] = total, delta
    return table
