"""Processes that change one registry at once, and are killed at any moment."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest

from penstock.sealed import FileKeyStore, FileRecord, FileRegistry, Owner, Row
from penstock.testing.doubles import QUICK_FILES

pytestmark = [
    pytest.mark.usefixtures("no_descriptor_leaks"),
    pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork"),
]

OWNER = Owner("lab", "1")
PROCESSES = 8
RECORDS = (FileRecord(bytes(32), 1),)


def registry_in(root: Path) -> FileRegistry:
    """As a new process has it."""
    return FileRegistry(root / "registry", OWNER, FileKeyStore(root / "key"), files=QUICK_FILES)


def insert_for_ever(root: Path, number: int, done: int) -> None:
    """Inserts rows one after the other, and tells of each that was inserted."""
    registry = registry_in(root)
    for count in range(1 << 20):
        entry = bytes([number]) + os.urandom(7) + count.to_bytes(8, "little")
        registry.begin(Row(bytes(32), entry, RECORDS, ()))
        if count % 3 == 2:
            registry.publish(bytes(32), bytes(16), [entry])
        else:
            os.write(done, entry)


def kill_writers(root: Path, kills: int, seed: int) -> int:
    """Keeps `PROCESSES` processes inserting and kills one after the other, *kills* in all; how many
    rows they had told of.

    Each row that a process told of stays, unless it is one of the oldest; a reader never finds
    anything wrong, and a lock that a dead process had keeps nobody out.
    """
    draw, reader = random.Random(seed), registry_in(root)
    reader.open()
    told: list[bytes] = []
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    alive: list[int] = []

    def start() -> None:
        if pid := os.fork():
            alive.append(pid)
            return
        try:
            insert_for_ever(root, len(alive), writing)
        finally:
            os._exit(1)

    try:
        for _ in range(PROCESSES):
            start()
        for _ in range(kills):
            time.sleep(draw.uniform(0, 0.02))
            told += read_all(reading)
            # What was told before is there now, and the oldest of it alone may have made room.
            listed = {row.entry for row in reader.rows()}
            assert all(entry in listed for entry in told[-1000:])
            victim = alive.pop(draw.randrange(len(alive)))
            os.kill(victim, signal.SIGKILL)
            assert os.waitpid(victim, 0)[1] == signal.SIGKILL
            start()
    finally:
        for pid in alive:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        told += read_all(reading)
        os.close(reading)
        os.close(writing)
    began = time.monotonic()
    registry = registry_in(root)
    registry.begin(Row(bytes(32), bytes(16), RECORDS, ()))
    assert time.monotonic() - began < 5
    listed = {row.entry for row in registry.rows()}
    assert all(entry in listed for entry in told[-1000:])
    assert sorted(p.name for p in root.iterdir()) == ["key", "registry", "registry.lock"]
    return len(told)


def read_all(fd: int) -> list[bytes]:
    """The whole entry ids that are in the pipe: each was written at once."""
    content = b""
    try:
        while more := os.read(fd, 1 << 16):
            content += more
    except BlockingIOError:
        pass
    assert len(content) % 16 == 0
    return [content[at : at + 16] for at in range(0, len(content), 16)]


def test_processes_that_are_killed_lose_nothing_that_was_inserted(tmp_path: Path) -> None:
    assert kill_writers(tmp_path, kills=40, seed=5) > 100
