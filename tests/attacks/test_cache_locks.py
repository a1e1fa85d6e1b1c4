"""A hostile process that locks whatever it can open and claims to compile: no compile waits for it,
fails or is late.

It stands for another user who can write in the cache directory, and for a driver that keeps the
lock it was lent.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import penstock
from penstock.cache import Cache
from penstock.cache.claim import Claim, Now
from penstock.cache.naming import lease_name, letters_of, lock_name
from penstock.compilation.step_receipt import CacheOutcome
from penstock.processes import boot
from penstock.testing.lab import LabDevice
from tests.support_attacks import layer

pytestmark = pytest.mark.usefixtures("no_descriptor_leaks")

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 5.0

HOLDER = """
import os, sys
from penstock.sealed.locks import lock
held = [os.open(path, os.O_RDWR) for path in sys.argv[1:]]
for fd in held:
    assert lock(fd, exclusive=True, timeout=0)
print("held", flush=True)
sys.stdin.readline()
"""


@contextmanager
def held_by_another(*paths: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, *map(str, paths)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


def claim() -> bytes:
    """Of this process, which lives, for a thousand years."""
    return Claim.of_this_process(Now(time.time(), time.monotonic(), boot()), 3e10).pack()


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PENSTOCK_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


def compiled(cache: Path, timeout: float | None = SECONDS) -> CacheOutcome:
    """What the receipt says of a compile, which ended in time."""
    began = time.monotonic()
    with penstock.compile(layer(1), devices=[LabDevice()], cache=cache, timeout=timeout) as made:
        outcome = made.receipt.steps[0].cache
    assert timeout is None or time.monotonic() - began < timeout
    return outcome


def in_cache_directory(cache: Path, token: bytes) -> list[Path]:
    """Lock files of earlier versions: every writer of the directory can open them."""
    lease, lock = cache / lease_name(token), cache / lock_name(token)
    lease.write_bytes(claim())
    lock.touch()
    return [lease, lock]


def token_of(cache: Path) -> bytes:
    (entry,) = Cache(cache).entries()
    return entry.token


def test_no_compile_looks_at_locks_in_the_cache_directory(tmp_path: Path, state: Path) -> None:
    cache = tmp_path / "cache"
    assert compiled(cache).saved
    token = token_of(cache)
    with held_by_another(*in_cache_directory(cache, token)):
        assert compiled(cache).outcome == "hit"
        next(cache.glob("*10")).write_bytes(b"damaged")
        found = compiled(cache)
        assert (found.outcome, found.saved, found.not_saved) == ("miss", True, "")
        assert compiled(cache).outcome == "hit"


def test_lock_files_of_earlier_versions_are_removed(tmp_path: Path, state: Path) -> None:
    cache = tmp_path / "cache"
    compiled(cache)
    token = token_of(cache)
    other = bytes(reversed(token))
    in_cache_directory(cache, token)
    in_cache_directory(cache, other)
    next(cache.glob(f"{letters_of(token)}10")).write_bytes(b"damaged")
    assert compiled(cache).saved
    assert sorted(path.suffix for path in cache.iterdir()) == ["", "", "", ".json"]


def locks_in(state: Path) -> list[Path]:
    return sorted((state / "locks").iterdir())


def test_lock_files_are_private_to_the_user(tmp_path: Path, state: Path) -> None:
    compiled(tmp_path / "cache")
    assert [path.suffix for path in locks_in(state)] == [".lock"]
    if os.name == "posix":
        assert (state / "locks").stat().st_mode & 0o777 == 0o700
        assert {path.stat().st_mode & 0o777 for path in locks_in(state)} == {0o600}


@pytest.mark.parametrize("damaged", [False, True], ids=["entry", "damaged entry"])
def test_a_driver_that_keeps_its_lock_for_ever_costs_a_part_of_the_time(
    tmp_path: Path, state: Path, damaged: bool
) -> None:
    cache = tmp_path / "cache"
    compiled(cache)
    if damaged:
        next(cache.glob("*10")).write_bytes(b"damaged")
    with held_by_another(*locks_in(state)) as holder:
        found = compiled(cache)
        assert found.outcome == "miss"
        assert found.reason.startswith("NotYetWritten: ")
        assert "stays in use by others" in found.not_saved
        holder.kill()
        holder.wait()
        found = compiled(cache)
    assert (found.outcome, found.saved) == (("miss", True) if damaged else ("hit", False))
    assert compiled(cache).outcome == "hit"


def test_a_held_lease_of_a_living_process_costs_half_of_the_time(
    tmp_path: Path, state: Path
) -> None:
    cache = tmp_path / "cache"
    compiled(cache)
    next(cache.glob("*10")).write_bytes(b"damaged")
    (lock,) = locks_in(state)
    lease = lock.with_suffix(".lease")
    lease.write_bytes(claim())
    with held_by_another(lease) as holder:
        began = time.monotonic()
        found = compiled(cache)
        assert time.monotonic() - began < 0.8 * SECONDS
        assert f"process {os.getpid()} was still compiling it" in found.not_saved
        holder.kill()
        holder.wait()
        assert compiled(cache).saved
    assert locks_in(state) == [lock]


@pytest.mark.skipif(os.name != "posix", reason="a file in place of a directory")
def test_compile_goes_on_without_a_state_directory(tmp_path: Path, state: Path) -> None:
    cache = tmp_path / "cache"
    compiled(cache)
    (state / "locks" / "x").touch()
    for path in locks_in(state):
        path.unlink()
    (state / "locks").rmdir()
    (state / "locks").touch()
    assert compiled(cache, None).outcome == "hit"
    next(cache.glob("*10")).write_bytes(b"damaged")
    found = compiled(cache, None)
    assert (found.outcome, found.saved) == ("miss", False)
    assert f"{state / 'locks'} cannot be made" in found.not_saved
