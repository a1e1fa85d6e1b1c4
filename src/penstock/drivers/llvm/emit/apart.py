"""Weights that are too large for the instructions, where they are few: matrix products multiply
what they lack in units of taps of their own.
"""

from __future__ import annotations

import itertools

import numpy as np
from msgspec import Struct

from penstock.drivers.llvm.isa.instructions import GROUP
from penstock.ir import NDArray

MOST_UNITS = 3
"""With more units a panel, to add a multiple of the sum of the data takes no longer."""

PANEL = 64
"""The channels of a panel, about."""


class Apart(Struct, frozen=True, eq=False):
    """Units of taps that are multiplied once more: those of panel p are numbers *begins[p]* to
    *begins[p + 1]*. Each begins so many bytes behind the first tap as *places* says, and has
    *weights* [units, channels of a panel, taps].
    """

    begins: NDArray
    places: NDArray
    weights: NDArray


def few(rest: NDArray) -> bool:
    """Whether few groups of taps have a *rest* [channels, pieces, taps]."""
    channels, pieces, length = rest.shape
    groups = -(-length // GROUP)
    found = {(c // PANEL, p, t // GROUP) for c, p, t in np.argwhere(rest)}
    most = max(1, min(MOST_UNITS, groups * pieces // 2))
    return bool(length >= GROUP and len(found) <= most * -(-channels // PANEL))


def apart(rest: NDArray, segments: tuple[tuple[int, int], ...], panel: int, unit: int) -> Apart:
    """The units of *unit* taps that have a *rest* [channels, pieces, taps], for panels of *panel*
    channels. As many taps as a unit has lie side by side.
    """
    channels, _, length = rest.shape
    found: dict[tuple[int, int, int], NDArray] = {}
    for channel, piece, tap in np.argwhere(rest).tolist():
        # A unit ends with the last tap at most: behind it is no data.
        first = min(tap // unit * unit, length - unit)
        key = channel // panel, piece, first
        weights = found.setdefault(key, np.zeros((panel, unit), rest.dtype))
        weights[channel % panel, tap - first] = rest[channel, piece, tap]
    order = sorted(found)
    offsets = [
        sum(p * s for p, (_, s) in zip(places, segments, strict=True))
        for places in itertools.product(*(range(size) for size, _ in segments))
    ]
    counts = np.bincount([p for p, _, _ in order], minlength=-(-channels // panel))
    return Apart(
        np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        np.array([offsets[piece] + first for _, piece, first in order], np.int64),
        np.array([found[key] for key in order]),
    )
