"""Mutation fuzzing of the NNAPI door: python -m tests.soak.soak_nnapi [--count N] [--seed S].

Every damaged model of the corpus's operation vectors, fed damaged values, must run on the reference driver or
be refused by name, in bounded time and memory. Prints figures; exit code 1 when one did not, with its seed.
"""

# a program: it prints its figures

from __future__ import annotations

import argparse
import collections
import resource
import signal
import sys
import time
import traceback
from pathlib import Path

if __name__ == "__main__" and __package__ is None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from penstock.testing.vectors import load_directory
from penstock.testing.vectors.derive import plain_run
from tests.conftest import CORPUS, NO_CORPUS
from tests.soak.nnapi_mutation import Damaged

COUNT = 50_000
SECONDS_PER_MODEL = 10
MEMORY = 2 << 30
"""Address space that the process may use beyond what it has when it starts."""


class TooSlow(BaseException):
    """A model took longer than it may."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=COUNT, help="how many damaged models")
    parser.add_argument("--seed", type=int, default=0, help="number of the first one")
    arguments = parser.parse_args()
    directory = CORPUS / "conformance" / "nnapi" if CORPUS is not None else None
    if directory is None or not directory.is_dir():
        print(NO_CORPUS)
        return 0

    def on_alarm(number: int, frame: object) -> None:
        raise TooSlow

    cases = [case for s in load_directory(directory) for case in s.cases]
    runs = [plain_run(case) for case in cases if not case.is_infinite_loop]
    signal.signal(signal.SIGALRM, on_alarm)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY,) * 2)
    outcomes: collections.Counter[str] = collections.Counter()
    failures: list[tuple[int, str]] = []
    begun, slowest = time.monotonic(), (0.0, -1)
    for seed in range(arguments.seed, arguments.seed + arguments.count):
        started = time.perf_counter()
        signal.setitimer(signal.ITIMER_REAL, SECONDS_PER_MODEL)
        try:
            outcomes[Damaged.of(runs, seed).trial()] += 1
        except (Exception, TooSlow):  # noqa: BLE001  # whatever is raised is counted
            failures.append((seed, traceback.format_exc()))
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        slowest = max(slowest, (time.perf_counter() - started, seed))
    elapsed = time.monotonic() - begun
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(f"{arguments.count} models from {len(runs)} cases in {elapsed:.0f} s")
    print(f"slowest {slowest[0] * 1e3:.0f} ms (seed {slowest[1]}), peak {peak} MiB")
    for outcome, count in outcomes.most_common():
        print(f"  {count:8d} {outcome}")
    for seed, text in failures[:5]:
        print(f"FAILED: seed {seed}\n{text}")
    print(f"{len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
