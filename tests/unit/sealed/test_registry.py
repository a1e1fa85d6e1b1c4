"""The registry's contract, on each implementation; and what the database is beside it."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from penstock.blobcache import PersistentBlobCache
from penstock.errors import OtherVersion, RegistryMissing, RolledBack, SealBroken, Unreadable
from penstock.sealed import (
    BlobRegistry,
    FileRecord,
    MemoryKeyStore,
    Owner,
    Registry,
    Row,
    SqliteRegistry,
    blob_registry,
    registry_changes,
    sqlite_registry,
)
from penstock.sealed.locks import lock
from penstock.sealed.sqlite_registry import uri_of
from tests.support_sealed import Rig, quick_connect

pytestmark = pytest.mark.usefixtures("no_descriptor_leaks")

OWNER = Owner("lab", "1")
KEYS = MemoryKeyStore(b"k" * 32)

Make = Callable[..., Registry]


def sqlite(path: Path, owner: Owner = OWNER, key: bytes = b"k" * 32) -> Registry:
    return SqliteRegistry(path, owner, MemoryKeyStore(key), connect=quick_connect)


def blobs(path: Path, owner: Owner = OWNER, key: bytes = b"k" * 32) -> Registry:
    return BlobRegistry(path, owner, MemoryKeyStore(key))


MAKERS: dict[str, Make] = {"sqlite": sqlite, "blobs": blobs}


@pytest.fixture(params=MAKERS)
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    maker = MAKERS[request.param]
    return lambda *arguments, **named: maker(tmp_path / "registry", *arguments, **named)


def row(number: int, token: int = 0) -> Row:
    records = tuple(FileRecord(bytes([number, i] * 16), 1000 * number + i) for i in range(3))
    return Row(bytes([token] * 32), bytes([number] * 16), records[:2], records[2:])


def same(found: Row | None, wanted: Row) -> bool:
    return found is not None and replace(found, sequence=0) == wanted


def test_there_is_none_before_the_first_change(make: Make) -> None:
    registry = make()
    assert registry.state() is None
    assert registry.find(bytes(32), bytes(16)) is None
    assert registry.rows() == ()
    registry.remove(bytes(32), bytes(16))
    registry.publish(bytes(32), bytes(16), [bytes(16)])
    assert registry.state() is None


def test_rows_survive_the_process(make: Make) -> None:
    make().begin(row(1))
    assert same(make().find(bytes(32), bytes([1] * 16)), row(1))
    assert make().find(bytes(32), bytes([2] * 16)) is None
    assert make().find(b"\1" * 32, bytes([1] * 16)) is None


def test_publication_keeps_the_old_row_until_it_is_told(make: Make) -> None:
    registry = make()
    registry.begin(row(1))
    registry.begin(row(2))
    assert same(registry.find(bytes(32), bytes([1] * 16)), row(1))
    registry.publish(bytes(32), bytes([2] * 16), [bytes([1] * 16)])
    assert registry.find(bytes(32), bytes([1] * 16)) is None
    assert same(registry.find(bytes(32), bytes([2] * 16)), row(2))


def test_an_entry_never_replaces_itself(make: Make) -> None:
    registry = make()
    registry.begin(row(1))
    registry.publish(bytes(32), bytes([1] * 16), [bytes([1] * 16)])
    assert same(registry.find(bytes(32), bytes([1] * 16)), row(1))


def test_rows_of_other_tokens_stay(make: Make) -> None:
    registry = make()
    for token in range(3):
        registry.begin(row(1, token))
    registry.remove(b"\1" * 32, bytes([1] * 16))
    assert {found.token[0] for found in registry.rows()} == {0, 2}
    registry.clear()
    assert registry.rows() == ()
    assert registry.state() is not None


def test_every_change_counts(make: Make) -> None:
    registry = make()
    first = registry.open()
    counts = [first.changes]
    acts: list[Callable[[], None]] = [
        lambda: registry.begin(row(1)),
        lambda: registry.begin(row(2)),
        lambda: registry.remove(bytes(32), bytes([1] * 16)),
        registry.clear,
    ]
    for act in acts:
        act()
        state = registry.open()
        assert state.registry == first.registry
        counts.append(state.changes)
    assert counts == sorted(set(counts))
    registry.remove(bytes(32), bytes([9] * 16))
    assert registry.open().changes == counts[-1]


def test_another_version_starts_empty_and_leaves_this_one(tmp_path: Path) -> None:
    ours = sqlite(tmp_path / "1")
    ours.begin(row(1))
    newer = sqlite(tmp_path / "2", Owner("lab", "2"))
    assert newer.rows() == ()
    newer.begin(row(2))
    assert same(ours.find(bytes(32), bytes([1] * 16)), row(1))


@pytest.mark.parametrize("owner", [Owner("lab", "2"), Owner("labs", "1")])
def test_another_owner_s_registry_is_not_read(make: Make, owner: Owner) -> None:
    make().begin(row(1))
    with pytest.raises((OtherVersion, SealBroken)):
        make(owner).rows()
    assert make(owner).open().registry != make(owner, key=b"K" * 32).open().registry


def test_another_key_s_registry_is_not_read(make: Make) -> None:
    make().begin(row(1))
    with pytest.raises(SealBroken, match="altered, or sealed with another key"):
        make(key=b"K" * 32).find(bytes(32), bytes([1] * 16))


def test_threads_that_change_it_at_once_lose_nothing(make: Make) -> None:
    make().open()
    start = threading.Barrier(4)
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            start.wait()
            registry = make()
            for token in range(5):
                registry.begin(row(number, token))
                assert same(
                    registry.find(bytes([token] * 32), bytes([number] * 16)), row(number, token)
                )
        except BaseException as error:  # noqa: BLE001  # shown by the asserting thread
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(make().rows()) == 20


WORKER = """
import sys
from pathlib import Path
import penstock.sealed
from penstock.sealed import FileKeyStore, FileRecord, Owner, Row
number, path = int(sys.argv[1]), Path(sys.argv[2])
kind = getattr(penstock.sealed, sys.argv[3])
sys.stdin.read(1)
registry = kind(path / "registry", Owner("lab", "1"), FileKeyStore(path / "key"))
for token in range(8):
    made = Row(bytes([token] * 32), bytes([number] * 16), (FileRecord(bytes(32), token),), ())
    registry.begin(made)
    assert registry.find(made.token, made.entry).models == made.models
