"""Readers, writers and resizers on one device buffer together: every call returns in time, and pure
readers stay right.

    python -m tests.soak.soak_buffers [--seconds N] [--seed S]

Each driver that takes buffers of unknown size, in process and in a process of its own. The short
version is tests/unit/execution/test_contested_buffers.py.
"""

from __future__ import annotations

import argparse
import sys

from tests.support_buffers import LIMIT, Contest

DEVICES = ("reference", "lab")


def main() -> int:
    parser = argparse.ArgumentParser(description="Contested device buffers.")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    failed = 0
    for name in DEVICES:
        for isolate in (False, True):
            contest = Contest(name, isolate=isolate, seconds=arguments.seconds, seed=arguments.seed)
            where = "isolated" if isolate else "in process"
            print(
                f"{name}, {where}: {sum(contest.calls.values())} calls {dict(contest.calls)}, "
                f"refused {dict(contest.refused)}, slowest {contest.slowest * 1e3:.0f} ms"
            )
            for problem in contest.problems:
                print(f"  problem: {problem}")
            failed += bool(contest.problems) or contest.slowest > LIMIT
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
