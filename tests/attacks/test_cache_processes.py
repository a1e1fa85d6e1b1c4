"""Processes that start, compile, read, evict, verify and die on one cache directory."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.cache.eviction import collect
from penstock.errors import ForeignEntry, NoEntry, NotYetWritten
from tests.support_cache import ProcessBench, token_of

pytestmark = pytest.mark.usefixtures("no_descriptor_leaks")

ROOT = Path(__file__).resolve().parents[2]
PROCESSES = 8

# One process: `act` runs until the time is over and counts what came of it.
WORKER = """
import json, random, sys, time
from collections import Counter
from pathlib import Path
from penstock.cache import Cache
from penstock.errors import CacheError
from tests.support_cache import ProcessBench, token_of

role, root, number, seconds = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
bench, seen, draw = ProcessBench(root), Counter(), random.Random(number)
TEXTS = [f"by {n}" for n in range(8)]

def once(token):
    found = bench.load(token, TEXTS)
    if isinstance(found, str):
        return "hit"
    lease = bench.directory.lease(token)
    if lease is None:
        return "not leased"
    with lease:
        if lease.waited and isinstance(bench.load(token, TEXTS), str):
            return "waited and hit"
        bench.compile_under(lease, token, TEXTS[number])
        return "compiled"

def compile_again(token):
    lease = bench.directory.lease(token, wait_ns=20_000_000)
    if lease is None:
        return "not leased"
    with lease:
        bench.compile_under(lease, token, TEXTS[number])
    return "replaced"

def read(token):
    found = bench.load(token, TEXTS)
    return "hit" if isinstance(found, str) else found.__name__

def evict(token):
    cache = Cache(bench.path)
    cache._cache = bench.directory
    return f"removed {bool(cache.gc(draw.choice([0, 1500, 3000])))}"

def verify(token):
    cache = Cache(bench.path)
    cache._cache = bench.directory
    names = {type(error).__name__ for _, error in cache.verify() if error}
    seen.update(names)
    return "verified"

print("ready", flush=True)
sys.stdin.readline()
until = time.monotonic() + seconds
act = {"once": once, "write": compile_again, "read": read, "evict": evict, "verify": verify}[role]
while True:
    try:
        seen[act(token_of(draw.randrange(4) if role != "once" else 0))] += 1
    except CacheError as error:
        seen[type(error).__name__] += 1
    if time.monotonic() >= until:
        break
print(json.dumps(seen))
"""


@contextmanager
def workers(
    root: Path, roles: Sequence[str], seconds: float
) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that start their work together."""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, role, str(root), str(number), str(seconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for number, role in enumerate(roles)
    ]
    try:
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n", process.communicate()
        for process in started:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


def results(processes: Sequence[subprocess.Popen[str]]) -> Counter[str]:
    seen: Counter[str] = Counter()
    for process in processes:
        said, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        seen.update(json.loads(said))
    return seen


def test_processes_that_start_together_compile_once(tmp_path: Path) -> None:
    with workers(tmp_path, ["once"] * PROCESSES, 0) as started:
        seen = results(started)
    assert seen["compiled"] == 1
    assert seen["hit"] + seen["waited and hit"] == PROCESSES - 1


def test_concurrent_readers_get_only_whole_entries(tmp_path: Path) -> None:
    """Writers that replace each other's entries, readers, an evictor and a verifier."""
    roles = ["write", "write", "write", "read", "read", "once", "evict", "verify"]
    with workers(tmp_path, roles, 3.0) as started:
        seen = results(started)
    assert seen["replaced"] > 10
    assert seen["hit"] > 10
    assert seen["removed True"] > 0
    assert seen["verified"] > 0
    assert set(seen) <= {
        "replaced",
        "not leased",
        "hit",
        "waited and hit",
        "compiled",
        "removed True",
        "removed False",
        "verified",
        "NoEntry",
    }, seen


def test_processes_that_are_killed_leave_nothing_that_lasts(tmp_path: Path) -> None:
    """Four writers die at any moment; who comes later finds whole entries or named misses, and
    cleans up.
    """
    draw = random.Random(5)
    with workers(tmp_path, ["write"] * 4, 60.0) as started:
        for process in started:
            time.sleep(draw.uniform(0.1, 0.4))
            process.kill()
    bench = ProcessBench(tmp_path)
    texts = [f"by {n}" for n in range(8)]
    for token in map(token_of, range(4)):
        found = bench.load(token, texts)
        assert found in texts or found in {NoEntry, ForeignEntry, NotYetWritten}
        bench.compile(token, "by 0")
        assert bench.load(token, texts) == "by 0"
    collect(bench.directory.store, None)
    assert bench.names() == sorted([".json", "10", "11", "20"] * 4)
