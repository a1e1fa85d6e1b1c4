"""Processes that share one file, that fork, that end without a word, that are killed."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock.blobcache import PersistentBlobCache

WRITER = """
import sys
from penstock.blobcache import PersistentBlobCache
path, name, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
cache = PersistentBlobCache(path)
cache.initialize()
for i in range(rounds):
    key = f"{name} {i}".encode()
    assert cache.set(key, key * 20)
    assert cache.save(), cache.problem
    assert all(v == k * 20 for k, v in cache.items())
assert cache.terminate() and not cache.problem
"""

CROWD = """
import random, sys
from penstock.blobcache import POLICIES, Limits, PersistentBlobCache
path, seed = sys.argv[1], int(sys.argv[2])
draw = random.Random(seed)
cache = PersistentBlobCache(path, save_delay=0.005)
for policy in POLICIES:
    cache.initialize(Limits(key=8, value=200, total=2000), policy)
    for _ in range(150):
        key = b"%d" % draw.randrange(60)
        found = cache.get(key)
        assert found is None or found == key * 30
        assert draw.random() < 0.5 or cache.set(key, key * 30)
        assert cache.total <= 2000
        if draw.random() < 0.1:
            cache.delete(key)
        if draw.random() < 0.05:
            assert cache.save(), cache.problem
    assert cache.terminate() and not cache.problem
"""

ENDING = """
import sys
from penstock.blobcache import PersistentBlobCache
cache = PersistentBlobCache(sys.argv[1])
cache.initialize()
cache.set(b"key", b"value")
"""

FORKING = """
import os, sys, threading
from penstock.blobcache import PersistentBlobCache
cache = PersistentBlobCache(sys.argv[1])
cache.initialize()
cache.set(b"before", b"1")

class Slow:
    def __enter__(self):
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()
    def run(self):
        while not self.stop.is_set():
            cache.set(b"busy", b"x")
            cache.save()
    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()

with Slow():
    for i in range(5):
        child = os.fork()
        if not child:
            cache.set(b"child %d" % i, b"2")
            os._exit(0 if cache.terminate() else 1)
        assert os.waitpid(child, 0)[1] == 0
cache.set(b"after", b"3")
assert cache.terminate()
"""


def start(program: str, *arguments: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program]
    return subprocess.Popen([*command, *map(str, arguments)], stderr=subprocess.PIPE)


def finish(*processes: subprocess.Popen[bytes]) -> None:
    for process in processes:
        _, complaint = process.communicate(timeout=120)
        assert (process.returncode, complaint.decode()) == (0, "")


def content(path: Path) -> dict[bytes, bytes]:
    cache = PersistentBlobCache(path)
    cache.initialize()
    found = dict(cache.items())
    assert cache.problem == ""
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "blobs"


def test_two_processes_lose_nothing_of_each_other(path: Path) -> None:
    finish(start(WRITER, path, "one", 40), start(WRITER, path, "two", 40))
    found = content(path)
    assert found.keys() == {f"{n} {i}".encode() for n in ("one", "two") for i in range(40)}
    assert all(value == key * 20 for key, value in found.items())


def test_a_crowd_in_a_small_file_never_reads_a_wrong_value(path: Path) -> None:
    finish(*(start(CROWD, path, seed) for seed in range(4)))
    found = content(path)
    assert found
    assert all(value == key * 30 for key, value in found.items())
    assert sum(len(k) + len(v) for k, v in found.items()) <= 2000


def test_a_process_that_just_ends_has_saved(path: Path) -> None:
    finish(start(ENDING, path))
    assert content(path) == {b"key": b"value"}


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")
def test_a_child_saves_beside_its_parent(path: Path) -> None:
    finish(start(FORKING, path))
    children = {b"child %d" % i for i in range(5)}
    assert content(path).keys() == children | {b"before", b"busy", b"after"}


def test_killed_while_saving_it_leaves_a_whole_file(path: Path) -> None:
    for number in range(3):
        process = start(WRITER, path, f"killed {number}", 1_000_000)
        end, size = time.monotonic() + 60, path.stat().st_size if path.exists() else 0
        while time.monotonic() < end and (not path.exists() or path.stat().st_size < size + 2000):
            time.sleep(0.001)
        process.kill()
        process.communicate(timeout=60)
        found = content(path)
        assert all(value == key * 20 for key, value in found.items())
        assert any(key.startswith(b"killed %d" % number) for key in found)
    finish(start(WRITER, path, "last", 1))
    assert b"last 0" in content(path)
    assert sorted(p.name for p in path.parent.iterdir()) == ["blobs", "blobs.lock"]
