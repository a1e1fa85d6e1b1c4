"""Limits of a blob cache, and which entries it evicts to stay within them."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from penstock.arguments import check_kind
from penstock.errors import InputError

KIB: Final = 1 << 10
MIB: Final = 1 << 20


class Select(enum.Enum):
    """Which entry is evicted first."""

    RANDOM = "random"
    """Evicts a random entry, each with equal probability."""
    LRU = "lru"
    """Evicts the entry whose last use is longest ago: a `set`, or a `get` that copied the value."""


class Capacity(enum.Enum):
    """How much is evicted if an entry does not fit."""

    HALVE = "halve"
    """Down to half of the total. An entry that still does not fit is not stored."""
    FIT = "fit"
    """Until the new entry fits."""
    FIT_HALVE = "fit_halve"
    """Until the new entry fits, and at least down to half of the total."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The rule of eviction: which entries, and how many (NNAPI's `BlobCache::Policy`)."""

    select: Select = Select.RANDOM
    capacity: Capacity = Capacity.HALVE

    def cleanable(self, total: int, max_total: int) -> bool:
        """Whether evicting anything from a cache of *total* bytes is allowed."""
        return total > (max_total // 2 if self.capacity is Capacity.HALVE else 0)

    def target(self, max_total: int, growth: int) -> int:
        """Bytes to evict down to, so that *growth* more may be added."""
        if self.capacity is Capacity.HALVE:
            return max_total // 2
        fitting = max_total - growth
        return fitting if self.capacity is Capacity.FIT else min(max_total // 2, fitting)


POLICIES: Final = tuple(Policy(s, c) for c in Capacity for s in Select)
"""All six."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Most bytes of one key, of one value, and of all keys and values together.

    Overhead of the cache (a dictionary's slots, a file's headers) is not counted. Raises
    `InputError` for a limit below 1.
    """

    key: int = 12 * KIB
    value: int = 64 * KIB
    total: int = 2 * MIB

    def __post_init__(self) -> None:
        for name in ("key", "value", "total"):
            limit = getattr(self, name)
            check_kind(limit, int, f"the limit {name} is a whole number of bytes")
            if limit < 1:
                raise InputError(f"the limit {name} must be 1 byte or more, not {limit}")

    def admit(self, key: int, value: int) -> bool:
        """Whether an entry of these sizes can be stored. Empty keys and values cannot."""
        return 0 < key <= self.key and 0 < value <= self.value and key + value <= self.total
