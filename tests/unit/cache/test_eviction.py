from __future__ import annotations

import errno
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock import knobs
from penstock.cache import eviction, naming
from penstock.cache.eviction import collect, scan
from penstock.errors import NoEntry, NotYetWritten, RolledBack
from penstock.sealed import Owner
from penstock.sealed.files import StrPath
from penstock.testing.doubles import FaultyFiles, QuickFiles, failing
from tests.support_cache import NEEDED, Bench, token_of

pytestmark = pytest.mark.usefixtures("no_descriptor_leaks")

TOKENS = [token_of(n) for n in range(4)]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    bench = Bench(tmp_path)
    for token in TOKENS:
        bench.compile(token, "old")
    return bench


def there(bench: Bench) -> list[int]:
    return [n for n, token in enumerate(TOKENS) if bench.load(token, ["old"]) == "old"]


def size(bench: Bench) -> int:
    return scan(bench.directory.store)[0].nbytes


def test_the_entries_unused_for_longest_go(bench: Bench) -> None:
    assert bench.load(TOKENS[0], ["old"]) == "old"
    gone = collect(bench.directory.store, 2 * size(bench))
    assert gone == [TOKENS[1], TOKENS[2]]
    assert there(bench) == [0, 3]
    assert len(bench.names()) == 2 * 4
    assert bench.lock_files() == 2 * [".lock"]


def test_eviction_keeps_entries_within_the_limit(bench: Bench) -> None:
    assert collect(bench.directory.store, 4 * size(bench)) == []
    assert collect(bench.directory.store, None) == []
    assert there(bench) == [0, 1, 2, 3]


def test_evicted_entry_is_forgotten(bench: Bench) -> None:
    """Put back, the files of an entry that was removed are refused."""
    paths = [bench.path / name for name in naming.file_names(TOKENS[0], *NEEDED)]
    kept = [path.read_bytes() for path in paths]
    assert len(bench.registry.rows()) == 4
    assert collect(bench.directory.store, 3 * size(bench)) == [TOKENS[0]]
    assert len(bench.registry.rows()) == 3
    for path, content in zip(paths, kept, strict=True):
        path.write_bytes(content)
    assert bench.load(TOKENS[0], ["old"]) is RolledBack


def test_entries_of_other_driver_versions_are_forgotten_where_they_were_listed(
    bench: Bench,
) -> None:
    newer = replace(bench, owner=Owner("lab", "2"))
    newer.compile(token_of(9), "old")
    collect(newer.directory.store, size(bench))
    assert len(bench.registry.rows()) == 0
    assert len(newer.registry.rows()) == 1


def test_publishing_evicts(bench: Bench) -> None:
    big = token_of(9)
    with knobs.override(cache_limit_mib=1):
        lease = bench.directory.lease(big)
        assert lease is not None
        with lease, lease.create(NEEDED) as files:
            for handle in files.handles[:2]:
                os.truncate(handle.fd, 1 << 19)
            lease.publish(files, bench.record(big))
    assert there(bench) == []
    assert {path.name[:64] for path in bench.path.iterdir()} == {naming.letters_of(big)}


def test_no_limit_evicts_nothing(bench: Bench) -> None:
    with knobs.override(cache_limit_mib=0):
        bench.compile(token_of(9), "old")
    assert there(bench) == [0, 1, 2, 3]


def test_entries_that_are_read_stay(bench: Bench) -> None:
    with bench.directory.open(TOKENS[1], NEEDED):
        assert collect(bench.directory.store, 0) == [TOKENS[0], TOKENS[2], TOKENS[3]]
        assert len(bench.names()) == 4
    assert there(bench) == [1]


def test_entries_that_are_compiled_again_stay(bench: Bench) -> None:
    lease = bench.directory.lease(TOKENS[1])
    assert lease is not None
    with lease, lease.create(NEEDED) as files:
        collect(bench.directory.store, 0)
        assert there(bench) == [1]
        assert len(bench.temporaries()) == 3
        assert files.lock is not None
        lock = os.fstat(files.lock.fd)
        assert bench.lock_file(naming.lock_name(TOKENS[1])).stat().st_ino == lock.st_ino


