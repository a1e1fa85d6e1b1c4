"""The registry's contract, and what its file is beside it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.errors import InputError, OtherVersion, RolledBack, SealBroken, Unreadable
from penstock.sealed import (
    FileKeyStore,
    FileRecord,
    FileRegistry,
    MemoryKeyStore,
    Owner,
    Row,
    replacing,
)
from penstock.sealed.locks import lock, unlock
from penstock.sealed.registry import HEAD_BYTES, MOST_BYTES, MOST_ROWS, Contents, Measure
from penstock.testing.doubles import QUICK_FILES, QuickFiles
from tests.support_sealed import put_private

pytestmark = pytest.mark.usefixtures("no_descriptor_leaks")

OWNER = Owner("lab", "1")
KEY = b"k" * 32

Make = Callable[..., FileRegistry]


def at(path: Path, owner: Owner = OWNER, key: bytes = KEY) -> FileRegistry:
    return FileRegistry(path, owner, MemoryKeyStore(key), files=QUICK_FILES)


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """A registry as a new process has it."""
    return lambda *arguments, **named: at(tmp_path / "registry", *arguments, **named)


def row(number: int, token: int = 0) -> Row:
    records = tuple(FileRecord(bytes([number, i] * 16), 1000 * number + i) for i in range(3))
    return Row(bytes([token] * 32), bytes([number] * 16), records[:2], records[2:])


def same(found: Row | None, wanted: Row) -> bool:
    return found is not None and replace(found, sequence=0) == wanted


def test_registry_file_is_made_by_the_first_change(make: Make) -> None:
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


def test_old_row_stays_until_publication_is_confirmed(make: Make) -> None:
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
    ours = at(tmp_path / "1")
    ours.begin(row(1))
    newer = at(tmp_path / "2", Owner("lab", "2"))
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
from penstock.sealed import FileKeyStore, FileRecord, FileRegistry, Owner, Row
number, path = int(sys.argv[1]), Path(sys.argv[2])
sys.stdin.read(1)
registry = FileRegistry(path / "registry", Owner("lab", "1"), FileKeyStore(path / "key"))
for token in range(8):
    made = Row(bytes([token] * 32), bytes([number] * 16), (FileRecord(bytes(32), token),), ())
    registry.begin(made)
    assert registry.find(made.token, made.entry).models == made.models
"""


def test_processes_that_start_at_once_make_one_registry(tmp_path: Path) -> None:
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(number), str(tmp_path)],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(8)
    ]
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("x")
        worker.stdin.flush()
    for worker in workers:
        _, errors = worker.communicate(timeout=60)
        assert worker.returncode == 0, errors
    registry = FileRegistry(tmp_path / "registry", OWNER, FileKeyStore(tmp_path / "key"))
    assert len(registry.rows()) == 64
    assert registry.open().changes == 64


def test_tokens_of_every_beginning_are_told_apart(tmp_path: Path) -> None:
    registry = at(tmp_path / "registry")
    for token in range(0, 256, 3):
        registry.begin(row(token, token))
    for token in range(256):
        found = registry.find(bytes([token] * 32), bytes([token] * 16))
        assert same(found, row(token, token)) if token % 3 == 0 else found is None
    assert len(registry.rows()) == 86


def test_a_directory_that_others_can_enter_is_closed(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o755)
    at(folder / "registry").begin(row(1))
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_link_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(Unreadable, match="is a link or no directory"):
        at(tmp_path / "link" / "registry").begin(row(1))
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(Unreadable, match="cannot be made"):
        at(tmp_path / "file" / "registry").begin(row(1))
    with pytest.raises(Unreadable, match="cannot be read"):
        at(tmp_path / "file" / "registry").state()


