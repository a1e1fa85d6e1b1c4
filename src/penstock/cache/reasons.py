"""Why nothing is cached under a key, in one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.cache.ingredients import changed_ingredients, describe_changes
from penstock.errors import NoEntry

if TYPE_CHECKING:
    from penstock.cache.index import IndexRecord


def no_entry(nearest: IndexRecord | None, now: Mapping[str, str]) -> NoEntry:
    """What the *nearest* entry's ingredients differ in from those of *now*, where that says
    anything.
    """
    before = {} if nearest is None else nearest.ingredients
    changed = changed_ingredients(before, now)
    if nearest is None or not changed:
        return NoEntry("nothing is cached here")
    if "structure" in changed:
        return NoEntry("nothing is cached for a model of this structure")
    if changed == ["partition"]:
        return NoEntry("this part of the model is not cached")
    return NoEntry(f"the nearest entry differs in {describe_changes(before, now)}")
