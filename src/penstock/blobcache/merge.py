"""Bringing together what two holders made of the same entries."""

from __future__ import annotations

from collections.abc import Mapping, Set as AbstractSet


def merge(
    base: Mapping[bytes, bytes],
    mine: Mapping[bytes, bytes],
    theirs: Mapping[bytes, bytes],
    used: AbstractSet[bytes],
) -> dict[bytes, bytes]:
    """What *mine* and *theirs* have become together since both were *base*.

    A key that one side changed, added or removed is as that side has it. Where both did, mine has
    precedence, but a value has precedence over none. All are in order of last use; *used* are those
    of mine used since: they come last, in my order.
    """
    last = [key for key in mine if key in used or key not in theirs]
    first = theirs.keys() - set(last)
    merged: dict[bytes, bytes] = {}
    for key in [*(key for key in theirs if key in first), *last]:
        value = _decide(base.get(key), mine.get(key), theirs.get(key))
        if value is not None:
            merged[key] = value
    return merged


def _decide(base: bytes | None, mine: bytes | None, theirs: bytes | None) -> bytes | None:
    if theirs == base:
        return mine
    if mine in {base, None}:
        return theirs
    return mine
