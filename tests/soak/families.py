"""Soaks of random models, which come in families: what a batch of them reports, and how many
batches of which family a soak runs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from tests.support_compiler_trials import Trial, families

BATCH: Final = 60
HOPELESS: Final = 150
"""Models of a family, none of which was taken, after which it is left out."""

BATCH_SECONDS: Final = 1800.0
"""A batch that takes longer hangs."""

Try = Callable[[str, int], Trial]
"""The outcome of a model, by its family and number."""


class Soak:
    """What was tried so far, by family. *module* is the soak's, which runs the batches."""

    def __init__(self, module: str, arguments: argparse.Namespace) -> None:
        self.module, self.arguments = module, arguments
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
                sys.executable, "-m", self.module, "--batch", family, str(first), str(last)
            ]  # fmt: skip
            try:
                done = subprocess.run(
                    command, capture_output=True, text=True, check=False, timeout=BATCH_SECONDS
                )
                output, error, code = done.stdout, done.stderr, str(done.returncode)
            except subprocess.TimeoutExpired as late:
                parts = [p if isinstance(p, bytes) else b"" for p in (late.stdout, late.stderr)]
                output, error = (part.decode(errors="replace") for part in parts)
                code = f"no result within {BATCH_SECONDS:g} s"
            lines = [json.loads(line) for line in output.splitlines()]
            for number, taken, what, wrong in lines:
                self.taken[family] += taken
                if wrong:
                    self.fail(f"{family} {number}: {what}: {'; '.join(wrong)}")
            if code == "0":
                return
            first = lines[-1][0] + 1 if lines else first
            said = error.strip().splitlines()[-1:]
            self.fail(f"{family} {first}: ended with {code}: {said}")
            first += 1

    def fail(self, text: str) -> None:
        """Keeps a failure, and shows it at once."""
        self.failures.append(text)
        if len(self.failures) <= self.arguments.show:
            print(f"FAILED: {text}", file=sys.stderr, flush=True)


def batch(attempt: Try, family: str, first: int, last: int) -> None:
    """Prints a line of JSON for each model: its number, whether it was taken, what it is, and what
    differs.
    """
    for number in range(first, last):
        trial = attempt(family, number)
        print(json.dumps([number, trial.taken, trial.what, trial.wrong]), flush=True)


def soak(
    module: str, attempt: Try, count: int, least: int, where: Callable[[], str],
    given: Sequence[str] | None = None,
) -> int:  # fmt: skip
    """Runs the soak *module*, or the batch that its arguments name, by *attempt*. *where* says what
    the models ran on. Returns the exit code.
    """
    parser = argparse.ArgumentParser(description="Random models, compared with `reference`.")
    parser.add_argument("--count", type=int, default=count)
    parser.add_argument("--least", type=int, default=least)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--show", type=int, default=20)
    parser.add_argument("--only", action="append", choices=families(), help="a family")
    parser.add_argument("--batch", nargs=3)
    arguments = parser.parse_args(given)
    if arguments.batch:
        family, first, last = arguments.batch
        batch(attempt, family, int(first), int(last))
        return 0
    began, found = time.monotonic(), Soak(module, arguments)

    def worker(_: int) -> None:
        while (following := found.batch()) is not None:
            found.run(*following)

    with ThreadPoolExecutor(arguments.jobs) as pool:
        list(pool.map(worker, range(arguments.jobs)))
    elapsed = time.monotonic() - began
    print(f"{found.taken.total()} models, each on {where()}, in {elapsed:.0f} s")
    for family in found.next:
        print(f"  {found.taken[family]:6d} {family}")
    print(f"{len(found.failures)} failures")
    return 1 if found.failures else 0
