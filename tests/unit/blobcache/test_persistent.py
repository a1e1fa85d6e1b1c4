"""The cache with a file: NNAPI's scenarios (upstream names in docstrings), deferred saving,
merging.
"""

from __future__ import annotations

import errno
import logging
import os
import random
import stat
import sys
import threading
import time
from pathlib import Path

import pytest

from penstock import blobcache
from penstock.errors import StateError
from tests.support_blobcache import FaultyFiles, ManualClock

LRU = blobcache.Policy(blobcache.Select.LRU, blobcache.Capacity.FIT)

every_policy = pytest.mark.parametrize(
    "policy", blobcache.POLICIES, ids=lambda p: f"{p.select.name}-{p.capacity.name}"
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "blobs"


def opened(
    path: Path, clock: ManualClock | None = None, limits: blobcache.Limits | None = None
) -> blobcache.PersistentBlobCache:
    cache = blobcache.PersistentBlobCache(path, clock=clock or ManualClock())
    cache.initialize(limits, LRU)
    return cache


def content(path: Path) -> dict[bytes, bytes]:
    """What another process would find."""
    cache = opened(path)
    found = dict(cache.items())
    assert cache.problem == ""
    return found


@every_policy
class TestNNCache:
    def test_uninitialized_cache_always_misses(self, policy: blobcache.Policy) -> None:
        """UninitializedCacheAlwaysMisses"""
        cache, out = blobcache.PersistentBlobCache(), bytearray(b"\xee" * 4)
        assert not cache.set(b"abcd", b"efgh")
        assert cache.get_into(b"abcd", out) == 0
        assert cache.get_allocated(b"abcd", bytearray) == (0, None)
        assert out == b"\xee" * 4
        assert (cache.get(b"abcd"), cache.keys(), len(cache), cache.total) == (None, [], 0, 0)
        assert not cache.delete(b"abcd")

    def test_initialized_cache_always_hits(self, policy: blobcache.Policy) -> None:
        """InitializedCacheAlwaysHits"""
        cache, out = blobcache.PersistentBlobCache(), bytearray(b"\xee" * 4)
        cache.initialize(policy=policy)
        assert cache.set(b"abcd", b"efgh")
        assert cache.get_into(b"abcd", out) == 4
        assert out == b"efgh"

    def test_terminated_cache_always_misses(self, policy: blobcache.Policy) -> None:
        """TerminatedCacheAlwaysMisses"""
        cache, out = blobcache.PersistentBlobCache(), bytearray(b"\xee" * 4)
        cache.initialize(policy=policy)
        cache.set(b"abcd", b"efgh")
        assert cache.terminate()
        assert cache.get_into(b"abcd", out) == 0
        assert not cache.set(b"abcd", b"efgh")
        assert cache.get_into(b"abcd", out) == 0
        assert out == b"\xee" * 4

    def test_exceeding_total_limit_fits_big_entry(self, policy: blobcache.Policy) -> None:
        """ExceedingTotalLimitFitsBigEntry"""
        cache = blobcache.PersistentBlobCache(seed=3)
        cache.initialize(blobcache.Limits(key=6, value=8, total=13), policy)
        for i in range(6):
            cache.set(bytes([i]), b"x")
        fits = policy.capacity is not blobcache.Capacity.HALVE
        assert cache.set(b"\x06", b"\xee" * 8) == fits
        assert (len(cache), cache.total) == ((3, 13) if fits else (3, 6))

    def test_reinitialized_cache_contains_values(
        self, policy: blobcache.Policy, path: Path
    ) -> None:
        """ReinitializedCacheContainsValues"""
        cache, out = blobcache.PersistentBlobCache(), bytearray(b"\xee" * 4)
        cache.set_path(path)
        cache.initialize(policy=policy)
        cache.set(b"abcd", b"efgh")
        assert cache.terminate()
        cache.initialize(policy=policy)
        assert cache.get_allocated(b"abcd", bytearray) == (4, bytearray(b"efgh"))
        assert cache.get_into(b"abcd", out) == 4
        assert out == b"efgh"

    def test_reinitialized_cache_contains_values_size_constrained(
        self, policy: blobcache.Policy, path: Path
    ) -> None:
        """ReinitializedCacheContainsValuesSizeConstrained"""
        cache = blobcache.PersistentBlobCache(path)
        cache.initialize(blobcache.Limits(key=6, value=10), policy)
        for key, value in [(b"abcd", b"efgh"), (b"abcdef", b"ijkl"), (b"ab", b"abcdefghij")]:
            assert cache.set(key, value)
            assert cache.get(key) == value
        assert cache.terminate()
        cache.initialize(blobcache.Limits(key=5, value=7), policy)
        assert cache.get(b"abcd") == b"efgh"
        assert cache.get(b"abcdef") is None
        assert cache.get(b"ab") is None


def test_sets_within_the_delay_are_one_save(path: Path) -> None:
    clock = ManualClock()
    cache = opened(path, clock)
    for key in (b"a", b"b", b"c"):
        assert cache.set(key, b"value")
        clock.advance(1)
    assert len(clock.waiting) == 1
    assert not path.exists()
    clock.advance(0.9)
    assert not path.exists()
    clock.advance(0.2)
    assert content(path).keys() == {b"a", b"b", b"c"}
    assert clock.waiting == []
    cache.set(b"d", b"value")
    assert len(clock.waiting) == 1
    clock.advance(4)
    assert b"d" in content(path)


def test_gets_alone_save_nothing_until_the_end(path: Path) -> None:
    with opened(path) as first:
        first.set(b"a", b"1")
        first.set(b"b", b"1")
    clock, before = ManualClock(), path.read_bytes()
    cache = opened(path, clock)
    assert cache.get(b"a") == b"1"
    assert clock.waiting == []
    assert path.read_bytes() == before
    cache.terminate()
    assert [*content(path)] == [b"b", b"a"]


def test_terminate_saves_at_once_and_nothing_later(path: Path) -> None:
    clock = ManualClock()
    cache = opened(path, clock)
    cache.set(b"a", b"1")
    assert cache.terminate()
    assert content(path) == {b"a": b"1"}
    path.unlink()
    clock.advance(100)
    assert not path.exists()
    assert cache.terminate()


def test_the_timer_thread_saves(path: Path) -> None:
    cache = blobcache.PersistentBlobCache(path, save_delay=0.01)
    cache.initialize()
    for i in range(50):
        cache.set(bytes([i]), b"value")
    end = time.monotonic() + 10
    while time.monotonic() < end and not path.exists():
        time.sleep(0.005)
    assert cache.terminate()
    assert len(content(path)) == 50


def test_the_file_is_read_at_the_first_use(path: Path) -> None:
    first = opened(path)
    second = opened(path)
    first.set(b"a", b"1")
    first.save()
    assert second.get(b"a") == b"1"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such modes")
def test_files_are_for_the_owner_alone(path: Path) -> None:
    with opened(path) as cache:
        cache.set(b"a", b"1")
    assert sorted(p.name for p in path.parent.iterdir()) == ["blobs", "blobs.lock"]
    assert {stat.S_IMODE(p.stat().st_mode) for p in path.parent.iterdir()} == {0o600}


def test_states_are_kept(path: Path) -> None:
    cache = opened(path)
    with pytest.raises(StateError, match="is initialized"):
        cache.initialize()
    cache.set_path(path.with_name("other"))
    cache.set(b"a", b"1")
    with pytest.raises(StateError, match="in use"):
        cache.set_path(path)
    assert cache.path == path.with_name("other")
    cache.terminate()
    cache.set_path(None)
    assert cache.path is None


def test_open_is_for_with(path: Path) -> None:
    with blobcache.PersistentBlobCache.open(path, blobcache.Limits(total=1000), LRU) as cache:
        assert cache.set(b"a", b"1")
        assert b"a" in cache
    assert cache.get(b"a") is None
    assert content(path) == {b"a": b"1"}


def test_another_version_starts_empty_and_replaces(path: Path) -> None:
    for build in ("one", "two", "two"):
        cache = blobcache.PersistentBlobCache(
            path, version=blobcache.Version(build=build), clock=ManualClock()
        )
        cache.initialize()
        cache.set(build.encode(), b"x")
        assert cache.terminate()
        assert cache.problem == ""
    last = blobcache.PersistentBlobCache(path, version=blobcache.Version(build="two"))
    last.initialize()
    assert last.keys() == [b"two"]


def test_two_holders_keep_each_others_entries(path: Path) -> None:
    first, second = opened(path), opened(path)
    assert first.get(b"x") is second.get(b"x") is None
    for i in range(10):
        first.set(b"first %d" % i, b"1")
        second.set(b"second %d" % i, b"2")
        assert first.save()
        assert second.save()
    assert len(content(path)) == 20
    assert len(second) == 20
    first.set(b"last", b"1")
    assert first.save()
    assert len(first) == 21


def test_entry_freed_by_one_cache_is_freed_for_all(path: Path) -> None:
    first = opened(path)
    for key in (b"keep", b"stale 1", b"stale 2"):
        first.set(key, b"artefact")
    first.save()
    second = opened(path)
    assert len(second) == 3
    for key in first.keys():  # noqa: SIM118  # a list: deleting goes on
        if key.startswith(b"stale"):
            assert first.delete(key)
    first.save()
    second.set(b"new", b"artefact")
    second.save()
    assert content(path).keys() == second_keys(second) == {b"keep", b"new"}


def second_keys(cache: blobcache.PersistentBlobCache) -> set[bytes]:
    return set(cache.keys())


def test_a_value_set_again_elsewhere_outlives_freeing_it_here(path: Path) -> None:
    first = opened(path)
    first.set(b"key", b"old")
    first.save()
    second = opened(path)
    assert second.get(b"key") == b"old"
    first.delete(b"key")
    second.set(b"key", b"new")
    assert second.save()
    assert first.save()
    assert content(path) == {b"key": b"new"}


def test_the_last_to_save_a_key_has_it(path: Path) -> None:
    first, second = opened(path), opened(path)
    first.set(b"key", b"1")
    second.set(b"key", b"2")
    first.save()
    second.save()
    first.set(b"other", b"1")
    first.save()
    assert content(path) == {b"key": b"2", b"other": b"1"}


def test_order_of_last_use_is_kept_across_holders(path: Path) -> None:
    limits = blobcache.Limits(total=10)
    first = opened(path, limits=limits)
    for key in b"abcde":
        first.set(bytes([key]), b"v")
    first.save()
    second = opened(path, limits=limits)
    assert second.get(b"a") == b"v"
    assert second.terminate()  # it only read, and yet its use counts
    third = opened(path, limits=limits)
    third.set(b"f", b"v")
    assert third.keys() == [b"c", b"d", b"e", b"a", b"f"]
    third.terminate()
    assert [*content(path)] == [b"c", b"d", b"e", b"a", b"f"]


def test_unchanged_cache_is_not_written(path: Path) -> None:
    with opened(path) as cache:
        cache.set(b"a", b"1")
        cache.set(b"b", b"2")
    files = FaultyFiles()
    again = blobcache.PersistentBlobCache(path, files=files, clock=ManualClock())
    again.initialize(policy=LRU)
    assert again.get(b"a")
    assert again.get(b"b")
    again.set(b"b", b"2")
    assert again.terminate()
    assert "write" not in files.log
    assert "replace" not in files.log


def test_merging_stays_within_the_limits(path: Path) -> None:
    limits = blobcache.Limits(total=20)
    holders = [opened(path, limits=limits) for _ in range(3)]
    draw = random.Random(4)
    for _ in range(100):
        cache = draw.choice(holders)
        cache.set(bytes([draw.randrange(40)]), bytes(draw.randrange(1, 6)))
        assert cache.save()
        assert cache.total <= 20
        assert dict(cache.items()) == content(path)


def test_a_deleted_file_takes_nothing_along(path: Path) -> None:
    cache = opened(path)
    cache.set(b"a", b"1")
    cache.save()
    path.unlink()
    cache.set(b"b", b"2")
    assert cache.save()
    assert content(path) == {b"a": b"1", b"b": b"2"}


@pytest.mark.parametrize("damage", ["flip", "cut", "append", "empty", "foreign"])
def test_a_damaged_file_is_a_miss_with_its_reason(
    path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(path) as cache:
        cache.set(b"a", b"1")
    data = path.read_bytes()
    flipped = data[:-8] + bytes([data[-8] ^ 1]) + data[-7:]
    wrong = {
        "flip": flipped,
        "cut": data[:-1],
        "append": data + b"\0",
        "empty": b"",
        "foreign": b"x" * 64,
    }
    path.write_bytes(wrong[damage])
    again = opened(path)
    with caplog.at_level(logging.WARNING, "penstock.blobcache"):
        assert again.get(b"a") is None
    assert "was not believed" in again.problem
    assert again.problem in caplog.text
    again.set(b"b", b"2")
    assert again.save()
    assert again.problem == ""
    assert content(path) == {b"b": b"2"}


def test_each_single_bit_and_each_length_is_a_miss(path: Path) -> None:
    with opened(path) as cache:
        cache.set(b"a", b"1")
    right = path.read_bytes()
    logging.getLogger("penstock.blobcache").disabled = True
    try:
        for bit in range(8 * len(right)):
            wrong = bytearray(right)
            wrong[bit // 8] ^= 1 << bit % 8
            path.write_bytes(wrong)
            assert opened(path).keys() == []
        for size in set(range(len(right) + 257)) - {len(right)}:
            path.write_bytes((right + bytes(257))[:size])
            assert opened(path).keys() == []
    finally:
        logging.getLogger("penstock.blobcache").disabled = False
    path.write_bytes(right)
    assert content(path) == {b"a": b"1"}


def test_a_file_too_large_for_the_limits_is_not_read(path: Path) -> None:
    with opened(path) as cache:
        cache.set(b"a", bytes(5000))
    small = opened(path, limits=blobcache.Limits(total=10))
    assert small.keys() == []
    assert "more than the 160 bytes that these limits allow" in small.problem


@pytest.mark.skipif(sys.platform == "win32", reason="needs links and pipes")
@pytest.mark.parametrize("kind", ["link", "pipe", "directory"])
def test_irregular_file_is_neither_read_nor_replaced(path: Path, kind: str) -> None:
    target = path.with_name("target")
    with opened(target) as cache:
        cache.set(b"a", b"1")
    if kind == "link":
        path.symlink_to(target)
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    before = path.lstat()
    cache = opened(path)
    assert cache.get(b"a") is None
    assert "was not read" in cache.problem
    cache.set(b"b", b"2")
    assert not cache.save()
    assert "was not written" in cache.problem
    assert cache.get(b"b") == b"2"
    assert path.lstat().st_ino == before.st_ino
    assert content(target) == {b"a": b"1"}


def test_a_missing_directory_is_no_cache_with_the_reason(tmp_path: Path) -> None:
    cache = opened(tmp_path / "none" / "blobs")
    assert cache.set(b"a", b"1")
    assert cache.get(b"a") == b"1"
    assert not cache.terminate()
    assert "was not written" in cache.problem


def test_reading_alone_does_not_complain_where_nothing_can_be_written(path: Path) -> None:
    with opened(path) as cache:
        cache.set(b"a", b"1")
        cache.set(b"b", b"1")
    files = FaultyFiles(fail_at=4, error=PermissionError(errno.EACCES, "read-only"))
    reader = blobcache.PersistentBlobCache(path, files=files, clock=ManualClock())
    reader.initialize(policy=LRU)
    assert reader.get(b"a") == b"1"
    assert reader.terminate()
    assert files.log[4] == "open_lock"
    assert reader.problem == ""


def test_a_lock_held_elsewhere_is_waited_for_until_the_timeout(path: Path) -> None:
    clock, files = ManualClock(), FaultyFiles()
    cache = blobcache.PersistentBlobCache(path, clock=clock, files=files, lock_timeout=2)
    cache.initialize()
    cache.set(b"a", b"1")
    held = files.open_lock(path.with_name("blobs.lock"))
    assert files.try_lock(held)
    assert not cache.save()
    assert "has held the lock" in cache.problem
    assert 2 <= clock.now() < 2.1
    files.unlock(held)
    files.close(held)
    assert cache.save()
    assert cache.problem == ""
    assert content(path) == {b"a": b"1"}


def test_a_lock_file_removed_meanwhile_is_made_anew(path: Path) -> None:
    class Tidied(FaultyFiles):
        def try_lock(self, fd: int) -> bool:
            if self.log.count("try_lock") < 2:
                path.with_name("blobs.lock").unlink()
            return super().try_lock(fd)

    files = Tidied()
    cache = blobcache.PersistentBlobCache(path, files=files, clock=ManualClock())
    cache.initialize()
    cache.set(b"a", b"1")
    assert cache.save()
    assert files.log.count("open_lock") == files.log.count("unlock") == 3
    assert files.open == set()
    assert content(path) == {b"a": b"1"}


def test_a_thread_that_cannot_be_started_leaves_saving_to_the_end(path: Path) -> None:
    class NoThreads(ManualClock):
        def after(self, seconds: float, action: object) -> object:  # type: ignore[override]
            raise RuntimeError("can't start new thread")

    cache = opened(path, NoThreads())
    assert cache.set(b"a", b"1")
    assert "will be written at the end" in cache.problem
    assert cache.terminate()
    assert content(path) == {b"a": b"1"}


def test_the_allocator_may_use_the_cache(path: Path) -> None:
    cache = opened(path)
    cache.set(b"a", b"value")

    def allocate(size: int) -> bytearray:
        cache.delete(b"a")
        return bytearray(size)

    assert cache.get_allocated(b"a", allocate) == (5, bytearray(b"value"))
    assert b"a" not in cache


def test_changes_during_a_save_are_kept_for_the_next(path: Path) -> None:
    class Busy(FaultyFiles):
        def sync(self, fd: int) -> None:
            cache.set(b"during", b"2")
            cache.delete(b"gone")
            super().sync(fd)

    other = opened(path)
    other.set(b"theirs", b"3")
    other.save()
    cache = blobcache.PersistentBlobCache(path, files=Busy(), clock=ManualClock())
    cache.initialize(policy=LRU)
    cache.set(b"before", b"1")
    cache.set(b"gone", b"1")
    other.set(b"theirs too", b"3")
    other.save()
    assert cache.save()
    assert set(cache.keys()) == {b"theirs", b"theirs too", b"before", b"during"}
    assert content(path).keys() == {b"theirs", b"theirs too", b"before", b"gone"}
    assert cache.save()
    assert content(path) == dict(cache.items())


@pytest.mark.parametrize("kept", [True, False])
def test_nothing_grows_with_the_number_of_calls(path: Path, kept: bool) -> None:
    cache = blobcache.PersistentBlobCache(path / "missing" if kept else None, clock=ManualClock())
    cache.initialize(blobcache.Limits(total=100), LRU)
    for i in range(2000):
        cache.set(b"%d" % i, b"value")
        cache.get(b"%d" % i)
        if i % 100 == 0:
            assert cache.save() != kept
    assert cache.total <= 100
    assert len(cache._used) < 100


def test_set_during_termination_is_refused(path: Path) -> None:
    answers = []

    class Busy(FaultyFiles):
        def sync(self, fd: int) -> None:
            answers.append((cache.set(b"late", b"2"), cache.get(b"a")))
            super().sync(fd)

    cache = blobcache.PersistentBlobCache(path, files=Busy(), clock=ManualClock())
    cache.initialize()
    cache.set(b"a", b"1")
    assert cache.terminate()
    assert answers == [(False, None)]
    assert content(path) == {b"a": b"1"}


def test_uses_before_a_failed_save_count_in_the_next(path: Path) -> None:
    with opened(path) as first:
        for key in (b"a", b"b", b"c"):
            first.set(key, b"1")
    files = FaultyFiles(fail_at=4, error=OSError(errno.ENOSPC, "full"))
    cache = blobcache.PersistentBlobCache(path, files=files, clock=ManualClock())
    cache.initialize(policy=LRU)
    assert cache.get(b"a") == b"1"
    cache.set(b"d", b"1")
    assert not cache.save()
    assert cache.save()
    assert [*content(path)] == [b"b", b"c", b"a", b"d"]


def test_threads_share_one_cache(path: Path) -> None:
    cache = blobcache.PersistentBlobCache(path, save_delay=0.001)
    cache.initialize()
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for i in range(40):
                key = b"%d %d" % (number, i)
                assert cache.set(key, key)
                assert cache.get(key) == key
                if i % 10 == 0:
                    assert cache.save()
        except BaseException as error:  # noqa: BLE001  # told below
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert cache.terminate()
    found = content(path)
    assert len(found) == 160
    assert all(k == v for k, v in found.items())
