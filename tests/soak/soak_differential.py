"""Random models, run by LiteRT and by the reference driver:

    python -m tests.soak.soak_differential [--count N] [--seed S] [--jobs J] [--show F]

Two thirds are single operations, each in turn, in the types that LiteRT runs; the others are small
graphs. Exit code 1 when Penstock refuses what LiteRT runs, or computes otherwise than the rule of
comparison allows. The short version is tests/differential.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field

from tests.differential.draw import Drawn
from tests.differential.graphs import draw_graph
from tests.differential.judge import Judge
from tests.differential.kinds import Kind
from tests.differential.registry import draw_single, draw_unusual, every_case
from tests.differential.trial import Outcome, examine
from tests.soak.chunks import each_chunk, parsed

COUNT = 24_000
CHUNK = 200
SHOWN = 10
OWN_SHARE = 12
"""One model in so many is of a kind that only some operations have, each of these in turn."""


@dataclass
class Figures:
    """What a chunk of models came to."""

    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def add(self, other: Figures) -> None:
        self.outcomes += other.outcomes
        self.failures += other.failures


def main() -> int:
    arguments = parsed("Random models against LiteRT.", COUNT, SHOWN)
    began, total = time.monotonic(), Figures()
    for figures in each_chunk(run_chunk, arguments, CHUNK):
        total.add(figures)
    elapsed = time.monotonic() - began
    print(f"{total.outcomes.total()} models of {len(every_case())} operations in {elapsed:.0f} s")
    for kind in ("single", "graph"):
        for outcome in Outcome:
            if count := total.outcomes[kind, outcome.value]:
                print(f"  {count:6d} {kind}: {outcome.value}")
    for text in total.failures[: arguments.show]:
        print(f"FAILED: {text}")
    print(f"{len(total.failures)} failures")
    return 1 if total.failures or total.outcomes.total() < arguments.count else 0


def run_chunk(bounds: tuple[int, int]) -> Figures:
    figures = Figures()
    with Judge() as judge:
        for seed in range(*bounds):
            kind, key, drawn = draw(seed)
            try:
                verdict = examine(drawn, judge)
            # Whatever Penstock raises beside its own errors is a failure.
            except Exception:  # noqa: BLE001
                figures.outcomes[kind, Outcome.DIFFER.value] += 1
                figures.failures.append(
                    f"seed {seed} {key}\n{drawn.listing}\n{traceback.format_exc()}"
                )
                continue
            figures.outcomes[kind, verdict.outcome.value] += 1
            if verdict.failed:
                figures.failures.append(
                    f"seed {seed} {key}: {verdict.outcome.value}\n{drawn.listing}\n{verdict.reason}"
                )
    return figures


def planned(seed: int) -> tuple[str, str, Kind | None]:
    """What the model number *seed* is: its size ("single" or "graph"), its operation, and its kind
    where that is one of the operation's own.
    """
    if seed % 3 == 2:
        return "graph", "", None
    if seed % OWN_SHARE == 1:
        own = [(key, kind) for key, case in sorted(every_case().items()) for kind in case.own]
        return "single", *own[seed // OWN_SHARE % len(own)]
    keys = sorted(every_case())
    return "single", keys[(seed - seed // 3) % len(keys)], None


def draw(seed: int) -> tuple[str, str, Drawn]:
    """The model number *seed*: its size, its operation, and itself."""
    size, key, kind = planned(seed)
    if size == "graph":
        return size, key, draw_graph([seed])
    if kind is not None:
        return size, key, draw_single(key, [seed], kind=kind)
    return size, key, draw_unusual(key, [seed])


if __name__ == "__main__":
    sys.exit(main())
