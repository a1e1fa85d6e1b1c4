"""What a race of placements says: ratios, limits and predictions."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any, Final, TypeAlias

from benchmarks.placement_race import CHOSEN, ENGINES, TUNED

Race: TypeAlias = dict[str, Any]

MOST: Final = {CHOSEN: 1.10, TUNED: 1.03}
"""A plan is lost if its time exceeds the best single engine's times this, plus GRACE_S."""

GRACE_S: Final = 10e-6
MOST_MEAN: Final = 1.02

MISSED: Final = 1.5
"""A prediction is wrong if it is farther from the measured time than by this factor."""

MOST_MISSED: Final = 10.0
"""Percent of predictions."""


def subject(race: Race, name: str) -> str:
    """The subject that raced with the plan of *name*."""
    found: str = race["same"].get(name, name)
    return found


def took(race: Race, name: str) -> float:
    """The median of the rounds, in seconds."""
    found: float = statistics.median(race["times"][subject(race, name)])
    return found


def rival(race: Race) -> str | None:
    """The quickest engine alone; None if none runs anything."""
    alone = [name for name in ENGINES if name in race["plans"]]
    return min(alone, key=lambda name: took(race, name), default=None)


def ratio(race: Race, ours: str) -> float:
    """The median over the rounds of a plan's time over that of the best engine alone."""
    best = rival(race)
    if best is None or subject(race, best) == subject(race, ours):
        return 1.0
    mine, theirs = (race["times"][subject(race, name)] for name in (ours, best))
    found: float = statistics.median(a / b for a, b in zip(mine, theirs, strict=False))
    return found


def limit(race: Race, ours: str) -> float:
    best = rival(race)
    return MOST[ours] if best is None else MOST[ours] + GRACE_S / took(race, best)


def excess(race: Race, ours: str) -> float:
    """Seconds that a plan takes longer than the best engine alone."""
    best = rival(race)
    return 0.0 if best is None else (ratio(race, ours) - 1) * took(race, best)


def lost(race: Race, ours: str = CHOSEN) -> bool:
    if "failed" in race:
        return True
    return ours in race["plans"] and ratio(race, ours) > limit(race, ours)


def predicted(race: Race, name: str) -> float | None:
    """The predicted over the measured time of a subject; None without a prediction."""
    ns = race["plans"][name]["predicted_ns"]
    return None if ns is None else ns / 1e9 / took(race, name)


def predictions(races: Iterable[Race], *, chosen: bool) -> list[float | None]:
    """`predicted` of every default plan, or of every plan of an engine alone."""
    return [
        predicted(race, name)
        for race in races
        for name in ((CHOSEN,) if chosen else ENGINES)
        if name in race["plans"]
    ]


def missed(found: float | None) -> bool:
    """Whether a prediction is wrong, or there is none."""
    return found is None or not 1 / MISSED <= found <= MISSED
