"""What the compilation cache did, in a line for each thing it did."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from penstock.cli.output import Output

if TYPE_CHECKING:
    from penstock.compilation import CacheOutcome, Receipt

ORDINARY: Final = ("NoEntry", "NotYetWritten", "IngredientChanged")
"""Misses that come with time; any other that has a name refused something that was there."""


def show_cache(output: Output, receipt: Receipt) -> None:
    """A line for each device and outcome among the steps of a compile: hit, or miss and why."""
    told = Counter((step.device, step.cache) for step in receipt.steps)
    for (device, outcome), steps in told.items():
        style = "yellow" if refused(outcome) else "dim"
        output.line(f"cache: {device} {in_words(outcome, steps)}", style)


def in_words(outcome: CacheOutcome, steps: int = 1) -> str:
    """`miss (2 steps): NoEntry: ...; saved`."""
    many = f"{outcome.outcome} ({steps} steps)" if steps > 1 else outcome.outcome
    text = str(outcome).replace(outcome.outcome, many, 1)
    return f"{text}; saved" if outcome.saved else text


def refused(outcome: CacheOutcome) -> bool:
    """Whether there was an entry, and it was not to be trusted or not to be used."""
    name, colon, _ = outcome.reason.partition(":")
    return (
        outcome.outcome == "miss" and bool(colon) and name.isidentifier() and name not in ORDINARY
    )
