"""NNAPI's operation vectors, every run of every case, on each driver that computes, in this process
and isolated:

    python -m tests.soak.soak_vectors [--only DRIVER,...] [--operation NAME]...

A run passes, or the driver does not take it and says why; isolated it ends as it does here. Prints
for each driver how many runs end how, and every reason that one was not taken; exit code 1 when a
run fails, or ends otherwise. tests/conformance runs some of them.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from penstock.runtime.isolation import close_hosts
from penstock.testing.vectors import Case, RunResult, load_directory, run_vectors
from tests.conformance.drivers import DRIVERS, WRAPPERS, unusable
from tests.conftest import CORPUS, NO_CORPUS

MOST_SHOWN = 12


def main() -> int:
    parser = argparse.ArgumentParser(description="NNAPI's operation vectors on every driver.")
    parser.add_argument("--only", default="", help="drivers, separated by commas")
    parser.add_argument("--operation", action="append", default=[], metavar="NAME")
    arguments = parser.parse_args()
    if CORPUS is None:
        print(NO_CORPUS)
        return 1
    wanted = frozenset(arguments.operation)
    specifications = load_directory(CORPUS / "conformance" / "nnapi")
    cases = [c for s in specifications for c in s.cases if not wanted or c.operations & wanted]
    print(f"{len(cases)} cases")
    failures = 0
    for driver in filter(None, arguments.only.split(",")) if arguments.only else DRIVERS:
        if (reason := unusable(driver)) is not None:
            print(f"{driver}: {reason}")
            continue
        failures += tried(driver, cases)
    close_hosts()
    print(f"{failures} failures")
    return 1 if failures else 0


def tried(driver: str, cases: list[Case]) -> int:
    """How many runs fail, or end otherwise in the other process."""
    ended: dict[str, list[RunResult]] = {}
    for wrapper, opened in WRAPPERS.items():
        began, results = time.monotonic(), list[RunResult]()
        with opened(driver) as device:
            run_vectors(cases, device, results.append)
        ended[wrapper] = results
        outcomes = Counter(result.outcome for result in results)
        counts = ", ".join(f"{n} {outcome}" for outcome, n in sorted(outcomes.items()))
        print(f"{driver}, {wrapper}: {counts} in {time.monotonic() - began:.0f} s", flush=True)
    plain, isolated = ended.values()
    reasons = Counter(r.message for r in plain if r.outcome == "not_covered")
    for message, count in reasons.most_common(MOST_SHOWN):
        print(f"  {count:5d} not taken: {message[:160]}")
    if len(reasons) > MOST_SHOWN:
        print(f"        and for {len(reasons) - MOST_SHOWN} other reasons")
    failed = [r for results in ended.values() for r in results if r.outcome == "failed"]
    other = [r for r, i in zip(plain, isolated, strict=True) if r.outcome != i.outcome]
    for word, listed in (("FAILED", failed), ("OTHERWISE when isolated", other)):
        for result in listed:
            print(f"{word}: {result.case} ({result.run}): {result.message[:300]}")
    return len(failed) + len(other)


if __name__ == "__main__":
    sys.exit(main())
