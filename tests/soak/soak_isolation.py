"""Drivers in processes of their own, killed over and over; a host, fed messages that are damaged;
and every fault before and after every message.

    python -m tests.soak.soak_isolation [--kills N] [--messages N] [--seed S] [--no-grid]

The short versions are tests/unit/ipc/test_isolation.py, test_hostile_clients.py and test_chaos.py.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import signal
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np

import penstock
from penstock.ipc import forms, wire
from penstock.ipc.codec import encode
from penstock.ipc.host_sockets import Place
from penstock.ipc.starting import connect
from penstock.ipc.transport import close_all
from penstock.memory import live_mappings
from penstock.runtime import isolation
from tests import support_chaos
from tests.support_chaos_calls import Rig
from tests.support_isolated import SHAPE, add_one

PLACE = Place("domains", "tests.support_isolated:domains")
X = np.full(SHAPE, 3, np.float32)
ALLOWED_GROWTH_KIB = 32 * 1024
ALLOWED_HOST_KIB = 256 * 1024


def main() -> int:
    parser = argparse.ArgumentParser(description="Isolation soak.")
    parser.add_argument("--kills", type=int, default=1_000)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-grid", action="store_true", help="leave faults at messages out")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as state:
        os.environ["PENSTOCK_STATE_DIR"] = state
        os.environ["PENSTOCK_KEY_STORE"] = "file"
        failed = kills(arguments.kills, arguments.seed)
        failed += fuzz(arguments.messages, arguments.seed)
        failed += 0 if arguments.no_grid else grid()
    return 1 if failed else 0


def grid() -> int:
    """Every fault before and after every message, on hosts that are used as long as they live."""
    began = time.monotonic()
    found = 0
    with tempfile.TemporaryDirectory() as place:
        os.environ["TMPDIR"], tempfile.tempdir = place, None
        os.environ["PENSTOCK_DRIVER_TIMEOUT_MS"] = "2500"
        before = counts()
        rig = Rig()
        for point in support_chaos.GRID:
            wrong = support_chaos.round_of(rig, point)
            found += bool(wrong)
            if wrong:
                print(*point, *wrong, sep=": ", flush=True)
        rig.close()
        del rig
        after = counts()
        del os.environ["TMPDIR"], os.environ["PENSTOCK_DRIVER_TIMEOUT_MS"]
    tempfile.tempdir = None
    print(f"{len(support_chaos.GRID)} faults at messages, {found} wrong, "
        f"{time.monotonic() - began:.0f} s; "
          f"descriptors {before[0]} -> {after[0]}, mappings {before[1]} -> {after[1]}, "
          f"threads {before[2]} -> {after[2]}, children {before[3]} -> {after[3]}")  # fmt: skip
    return found + int(after[:4] != before[:4])


def kills(count: int, seed: int) -> int:
    """Kills between calls and in the middle of them; every call is answered, and right."""
    draw = random.Random(seed)
    began = time.monotonic()
    repeated = fallen = wrong = 0
    with penstock.compile(add_one(), devices=["reference"], isolate=True, cache=False) as model:
        model(X)
        before = counts()
        for _ in range(count):
            link = isolation.supervisors()[0].running
            if link is not None:
                delay = draw.choice([0.0, 0.0, 0.0005, 0.002])
                if delay:
                    threading.Timer(delay, kill, (link.pid,)).start()
                else:
                    kill(link.pid)
            for _ in range(3):
                outputs = model.run([X], timeout=60)
                wrong += int(not (outputs[0] == X + 1).all())
                repeated += len(outputs.receipt.notes)
                fallen += sum(s.fallback_from is not None for s in outputs.receipt.steps)
        time.sleep(0.1)
        model(X)
        after = counts()
    isolation.close_hosts()
    spent = time.monotonic() - began
    print(
        f"{count} kills, {3 * count} calls, {repeated} repeated, {fallen} fell back, {wrong} "
        f"wrong, {spent:.0f} s"
    )
    print(f"descriptors {before[0]} -> {after[0]}, mappings {before[1]} -> {after[1]}, "
          f"threads {before[2]} -> {after[2]}, children {before[3]} -> {after[3]}, "
          f"resident {before[4]} -> {after[4]} KiB")  # fmt: skip
    leaked = after[:4] != before[:4] or after[4] - before[4] > ALLOWED_GROWTH_KIB
    return int(wrong > 0) + int(leaked)


def fuzz(count: int, seed: int) -> int:
    """Damaged messages to one host, from a client after another; a client that keeps to the rules
    is served all along.
    """
    draw = random.Random(seed)
    began = time.monotonic()
    keeper = connect(PLACE)
    corpus = messages()
    before = resident(keeper.pid)
    sent = clients = 0
    while sent < count:
        clients += 1
        one = connect(PLACE)
        drain = threading.Thread(target=swallow, args=(one.connection,))
        drain.start()
        with suppress(EOFError, TimeoutError):
            for _ in range(1000):
                one.connection.send(damaged(draw, corpus), (), time.monotonic_ns() + 30_000_000_000)
                sent += 1
        one.connection.shut()
        drain.join()
        one.connection.close()
        close_all([one.page, one.output, one.pidfd])
    keeper.connection.send(encode(wire.Ask(1, 0, encode(wire.Check()))))
    answered = bool(keeper.connection.receive(time.monotonic_ns() + 60_000_000_000).data)
    after = resident(keeper.pid)
    keeper.connection.close()
    close_all([keeper.page, keeper.output, keeper.pidfd])
    if keeper.child:
        os.waitpid(keeper.broker, 0)
    print(f"{sent} damaged messages of {clients} clients, {time.monotonic() - began:.0f} s; "
          f"the host answers: {answered}, resident {before} -> {after} KiB")  # fmt: skip
    return int(not answered) + int(after - before > ALLOWED_HOST_KIB)


def messages() -> list[bytes]:
    """One of each kind, asks with every body that needs no device."""
    bodies = [
        encode(m)
        for m in (wire.Check(), wire.CacheFilesNeeded(), wire.Close(3), wire.ConfigureBurst(1))
    ]
    handles = (
        forms.ArrayForm(1, 0, penstock.ir.DType.FLOAT32, (2, 2), writable=True),
        forms.CancelForm(is_set=False),
    )
    asks = [encode(wire.Ask(n, 0, body, handles)) for n, body in enumerate(bodies)]
    rest = [encode(wire.Cancel(1)), encode(wire.Drop(0, 5)), encode(wire.Lend(1, 64))]
    return [*asks, *rest, encode(wire.Release(1))]


def damaged(draw: random.Random, corpus: list[bytes]) -> bytes:
    """A message with its call renumbered and perhaps some of its bytes changed, in a body rather
    than around it.
    """
    if draw.random() < 0.02:
        return draw.randbytes(draw.randrange(64))
    data = bytearray(draw.choice(corpus))
    if draw.random() < 0.05:
        for _ in range(draw.randrange(1, 4)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        return bytes(data)
    body = draw.randbytes(draw.randrange(1, 80))
    return encode(wire.Ask(draw.getrandbits(31), 0, body))


def swallow(connection: penstock.ipc.transport.Connection) -> None:
    with suppress(EOFError, OSError):
        while True:
            close_all(connection.receive().descriptors)


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def counts() -> tuple[int, int, int, int, int]:
    gc.collect()
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text("ascii").split()
    return (
        sum(1 for _ in Path("/proc/self/fd").iterdir()),
        live_mappings(),
        threading.active_count(),
        len(children),
        resident(os.getpid()),
    )


def resident(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text("ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    return 0


if __name__ == "__main__":
    sys.exit(main())
