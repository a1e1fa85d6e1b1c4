"""What the compilation cache did, in a line for each thing it did."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from penstock.cli.output import Output
from penstock.errors import counted

if TYPE_CHECKING:
    from penstock.compilation import CacheOutcome, Receipt, StepReceipt

ORDINARY: Final = ("NO_ENTRY", "NOT_YET_WRITTEN", "INGREDIENT_CHANGED")
"""Codes of misses that come with time; any other refused something that was there."""


def show_cache(output: Output, receipt: Receipt) -> None:
    """A line for each device and kind of outcome among the steps of a compile: hit, or miss and
    why.

    Steps that missed under one code share a line with the first one's reason; the receipt has the
    others.
    """
    told: dict[tuple[object, ...], Counter[CacheOutcome]] = {}
    for step in receipt.steps:
        cache = step.cache
        kind = cache if refused(cache) else (cache.outcome, cache.code, cache.not_saved)
        told.setdefault((step.device, kind), Counter())[cache] += 1
    for (device, _), outcomes in told.items():
        first, others = next(iter(outcomes)), len(outcomes) - 1
        more = f"; {counted(others, 'other reason')}" if others else ""
        style = "yellow" if refused(first) else "dim"
        output.line(f"cache: {device} {in_words(first, outcomes.total())}{more}", style)


def show_fallbacks(output: Output, *receipts: Receipt) -> None:
    """A line for each device that failed to compile or to run what it had said it could, with its
    reason. What several *receipts* of one model have is told by the first.
    """
    told: set[tuple[str, str]] = set()
    for receipt in receipts:
        failed = Counter(pair for step in receipt.steps for pair in _failures(step))
        act = "compile" if receipt.stage == "compile" else "run"
        for (device, error), steps in failed.items():
            if (device, error) in told:
                continue
            many = f" ({steps} steps)" if steps > 1 else ""
            output.line(f"fall-back: {device} failed to {act}{many}: {error}", "yellow")
        told |= set(failed)


def _failures(step: StepReceipt) -> list[tuple[str, str]]:
    return [(failure.device, failure.error) for failure in step.failures]


def in_words(outcome: CacheOutcome, steps: int = 1) -> str:
    """`miss (2 steps): NoEntry: ...; saved`."""
    many = f"{outcome.outcome} ({steps} steps)" if steps > 1 else outcome.outcome
    text = str(outcome).replace(outcome.outcome, many, 1)
    return f"{text}; saved" if outcome.saved else text


def refused(outcome: CacheOutcome) -> bool:
    """Whether there was an entry, and it was not to be trusted or not to be used."""
    return outcome.code is not None and outcome.code.name not in ORDINARY
