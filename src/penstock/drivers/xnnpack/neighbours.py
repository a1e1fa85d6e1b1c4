"""Tensors that lie side by side, on both sides of a copy, copied as one: states are many and small.

Only where the bytes between the arrays are nobody's (`penstock.hal.PaddedBytes`).
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from penstock.hal import HostMemory, PaddedBytes, RequestArgument
from penstock.ir import NDArray

ALIGNMENT: Final = 64
"""Bytes that each of LiteRT's tensors begins at a multiple of: what lies between the end of one and
the next multiple is nobody's.
"""

MOST_BYTES: Final = 1 << 20
"""Bytes of arrays that are remembered, and so kept alive, for the next run."""

MOST_KNOWN: Final = 4
"""Sets of arrays that are remembered: two go in turns as one state."""

Pieces: TypeAlias = list[tuple[NDArray, NDArray]]
"""Places of tensors, and the arrays that go there or come from there."""


class Neighbours:
    """Where the arrays of a request go: *places* are views of tensors that stay where they are."""

    def __init__(self, places: Sequence[NDArray]) -> None:
        self._places = places
        self._remembers = sum(p.nbytes for p in places) <= MOST_BYTES
        self._known: deque[tuple[tuple[HostMemory, ...], Pieces]] = deque(maxlen=MOST_KNOWN)

    def pieces(self, arguments: tuple[RequestArgument, ...]) -> Pieces | None:
        """The copies to make for *arguments*, one for each place; None where one is no array."""
        for known, pieces in self._known:
            if known == arguments:
                return pieces
        arrays = tuple([a for a in arguments if type(a) is HostMemory])
        if len(arrays) != len(self._places):
            return None
        pieces = merged(self._places, [a.array for a in arrays])
        # Arrays of the caller are his alone once the call has returned.
        if self._remembers and len(pieces) < len(arrays):
            self._known.append((arrays, pieces))
        return pieces


class _Run(NamedTuple):
    """Neighbours: where the first place and the first array begin, and the bytes from there to the
    end of the last.
    """

    place: int
    array: int
    nbytes: int
    owner: PaddedBytes | None
    first: int


def merged(places: Sequence[NDArray], arrays: Sequence[NDArray]) -> Pieces:
    """*places* with *arrays*, in order, where both follow one another at the same distances within
    memory of one owner as one pair of flat bytes.
    """
    runs: list[list[_Run]] = []
    for at, (place, array) in enumerate(zip(places, arrays, strict=True)):
        owner = _owner(array)
        places_at = (0, 0) if owner is None else (_address(place), _address(array))
        run = _Run(*places_at, place.nbytes, owner, at)
        group = runs[-1] if runs else None
        if group is not None and _follows(group[-1], run):
            group.append(run)
        else:
            runs.append([run])
    found: Pieces = []
    for group in runs:
        first, last = group[0], group[-1]
        if len(group) == 1 or first.owner is None:
            found += [(places[r.first], arrays[r.first]) for r in group]
            continue
        nbytes = last.place + last.nbytes - first.place
        begin = first.array - _address(first.owner)
        owned: NDArray = first.owner[begin : begin + nbytes].view(np.ndarray)
        if not arrays[first.first].flags.writeable:
            owned = owned.view()
            owned.setflags(write=False)
        found.append((_bytes_at(first.place, nbytes), owned))
    return found


def _follows(before: _Run, run: _Run) -> bool:
    """Whether *run* lies behind *before* on both sides, with nothing but padding between."""
    step = run.place - before.place
    return (
        step == run.array - before.array
        and step == before.nbytes + -before.nbytes % ALIGNMENT
        and before.place % ALIGNMENT == 0
        and run.owner is before.owner
        and run.owner is not None
    )


def _owner(array: NDArray) -> PaddedBytes | None:
    """The bytes that *array* is a view of, where what lies behind it is nobody's either; None where
    it may be somebody's.
    """
    owner: PaddedBytes | None = None
    base: object = array
    while isinstance(base, np.ndarray):
        if isinstance(base, PaddedBytes):
            owner = base
        base = base.base
    return owner


def _address(array: NDArray) -> int:
    return int(array.__array_interface__["data"][0])


def _bytes_at(address: int, nbytes: int) -> NDArray:
    """Bytes of LiteRT's memory, good for as long as its interpreter has them."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))
