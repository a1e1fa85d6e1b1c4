"""Entries found, published, replaced and explained, in one process."""

from __future__ import annotations

import errno
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock import errors, knobs
from penstock.cache import naming
from penstock.cache.directory import CacheDirectory
from penstock.cache.store import Store, _ends_with_a_seal
from penstock.distribution import BY_THE_PROGRAM
from penstock.hal import CacheHandle, CancelToken
from penstock.sealed import EntryFiles
from penstock.sealed.locks import lock, unlock
from penstock.testing.doubles import FaultyFiles, ReadOnlyFiles, failing
from tests.support_cache import NEEDED, OWNER, Bench, payloads_of, token_of

pytestmark = pytest.mark.usefixtures("no_descriptor_leaks")

TOKEN = token_of(1)
TEXTS = ("old", "new")


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def paths(bench: Bench, token: bytes = TOKEN) -> list[Path]:
    return [bench.path / name for name in naming.file_names(token, *NEEDED)]


def opens(bench: Bench, token: bytes = TOKEN) -> None:
    with bench.directory.open(token, NEEDED):
        pass


def test_nothing_is_touched_before_the_first_lease(tmp_path: Path) -> None:
    directory = CacheDirectory(tmp_path / "a" / "b")
    with pytest.raises(errors.NoEntry, match="NoEntry: nothing is cached here"):
        directory.open(TOKEN, NEEDED)
    directory.touch(TOKEN)
    assert directory.record(TOKEN) is None
    assert directory.records() == []
    assert directory.nearest({"structure": "1"}) is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name != "posix", reason="permission bits are POSIX's")
def test_a_directory_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "a" / "b")
    (tmp_path / "a").mkdir(0o755)
    lease = bench.directory.lease(TOKEN)
    assert lease is not None
    lease.close()
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o755
    for made in (tmp_path / "a" / "b", bench.path):
        assert stat.S_IMODE(made.stat().st_mode) == 0o700


def test_published_entry_is_found(bench: Bench) -> None:
    bench.compile(TOKEN, "old")
    assert bench.load(TOKEN, TEXTS) == "old"
    assert bench.names() == [".json", "10", "11", "20"]
    assert bench.load(token_of(2), TEXTS) is errors.NoEntry


@pytest.mark.skipif(os.name != "posix", reason="permission bits are POSIX's")
def test_files_are_the_owners_alone(bench: Bench) -> None:
    bench.compile(TOKEN, "old")
    assert {stat.S_IMODE(p.stat().st_mode) for p in bench.path.iterdir()} == {0o600}


def test_an_entry_is_replaced_and_the_old_one_forgotten(bench: Bench) -> None:
    bench.compile(TOKEN, "old")
    old = [path.read_bytes() for path in paths(bench)]
    bench.compile(TOKEN, "new")
    assert bench.load(TOKEN, TEXTS) == "new"
    assert len(bench.registry.rows()) == 1
    for path, content in zip(paths(bench), old, strict=True):
        path.write_bytes(content)
    assert bench.load(TOKEN, TEXTS) is errors.RolledBack


def test_open_entry_stays_readable_after_its_replacement(bench: Bench) -> None:
    bench.compile(TOKEN, "old")
    lease = bench.directory.lease(TOKEN)
    assert lease is not None
    with lease, lease.create(NEEDED) as files:
        with bench.directory.open(TOKEN, NEEDED) as found:
            old = [os.pread(handle.fd, 4096, 0) for handle in found.handles]
            kept = [CacheHandle(os.dup(handle.fd)) for handle in found.handles]
        *model, data = payloads_of("new")
        bench.seal().save(
            EntryFiles(files.model, files.data, TOKEN, bench.binding), model=model, data=[data]
        )
        lease.publish(files, bench.record(TOKEN))
    assert [os.pread(handle.fd, 4096, 0) for handle in kept] == old
    assert {os.fstat(handle.fd).st_nlink for handle in kept} == {0}
    for handle in kept:
        os.close(handle.fd)


