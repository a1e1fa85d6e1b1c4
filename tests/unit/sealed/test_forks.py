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

from penstock.sealed import FileRegistry, Owner
from penstock.sealed.locks import ForkGate
from penstock.testing.doubles import QUICK_FILES
from tests.support_sealed import Rig

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


@pytest.mark.parametrize("kind", ["reads", "changes"])
def test_a_registry_in_use_by_other_threads(tmp_path: Path, kind: str) -> None:
    made = Rig(tmp_path)
    keys = made.keys()
    registry = FileRegistry(made.registry_file, Owner("lab", "1"), keys, files=QUICK_FILES)
    rig = Rig(tmp_path, registry=lambda: registry)
    assert rig.saved()
    stop = threading.Event()

    def use(name: str) -> bool:
        return rig.hits() if kind == "reads" else rig.saved(name)

    def keep_using(number: int) -> None:
        while not stop.is_set():
            assert use(f"thread {number}")

    threads = [threading.Thread(target=keep_using, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    try:
        children = []
        for number in range(FORKS):
            children.append(forked(lambda n=number: use(f"child {n}")))  # type: ignore[misc]
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