def test_an_entry_used_since_it_was_looked_at_stays(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look into the directory and the lock somebody loads it."""
    directory = bench.directory
    take = directory.store.locks.take

    def load_first(name: str, **how: Any) -> int | None:
        if name == naming.lease_name(TOKENS[0]):
            assert bench.load(TOKENS[0], ["old"]) == "old"
        return take(name, **how)

    monkeypatch.setattr(directory.store.locks, "take", load_first)
    assert collect(directory.store, 0) == TOKENS[1:]
    assert there(bench) == [0]


class Unlinking(QuickFiles):
    def __init__(self) -> None:
        super().__init__()
        self.unlinked: list[str] = []

    def unlink(self, path: StrPath) -> None:
        self.unlinked.append(Path(path).name)
        super().unlink(path)


def test_a_lock_file_is_removed_once(bench: Bench) -> None:
    """A second time it could be that of somebody who made it anew, and then two would hold the
    lease.
    """
    files = bench.files = Unlinking()
    assert collect(bench.directory.store, 0) == TOKENS
    bench.compile(TOKENS[0], "old")
    names = [n for n in files.unlinked if n.endswith((".lock", ".lease"))]
    assert len(names) == 2 * 4 + 1
    assert len(set(names)) == 2 * 4


def test_orphans_go(bench: Bench) -> None:
    dead, partial = token_of(7), token_of(8)
    for name in (
        naming.temporary_name(naming.file_names(dead, 1, 0)[0]),
        naming.temporary_name(naming.letters_of(TOKENS[0]) + ".json"),
        naming.lock_name(dead),
        naming.lease_name(dead),
        naming.lease_name(partial),
        naming.letters_of(partial) + ".json",
    ):
        (bench.path / name).write_bytes(b"")
    assert collect(bench.directory.store, None) == []
    assert len(bench.names()) == 4 * 4
    assert there(bench) == [0, 1, 2, 3]


def test_files_of_others_stay(bench: Bench) -> None:
    for name in ("README", "notes.tmp", naming.letters_of(token_of(9)) + ".bak"):
        (bench.path / name).write_bytes(b"the user's own")
    (bench.path / "folder").mkdir()
    collect(bench.directory.store, 0)
    assert sorted(path.name for path in bench.path.iterdir()) == sorted(
        ["README", "notes.tmp", naming.letters_of(token_of(9)) + ".bak", "folder"]
    )


def test_entries_without_a_writer_go(tmp_path: Path) -> None:
    bench = Bench(tmp_path, clock=time.time)
    writer = bench.compile_later(TOKENS[0])
    assert collect(bench.directory.store, None) == []
    assert bench.load(TOKENS[0], []) is NotYetWritten
    bench.clock = lambda: time.time() + knobs.late_write_seconds()
    assert collect(bench.directory.store, None) == [TOKENS[0]]
    assert bench.load(TOKENS[0], []) is NoEntry
    assert bench.names() == []
    writer.close()


def test_an_entry_without_an_index_goes_by_the_age_of_its_files(bench: Bench) -> None:
    whole = size(bench)
    (bench.path / (naming.letters_of(TOKENS[3]) + ".json")).unlink()
    for name in naming.file_names(TOKENS[3], *NEEDED):
        os.utime(bench.path / name, (1, 1))
    assert collect(bench.directory.store, 3 * whole) == [TOKENS[3]]


def test_one_entry_that_cannot_be_removed_does_not_keep_the_others(bench: Bench) -> None:
    bench.files = FaultyFiles(0, failing(13), only=["unlink"])
    assert collect(bench.directory.store, 0) == TOKENS[1:]
    assert there(bench) == [0]


@pytest.mark.parametrize("at", range(40))
def test_a_file_that_goes_meanwhile_breaks_nothing(bench: Bench, at: int) -> None:
    bench.files = FaultyFiles(at, failing(errno.ENOENT), only=["status_of"])
    collect(bench.directory.store, 2 * 1500)
    bench.files = FaultyFiles()
    collect(bench.directory.store, 0)
    assert bench.names() == []


def test_a_full_directory_can_be_emptied(bench: Bench) -> None:
    """No lease file can be made there; nobody can have one either."""
    full = FaultyFiles()

    def refuse_new_files(path: StrPath, flags: int, mode: int = 0o600) -> int:
        if flags & os.O_CREAT and not Path(path).exists():
            raise OSError(28, "No space left on device")
        return full.inner.open(path, flags, mode)

    full.open = refuse_new_files  # type: ignore[method-assign]
    bench.files = full
    assert collect(bench.directory.store, 0) == TOKENS
    assert bench.names() == []


def test_a_compile_looks_at_so_many_files_and_removes_so_many_orphans(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever can write in the directory can fill it: what is left is for the next compile, and for
    `gc`.
    """
    monkeypatch.setattr(eviction, "MOST_FILES", 50)
    monkeypatch.setattr(eviction, "MOST_REMOVED", 7)
    for number in range(100, 200):
        (bench.path / naming.index_name(token_of(number))).touch()
    store, before = bench.directory.store, len(bench.names())
    assert sum(len(group.status) for group in scan(store, briefly=True)) == 50
    collect(store, None, briefly=True)
    assert before - len(bench.names()) == 7
    assert there(bench) == [0, 1, 2, 3]
    collect(store, None)
    assert len(bench.names()) == 4 * 4


def test_eviction_reads_a_bounded_number_of_foreign_names(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eviction, "MOST_NAMES", 10)
    for number in range(100):
        (bench.path / f"other{number}").touch()
    assert sum(len(group.status) for group in scan(bench.directory.store, briefly=True)) <= 10
    assert len(scan(bench.directory.store)) == len(TOKENS)
