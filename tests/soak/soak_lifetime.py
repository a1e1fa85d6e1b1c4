"""Compile, run and close over and over, from several threads: nothing stays open, mapped or alive.

    python -m tests.soak.soak_lifetime [--count N] [--seed S]

The short versions are the lifetime checks of penstock.testing.contract and tests/unit/execution.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import threading
import time
from pathlib import Path

import numpy as np

import penstock
from penstock.memory import live_mappings
from tests.unit.execution.fakes import NumpyDevice, accumulator, add_relu

DEVICES = (["reference"], ["sample"], None)
ALLOWED_GROWTH_KIB = 16 * 1024


def main() -> int:
    parser = argparse.ArgumentParser(description="Lifetime soak.")
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    began = time.monotonic()
    _round(np.random.default_rng(0), 200)
    before = _counts()
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            _round(np.random.default_rng(arguments.seed + number), arguments.count // 4)
        except BaseException as error:  # noqa: BLE001  # carried to the main thread
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    after = _counts()
    print(f"{arguments.count} compiles, 4 threads, {time.monotonic() - began:.0f} s")
    print(f"descriptors {before[0]} -> {after[0]}, mappings {before[1]} -> {after[1]}, "
          f"threads {before[2]} -> {after[2]}, memory {before[3]} -> {after[3]} KiB")  # fmt: skip
    for error in failures:
        print(f"failed: {error!r}")
    leaked = after[:3] != before[:3] or after[3] - before[3] > ALLOWED_GROWTH_KIB
    return 1 if failures or leaked else 0


def _round(random: np.random.Generator, count: int) -> None:
    x = np.ones((2, 3), np.float32)
    for turn in range(count):
        kind = int(random.integers(4))
        if kind == 3:
            with penstock.compile(accumulator(), devices=[NumpyDevice()]) as compiled:
                state = compiled.new_state()
                for _ in range(3):
                    compiled.run([np.ones(2, np.float32)], state=state)
            continue
        with penstock.compile(add_relu(), devices=DEVICES[kind]) as compiled:
            outputs = compiled.submit(x, x).result() if turn % 5 == 0 else compiled(x, x)
        np.testing.assert_array_equal(outputs[0], 2 * x)


def _counts() -> tuple[int, int, int, int]:
    gc.collect()
    directory = Path("/proc/self/fd")
    descriptors = len(list(directory.iterdir())) if directory.is_dir() else 0
    return descriptors, live_mappings(), threading.active_count(), anonymous_kib()


def anonymous_kib() -> int:
    """Resident memory that no file backs: the system drops and reads pages of files as it likes."""
    try:
        _, resident, shared, *_ = map(int, Path("/proc/self/statm").read_text("ascii").split())
    except OSError:
        return 0
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE") // 1024


if __name__ == "__main__":
    sys.exit(main())