def test_entry_on_a_read_only_mount_is_read_without_a_lock_for_late_writes(bench: Bench) -> None:
    bench.compile(TOKEN, "old")
    bench.files = ReadOnlyFiles(bench.path)
    with bench.directory.open(TOKEN, NEEDED) as files:
        assert files.lock is None
        for handle in files.handles:
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.pwrite(handle.fd, b"x", 0)
    assert bench.load(TOKEN, TEXTS) == "old"
    assert bench.directory.record(TOKEN) is not None
    assert bench.directory.touch(TOKEN)
    assert bench.names() == [".json", "10", "11", "20"]


def test_entry_on_a_read_only_mount_is_read_without_its_lock_file(bench: Bench) -> None:
    bench.compile(TOKEN, "old")
    bench.lock_file(naming.lock_name(TOKEN)).unlink()
    bench.files = ReadOnlyFiles(bench.path)
    assert bench.load(TOKEN, TEXTS) == "old"
    assert bench.load(token_of(2), TEXTS) is errors.NoEntry


def test_entry_locked_by_a_writer_is_not_read_from_a_read_only_mount(bench: Bench) -> None:
    bench.compile(TOKEN, "old")
    held = os.open(bench.lock_file(naming.lock_name(TOKEN)), os.O_RDWR)
    assert lock(held, exclusive=True, timeout=0)
    bench.files = ReadOnlyFiles(bench.path)
    with pytest.raises(errors.NotYetWritten, match="being written at this moment"):
        bench.directory.open(TOKEN, NEEDED, deadline_ns=time.monotonic_ns())
    unlock(held)
    os.close(held)
    assert bench.load(TOKEN, TEXTS) == "old"


def test_files_for_a_new_entry_on_a_read_only_mount_are_refused_by_name(bench: Bench) -> None:
    bench.compile(TOKEN, "old")
    bench.files = ReadOnlyFiles(bench.path)
    lease = bench.directory.lease(token_of(2))
    assert lease is not None
    with lease, pytest.raises(errors.ReadOnly, match=r"cannot be written: Read-only file system"):
        lease.create(NEEDED)


def test_handles_are_open_for_reading_and_writing_and_closed_once(bench: Bench) -> None:
    bench.compile(TOKEN, "old")
    files = bench.directory.open(TOKEN, NEEDED)
    assert (len(files.model), len(files.data)) == NEEDED
    for handle in files.handles:
        assert os.pwrite(handle.fd, os.pread(handle.fd, 1, 0), 0) == 1
    assert files.lock is not None
    fds = [handle.fd for handle in (*files.handles, files.lock)]
    files.close()
    files.close()
    for fd in fds:
        with pytest.raises(OSError, match="descriptor"):
            os.fstat(fd)


def test_the_drivers_lock_is_an_opening_of_its_own(bench: Bench) -> None:
    """So that a driver which keeps a duplicate does not wait for the runtime's lock to be its
    own.
    """
    bench.compile(TOKEN, "old")
    with bench.directory.open(TOKEN, NEEDED) as files:
        assert files.lock is not None
        kept = os.dup(files.lock.fd)
        assert not lock(kept, exclusive=True, timeout=0)
    try:
        assert lock(kept, exclusive=True, timeout=0)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("penstock.cache.store.LOCK_SECONDS", 0.05)
            with pytest.raises(errors.NotYetWritten, match="at this moment"):
                opens(bench)
        unlock(kept)
        opens(bench)
    finally:
        os.close(kept)


def test_a_wait_for_who_writes_is_cancelled_soon(bench: Bench) -> None:
    bench.compile(TOKEN, "old")
    writing = os.open(bench.lock_file(naming.lock_name(TOKEN)), os.O_RDWR)
    try:
        assert lock(writing, exclusive=True, timeout=0)
        cancel = CancelToken()
        timer = threading.Timer(0.05, cancel.set)
        timer.start()
        began = time.monotonic()
        with pytest.raises(errors.Cancelled):
            bench.directory.open(TOKEN, NEEDED, cancel=cancel)
        assert time.monotonic() - began < 5
        timer.join()
    finally:
        os.close(writing)


@contextmanager
def locked_elsewhere(bench: Bench, token: bytes = TOKEN, *, exclusive: bool) -> Iterator[None]:
    fd = os.open(bench.lock_file(naming.lock_name(token)), os.O_RDWR)
    try:
        assert lock(fd, exclusive=exclusive, timeout=0)
        yield
    finally:
        os.close(fd)


