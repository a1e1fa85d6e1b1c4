"""Random models, run by LiteRT and by the reference driver:

    python -m tests.soak.soak_differential [--count N] [--seed S] [--jobs J] [--show F]

Two thirds are single operations, each in turn, in the types that LiteRT runs; the others are small graphs. Exit code 1
when Penstock refuses what LiteRT runs, or computes otherwise than the rule of comparison allows. The short
version is tests/differential.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field

from tests.differential.draw import Drawn
from tests.differential.graphs import draw_graph
from tests.differential.judge import Judge
from tests.differential.registry import draw_single, every_case
from tests.differential.trial import Outcome, examine

COUNT = 24_000
CHUNK = 200


@dataclass
class Figures:
    """What a chunk of models came to."""

    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def add(self, other: Figures) -> None:
        self.outcomes += other.outcomes
        self.failures += other.failures


def main() -> int:
    parser = argparse.ArgumentParser(description="Random models against LiteRT.")
    parser.add_argument("--count", type=int, default=COUNT, help="how many models")
    parser.add_argument("--seed", type=int, default=0, help="number of the first one")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--show", type=int, default=10, help="failures to show")
    arguments = parser.parse_args()
    first, last = arguments.seed, arguments.seed + arguments.count
    chunks = [(at, min(at + CHUNK, last)) for at in range(first, last, CHUNK)]
    began, total = time.monotonic(), Figures()
    with multiprocessing.get_context("spawn").Pool(arguments.jobs) as pool:
        for figures in pool.imap_unordered(run_chunk, chunks):
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
            except Exception:  # noqa: BLE001  # whatever Penstock raises beside its own errors is a failure
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


def draw(seed: int) -> tuple[str, str, Drawn]:
    """The model number *seed*."""
    if seed % 3 == 2:
        return "graph", "", draw_graph([seed])
    keys = sorted(every_case())
    key = keys[(seed - seed // 3) % len(keys)]
    return "single", key, draw_single(key, [seed])


if __name__ == "__main__":
    sys.exit(main())
