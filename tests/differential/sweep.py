"""Which element types LiteRT runs for each operation, and which of them Penstock does not:

    python -m tests.differential.sweep [KEY ...] [--write] [--draws N]

Tries every assignment of types to the slots of a generator, several draws each. `--write` records
what LiteRT ran in accepted/. Exit code 1 when Penstock refuses an assignment, or computes it
otherwise. All keys are swept by `scripts/soak types` too.
"""

# ruff: noqa: T201  # a program: it prints what it finds

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from penstock.errors import PenstockError
from penstock.ir import DType
from tests.differential.draw import Draw, Drawn
from tests.differential.judge import Judge
from tests.differential.registry import ACCEPTED, Case, accepted_lines, every_case
from tests.differential.trial import FAILURES, Outcome, Verdict, examine

RUN = frozenset({Outcome.AGREE, Outcome.KNOWN, Outcome.GAP, Outcome.DIFFER})


def sweep(
    case: Case, judge: Judge, draws: int
) -> Iterator[tuple[tuple[DType, ...], Drawn, Verdict]]:
    """Every assignment of types to the slots of *case*, *draws* models each."""
    for number, types in enumerate(case.assignments()):
        for turn in range(draws):
            rng = np.random.default_rng([number, turn])
            draw = Draw(rng, types, quantized=turn % 2 == 0, zeros=False)
            try:
                case.generate(draw, case.key)
                drawn = draw.finish()
            except (PenstockError, TypeError, ValueError, OverflowError):
                continue
            yield types, drawn, examine(drawn, judge)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Types that LiteRT runs.")
    parser.add_argument("keys", nargs="*")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--draws", type=int, default=8)
    parser.add_argument("--show", type=int, default=1, help="failures to show of each assignment")
    arguments = parser.parse_args(words)
    every = every_case()
    table: dict[str, dict[str, str]] = {}
    failed = 0
    with Judge() as judge:
        for key in arguments.keys or sorted(every):
            ran: dict[tuple[DType, ...], Counter[Outcome]] = {}
            for types, drawn, verdict in sweep(every[key], judge, arguments.draws):
                counts = ran.setdefault(types, Counter())
                counts[verdict.outcome] += 1
                if verdict.outcome in FAILURES:
                    failed += 1
                    if counts[verdict.outcome] <= arguments.show:
                        print(f"{verdict.outcome.name} {drawn.listing}\n    {verdict.reason}")
            lines = [t for t, counts in ran.items() if counts.keys() & RUN]
            table.setdefault(every[key].family, {})[key] = ", ".join(
                " ".join(d.value for d in t) for t in lines
            )
            total: Counter[Outcome] = sum(ran.values(), Counter())
            figures = ", ".join(f"{n} {o.name}" for o, n in total.items())
            print(f"== {key}: {len(lines)} of {len(ran)} assignments; {figures}", flush=True)
    for family, found in table.items() if arguments.write else ():
        known = accepted_lines(family) | found
        ordered = {key: known[key] for key in sorted(known)}
        path = ACCEPTED / f"{family}.json"
        path.write_text(json.dumps(ordered, indent=1) + "\n", "utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