def after(ms: int) -> int:
    return time.monotonic_ns() + ms * 1_000_000


def test_a_wait_for_who_writes_ends_at_the_deadline(bench: Bench) -> None:
    bench.compile(TOKEN, "old")
    with locked_elsewhere(bench, exclusive=True):
        began = time.monotonic()
        with pytest.raises(errors.NotYetWritten, match="at this moment"):
            bench.directory.open(TOKEN, NEEDED, deadline_ns=after(80))
        assert 0.01 <= time.monotonic() - began < 5
        (bench.path / (naming.letters_of(TOKEN) + ".json")).unlink()
        assert bench.directory.record(TOKEN, deadline_ns=after(0)) is None
        assert time.monotonic() - began < 5


def published_while_read(bench: Bench, **limits: Any) -> None:
    lease = bench.directory.lease(TOKEN)
    assert lease is not None
    with lease, lease.create(NEEDED) as files:
        *model, data = payloads_of("new")
        bench.seal().save(
            EntryFiles(files.model, files.data, TOKEN, bench.binding), model=model, data=[data]
        )
        with locked_elsewhere(bench, exclusive=False):
            lease.publish(files, bench.record(TOKEN), **limits)


def test_a_publication_gives_up_before_the_deadline(bench: Bench) -> None:
    bench.compile(TOKEN, "old")
    deadline_ns = after(400)
    with pytest.raises(errors.Unreadable, match=r"stays in use by others .* within 0\.0\d+ s"):
        published_while_read(bench, deadline_ns=deadline_ns)
    assert time.monotonic_ns() < deadline_ns
    assert bench.temporaries() == []
    assert bench.load(TOKEN, TEXTS) == "old"
    assert len(bench.registry.rows()) == 1


def test_a_publication_is_cancelled_soon(bench: Bench) -> None:
    bench.compile(TOKEN, "old")
    cancel = CancelToken()
    timer = threading.Timer(0.1, cancel.set)
    timer.start()
    began = time.monotonic()
    with pytest.raises(errors.Cancelled):
        published_while_read(bench, cancel=cancel)
    assert time.monotonic() - began < 5
    timer.join()
    assert bench.temporaries() == []
    assert bench.load(TOKEN, TEXTS) == "old"


def test_readers_do_not_exclude_each_other(bench: Bench) -> None:
    bench.compile(TOKEN, "old")
    with bench.directory.open(TOKEN, NEEDED), bench.directory.open(TOKEN, NEEDED):
        pass


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_an_entry_that_lacks_a_file_is_none(bench: Bench, gone: int) -> None:
    bench.compile(TOKEN, "old")
    paths(bench)[gone].unlink()
    assert bench.load(TOKEN, TEXTS) is errors.NoEntry
    name = ("model file 0", "model file 1", "data file 0")[gone]
    with pytest.raises(errors.NoEntry, match=f"the entry lacks {name}"):
        opens(bench)
    bench.lock_file(naming.lock_name(TOKEN)).unlink()
    with pytest.raises(errors.NoEntry, match=f"the entry lacks {name}"):
        opens(bench)
    bench.compile(TOKEN, "new")
    assert bench.load(TOKEN, TEXTS) == "new"


def test_files_of_two_entries_are_refused(bench: Bench) -> None:
    bench.compile(TOKEN, "old")
    old = paths(bench)[0].read_bytes()
    bench.compile(TOKEN, "new")
    paths(bench)[0].write_bytes(old)
    assert bench.load(TOKEN, TEXTS) is errors.ForeignEntry


def symlink(path: Path, other: Path) -> None:
    path.unlink()
    path.symlink_to(other)


def hard_link(path: Path, other: Path) -> None:
    path.unlink()
    path.hardlink_to(other)


