"""Damaged requests: python -m tests.soak.soak_serving [--count N] [--seed S].

Bodies of REST requests and messages of gRPC are damaged by bits, bytes, lengths and parts of JSON.
Each is parsed and answered, or refused by name; memory stays in bounds. The short version is
tests/unit/serve/test_fuzz.py.
"""

from __future__ import annotations

import argparse
import collections
import resource
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tests.soak.request_mutation import Victim

COUNT = 100_000
WARM_UP = 5000
ALLOWED_GROWTH_KIB = 64 * 1024


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzzing of requests.")
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    outcomes: collections.Counter[str] = collections.Counter()
    failures: list[str] = []
    began = time.monotonic()
    before = 0
    with tempfile.TemporaryDirectory() as place, Victim(Path(place)) as victim:
        for number in range(arguments.count):
            if number == WARM_UP:
                before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            try:
                outcomes[victim.try_one(f"{arguments.seed}/{number}")] += 1
            except Exception:  # noqa: BLE001  # whatever is raised is counted
                failures.append(f"{arguments.seed}/{number}: {traceback.format_exc()}")
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"{sum(outcomes.values())} requests in {time.monotonic() - began:.0f} s")
    for name, count in sorted(outcomes.items()):
        print(f"  {name}: {count}")
    print(f"peak resident {before} -> {after} KiB")
    for failure in failures[:10]:
        print(f"failed: {failure}")
    print(f"{len(failures)} failures")
    return 1 if failures or after - before > ALLOWED_GROWTH_KIB else 0


if __name__ == "__main__":
    sys.exit(main())
