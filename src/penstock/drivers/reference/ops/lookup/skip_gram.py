"""SKIP_GRAM: the n-grams of a string's words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from penstock.drivers.reference.ops.kernel import Kernel, Site, kernel
from penstock.drivers.reference.ops.numerics.weights import given
from penstock.errors import LimitExceeded
from penstock.ir import NDArray

MOST_BYTES: Final = 1 << 28
OVERHEAD: Final = 64
"""What an n-gram takes besides its text."""

SPACES: Final = frozenset(b" \t\n\v\f\r")


@kernel("SKIP_GRAM")
def skip_gram(site: Site) -> Kernel:
    """Words of the first string, `ngram_size` at a time in their order, with up to `max_skip_size`
    words left out between two of them; with `include_all_ngrams` each run of fewer words after
    those that begin with it. A string of fewer words has none. `LimitExceeded` beyond `MOST_BYTES`.
    """
    attributes = site.attributes
    size, skip = attributes.integer("ngram_size"), attributes.integer("max_skip_size")
    every = attributes.flag("include_all_ngrams")

    def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
        strings = given(inputs[0]).reshape(-1).tolist()
        words = _words(strings[0]) if strings else []
        chosen = _choices(len(words), size, skip, every) if 0 < size <= len(words) else iter(())
        grams: list[bytes] = []
        room = MOST_BYTES
        for places in chosen:
            grams.append(b" ".join(words[i] for i in places))
            room -= len(grams[-1]) + OVERHEAD
            if room < 0:
                raise LimitExceeded(f"SKIP_GRAM would make more than {MOST_BYTES} bytes of n-grams")
        result = np.empty(len(grams), object)
        result[:] = grams
        return (result,)

    return run


def _words(text: bytes) -> list[bytes]:
    """What stands between spaces. A word behind a space that the text begins with is not counted,
    as in TFLite's kernel.
    """
    words: list[bytes] = []
    start = 0
    for at, character in enumerate(text):
        if at and character in SPACES:
            if at > start and text[start] not in SPACES:
                words.append(text[start:at])
            start = at + 1
    if start < len(text):
        words.append(text[start:])
    return words


def _choices(count: int, size: int, skip: int, every: bool) -> Iterator[tuple[int, ...]]:
    """Ascending places among *count* words, longer choices before those that they begin with."""
    places: list[int] = []
    following = [iter(range(count if every else count - size + 1))]
    while following:
        place = next(following[-1], None)
        if place is None:
            following.pop()
            if places and (every or len(places) == size):
                yield tuple(places)
            if places:
                places.pop()
            continue
        places.append(place)
        left = 0 if every else size - len(places) - 1
        end = min(place + 2 + skip, count - left) if len(places) < size else 0
        following.append(iter(range(place + 1, end)))