def pipe(path: Path, other: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.skipif(os.name != "posix", reason="links and pipes as POSIX has them")
@pytest.mark.parametrize("place", ["10", "11", "20", ".json"])
@pytest.mark.parametrize("put", [symlink, hard_link, pipe])
def test_links_and_pipes_are_refused_and_replaced(
    bench: Bench, tmp_path: Path, place: str, put: Callable[[Path, Path], None]
) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"the user's own")
    bench.compile(TOKEN, "old")
    assert bench.load(TOKEN, TEXTS) == "old"
    put(bench.path / (naming.letters_of(TOKEN) + place), other)
    assert bench.load(TOKEN, TEXTS) == ("old" if place == ".json" else errors.NotRegularFile)
    assert (bench.directory.record(TOKEN) is None) == (place == ".json")
    bench.compile(TOKEN, "new")
    assert bench.load(TOKEN, TEXTS) == "new"
    assert bench.directory.record(TOKEN) is not None
    assert other.read_bytes() == b"the user's own"


@pytest.mark.skipif(os.name != "posix", reason="links and pipes as POSIX has them")
@pytest.mark.parametrize("name", [naming.lock_name(TOKEN), naming.lease_name(TOKEN)])
@pytest.mark.parametrize("put", [symlink, hard_link, pipe])
def test_a_link_in_place_of_a_lock_file_is_replaced(
    bench: Bench, tmp_path: Path, name: str, put: Callable[[Path, Path], None]
) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"the user's own")
    bench.compile(TOKEN, "old")
    bench.lock_file(name).touch()
    put(bench.lock_file(name), other)
    assert bench.load(TOKEN, TEXTS) == "old"
    bench.compile(TOKEN, "new")
    assert bench.load(TOKEN, TEXTS) == "new"
    assert other.read_bytes() == b"the user's own"


def test_a_directory_in_place_of_a_file_is_refused(bench: Bench) -> None:
    bench.compile(TOKEN, "old")
    paths(bench)[0].unlink()
    paths(bench)[0].mkdir()
    assert bench.load(TOKEN, TEXTS) is errors.NotRegularFile
    with pytest.raises(errors.Unreadable, match=r"...10 is a directory .*: remove it"):
        bench.compile(TOKEN, "new")
    assert bench.temporaries() == []
    paths(bench)[0].rmdir()
    bench.compile(TOKEN, "new")
    assert bench.load(TOKEN, TEXTS) == "new"


@pytest.mark.parametrize("role", ["lease", "lock", "index"])
def test_a_directory_in_place_of_any_other_file_is_named(bench: Bench, role: str) -> None:
    bench.compile(TOKEN, "old")
    in_place = {
        "lease": bench.lock_file(naming.lease_name(TOKEN)),
        "lock": bench.lock_file(naming.lock_name(TOKEN)),
        "index": bench.path / naming.index_name(TOKEN),
    }[role]
    in_place.unlink(missing_ok=True)
    in_place.mkdir()
    with pytest.raises(errors.Unreadable) as caught:
        bench.compile(TOKEN, "new")
    short = in_place.with_name(f"{in_place.name[:8]}...{in_place.suffix}")
    assert str(caught.value).startswith(f"Unreadable: {short} is a directory")
    in_place.rmdir()
    bench.compile(TOKEN, "new")
    assert bench.load(TOKEN, TEXTS) == "new"


@pytest.mark.skipif(os.name != "posix", reason="symbolic links")
def test_a_link_to_nothing_is_named(tmp_path: Path) -> None:
    (tmp_path / "cache").symlink_to(tmp_path / "gone")
    with pytest.raises(errors.Unreadable, match="cannot be made: it is a symbolic link to nothing"):
        CacheDirectory(tmp_path / "cache").lease(TOKEN)


def test_a_lost_lock_file_is_made_again(bench: Bench) -> None:
    bench.compile(TOKEN, "old")
    bench.lock_file(naming.lock_name(TOKEN)).unlink()
    assert bench.load(TOKEN, TEXTS) == "old"


def test_one_empty_file_is_for_the_driver_to_refuse(bench: Bench) -> None:
    bench.compile(TOKEN, "old")
    os.truncate(paths(bench)[1], 0)
    assert bench.load(TOKEN, TEXTS) is errors.WrongLength


def test_an_entry_that_is_to_be_written_later_is_not_yet_written(bench: Bench) -> None:
    writer = bench.compile_later(TOKEN)
    with pytest.raises(errors.NotYetWritten, match=f"process {os.getpid()} has not written"):
        opens(bench)
    writer.close()


