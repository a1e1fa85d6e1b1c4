"""A child forked while other threads use registries can use them too."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.sealed import BlobRegistry, Owner, Registry, SqliteRegistry
from penstock.sealed.forks import ForkGate
from tests.support_sealed import Rig, quick_connect

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")

FORKS = 40
SECONDS = 20


def finishes(pid: int) -> bool:
    """Whether the child ends well within `SECONDS`; it is killed otherwise."""
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status == 0
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return False


def forked(act: Callable[[], object]) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if not pid:
        code = 1
        try:
            act()
            code = 0
        finally:
            os._exit(code)
    return pid


@pytest.mark.parametrize("kind", ["sqlite", "blobs"])
def test_registries_in_use_by_other_threads(tmp_path: Path, kind: str) -> None:
    def make() -> Registry:
        keys = rig.keys()
        if kind == "blobs":
            return BlobRegistry(tmp_path / "state" / "blobs", Owner("lab", "1"), keys)
        return SqliteRegistry(rig.database, Owner("lab", "1"), keys, connect=quick_connect)

    rig = Rig(tmp_path)
    rig.keys().key()
    registry = make()
    rig_of_blobs = Rig(tmp_path, registry=lambda: registry)
    assert rig_of_blobs.saved()
    stop = threading.Event()

    def use() -> None:
        while not stop.is_set():
            assert rig_of_blobs.hits()

    threads = [threading.Thread(target=use) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        children = []
        for _ in range(FORKS):
            children.append(forked(rig_of_blobs.hits))
            time.sleep(0.002)
        assert [finishes(pid) for pid in children] == [True] * FORKS
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_a_fork_waits_for_whoever_is_inside() -> None:
    gate, order = ForkGate(), []
    inside, leave = threading.Event(), threading.Event()

    def stay() -> None:
        with gate.passed(), gate.passed():
            inside.set()
            leave.wait(SECONDS)
            order.append("left")

    thread = threading.Thread(target=stay)
    thread.start()
    assert inside.wait(SECONDS)
    threading.Timer(0.05, leave.set).start()
    pid = forked(lambda: None)
    order.append("forked")
    assert finishes(pid)
    thread.join()
    assert order == ["left", "forked"]