"""


@pytest.mark.parametrize("kind", [SqliteRegistry, BlobRegistry])
def test_processes_that_start_at_once_make_one_registry(
    tmp_path: Path, kind: type[SqliteRegistry | BlobRegistry]
) -> None:
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(number), str(tmp_path), kind.__name__],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(4)
    ]
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("x")
        worker.stdin.flush()
    for worker in workers:
        _, errors = worker.communicate(timeout=60)
        assert worker.returncode == 0, errors
    from penstock.sealed import FileKeyStore

    registry = kind(tmp_path / "registry", OWNER, FileKeyStore(tmp_path / "key"))
    assert len(registry.rows()) == 32
    assert registry.open().changes == 32


FAR = 255
"""A token's first byte that puts it into another bucket than zeros."""
ELSEWHERE = f"WHERE token = x'{bytes([FAR] * 32).hex()}'"
TAMPERING = {
    "altered": f"UPDATE entry SET sequence = 9 {ELSEWHERE}",
    "removed": f"DELETE FROM entry {ELSEWHERE}",
    "added": f"INSERT INTO entry SELECT token, zeroblob(16), 1, 1, files, mac FROM entry {ELSEWHERE}",
    "authentication": f"UPDATE entry SET mac = zeroblob(32) {ELSEWHERE}",
}


def tampered(path: Path, statement: str) -> Registry:
    """A registry with a row of token 0 and one of token 255, which somebody without the key changed."""
    registry = sqlite(path)
    registry.begin(row(1))
    registry.begin(row(2, FAR))
    assert same(registry.find(bytes([FAR] * 32), bytes([2] * 16)), row(2, FAR))
    database = sqlite3.connect(path)
    database.execute(statement)
    database.commit()
    database.close()
    return sqlite(path)


