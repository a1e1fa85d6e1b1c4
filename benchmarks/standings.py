"""The winner of a race: our ratio to the best competitor that the judge accepts, and whether it is
within the limit.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

from benchmarks.engine_race import BURST, OURS

Race: TypeAlias = dict[str, Any]

SHARE: Final = 0.98
GRACE_S: Final = 10e-6
"""A row is lost if Penstock's time exceeds the best competitor's divided by SHARE, plus GRACE_S."""

COUNTED_MACS: Final = 1_000_000
"""Networks above this number of multiply-accumulates count for the geometric means."""


def medians(race: Race) -> dict[str, float]:
    return {name: statistics.median(times) for name, times in race.get("times", {}).items()}


def entered(race: Race, *, by: str) -> list[str]:
    """The competitors that the judge accepts *by* "in_class" (outputs and operations) or
    "in_outputs".

    The native engine of the file's format always competes.
    """
    verdicts = race["verdicts"]
    return [
        name
        for name in race.get("times", {})
        if name not in {OURS, BURST} and (verdicts[name][by] or name == race["native"])
    ]


def ratio(race: Race, rival: str, ours: str = OURS) -> float:
    """The median over the rounds of our time over the rival's; both run under the same load."""
    rounds = zip(race["times"][ours], race["times"][rival], strict=True)
    found: float = statistics.median(mine / theirs for mine, theirs in rounds)
    return found


def best(race: Race, *, by: str = "in_class") -> str | None:
    """The fastest competitor; None without competitors."""
    times = medians(race)
    return min(entered(race, by=by), key=lambda name: times[name], default=None)


def limit(race: Race, rival: str) -> float:
    return 1 / SHARE + GRACE_S / medians(race)[rival]


def lost(race: Race, *, by: str = "in_class") -> bool:
    """Whether Penstock is beyond the class, or slower than the limit allows."""
    if "failed" in race or not race["verdicts"][OURS][by]:
        return True
    rival = best(race, by=by)
    return rival is not None and ratio(race, rival) > limit(race, rival)


def means(races: Iterable[Race]) -> dict[str, tuple[float, int]]:
    """Geometric mean of each competitor's time relative to Penstock; number of networks."""
    found: dict[str, list[float]] = {}
    for race in races:
        if "failed" not in race and (race["macs"] or 0) > COUNTED_MACS:
            for rival in entered(race, by="in_class"):
                found.setdefault(rival.split(" (")[0], []).append(1 / ratio(race, rival))
    return {name: (statistics.geometric_mean(r), len(r)) for name, r in found.items()}


def why(verdict: Mapping[str, Any]) -> str:
    return verdict["outputs"] or "; ".join(verdict["departures"])
