"""Exact requantisation in float32, by proof.

TFLite scales a sum by a fixed-point multiplier with two roundings. The result rises with the sum.
So does floor(a * sum + c), for the real value of the product and sum: an addition that rounds down
never crosses a whole number. Where no instruction rounds down, so does the whole number nearest to
the float32 nearest to a * sum + c. Two rising functions with whole results in [low, high] are equal
everywhere if they are equal where the one steps, and just before. There are at most 255 steps a
channel: `solve` finds a and c from them, and checks each.

A channel whose sums below 0 round the other way gets a second c for these. A channel that cannot be
proved is computed in whole numbers.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from msgspec import Struct

from penstock.driverkit.fixed_point import rescale
from penstock.ir import NDArray

CANDIDATES: Final = sorted(range(-12, 13), key=abs)
"""Distances, in units in the last place, from the rounded multiplier, of those that are tried."""

FAR: Final = 1e9


MOST_EXCEPTIONS: Final = 6
"""The most sums of a channel that are patched one by one."""

WINDOW: Final = 4
"""How far from a step both functions are compared where they differ."""


class Proof(Struct, frozen=True, eq=False):
    """result = floor(a * sum + (above if sum >= 0 else below)) + zero point, clamped, for every sum
    of the channels where *proved* holds. *single*: *below* is not needed.

    *exceptions* [rounds, 2, channels] are sums with another result, and what is added to it there;
    rounds in which a channel has none add 0.
    """

    a: NDArray
    above: NDArray
    below: NDArray
    proved: NDArray
    single: bool
    exceptions: NDArray


def solve(
    mantissas: NDArray,
    shifts: NDArray,
    zero_point: int,
    limits: tuple[int, int],
    least: NDArray,
    greatest: NDArray,
    *,
    down: bool,
) -> Proof:
    """A proof for each channel, whose sums lie within *least* and *greatest*. *down*: instructions
    round down, otherwise to the nearest.
    """
    scales = mantissas.astype(np.float64) * 2.0 ** (shifts.astype(np.float64) - 31)
    channels = len(scales)
    low, high = limits
    levels = np.arange(low + 1, high + 1, dtype=np.int64) - zero_point
    single = zero_point <= low
    if not levels.size:
        zeros = np.zeros(channels, np.float32)
        none = np.zeros((0, 2, channels), np.int32)
        return Proof(zeros, zeros, zeros, np.ones(channels, bool), True, none)
    steps, live, known = _steps(mantissas, shifts, scales, levels, least, greatest)
    best = np.full(channels, -np.inf)
    a = np.zeros(channels, np.float32)
    above, below = np.zeros(channels, np.float32), np.zeros(channels, np.float32)
    rounded = scales.astype(np.float32)
    for distance in CANDIDATES:
        tried = (rounded.view(np.int32) + distance).view(np.float32)
        bounds = _bounds(tried, steps, live, levels, single=single)
        width = np.minimum(bounds[1] - bounds[0], bounds[3] - bounds[2])
        better = width > best
        best = np.where(better, width, best)
        a = np.where(better, tried, a)
        above = np.where(better, ((bounds[0] + bounds[1]) / 2).astype(np.float32), above)
        below = np.where(better, ((bounds[2] + bounds[3]) / 2).astype(np.float32), below)
    if single:
        below = above
    if not down:
        above, below = above - np.float32(0.5), below - np.float32(0.5)
    line = Line(a, above, below, down)
    right = _holds(line, steps, live, levels) & _meets(line, (mantissas, shifts), levels)
    # Conversions of greater sums round, but rise: only those at steps must be exact.
    small = (np.abs(np.where(live, steps, 0)) < 2**24).all(axis=1)
    small &= np.maximum(np.abs(least), np.abs(greatest)) * scales < 2.0**31
    usable = known & small & (scales > 2.0**-20)
    exceptions, patched = _exceptions(
        line, steps, live, (mantissas, shifts), levels, ~right & usable
    )
    return Proof(a, above, below, usable & (right | patched), single, exceptions)


class Line(Struct, frozen=True, eq=False):
    """a * sum + (above or below), as `solve` finds it and instructions round it."""

    a: NDArray
    above: NDArray
    below: NDArray
    down: bool

    def at(self, sums: NDArray) -> NDArray:
        """The whole numbers for *sums*, [channels, any number]. The products and additions of
        float32 numbers are exact in float64 near the steps (`solve` refuses others).
        """
        a, above, below = (
            v.astype(np.float64).reshape(-1, 1) for v in (self.a, self.above, self.below)
        )
        real = sums * a + np.where(sums < 0, below, above)
        if self.down:
            return np.floor(real)
        return np.rint(real.astype(np.float32)).astype(np.float64)


def _exceptions(
    line: Line, steps: NDArray, live: NDArray, multiplier: tuple[NDArray, NDArray],
    levels: NDArray, wrong: NDArray,
) -> tuple[NDArray, NDArray]:  # fmt: skip
    """The sums of the *wrong* channels whose result differs, and which channels these complete.

    Both functions rise: if they agree at the ends of a window around each step, they agree between
    the windows.
    """
    channels = len(wrong)
    patched = np.zeros(channels, bool)
    found: list[dict[int, int]] = []
    for channel in np.flatnonzero(wrong):
        centres = steps[channel][live[channel]]
        around = np.append(centres, 0)[:, None] + np.arange(-WINDOW, WINDOW + 1)
        sums = np.unique(around.reshape(-1))
        one = Line(line.a[channel], line.above[channel], line.below[channel], line.down)
        made = one.at(sums[None, :])[0]
        true = rescale(sums, multiplier[0][channel], multiplier[1][channel])
        low, high = int(levels[0]) - 1, int(levels[-1])
        delta = np.clip(true, low, high) - np.clip(made, low, high)
        ends = np.isin(sums, centres + WINDOW) | np.isin(sums, centres - WINDOW)
        differ = {int(s): int(d) for s, d in zip(sums[delta != 0], delta[delta != 0], strict=True)}
        patched[channel] = len(differ) <= MOST_EXCEPTIONS and not np.any(delta[ends])
        found.append({} if not patched[channel] else differ)
    rounds = max((len(d) for d in found), default=0)
    exceptions = np.zeros((rounds, 2, channels), np.int32)
    exceptions[:, 0] = np.iinfo(np.int32).min
    for channel, differ in zip(np.flatnonzero(wrong), found, strict=True):
        for place, (total, delta_) in enumerate(differ.items()):
            exceptions[place, :, channel] = total, delta_
    return exceptions, patched


def _steps(
    mantissas: NDArray, shifts: NDArray, scales: NDArray, levels: NDArray, least: NDArray,
    greatest: NDArray,
) -> tuple[NDArray, NDArray, NDArray]:  # fmt: skip
    """The least sum that reaches each level, [channels, levels]; whether it lies within the bounds
    of the sums; and whether the steps of a channel are certain.
    """
    m, s = mantissas[:, None], shifts[:, None]
    lo, hi = least[:, None].astype(np.int64), greatest[:, None].astype(np.int64)
    guess = (levels[None, :] - 0.5) / np.maximum(scales[:, None], 1e-12)
    first = np.floor(np.clip(guess, lo - 16.0, hi + 16.0)).astype(np.int64) - 4
    steps = np.broadcast_to(hi + 1, first.shape).copy()
    found = np.zeros(first.shape, bool)
    for k in range(9):
        reached = rescale(first + k, m, s) >= levels
        steps = np.where(~found & reached, first + k, steps)
        found |= reached
    live = (steps <= hi) & (steps > lo)
    before = rescale(steps - 1, m, s) < levels
    at = rescale(steps, m, s) >= levels
    return steps, live, np.asarray(((before & at) | ~live).all(axis=1))


def _bounds(
    a: NDArray, steps: NDArray, live: NDArray, levels: NDArray, *, single: bool
) -> tuple[Any, Any, Any, Any]:
    """The least and greatest c: at each step the level is reached, just before it is not."""
    wide = a.astype(np.float64)[:, None]
    reach, miss = levels - wide * steps, levels - wide * (steps - 1)

    def within(here: NDArray | bool, before: NDArray | bool) -> tuple[NDArray, NDArray]:
        low = np.where(live & here, reach, -FAR).max(axis=1)
        high = np.where(live & before, miss, FAR).min(axis=1)
        return np.maximum(low, -1.0), np.minimum(high, 2.0)

    if single:
        low, high = within(True, True)
        return low, high, low, high
    return (*within(steps >= 0, steps >= 1), *within(steps < 0, steps < 1))


def _holds(line: Line, steps: NDArray, live: NDArray, levels: NDArray) -> NDArray:
    """Whether both functions agree at every step and just before it."""
    reached = line.at(steps) >= levels
    missed = line.at(steps - 1) < levels
    return np.asarray((~live | (reached & missed)).all(axis=1))


def _meets(line: Line, multiplier: tuple[NDArray, NDArray], levels: NDArray) -> NDArray:
    """Whether both functions agree on both sides of 0, where c changes."""
    sums = np.broadcast_to(np.array([[-1, 0]]), (len(line.a), 2))
    true = rescale(sums.astype(np.int64), multiplier[0][:, None], multiplier[1][:, None])
    low, high = int(levels[0]) - 1, int(levels[-1])
    result: NDArray = (np.clip(line.at(sums), low, high) == np.clip(true, low, high)).all(axis=1)
    return result