def found_far(registry: Registry) -> Row | None:
    return registry.find(bytes([FAR] * 32), bytes([2] * 16))


@pytest.mark.parametrize("name", TAMPERING)
def test_a_find_believes_the_rows_of_tokens_like_its_own_alone(tmp_path: Path, name: str) -> None:
    registry = tampered(tmp_path / "registry", TAMPERING[name])
    assert same(registry.find(bytes(32), bytes([1] * 16)), row(1))
    with pytest.raises(SealBroken):
        found_far(registry)
    with pytest.raises(SealBroken):
        registry.rows()


@pytest.mark.parametrize("name", TAMPERING)
def test_a_change_elsewhere_does_not_make_tampered_rows_authentic(
    tmp_path: Path, name: str
) -> None:
    registry = tampered(tmp_path / "registry", TAMPERING[name])
    registry.begin(row(3))
    registry.remove(bytes(32), bytes([1] * 16))
    with pytest.raises(SealBroken):
        found_far(registry)


def test_a_change_beside_an_altered_row_does_not_make_it_authentic(tmp_path: Path) -> None:
    registry = tampered(tmp_path / "registry", TAMPERING["altered"])
    registry.begin(row(3, FAR))
    assert same(registry.find(bytes([FAR] * 32), bytes([3] * 16)), row(3, FAR))
    with pytest.raises(SealBroken):
        found_far(registry)


@pytest.mark.parametrize("name", ["removed", "added", "authentication"])
def test_a_change_among_tampered_rows_makes_the_registry_anew(tmp_path: Path, name: str) -> None:
    registry = tampered(tmp_path / "registry", TAMPERING[name])
    with pytest.raises(SealBroken):
        registry.remove(bytes([FAR] * 32), bytes([2] * 16))
    before, file = registry.open().registry, (tmp_path / "registry").stat().st_ino
    registry.begin(row(3, FAR))
    assert [found.entry[0] for found in registry.rows()] == [3]
    assert registry.open().registry != before
    # Not by taking the file away from other processes.
    assert (tmp_path / "registry").stat().st_ino == file
    registry.clear()
    assert registry.rows() == ()


@pytest.mark.parametrize("name", TAMPERING)
def test_digests_that_fit_tampered_rows_are_not_believed_without_the_key(
    tmp_path: Path, name: str
) -> None:
    path = tmp_path / "registry"
    registry = tampered(path, TAMPERING[name])
    database = sqlite3.connect(path)
    digests = [sqlite_registry.read_bucket(database, bucket)[0] for bucket in range(64)]
    database.execute("UPDATE registry SET buckets = ?", (b"".join(digests),))
    database.commit()
    database.close()
    with pytest.raises(SealBroken):
        found_far(registry)
    if name != "altered":
        with pytest.raises(SealBroken, match="altered, or sealed with another key"):
            registry.find(bytes(32), bytes([1] * 16))


def test_tokens_of_every_beginning_are_told_apart(tmp_path: Path) -> None:
    registry = sqlite(tmp_path / "registry")
    for token in range(0, 256, 3):
        registry.begin(row(token, token))
    for token in range(256):
        found = registry.find(bytes([token] * 32), bytes([token] * 16))
        assert same(found, row(token, token)) if token % 3 == 0 else found is None
    assert len(registry.rows()) == 86


def test_the_database_is_its_owner_s_alone_and_durable(tmp_path: Path) -> None:
    said: list[str] = []

    def listening(path: str) -> sqlite3.Connection:
        connection = sqlite_registry.connect(path)
        connection.set_trace_callback(said.append)
        return connection

    path = tmp_path / "deep" / "registry"
    registry = SqliteRegistry(path, OWNER, KEYS, connect=listening)
    registry.begin(row(1))
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert "PRAGMA synchronous = FULL" in said
    assert "PRAGMA trusted_schema = OFF" in said
    with sqlite3.connect(path) as database:
        assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    database.close()


