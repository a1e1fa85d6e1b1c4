"""Whose driver or device has a name that several distributions claim."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock import knobs
from penstock.distribution import DISTRIBUTION
from penstock.errors import InputError
from penstock.runtime.entries import Source, normalized


def named_sources() -> dict[str, str]:
    """Whose the knob `driver_sources` says that names are: distributions by driver or device.

    Raises `InputError` where it makes no sense.
    """
    told: dict[str, str] = {}
    for part in filter(None, map(str.strip, knobs.driver_sources().split(","))):
        name, _, distribution = map(str.strip, part.partition("="))
        if not name or not distribution:
            raise InputError(
                f"the knob driver_sources (PENSTOCK_DRIVER_SOURCES) has {part!r}: NAME=DISTRIBUTION"
            )
        if told.setdefault(name, normalized(distribution)) != normalized(distribution):
            raise InputError(
                f"the knob driver_sources (PENSTOCK_DRIVER_SOURCES) has two distributions for {name!r}"
            )
    return told


def holder(name: str, claimed: Iterable[str]) -> str | None:
    """Which of the distributions that have *claimed* the name has it: Penstock's own, else the one
    that the knob `driver_sources` names, else the only one. None where nobody has it.
    """
    every = set(claimed)
    if DISTRIBUTION in every:
        return DISTRIBUTION
    if (chosen := named_sources().get(name)) is not None:
        return chosen if chosen in every else None
    return every.pop() if len(every) == 1 else None


def why_refused(name: str, own: Source, sources: Sequence[Source]) -> str:
    """Why *own* does not have the name that all of *sources* claim."""
    if (winner := next((s for s in sources if s.distribution == DISTRIBUTION), None)) is not None:
        return f"{own} claims the name {name!r}, which is Penstock's: {winner} is used"
    knob = "the knob driver_sources (PENSTOCK_DRIVER_SOURCES)"
    if (chosen := named_sources().get(name)) is not None:
        return f"{knob} has {name}={chosen}, and this one is {own}"
    several = " and ".join(sorted({str(source) for source in sources}))
    remedies = " or ".join(sorted({f"{name}={source.distribution}" for source in sources}))
    return f"the name {name!r} is claimed by {several}: none of them is used until {knob} says whose it is, by {remedies}"
