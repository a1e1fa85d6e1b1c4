"""Random graphs over 1 to 4 reference devices with random support tables, by both rules of
placement: the partitioned result equals the unpartitioned one, bit for bit.

    python -m tests.soak.soak_partitioning [--count N] [--seed S]

The short seeded version is tests/property/test_partition_invisible.py.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from penstock.drivers.reference import ReferenceDevice
from tests.support_devices import NumpyDevice, run_plan
from tests.support_graphs import random_case

FIRST_SEED = 1_000_000
"""Beyond the seeds of the short version."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Partitioning soak.")
    parser.add_argument("--count", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=FIRST_SEED)
    arguments = parser.parse_args()
    began = time.monotonic()
    steps: Counter[int] = Counter()
    wrong: list[int] = []
    reference = ReferenceDevice()
    for seed in range(arguments.seed, arguments.seed + arguments.count):
        case = random_case(seed)
        expected = [
            (e.dtype, e.shape, e.tobytes())
            for e in run_plan(case.whole(), [NumpyDevice("all")], case.graph.arrays, reference)
        ]
        for plan in (case.plan, case.replaced("cost" if seed % 2 else "nnapi")):
            steps[len(plan.steps)] += 1
            outputs = run_plan(plan, case.devices, case.graph.arrays, reference)
            if [(o.dtype, o.shape, o.tobytes()) for o in outputs] != expected:
                wrong.append(seed)
    several = sum(n for count, n in steps.items() if count >= 3)
    print(
        f"{arguments.count} graphs, two plans each, {several} of them in three steps or more, most "
        f"{max(steps)}"
    )
    print(f"{len(wrong)} differed{': seeds ' + str(wrong[:20]) if wrong else ''}")
    print(f"{time.monotonic() - began:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
