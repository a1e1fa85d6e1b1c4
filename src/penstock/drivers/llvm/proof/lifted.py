"""Sums that need no conversion to floats.

Each sum begins with the bits of the float32 `BASE`, and a small number: read as a float, its bits
are `BASE`, that number and the sum, as long as these stay below `REACH`. The line that scales a sum
is moved to match. Its constant is then so great that few float32 are near the one that is wanted;
of the small numbers, one is taken for which one is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from msgspec import Struct

from penstock.ir import NDArray

BASE: Final = 3 << 22
"""In the middle of the floats that are whole numbers one apart."""

BITS: Final = int(np.float32(BASE).view(np.int32))

REACH: Final = 1 << 22

TRIED: Final = (32, 128, 512, 2048, 8192, 24576, 65536)
"""How many numbers are tried: more of them for those channels alone that need them."""


class Lifted(Struct, frozen=True, eq=False):
    """result = floor(a * real + c), where *real* is the float with the bits of *start* plus the
    sum.
    """

    a: NDArray
    c: NDArray
    start: NDArray


def lifted(
    a: NDArray, c: NDArray, reach: NDArray, right: Callable[[NDArray, NDArray], NDArray]
) -> tuple[Lifted, NDArray]:
    """The lifted lines next to a * sum + c, with *c* in float64, and for which channels they are
    right. Sums are at most *reach* from 0. *right* says it of (channels, constants of sums
    themselves).
    """
    start = np.full(len(a), BITS, np.int64)
    made, holds = np.zeros(len(a), np.float32), np.zeros(len(a), bool)
    left = np.flatnonzero(reach < REACH - TRIED[-1])
    for count in TRIED:
        if not left.size:
            break
        moved = a[left].astype(np.float64)[:, None] * (BASE + np.arange(count))
        wanted = c[left, None]
        near = (wanted - moved).astype(np.float32)
        # Exact in float64.
        real = near + moved
        best = np.abs(real - wanted).argmin(axis=1)
        rows = np.arange(len(left))
        start[left], made[left] = BITS + best, near[rows, best]
        holds[left] = good = right(left, real[rows, best])
        left = left[~good]
    return Lifted(a.copy(), made, start), holds
