"""Sequences: vectors over time, batch or time first, forward or backward."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from penstock.ir import NDArray


def time_first(sequence: NDArray, *, time_major: bool) -> NDArray:
    """*sequence* as [time, batch, size]."""
    return sequence if time_major else np.swapaxes(sequence, 0, 1)


def as_stored(sequence: NDArray, *, time_major: bool) -> NDArray:
    """A sequence [time, batch, size] in its own order again, contiguous."""
    return np.ascontiguousarray(sequence if time_major else np.swapaxes(sequence, 0, 1))


def times(count: int, *, backward: bool) -> Iterator[int]:
    """The steps of a sequence in the order they are taken."""
    return iter(range(count - 1, -1, -1) if backward else range(count))


def rows_of(sequence: NDArray) -> NDArray:
    """[time, batch, size] as rows [time * batch, size], contiguous."""
    steps, batch, size = sequence.shape
    return np.ascontiguousarray(sequence).reshape(steps * batch, size)
