"""Stored, sealed plans: what loading and partitioning decided, with everything that it rests on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.cache.ingredients import record_key
from penstock.cache.naming import PLANS
from penstock.cache.records import Record, SealedRecords

MOST_PLANS: Final = 256
"""Maximum stored plans; the oldest are removed first."""

PLAN_SCHEMA: Final = "1"
"""Incremented if the bytes of a plan change, or if equal ingredients no longer give equal plans."""


class KeptPlan(Record, frozen=True, kw_only=True):
    """A plan for a file, under everything that decided it.

    *ingredients* maps names to readable texts; the key is derived from them. *rests_on* maps names
    to texts that are compared when the plan is used, because they are known only then: the devices
    that the plan uses, by name, and the measured placement. *summary* is the plan in one line.
    *content* is the plan as `penstock.partitioning.encoding` writes it. *is_small* says that the
    values of a run fit every machine's memory limit.
    """

    ingredients: dict[str, str]
    rests_on: dict[str, str]
    summary: str
    content: bytes
    is_small: bool


class KeptPlans(SealedRecords[KeptPlan]):
    """The plans below one cache directory; see `SealedRecords`."""

    name, kind, domain, most = PLANS, KeptPlan, b"penstock plan", MOST_PLANS


def plan_key(ingredients: Mapping[str, str]) -> str:
    """The key, 64 digits, of the plan that rests on *ingredients*."""
    return record_key("plan", ingredients)
