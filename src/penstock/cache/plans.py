"""Stored, sealed plans: what loading and partitioning decided, with everything that it rests on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.cache.ingredients import changed_ingredients, describe_changes, record_key
from penstock.cache.naming import PLANS
from penstock.cache.records import Record, SealedRecords
from penstock.errors import NoEntry

MOST_PLANS: Final = 256
"""Maximum stored plans; the oldest are removed first."""

NEAREST_AMONG: Final = 8
"""Maximum plans of one file that are compared to find the nearest."""

FILE_DIGITS: Final = 16
"""Digits of a key that are those of the file's digest."""

PLAN_SCHEMA: Final = "7"
"""Incremented if the bytes of a plan change, or if equal ingredients no longer give equal plans."""


class KeptPlan(Record, frozen=True, kw_only=True):
    """A plan for a file, under everything that decided it.

    *ingredients* maps names to readable texts; the key is derived from them. *rests_on* maps names
    to texts that are compared when the plan is used, because they are known only then: the devices
    that the plan uses, by name, the measured placement, and the code that made the plan. *summary*
    is the plan in one line. *content* is the plan as `penstock.partitioning.encoding` writes it.
    *is_small* says that the values of a run fit every machine's memory limit.
    """

    ingredients: dict[str, str]
    rests_on: dict[str, str]
    summary: str
    content: bytes
    is_small: bool


class KeptPlans(SealedRecords[KeptPlan]):
    """The plans below one cache directory; see `SealedRecords`."""

    name, kind, domain, most = PLANS, KeptPlan, b"penstock plan", MOST_PLANS

    def nearest(self, ingredients: Mapping[str, str]) -> KeptPlan | None:
        """The most similar plan of the same file, of at most `NEAREST_AMONG`; None without one."""
        own = _file_part(ingredients)
        try:
            keys = [key for key in self._keys() if key.startswith(own)][:NEAREST_AMONG]
        except OSError:
            return None
        found = filter(None, map(self.load, keys))
        return min(
            found,
            key=lambda kept: (len(changed_ingredients(kept.ingredients, ingredients)), kept.key),
            default=None,
        )


def plan_key(ingredients: Mapping[str, str]) -> str:
    """The key, 64 digits, of the plan that rests on *ingredients*.

    Plans of one file have the first `FILE_DIGITS` in common.
    """
    return _file_part(ingredients) + record_key("plan", ingredients)[FILE_DIGITS:]


def no_plan(nearest: KeptPlan | None, ingredients: Mapping[str, str]) -> NoEntry:
    """Why the cache has no plan for *ingredients*; *nearest* is the most similar one it has."""
    if nearest is None:
        return NoEntry("no plan is kept for this file")
    changes = describe_changes(nearest.ingredients, ingredients)
    return NoEntry(f"the nearest plan differs in {changes}")


def _file_part(ingredients: Mapping[str, str]) -> str:
    return ingredients["file"][:FILE_DIGITS]
