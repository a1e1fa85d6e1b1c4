"""Mutation fuzzing of the wire: python -m tests.soak.soak_wire [--count N] [--seed S].

Half of the inputs go to the decoders, most of the rest to a dispatcher over the null driver, and
the others, as streams of frames with descriptors, to a host's side of a connection. Each is decoded
or refused by name, answered or failed by name; memory stays in bounds, and no descriptor, mapping
or thread is left. The short version is tests/unit/ipc/test_fuzz.py.
"""

from __future__ import annotations

import argparse
import collections
import logging
import random
import resource
import sys
import time
import traceback

from penstock.memory import live_mappings
from tests.soak.wire_mutation import FRAMES, Device, messages, try_decoders, try_host
from tests.support_waiting import descriptors, steady, tasks

COUNT = 1_200_000
ALLOWED_GROWTH_KIB = 64 * 1024


def main() -> int:
    parser = argparse.ArgumentParser(description="Wire fuzzing.")
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    messages()
    began = time.monotonic()
    outcomes, failures = fuzz(arguments.seed, min(arguments.count, 20_000))
    before = counts()
    more, others = fuzz(arguments.seed + 1, arguments.count)
    outcomes.update(more)
    failures += others
    after = counts()
    print(f"{sum(outcomes.values())} inputs in {time.monotonic() - began:.0f} s")
    for name, number in sorted(outcomes.items()):
        print(f"  {name}: {number}")
    print(f"descriptors {before[0]} -> {after[0]}, mappings {before[1]} -> {after[1]}, "
          f"threads {before[2]} -> {after[2]}, peak resident {before[3]} -> {after[3]} "
          "KiB")  # fmt: skip
    for seed, trace in failures[:10]:
        print(f"failed: seed {seed}\n{trace}")
    print(f"{len(failures)} failures")
    grown = after[:3] != before[:3] or after[3] - before[3] > ALLOWED_GROWTH_KIB
    return 1 if failures or grown else 0


def fuzz(seed: int, count: int) -> tuple[collections.Counter[str], list[tuple[str, str]]]:
    """Outcomes of *count* inputs, a frame of a stream being one, and what failed with its seed."""
    outcomes: collections.Counter[str] = collections.Counter()
    failures: list[tuple[str, str]] = []
    device = Device()
    ways = (
        ("decoders", count // 2, 1, try_decoders),
        ("dispatcher", count * 2 // 5, 1, device.try_call),
        ("host", count // 10, FRAMES, try_host),
    )
    for name, share, weight, attempt in ways:
        for number in range(0, share, weight):
            source = f"{seed}/{name}/{number}"
            try:
                outcomes[f"{name}, {attempt(random.Random(source))}"] += weight
            except Exception:  # noqa: BLE001  # whatever is raised is counted
                failures.append((source, traceback.format_exc()))
    device.close()
    return outcomes, failures


def counts() -> tuple[int, int, int, int]:
    """Descriptors, mappings, threads, and the most KiB that were resident."""
    return (
        steady(descriptors),
        live_mappings(),
        steady(tasks),
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    )


if __name__ == "__main__":
    sys.exit(main())
