"""Random operations and fused chains, compiled for every instruction set that this machine runs,
against the device `reference`:

    python -m tests.soak.soak_compiler [--count N] [--least M] [--seed S] [--jobs J] [--show F]
        [--only FAMILY ...]

Goes on until the compiler has taken *count* models, and *least* of every family that it takes any
of. Exit code 1 where results differ: integers have to be equal, floats within the bound of `exact`.
Each batch runs in a process of its own, so that a fault in generated code is a failure with the
model's number. The short version is tests/unit/drivers/llvm/test_random.py.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from tests.support_compiler_trials import families, tried
from tests.support_generated import sets_here

COUNT: Final = 20_000
LEAST: Final = 500
BATCH: Final = 60
HOPELESS: Final = 150
"""Models of a family, none of which the compiler took, after which it is left out."""


class Soak:
    """What was tried so far, by family."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        chosen = [f for f in families() if not arguments.only or f in arguments.only]
        self.next = dict.fromkeys(chosen, arguments.seed)
        self.taken: Counter[str] = Counter()
        self.failures: list[str] = []

    def batch(self) -> tuple[str, int] | None:
        """The family that has the fewest models, and the first number of its next batch."""
        drawn = {f: at - self.arguments.seed for f, at in self.next.items()}
        left = [f for f in self.next if self.taken[f] or drawn[f] < HOPELESS]
        least = min(left, key=lambda f: (self.taken[f], drawn[f]))
        if self.taken.total() >= self.arguments.count and self.taken[least] >= self.arguments.least:
            return None
        first = self.next[least]
        self.next[least] += BATCH
        return least, first

    def run(self, family: str, first: int) -> None:
        """Runs one batch, and what is left of it after a fault."""
        last = first + BATCH
        while first < last:
            command = [
                sys.executable,
                "-m",
                __spec__.name,
                "--batch",
                family,
                str(first),
                str(last),
            ]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            lines = [json.loads(line) for line in done.stdout.splitlines()]
            for number, taken, what, wrong in lines:
                self.taken[family] += taken
                if wrong:
                    self.fail(f"{family} {number}: {what}: {'; '.join(wrong)}")
            if done.returncode == 0:
                return
            first = lines[-1][0] + 1 if lines else first
            said = done.stderr.strip().splitlines()[-1:]
            self.fail(f"{family} {first}: ended with {done.returncode}: {said}")
            first += 1

    def fail(self, text: str) -> None:
        """Keeps a failure, and shows it at once."""
        self.failures.append(text)
        if len(self.failures) <= self.arguments.show:
            print(f"FAILED: {text}", file=sys.stderr, flush=True)


def batch(family: str, first: int, last: int) -> None:
    """Prints a line of JSON for each model: its number, whether it was taken, what it is, and what
    differs.
    """
    sets = sets_here()
    for number in range(first, last):
        trial = tried(family, number, sets)
        print(json.dumps([number, trial.taken, trial.what, trial.wrong]), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Random models on generated code.")
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--least", type=int, default=LEAST)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--show", type=int, default=20)
    parser.add_argument("--only", action="append", choices=families(), help="a family")
    parser.add_argument("--batch", nargs=3)
    arguments = parser.parse_args()
    if arguments.batch:
        family, first, last = arguments.batch
        batch(family, int(first), int(last))
        return 0
    began, soak = time.monotonic(), Soak(arguments)

    def worker(_: int) -> None:
        while (following := soak.batch()) is not None:
            soak.run(*following)

    with ThreadPoolExecutor(arguments.jobs) as pool:
        list(pool.map(worker, range(arguments.jobs)))
    names = ", ".join(isa.name for isa in sets_here())
    elapsed = time.monotonic() - began
    print(f"{soak.taken.total()} models, each on {names}, in {elapsed:.0f} s")
    for family in soak.next:
        print(f"  {soak.taken[family]:6d} {family}")
    print(f"{len(soak.failures)} failures")
    return 1 if soak.failures else 0


if __name__ == "__main__":
    sys.exit(main())