def test_empty_entry_without_a_writer_is_named(bench: Bench) -> None:
    writer = bench.compile_later(TOKEN)
    bench.clock.now += knobs.late_write_seconds()
    with pytest.raises(errors.NotYetWritten, match="nobody is going to"):
        opens(bench)
    writer.close()


def test_a_driver_that_wrote_nothing_is_not_published(bench: Bench) -> None:
    lease = bench.directory.lease(TOKEN)
    assert lease is not None
    with lease, lease.create(NEEDED) as files:
        with pytest.raises(errors.NotYetWritten, match="wrote nothing"):
            lease.publish(files, bench.record(TOKEN))
        with pytest.raises(errors.StateError, match="published or discarded"):
            lease.publish(files, bench.record(TOKEN))
    assert bench.names() == []


def test_files_that_are_not_published_go_with_the_lease(bench: Bench) -> None:
    lease = bench.directory.lease(TOKEN)
    assert lease is not None
    with lease:
        files = lease.create(NEEDED)
        assert len(bench.temporaries()) == 3
    assert bench.temporaries() == []
    files.close()
    with pytest.raises(errors.StateError, match="given up"):
        lease.create(NEEDED)
    lease.close()


def test_an_entry_of_no_files_is_none(bench: Bench) -> None:
    with pytest.raises(errors.NoEntry, match="no cache files"):
        bench.directory.open(TOKEN, (0, 0))


def test_a_record_of_another_entry_is_refused(bench: Bench) -> None:
    lease = bench.directory.lease(TOKEN)
    assert lease is not None
    with (
        lease,
        lease.create((1, 1)) as files,
        pytest.raises(errors.InputError, match="another entry"),
    ):
        lease.publish(files, bench.record(TOKEN))


