"""Ten million calls through a ring: right answers, and nothing grows on either side.

    python -m tests.soak.soak_ring [--count N]

The device writes zeros. Calls are a burst's, or plain executions; arrays lie in a pool, or are
staged, by turns; now and then a pool is new, a call has a deadline, or the burst is another. The
short versions are in tests/unit/ipc/test_ring.py and test_rings.py.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from pathlib import Path

import numpy as np

from penstock.hal import ExecutionConfig, HostMemory, PrepareConfig, Request
from penstock.ipc.client import RemoteDevice, RemotePreparedModel
from penstock.ipc.ring_pool import RingBurst
from penstock.ir import DType, Model, ModelBuilder, NDArray
from penstock.memory import MemoryPool, live_mappings
from tests.support_ring import child

COUNT = 10_000_000
TURN = 10_000
"""Calls between two changes of pools and bursts."""
WARM = 20 * TURN
ALLOWED_GROWTH_KIB = 4 * 1024
PLAIN = ExecutionConfig()


def main() -> int:
    parser = argparse.ArgumentParser(description="Soak of the ring.")
    parser.add_argument("--count", type=int, default=COUNT)
    arguments = parser.parse_args()
    began = time.monotonic()
    with child("penstock.drivers.null:create") as channel:
        prepared = RemoteDevice(channel).prepare_model(_model(), PrepareConfig())
        if not isinstance(prepared, RemotePreparedModel):
            raise TypeError(prepared)
        # Memory that comes for the first time goes with a message, which this channel carries no
        # arrays beside.
        rings = prepared._rings
        assert rings is not None
        rings._is_lasting = lambda memory: True  # type: ignore[method-assign]  # noqa: ARG005
        wrong, times = _calls(prepared, WARM)
        before = _counts(channel.pid)
        more, times = _calls(prepared, arguments.count)
        after = _counts(channel.pid)
    for name, old, new in zip(("this process", "the device's"), before, after, strict=True):
        print(f"{name}: descriptors {old[0]} -> {new[0]}, mappings {old[1]} -> {new[1]}, "
              f"threads {old[2]} -> {new[2]}, resident {old[3]} -> {new[3]} KiB")  # fmt: skip
    print(
        f"{arguments.count} calls in {time.monotonic() - began:.0f} s, {wrong + more} wrong "
        "answers; "
        f"median of a call {statistics.median(times):.1f} us"
    )
    grown = any(
        new[:3] != old[:3] or new[3] - old[3] > ALLOWED_GROWTH_KIB
        for old, new in zip(before, after, strict=True)
    )
    return 1 if wrong or more or grown else 0


def _calls(prepared: RemotePreparedModel, count: int) -> tuple[int, list[float]]:
    """Wrong answers in *count* calls, and microseconds of a call by turns."""
    wrong, times = 0, []
    own = np.zeros(16, np.float32), np.zeros(16, np.float32)
    for first in range(0, count, TURN):
        burst = prepared.configure_burst()
        if not isinstance(burst, RingBurst):
            raise TypeError(burst)
        with MemoryPool.anonymous(1 << 16) as pool:
            lent = pool.view(np.float32, 16), pool.view(np.float32, 16, 4096)
            for begin in range(first, first + TURN, 1000):
                x, y = own if begin % 5000 == 0 else lent
                began = time.perf_counter_ns()
                wrong += _thousand(burst if begin % 2000 else prepared, x, y, begin)
                times.append((time.perf_counter_ns() - began) / 1e6)
        burst.close()
    return wrong, times


def _thousand(runner: RingBurst | RemotePreparedModel, x: NDArray, y: NDArray, begin: int) -> int:
    request = Request((HostMemory(x),), (HostMemory(y),))
    wrong = 0
    for number in range(begin, begin + 1000):
        y[0] = 1 + number & 0xFFFF
        config = PLAIN
        if not number % 100:
            config = ExecutionConfig(deadline_ns=time.monotonic_ns() + 30 * 10**9)
        runner.execute(request, config)
        wrong += int(y[0] != 0)
    return wrong


def _model() -> Model:
    b = ModelBuilder()
    x = b.input(DType.FLOAT32, (16,), "x")
    return b.build(b.operation("RELU", [x], [(DType.FLOAT32, (16,))]))


Counts = tuple[int, int, int, int]


def _counts(other: int) -> tuple[Counts, Counts]:
    gc.collect()
    own = _of("self")
    return (own[0], live_mappings(), own[2], own[3]), _of(str(other))


def _of(process: str) -> Counts:
    """Descriptors, mappings of shared memory, threads and resident KiB."""
    root = Path("/proc", process)
    maps = (root / "maps").read_text("utf-8").count("memfd:penstock")
    status = dict(line.split(":", 1) for line in (root / "status").read_text("ascii").splitlines())
    resident = int(status["VmRSS"].split()[0])
    return len(list((root / "fd").iterdir())), maps, int(status["Threads"]), resident


if __name__ == "__main__":
    sys.exit(main())