def test_a_directory_that_others_can_enter_is_closed(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o755)
    sqlite(folder / "registry").begin(row(1))
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_link_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(Unreadable, match="is a link or no directory"):
        sqlite(tmp_path / "link" / "registry").begin(row(1))
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(Unreadable, match="cannot be made"):
        sqlite(tmp_path / "file" / "registry").begin(row(1))
    with pytest.raises(Unreadable, match="cannot be read"):
        sqlite(tmp_path / "file" / "registry").state()


def test_the_oldest_rows_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_changes, "MOST_ROWS", 3)
    registry = sqlite(tmp_path / "registry")
    for number in range(6):
        registry.begin(row(number))
    assert sorted(found.entry[0] for found in registry.rows()) == [3, 4, 5]


def test_a_database_that_is_locked_is_told(tmp_path: Path) -> None:
    def impatient(path: str) -> sqlite3.Connection:
        return sqlite3.connect(f"file:{path}?mode=rw", uri=True, timeout=0, isolation_level=None)

    registry = SqliteRegistry(tmp_path / "registry", OWNER, KEYS, connect=impatient)
    registry.begin(row(1))
    holder = sqlite3.connect(tmp_path / "registry", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(Unreadable, match="locked"):
        registry.begin(row(2))
    assert same(registry.find(bytes(32), bytes([1] * 16)), row(1))
    holder.close()
    registry.begin(row(2))


def test_a_key_store_that_counts_is_told_of_each_change(tmp_path: Path) -> None:
    keys = MemoryKeyStore()
    registry = SqliteRegistry(tmp_path / "registry", OWNER, keys, connect=quick_connect)
    registry.begin(row(1))
    registry.begin(row(2))
    assert list(keys.counts.values()) == [2]
    (tmp_path / "registry").unlink()
    assert SqliteRegistry(tmp_path / "registry", OWNER, keys).open().changes == 2


def test_an_evicted_row_of_a_blob_registry_is_a_miss(tmp_path: Path) -> None:
    registry = BlobRegistry(tmp_path / "registry", OWNER, KEYS, most_bytes=60_000)
    first = registry.open()
    many = tuple(FileRecord(bytes([i] * 32), i) for i in range(32))
    for number in range(40):
        registry.begin(Row(bytes(32), number.to_bytes(16, "little"), many, many))
    found = registry.rows()
    assert 15 < len(found) < 40
    assert registry.find(bytes(32), bytes(16)) is None
    newest = registry.find(bytes(32), (39).to_bytes(16, "little"))
    assert newest is not None
    assert newest.models == newest.datas == many
    assert registry.open().registry == first.registry


def test_a_blob_registry_without_room_says_so(tmp_path: Path) -> None:
    registry = BlobRegistry(tmp_path / "registry", OWNER, KEYS, most_bytes=300)
    registry.open()
    with pytest.raises(Unreadable, match="no room for the entry"):
        registry.begin(row(1))
    assert registry.rows() == ()
    with pytest.raises(Unreadable, match="no room for its state"):
        BlobRegistry(tmp_path / "smaller", OWNER, KEYS, most_bytes=100).open()


def test_a_blob_registry_that_is_damaged_is_none(tmp_path: Path) -> None:
    path = tmp_path / "registry"
    blobs(path).begin(row(1))
    whole = path.read_bytes()
    for place in range(0, len(whole), 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        assert blobs(path).state() is None
    path.write_bytes(whole)
    assert same(blobs(path).find(bytes(32), bytes([1] * 16)), row(1))


def test_a_blob_registry_that_was_forged_is_refused(tmp_path: Path) -> None:
    """Somebody without the key writes blobs of a valid file."""
    path = tmp_path / "registry"
    blobs(path).begin(row(1))
    keys = sorted(dict(PersistentBlobCache.open(path).items()))
    assert len(keys) == 2
    for key in keys:
        blobs(path).clear()
        blobs(path).begin(row(1))
        with PersistentBlobCache.open(path) as cache:
            value = cache.get(key)
            assert value is not None
            cache.set(key, value[:-1] + bytes([value[-1] ^ 1]))
        with pytest.raises(SealBroken):
            blobs(path).find(bytes(32), bytes([1] * 16))
        with PersistentBlobCache.open(path) as cache:
            cache.set(key, b"short")
        with pytest.raises(SealBroken):
            blobs(path).rows()
        path.unlink()


def test_rows_that_somebody_removed_from_a_blob_registry_or_put_back_are_noticed(
    tmp_path: Path,
) -> None:
    path = tmp_path / "registry"
    registry = blobs(path)
    registry.begin(row(1))
    key = next(key for key, _ in PersistentBlobCache.open(path).items() if key != b"state")
    with PersistentBlobCache.open(path) as cache:
        value = cache.get(key)
        assert value is not None
    registry.begin(row(2))
    registry.remove(bytes(32), bytes([1] * 16))
    assert same(registry.find(bytes(32), bytes([2] * 16)), row(2))
    with PersistentBlobCache.open(path) as cache:
        cache.set(key, value)
    with pytest.raises(SealBroken, match="added or removed"):
        registry.find(bytes(32), bytes([1] * 16))
    with PersistentBlobCache.open(path) as cache:
        cache.delete(key)
    assert same(registry.find(bytes(32), bytes([2] * 16)), row(2))
    with PersistentBlobCache.open(path) as cache:
        cache.delete(key[:36] + bytes([2] * 16))
    with pytest.raises(SealBroken, match="added or removed"):
        registry.find(bytes(32), bytes([2] * 16))
    registry.begin(row(3))
    assert [found.entry[0] for found in registry.rows()] == [3]


def test_a_blob_registry_that_another_process_changes_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blob_registry, "_LOCK_SECONDS", 0.0)
    registry = blobs(tmp_path / "registry")
    registry.begin(row(1))
    fd = os.open(tmp_path / "registry.changes", os.O_RDWR)
    try:
        assert lock(fd, exclusive=True, timeout=0)
        with pytest.raises(Unreadable, match="another process"):
            registry.begin(row(2))
        assert same(registry.find(bytes(32), bytes([1] * 16)), row(1))
    finally:
        os.close(fd)
    registry.begin(row(2))


def test_a_rolled_back_blob_registry_is_refused_where_the_key_store_counts(tmp_path: Path) -> None:
    path, keys = tmp_path / "registry", MemoryKeyStore()
    BlobRegistry(path, OWNER, keys).begin(row(1))
    old = path.read_bytes()
    BlobRegistry(path, OWNER, keys).begin(row(2))
    path.write_bytes(old)
    with pytest.raises(RolledBack):
        BlobRegistry(path, OWNER, keys).find(bytes(32), bytes([1] * 16))
    registry = BlobRegistry(path, OWNER, keys)
    registry.begin(row(3))
    assert [found.entry[0] for found in registry.rows()] == [3]


def test_a_blob_registry_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "registry").mkdir()
    with pytest.raises(Unreadable):
        blobs(tmp_path / "registry").begin(row(1))


def test_entries_load_by_a_blob_registry(tmp_path: Path) -> None:
    keys = MemoryKeyStore()
    rig = Rig(tmp_path, keys=keys, registry=lambda: BlobRegistry(tmp_path / "blobs", OWNER, keys))
    assert rig.saved()
    assert rig.saved()
    assert len(rig.registry().rows()) == 1
    (tmp_path / "blobs").unlink()
    assert rig.refuses(RegistryMissing)
    assert rig.saved("elsewhere", token=bytes([1] * 32))
    assert rig.refuses(RegistryMissing)
    assert rig.saved()


@pytest.mark.parametrize("name", ["plain", "a b", "100%", "what?mode=memory", "#1", "é", "a&b=c"])
def test_a_path_of_any_letters_is_one_database(name: str, tmp_path: Path) -> None:
    assert uri_of(tmp_path / name) == (tmp_path / name).as_uri()
    registry = SqliteRegistry(tmp_path / name / name, OWNER, KEYS)
    registry.begin(row(1))
    assert registry.rows()
    assert (tmp_path / name / name).is_file()