def test_an_entry_that_stays_in_use_is_not_replaced(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.cache.store.LOCK_SECONDS", 0.05)
    bench.compile(TOKEN, "old")
    with (
        bench.directory.open(TOKEN, NEEDED),
        pytest.raises(errors.Unreadable, match="stays in use"),
    ):
        bench.compile(TOKEN, "new")
    assert bench.temporaries() == []
    assert bench.load(TOKEN, TEXTS) == "old"
    assert len(bench.registry.rows()) == 1


def test_files_are_closed_before_they_are_renamed_where_that_is_asked_for(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows does not rename an open file."""
    monkeypatch.setattr("penstock.cache.lease.sys", SimpleNamespace(platform="win32"))
    counting = bench.files = FaultyFiles(only=["close", "replace"])
    bench.compile(TOKEN, "old")
    assert bench.load(TOKEN, TEXTS) == "old"
    assert counting.log.index("replace") > 3


def test_the_users_own_key_and_registries_serve_where_none_are_given(tmp_path: Path) -> None:
    with knobs.override(state_dir=str(tmp_path / "state"), key_store="file"):
        bench = Bench(tmp_path)
        directory = CacheDirectory(bench.path)
        seal = directory.store.seal(OWNER.driver, OWNER.version, NEEDED, BY_THE_PROGRAM)
        lease = directory.lease(TOKEN)
        assert lease is not None
        *model, data = payloads_of("old")
        with lease, lease.create(NEEDED) as files:
            seal.save(
                EntryFiles(files.model, files.data, TOKEN, bench.binding), model=model, data=[data]
            )
            lease.publish(files, bench.record(TOKEN, structure="1"))
        assert directory.nearest({}) == directory.record(TOKEN)
        with directory.open(TOKEN, NEEDED) as files:
            loaded = seal.load(EntryFiles(files.model, files.data, TOKEN, bench.binding))
        assert [bytes(view) for view in (*loaded.model, *loaded.data)] == [*model, data]
        assert len(seal.registry.rows()) == 1


def test_an_entry_that_goes_while_it_is_opened_is_none(bench: Bench) -> None:
    bench.compile(TOKEN, "old")
    lock = bench.lock_file(naming.lock_name(TOKEN))
    for at in range(4):
        lock.unlink(missing_ok=True)
        bench.files = FaultyFiles(at, failing(errno.ENOENT), only=["open"])
        assert bench.load(TOKEN, TEXTS) in {errors.NoEntry, "old"}


def test_no_entry_is_larger_than_the_whole_cache(bench: Bench) -> None:
    lease = bench.directory.lease(TOKEN)
    assert lease is not None
    with knobs.override(cache_limit_mib=1), lease, lease.create(NEEDED) as files:
        os.truncate(files.data[0].fd, (1 << 20) + 1)
        with pytest.raises(errors.Unreadable, match=r"1048577 bytes.*cache_limit_mib \(1\)"):
            lease.publish(files, bench.record(TOKEN))
    assert bench.temporaries() == []


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("only", ["mkdir", "open", "write", "replace", "sync_directory"])
def test_a_directory_that_cannot_be_written_is_named(bench: Bench, only: str, code: int) -> None:
    bench.files = FaultyFiles(0, failing(code), only=[only])
    if only == "open":  # after those of the lease
        bench.files = FaultyFiles(3, failing(code), only=[only])
    if only == "write":  # the driver's own report has that reason
        bench.files = FaultyFiles(0, failing(code), only=["truncate"])
    with pytest.raises(errors.CacheError, match=os.strerror(code)) as caught:
        bench.compile(TOKEN, "old")
    read_only = only == "open" and code in {errno.EROFS, errno.EACCES}
    assert caught.type is (errors.ReadOnly if read_only else errors.Unreadable)
    assert bench.temporaries() == []
    assert bench.load(TOKEN, TEXTS) is errors.NoEntry
    assert bench.registry.rows() == ()


def test_a_file_system_without_a_root_is_named() -> None:
    files = FaultyFiles(0, failing(errno.ENOENT), only=["mkdir"])
    with pytest.raises(errors.Unreadable, match="cannot be made: No such file"):
        CacheDirectory(Store("/", files)).lease(TOKEN)


def test_a_link_that_somebody_else_has_replaced_by_now_is_not_removed_again(bench: Bench) -> None:
    bench.compile(TOKEN, "old")
    name = bench.lock_file(naming.lock_name(TOKEN))
    other = bench.root / "other"
    other.hardlink_to(name)
    bench.files = FaultyFiles(0, other.unlink, only=["status_of"])
    inode = name.stat().st_ino
    lent = bench.directory.store.locks.lend(naming.lock_name(TOKEN))
    assert lent is not None
    os.close(lent.fd)
    assert name.stat().st_ino == inode


def test_a_parent_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(errors.Unreadable, match="cannot be made"):
        CacheDirectory(tmp_path / "file" / "cache").lease(TOKEN)


def test_unusable_cache_directory_is_named(tmp_path: Path) -> None:
    place = tmp_path / "cache"
    place.write_bytes(b"")
    directory, letters = CacheDirectory(place), naming.letters_of(TOKEN)
    with pytest.raises(errors.Unreadable) as opened:
        directory.open(TOKEN, (1, 0))
    lease = directory.lease(TOKEN)
    assert lease is not None
    with lease, pytest.raises(errors.Unreadable) as leased:
        lease.create((1, 0))
    for raised in (opened, leased):
        assert str(place) in str(raised.value)
        assert letters not in str(raised.value)
    place.unlink()
    place.mkdir()
    (place / f"{letters}10").symlink_to(tmp_path)
    with pytest.raises(errors.NotRegularFile) as linked:
        directory.open(TOKEN, (1, 0))
    assert f"{place}/{letters[:8]}...10 is a link" in str(linked.value)


def test_index_records_the_ingredients_of_an_entry(bench: Bench) -> None:
    bench.compile(TOKEN, "old", structure="1", options="a")
    bench.compile(token_of(2), "old", structure="1", options="b")
    bench.compile(token_of(3), "old", structure="2", options="c")
    directory = bench.directory
    record = directory.record(TOKEN)
    assert record is not None
    assert record.ingredients == {"structure": "1", "options": "a"}
    assert (record.device, record.version) == (OWNER.driver, OWNER.version)
    assert [r.ingredients["options"] for r in directory.records()] == ["c", "b", "a"]
    nearest = directory.nearest({"structure": "1", "options": "z"})
    assert nearest is not None
    assert nearest.token == token_of(2).hex()
    directory.touch(TOKEN)
    assert directory.nearest({"structure": "1", "options": "z"}) == record


def test_an_altered_index_explains_nothing_and_breaks_nothing(bench: Bench) -> None:
    bench.compile(TOKEN, "old", structure="1")
    path = bench.path / (naming.letters_of(TOKEN) + ".json")
    path.write_bytes(path.read_bytes().replace(b'"1"', b'"2"'))
    assert bench.directory.record(TOKEN) is None
    assert bench.directory.records() == []
    assert bench.load(TOKEN, TEXTS) == "old"
    path.write_bytes(b"{" * (2 << 20))
    assert bench.directory.record(TOKEN) is None


def test_an_index_is_of_its_own_entry(bench: Bench) -> None:
    bench.compile(TOKEN, "old", structure="1")
    bench.compile(token_of(2), "old", structure="2")
    one, two = (bench.path / (naming.letters_of(t) + ".json") for t in (TOKEN, token_of(2)))
    two.write_bytes(one.read_bytes())
    assert bench.directory.record(token_of(2)) is None


def test_a_stale_index_never_explains_a_new_entry(bench: Bench) -> None:
    bench.compile(TOKEN, "old", structure="1")
    bench.files = FaultyFiles(1, failing(errno.ENOSPC), only=["write"])  # the first is the claim
    lease = bench.directory.lease(TOKEN, wait_ns=0)
    assert lease is not None
    with lease, lease.create(NEEDED) as files:
        *model, data = payloads_of("new")
        good = Bench(bench.root, registries=bench.registries)
        good.seal().save(
            EntryFiles(files.model, files.data, TOKEN, bench.binding), model=model, data=[data]
        )
        lease.publish(files, bench.record(TOKEN, structure="2"))
    assert bench.load(TOKEN, TEXTS) == "new"
    assert bench.directory.record(TOKEN) is None


@pytest.mark.skipif(os.name != "posix" or not hasattr(os, "geteuid"), reason="POSIX's permissions")
@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_directory_is_read_and_not_written(bench: Bench) -> None:
    bench.compile(TOKEN, "old")
    bench.path.chmod(0o500)
    try:
        assert bench.load(TOKEN, TEXTS) == "old"
        with pytest.raises(errors.Unreadable, match="cannot be"):
            bench.directory.lease(token_of(2))
    finally:
        bench.path.chmod(0o700)


@pytest.mark.parametrize(
    ("ending", "whole"),
    [
        (b'x"seal":"' + b"0a" * 32 + b'"}', True),
        (b'"seal":"' + b"0a" * 32 + b'"}\n \t\r\n', True),
        (b'"seal":"' + b"0A" * 32 + b'"}', False),
        (b'"seal":"' + b"0a" * 31 + b'"}', False),
        (b'"seal":"' + b"0a" * 33 + b'"}', False),
        (b'"seal":"' + b"0a" * 32 + b'"', False),
        (b'"seal":"' + b"0a" * 32 + b'"}]', False),
        (b'"}', False),
        (b"", False),
    ],
)
def test_an_index_ends_with_its_seal(ending: bytes, whole: bool) -> None:
    assert _ends_with_a_seal(ending) is whole


@pytest.mark.parametrize("what", ["files", "index"])
def test_a_temporary_name_that_is_taken_is_not_written_to(
    what: str, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever guessed it may have put a link or a file of his own there."""
    bench.compile(TOKEN, "old")
    record = bench.record(TOKEN)
    monkeypatch.setattr(os, "urandom", bytes)
    names = [*naming.file_names(TOKEN, *NEEDED), naming.index_name(TOKEN)]
    taken = [bench.path / naming.temporary_name(name) for name in names]
    for path in taken:
        path.write_bytes(b"somebody's")
    if what == "files":
        lease = bench.directory.lease(TOKEN)
        assert lease is not None
        with lease, pytest.raises(errors.Unreadable, match="File exists"):
            lease.create(NEEDED)
    else:
        with pytest.raises(FileExistsError):
            bench.directory.store.write_record(TOKEN, record)
    assert {path.read_bytes() for path in taken if path.exists()} <= {b"somebody's"}
    assert bench.load(TOKEN, TEXTS) == "old"