def test_the_oldest_rows_make_room(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.sealed.registry.MOST_ROWS", 3)
    registry = make()
    for number in range(6):
        registry.begin(row(number))
    assert [found.entry[0] for found in registry.rows()] == [3, 4, 5]
    assert [found.entry[0] for found in make().rows()] == [3, 4, 5]
    assert same(make().find(bytes(32), bytes([4] * 16)), row(4))


def test_a_row_that_is_inserted_again_takes_the_place_of_the_old_one(make: Make) -> None:
    registry = make()
    registry.begin(row(1))
    registry.begin(row(2))
    changed = replace(row(1), models=row(3).models)
    registry.begin(changed)
    assert same(registry.find(bytes(32), bytes([1] * 16)), changed)
    assert [found.entry[0] for found in registry.rows()] == [2, 1]


def test_rows_of_any_number_of_files_are_told_apart(make: Make) -> None:
    registry, wanted = make(), []
    for number in range(0, 33, 4):
        records = tuple(FileRecord(bytes([number, i] * 16), 1 << number) for i in range(32))
        wanted.append(Row(bytes(32), bytes([number] * 16), records[:number], records[number:]))
        registry.begin(wanted[-1])
    registry.remove(bytes(32), wanted.pop(3).entry)
    registry.remove(bytes(32), wanted.pop(0).entry)
    for found in make().rows():
        assert same(found, wanted.pop(0))
    assert not wanted


def test_a_row_that_cannot_be_is_refused(make: Make) -> None:
    many = tuple(FileRecord(bytes(32), 0) for _ in range(33))
    for wrong in (
        replace(row(1), token=bytes(31)),
        replace(row(1), entry=bytes(17)),
        replace(row(1), models=many),
        replace(row(1), datas=many),
    ):
        with pytest.raises(InputError, match="a registry's row has"):
            make().begin(wrong)
    assert make().find(bytes(31), bytes(16)) is None
    make().remove(bytes(32), bytes(15))
    assert make().state() is None


def test_a_full_registry_is_used_within_its_bounds(tmp_path: Path) -> None:
    """4,096 rows of 64 files each are the most bytes there can be."""
    path = tmp_path / "registry"
    files = tuple(FileRecord(bytes(32), i) for i in range(32))
    empty = Contents.empty(OWNER, KEY, 0)
    tokens = [number.to_bytes(32, "little") for number in range(MOST_ROWS)]
    parts = [empty.with_row(Row(token, bytes(16), files, files)) for token in tokens]
    table, records = (
        b"".join(part) for part in zip(*((p.table, p.files) for p in parts), strict=True)
    )
    contents = Contents(OWNER, KEY, empty.state, table, records)
    whole = contents.pack()
    assert len(whole) == MOST_BYTES
    put_private(path, whole)
    registry = at(path)
    assert len(registry.rows()) == MOST_ROWS
    registry.begin(row(1, 255))
    assert path.stat().st_size < MOST_BYTES
    assert len(at(path).rows()) == MOST_ROWS
    assert registry.find(bytes(32), bytes(16)) is None
    found = at(path).find(tokens[-1], bytes(16))
    assert found is not None
    assert found.datas == files


def test_the_file_is_its_owner_s_alone_whatever_the_umask(tmp_path: Path) -> None:
    for umask in (0, 0o022, 0o777):
        path = tmp_path / f"{umask:o}" / "registry"
        before = os.umask(umask)
        try:
            at(path).begin(row(1))
        finally:
            os.umask(before)
        assert path.stat().st_mode & 0o7777 == 0o600
        assert path.parent.stat().st_mode & 0o7777 == 0o700
        assert at(path).rows()


def test_a_change_waits_for_the_disk_with_the_file_and_then_with_its_name(tmp_path: Path) -> None:
    done: list[str] = []

    class Listening(QuickFiles):
        def sync(self, fd: int) -> None:
            done.append("file")

        def replace(self, source: Any, target: Any) -> None:
            super().replace(source, target)
            done.append("rename")

        def sync_directory(self, path: Any) -> None:
            assert Path(path) == tmp_path
            done.append("directory")

    FileRegistry(tmp_path / "registry", OWNER, MemoryKeyStore(KEY), files=Listening()).begin(row(1))
    assert done == ["file", "rename", "directory"]


def test_another_process_that_changes_it_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "registry"
    registry = FileRegistry(path, OWNER, MemoryKeyStore(KEY), files=QUICK_FILES, wait_seconds=0.05)
    registry.begin(row(1))
    changes = registry.open().changes
    fd = os.open(f"{path}.lock", os.O_RDWR)
    try:
        assert lock(fd, exclusive=True, timeout=0)
        began = time.monotonic()
        with pytest.raises(Unreadable, match="is being changed by another process"):
            registry.begin(row(2))
        assert 0.05 <= time.monotonic() - began < 5
        assert same(registry.find(bytes(32), bytes([1] * 16)), row(1))
        assert registry.open().changes == changes
        threading.Timer(0.2, unlock, (fd,)).start()
        at(path).begin(row(2))
    finally:
        os.close(fd)
    assert len(registry.rows()) == 2


def test_readers_in_this_process_do_not_wait_for_who_waits_for_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "registry"
    at(path).begin(row(1))
    fd = os.open(f"{path}.lock", os.O_RDWR)
    try:
        assert lock(fd, exclusive=True, timeout=0)
        waiting = threading.Thread(target=at(path).begin, args=(row(2),))
        waiting.start()
        time.sleep(0.05)
        began = time.monotonic()
        for _ in range(100):
            assert same(at(path).find(bytes(32), bytes([1] * 16)), row(1))
        assert time.monotonic() - began < 2
    finally:
        os.close(fd)
    waiting.join()
    assert len(at(path).rows()) == 2


def test_a_lock_file_that_is_removed_meanwhile_is_made_anew(make: Make, tmp_path: Path) -> None:
    registry = make()
    registry.begin(row(1))
    (tmp_path / "registry.lock").unlink()
    registry.begin(row(2))
    assert len(registry.rows()) == 2
    assert (tmp_path / "registry.lock").stat().st_mode & 0o7777 == 0o600


def test_next_change_removes_files_of_a_dead_process(make: Make, tmp_path: Path) -> None:
    make().begin(row(1))
    left, other = tmp_path / "registry.0123.tmp", tmp_path / "another.0123.tmp"
    left.write_bytes(b"")
    other.write_bytes(b"")
    make().begin(row(2))
    assert sorted(p.name for p in tmp_path.iterdir()) == [other.name, "registry", "registry.lock"]


def test_counting_key_store_gets_each_change(tmp_path: Path) -> None:
    keys = MemoryKeyStore()
    registry = FileRegistry(tmp_path / "registry", OWNER, keys, files=QUICK_FILES)
    registry.begin(row(1))
    registry.begin(row(2))
    assert list(keys.counts.values()) == [2]
    (tmp_path / "registry").unlink()
    assert FileRegistry(tmp_path / "registry", OWNER, keys).open().changes == 2


def test_a_registry_that_was_rolled_back_is_refused_where_the_key_store_counts(
    tmp_path: Path,
) -> None:
    path, keys = tmp_path / "registry", MemoryKeyStore()
    kept = []
    for number in range(5):
        FileRegistry(path, OWNER, keys, files=QUICK_FILES).begin(row(number))
        kept.append(path.read_bytes())
    for old in kept[:-1]:
        put_private(path, old)
        with pytest.raises(RolledBack):
            FileRegistry(path, OWNER, keys).find(bytes(32), bytes(16))
    put_private(path, kept[-1])
    assert len(FileRegistry(path, OWNER, keys).rows()) == 5
    put_private(path, kept[0])
    registry = FileRegistry(path, OWNER, keys, files=QUICK_FILES)
    registry.begin(row(9))
    assert [found.entry[0] for found in registry.rows()] == [9]
    assert registry.open().changes == 6


def test_a_process_that_saw_a_registry_refuses_an_older_one(make: Make, tmp_path: Path) -> None:
    registry = make()
    registry.begin(row(1))
    old = (tmp_path / "registry").read_bytes()
    registry.begin(row(2))
    put_private(tmp_path / "registry", old)
    with pytest.raises(RolledBack, match="stands at change 1, and change 2 was seen before"):
        registry.find(bytes(32), bytes([1] * 16))
    assert same(make().find(bytes(32), bytes([1] * 16)), row(1))


def test_authenticated_registry_is_not_read_again(make: Make, tmp_path: Path) -> None:
    read: list[int] = []

    class Counting(QuickFiles):
        def read_into(self, fd: int, buffer: memoryview, offset: int) -> int:
            read.append(buffer.nbytes)
            return super().read_into(fd, buffer, offset)

    make().begin(row(1))
    registry = FileRegistry(tmp_path / "registry", OWNER, MemoryKeyStore(KEY), files=Counting())
    for _ in range(3):
        assert same(registry.find(bytes(32), bytes([1] * 16)), row(1))
    size = (tmp_path / "registry").stat().st_size
    assert read == [HEAD_BYTES, size - HEAD_BYTES, HEAD_BYTES, HEAD_BYTES]
    make().begin(row(2))
    assert same(registry.find(bytes(32), bytes([2] * 16)), row(2))
    assert len(read) == 6


def test_change_does_not_authenticate_an_altered_registry(make: Make, tmp_path: Path) -> None:
    """A process that knows the registry goes on with what it knows, and writes that."""
    registry = make()
    registry.begin(row(1))
    content = bytearray((tmp_path / "registry").read_bytes())
    content[HEAD_BYTES + 60] ^= 1
    (tmp_path / "registry").write_bytes(content)
    assert same(registry.find(bytes(32), bytes([1] * 16)), row(1))
    with pytest.raises(SealBroken):
        make().find(bytes(32), bytes([1] * 16))
    registry.begin(row(2))
    assert [same(found, row(n)) for n, found in enumerate(make().rows(), 1)] == [True, True]


@pytest.mark.parametrize("platform", ["win32", "linux"])
def test_windows_waits_for_who_reads_the_file_that_is_replaced(
    tmp_path: Path, platform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Busy(QuickFiles):
        refusals = 3

        def replace(self, source: Any, target: Any) -> None:
            if self.refusals:
                self.refusals -= 1
                raise PermissionError(13, "Permission denied")
            super().replace(source, target)

    monkeypatch.setattr(replacing, "sys", SimpleNamespace(platform=platform))
    registry = FileRegistry(tmp_path / "registry", OWNER, MemoryKeyStore(KEY), files=Busy())
    if platform == "win32":
        registry.begin(row(1))
        assert len(registry.rows()) == 1
    else:
        with pytest.raises(Unreadable, match="cannot be changed: Permission denied"):
            registry.begin(row(1))
        assert registry.state() is None
    assert sorted(p.suffix for p in tmp_path.iterdir() if p.suffix) == [".lock"]


@pytest.mark.parametrize("name", ["plain", "a b", "100%", "what?mode=memory", "#1", "é", "a&b=c"])
def test_a_path_of_any_letters_is_one_file(name: str, tmp_path: Path) -> None:
    registry = FileRegistry(tmp_path / name / name, OWNER, MemoryKeyStore(KEY), files=QUICK_FILES)
    registry.begin(row(1))
    assert registry.rows()
    assert sorted(p.name for p in (tmp_path / name).iterdir()) == [name, f"{name}.lock"]


def test_repr_of_a_registry_does_not_show_the_key() -> None:
    shown = f"{Measure(KEY, 3)!r} {Contents.empty(OWNER, KEY, 0)!r}"
    assert "kkkk" not in shown
    assert "least=3" in shown
