"""The registry deleted, altered, exchanged and rolled back."""

from __future__ import annotations

import os
import shutil
import socket
import sqlite3
import struct
import sys
import time
import tracemalloc
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from penstock import errors
from penstock.sealed import EntryFiles, FileKeyStore, FileRegistry, MemoryKeyStore, Registry
from penstock.sealed.registry import HEAD_BYTES, MOST_BYTES, Contents
from penstock.testing.doubles import QUICK_FILES
from tests.support_sealed import TOKEN, Rig, put_private

pytestmark = pytest.mark.usefixtures("no_descriptor_leaks")


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def snapshot(rig: Rig, name: str) -> Path:
    """A copy of cache and registry as they stand."""
    target = rig.root / name
    shutil.copytree(rig.root / "cache", target / "cache")
    shutil.copyfile(rig.registry_file, target / "registry")
    return target


def test_a_deleted_registry_is_a_named_miss(rig: Rig) -> None:
    assert rig.saved()
    rig.registry_file.unlink()
    assert rig.refuses(errors.RegistryMissing)
    assert rig.saved()


def test_an_emptied_registry_is_a_named_miss(rig: Rig) -> None:
    assert rig.saved()
    rig.registry_file.write_bytes(b"")
    assert rig.refuses(errors.SealBroken)
    assert rig.saved()


def test_a_registry_that_was_lost_and_serves_another_entry_is_a_named_miss(rig: Rig) -> None:
    assert rig.saved()
    rig.registry_file.unlink()
    assert rig.saved("elsewhere", token=bytes(32))
    assert rig.refuses(errors.RegistryMissing)
    assert rig.saved()


def test_registry_and_key_lost_together_are_a_named_miss(rig: Rig) -> None:
    assert rig.saved()
    shutil.rmtree(rig.state)
    rig.state.mkdir()
    assert rig.refuses(errors.RegistryMissing)
    assert rig.saved()


def test_registry_of_another_version_is_refused(rig: Rig, tmp_path: Path) -> None:
    other = Rig(tmp_path, version="2")
    assert other.saved("other")
    assert rig.saved()
    shutil.copyfile(other.registry_file, rig.registry_file)
    assert rig.refuses(errors.OtherVersion)
    assert rig.saved()
    assert other.hits("other")


def test_registry_of_another_driver_is_refused(rig: Rig, tmp_path: Path) -> None:
    other = Rig(tmp_path, driver="other")
    assert other.saved("other")
    assert rig.saved()
    shutil.copyfile(other.registry_file, rig.registry_file)
    assert rig.refuses(errors.SealBroken)
    assert rig.saved()


def test_a_rolled_back_pair_of_another_version_is_refused(rig: Rig, tmp_path: Path) -> None:
    older = Rig(tmp_path, version="0")
    assert older.saved()
    old = tmp_path / "old"
    shutil.copytree(tmp_path / "cache", old)
    shutil.copyfile(older.registry_file, tmp_path / "old registry")
    assert rig.saved()
    shutil.copytree(old, tmp_path / "cache", dirs_exist_ok=True)
    assert rig.refuses(errors.OtherVersion)
    shutil.copyfile(tmp_path / "old registry", rig.registry_file)
    assert rig.refuses(errors.OtherVersion)
    assert rig.saved()


def test_a_rolled_back_pair_of_the_same_version_is_refused_where_the_key_store_counts(
    tmp_path: Path,
) -> None:
    rig = Rig(tmp_path, keys=MemoryKeyStore())
    assert rig.saved()
    old = snapshot(rig, "old")
    assert rig.saved()
    shutil.copytree(old / "cache", tmp_path / "cache", dirs_exist_ok=True)
    shutil.copyfile(old / "registry", rig.registry_file)
    assert rig.refuses(errors.RolledBack)
    assert rig.saved()
    assert rig.saved()


def test_a_rolled_back_pair_of_the_same_version_may_load_without_a_count(rig: Rig) -> None:
    """What it loads is what was saved then, of the same token and binding: the right answer."""
    assert rig.saved()
    old = snapshot(rig, "old")
    assert rig.saved()
    shutil.copytree(old / "cache", rig.root / "cache", dirs_exist_ok=True)
    shutil.copyfile(old / "registry", rig.registry_file)
    assert rig.hits()


def test_process_detects_a_roll_back_without_a_count(rig: Rig) -> None:
    assert rig.saved()
    old = snapshot(rig, "old")
    with rig.handles() as (model, data):
        seal = rig.seal()
        entry = EntryFiles(model, data, TOKEN, bytes(range(100, 132)))
        assert seal.save(entry, model=rig.program, data=rig.weights).saved
        shutil.copytree(old / "cache", rig.root / "cache", dirs_exist_ok=True)
        shutil.copyfile(old / "registry", rig.registry_file)
        with pytest.raises(errors.RolledBack, match="RolledBack: the registry stands at change 1"):
            seal.load(entry)
        assert seal.save(entry, model=rig.program, data=rig.weights).saved
        assert bytes(seal.load(entry).model[0]) == rig.program[0]


def test_rolled_back_files_alone_are_refused(rig: Rig) -> None:
    assert rig.saved()
    old = snapshot(rig, "old")
    assert rig.saved()
    shutil.copytree(old / "cache", rig.root / "cache", dirs_exist_ok=True)
    assert rig.refuses(errors.RolledBack)
    assert rig.saved()


def test_a_rolled_back_registry_alone_is_refused(rig: Rig) -> None:
    assert rig.saved()
    old = snapshot(rig, "old")
    assert rig.saved()
    shutil.copyfile(old / "registry", rig.registry_file)
    assert rig.refuses(errors.RolledBack)
    assert rig.saved()


def test_an_entry_that_was_forgotten_is_refused(rig: Rig) -> None:
    assert rig.saved()
    with rig.handles() as (model, _):
        entry = rig.seal().entry_of(model[0], TOKEN)
    assert entry is not None
    rig.seal().forget(TOKEN, entry)
    assert rig.refuses(errors.RolledBack)
    assert rig.saved()


def place(field: str) -> slice:
    """Where *field* lies in the file of a registry with one row of two model files and one data
    file.
    """
    at = {
        "magic": (0, 8),
        "format": (8, 2),
        "reserved": (10, 2),
        "rows": (12, 4),
        "count": (16, 8),
        "registry id": (24, 16),
        "driver": (40, 32),
        "version": (72, 32),
        "mac": (104, 32),
        "token": (136, 32),
        "entry": (168, 16),
        "sequence": (184, 8),
        "models": (192, 1),
        "datas": (193, 1),
        "digest": (194, 32),
        "length": (226, 8),
    }[field]
    return slice(at[0], sum(at))


ALTERATIONS: dict[str, tuple[str, bytes]] = {
    "another magic": ("magic", b"SQLite f"),
    "another format": ("format", b"\2\0"),
    "reserved bytes": ("reserved", b"\1\0"),
    "no rows": ("rows", bytes(4)),
    "more rows than there are": ("rows", struct.pack("<I", 2)),
    "the most rows that the field holds": ("rows", b"\xff" * 4),
    "a higher count": ("count", struct.pack("<Q", 2)),
    "the highest count": ("count", b"\xff" * 8),
    "another registry": ("registry id", bytes(16)),
    "another driver": ("driver", bytes(32)),
    "another version": ("version", bytes(32)),
    "no MAC": ("mac", bytes(32)),
    "another token": ("token", bytes(32)),
    "another entry": ("entry", bytes(16)),
    "another sequence": ("sequence", struct.pack("<Q", 9)),
    "fewer model files": ("models", b"\1"),
    "255 model files": ("models", b"\xff"),
    "more data files": ("datas", b"\2"),
    "another digest": ("digest", bytes(32)),
    "another length": ("length", struct.pack("<Q", 1 << 60)),
}


@pytest.mark.parametrize("name", ALTERATIONS)
def test_an_altered_registry_is_refused_and_made_anew(rig: Rig, name: str) -> None:
    assert rig.saved()
    field, value = ALTERATIONS[name]
    content = bytearray(rig.registry_file.read_bytes())
    assert len(content) == 136 + 58 + 3 * 40
    assert content[place(field)] != value
    content[place(field)] = value
    rig.registry_file.write_bytes(content)
    assert rig.refuses(errors.SealBroken)
    assert rig.saved()
    assert len(rig.registry().rows()) == 1


BELIEVED: dict[str, type[errors.CacheError]] = {
    "another magic": errors.OtherVersion,
    "another format": errors.OtherVersion,
    "reserved bytes": errors.OtherVersion,
    "no rows": errors.SealBroken,
    "more rows than there are": errors.SealBroken,
    "the most rows that the field holds": errors.SealBroken,
    "the highest count": errors.SealBroken,
    "another driver": errors.SealBroken,
    "another version": errors.OtherVersion,
    "another token": errors.RolledBack,
    "another entry": errors.RolledBack,
    "fewer model files": errors.SealBroken,
    "255 model files": errors.SealBroken,
    "more data files": errors.SealBroken,
    "another digest": errors.SealBroken,
    "another length": errors.WrongLength,
}
"""How the alterations are refused that the key's holder would have made; others are his to make."""


@pytest.mark.parametrize("name", ALTERATIONS)
def test_an_authentic_registry_is_believed_no_further_than_it_is_possible(
    rig: Rig, name: str
) -> None:
    """Nobody without the key can make one."""
    assert rig.saved()
    field, value = ALTERATIONS[name]
    content = bytearray(rig.registry_file.read_bytes())
    content[place(field)] = value
    put_private(rig.registry_file, authenticated(rig, bytes(content)))
    if name in BELIEVED:
        assert cheaply(lambda: rig.refuses(BELIEVED[name]))
    else:
        assert rig.hits()
    assert rig.saved()


def authenticated(rig: Rig, content: bytes) -> bytes:
    """*content* with the MAC that the key's holder would put there."""
    import hmac

    fields, body = content[:104], content[HEAD_BYTES:]
    mac = hmac.digest(rig.keys().key(), b"penstock registry file\0" + fields + body, "sha256")
    return fields + mac + body


def test_a_registry_that_somebody_made_with_a_key_of_his_own_is_refused(rig: Rig) -> None:
    assert rig.saved()
    (row,) = rig.registry().rows()
    forged = Contents.empty(rig.owner, bytes(32), 100).with_row(row).pack()
    put_private(rig.registry_file, forged)
    assert rig.refuses(errors.SealBroken)
    assert rig.saved()


def fresh(rig: Rig) -> Registry:
    return FileRegistry(rig.registry_file, rig.owner, rig.keys(), files=QUICK_FILES)


def saved_twice(rig: Rig) -> bytes:
    """The registry's file with two rows."""
    assert rig.saved()
    assert rig.saved("elsewhere", token=bytes(32))
    return rig.registry_file.read_bytes()


def test_every_bit_of_the_registry_s_file_is_authenticated(rig: Rig) -> None:
    whole = saved_twice(rig)
    altered = bytearray(whole)
    for bit in range(8 * len(whole)):
        altered[bit // 8] ^= 1 << bit % 8
        rig.registry_file.write_bytes(altered)
        with pytest.raises(errors.SealBroken, match="altered, or sealed with another key"):
            fresh(rig).find(TOKEN, bytes(16))
        if not bit % 64:
            assert rig.refuses(errors.SealBroken)
        altered[bit // 8] ^= 1 << bit % 8
    rig.registry_file.write_bytes(whole)
    assert rig.hits()


def test_every_length_of_the_registry_s_file_is_authenticated(rig: Rig) -> None:
    whole = saved_twice(rig)
    for length in range(len(whole) + 200):
        if length == len(whole):
            continue
        content = whole[:length].ljust(length, b"\0")
        rig.registry_file.write_bytes(content)
        with pytest.raises(errors.SealBroken):
            fresh(rig).rows()
        if not length % 16:
            assert rig.refuses(errors.SealBroken)
    rig.registry_file.write_bytes(whole)
    assert rig.hits()


@pytest.mark.parametrize(
    "content", [b"not a registry" * 100, bytes(4096), b"SQLite format 3\0" * 9]
)
def test_broken_registry_is_refused_and_replaced(rig: Rig, content: bytes) -> None:
    assert rig.saved()
    rig.registry_file.write_bytes(content)
    assert rig.refuses(errors.SealBroken)
    assert rig.saved()


ENDLESS = (
    "CREATE VIEW registry AS WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) "
    "SELECT 1 AS format, x AS driver, x AS version, x AS registry, x AS count, x AS buckets, x AS "
    "mac "
    "FROM c WHERE x < 0"
)
HUGE = "CREATE VIEW registry AS SELECT 1 AS format, " + ", ".join(
    f"zeroblob(300000000) AS {name}"
    for name in ("driver", "version", "registry", "count", "buckets", "mac")
)


@pytest.mark.parametrize("view", [ENDLESS, HUGE])
def test_a_database_that_computes_without_end_or_takes_gigabytes_is_refused_at_once(
    rig: Rig, view: str
) -> None:
    assert rig.saved()
    aside = rig.root / "aside"
    with closing(sqlite3.connect(aside)) as database:
        database.execute(view)
        database.commit()
    put_private(rig.registry_file, aside.read_bytes())
    assert cheaply(lambda: rig.refuses(errors.SealBroken))
    assert cheaply(rig.saved)


def cheaply(act: Callable[[], bool]) -> bool:
    """Whether *act* is true; fails if it takes seconds, or more memory than the largest registry
    does.
    """
    began = time.monotonic()
    tracemalloc.start()
    try:
        answer = act()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert time.monotonic() - began < 5
    assert peak < 3 * MOST_BYTES
    return answer


def replace_by_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


def replace_by_socket(path: Path) -> None:
    path.unlink()
    with socket.socket(socket.AF_UNIX) as listening:
        # Names of sockets are short.
        above = os.open(path.parent, os.O_RDONLY)
        try:
            listening.bind(f"/proc/self/fd/{above}/{path.name}")
        finally:
            os.close(above)


def replace_by_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def replace_by_full_directory(path: Path) -> None:
    replace_by_directory(path)
    (path / "file").write_bytes(b"somebody's")


def replace_by_link(path: Path) -> None:
    path.symlink_to(path.rename(path.with_name("aside")))


def replace_by_hanging_link(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.with_name("nowhere"))


def replace_by_loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path)


def replace_by_device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def link_elsewhere(path: Path) -> None:
    os.link(path, path.with_name("second name"))


def make_long(path: Path) -> None:
    os.truncate(path, 64 << 30)


def make_a_little_too_long(path: Path) -> None:
    os.truncate(path, MOST_BYTES + 1)


def make_as_long_as_can_be(path: Path) -> None:
    os.truncate(path, MOST_BYTES)


def with_mode(mode: int) -> Callable[[Path], None]:
    return lambda path: path.chmod(mode)


MODES = (0o666, 0o644, 0o640, 0o602, 0o000, 0o200, 0o700, 0o4600, 0o2600, 0o1600)
HARMS: dict[str, Callable[[Path], None]] = {
    "pipe": replace_by_pipe,
    "socket": replace_by_socket,
    "directory": replace_by_directory,
    "full directory": replace_by_full_directory,
    "link": replace_by_link,
    "hanging link": replace_by_hanging_link,
    "link to itself": replace_by_loop,
    "link to a device": replace_by_device,
    **{f"mode {mode:04o}": with_mode(mode) for mode in MODES},
}
OF_REGISTRIES: dict[str, Callable[[Path], None]] = {
    **HARMS,
    "hard link": link_elsewhere,
    "64 GiB": make_long,
    "a byte more than can be": make_a_little_too_long,
    "zeros up to the limit": make_as_long_as_can_be,
}
posix = pytest.mark.skipif(sys.platform == "win32", reason="Windows has other files and rights")


@posix
@pytest.mark.parametrize("harm", OF_REGISTRIES)
def test_registry_that_is_no_private_file_is_replaced(rig: Rig, harm: str) -> None:
    assert rig.saved()
    OF_REGISTRIES[harm](rig.registry_file)
    assert cheaply(lambda: rig.refuses(errors.SealBroken))
    assert cheaply(rig.saved)
    status = rig.registry_file.lstat()
    assert (status.st_mode, status.st_nlink) == (0o100600, 1)
    assert status.st_size < 1000
    kept = [p for p in rig.state.iterdir() if p.is_dir()]
    assert [p.suffix for p in kept] == ([".aside"] if harm == "full directory" else [])


@posix
@pytest.mark.parametrize("harm", OF_REGISTRIES)
def test_a_lock_file_that_somebody_replaced_keeps_nobody_out(rig: Rig, harm: str) -> None:
    assert rig.saved()
    OF_REGISTRIES[harm](rig.registry_file.with_name(f"{rig.registry_file.name}.lock"))
    assert cheaply(rig.saved)
    assert rig.hits()


@posix
@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_registry_and_key_of_another_user_are_not_used(rig: Rig) -> None:
    assert rig.saved()
    os.chown(rig.registry_file, 4321, -1)
    assert rig.refuses(errors.SealBroken)
    assert rig.saved()
    old = rig.keys().key()
    os.chown(rig.state / "key", 4321, -1)
    assert rig.keys().key() != old


@posix
@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
@pytest.mark.parametrize("mode", [0o000, 0o200, 0o4600])
def test_unreadable_key_or_registry_is_replaced(tmp_path: Path, mode: int) -> None:
    """Root opens whatever it likes; so this is an ordinary user's process."""
    tmp_path.chmod(0o755)
    for above in tmp_path.parents[:3]:
        above.chmod(above.stat().st_mode | 0o011)
    place = tmp_path / "theirs"
    place.mkdir()
    os.chown(place, 4321, -1)
    child = os.fork()
    if not child:
        code = 1
        try:
            os.setuid(4321)
            rig = Rig(place)
            assert rig.saved()
            rig.registry_file.chmod(mode)
            assert rig.refuses(errors.SealBroken)
            assert rig.saved()
            old = rig.keys().key()
            (rig.state / "key").chmod(mode)
            assert rig.keys().key() != old
            assert rig.refuses(errors.SealBroken)
            assert rig.saved()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


def test_a_link_in_place_of_the_registry_is_not_followed(rig: Rig) -> None:
    assert rig.saved()
    aside = rig.root / "aside"
    rig.registry_file.rename(aside)
    rig.registry_file.symlink_to(aside)
    before = aside.read_bytes()
    assert rig.refuses(errors.SealBroken)
    assert rig.saved()
    assert aside.read_bytes() == before
    assert not rig.registry_file.is_symlink()


def test_every_prior_registry_that_is_put_back_is_refused(tmp_path: Path) -> None:
    """Where the key store counts, whichever it was; the entries that it listed do not load."""
    rig = Rig(tmp_path, keys=MemoryKeyStore())
    kept = []
    for number in range(6):
        assert rig.saved()
        if number % 2:
            assert rig.saved("elsewhere", token=bytes(32))
        kept.append(rig.registry_file.read_bytes())
    newest = kept.pop()
    for old in kept:
        put_private(rig.registry_file, old)
        assert rig.refuses(errors.RolledBack)
        assert rig.refuses(errors.RolledBack, "elsewhere", token=bytes(32))
    put_private(rig.registry_file, newest)
    assert rig.hits()
    assert rig.hits("elsewhere", token=bytes(32))
    put_private(rig.registry_file, kept[0])
    assert rig.saved()
    assert rig.refuses(errors.RegistryMissing, "elsewhere", token=bytes(32))


def test_directory_of_another_user_is_refused(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    assert rig.saved()
    monkeypatch.setattr("os.geteuid", lambda: 4242)
    with pytest.raises(errors.Unreadable, match="belongs to another user"):
        rig.registry(MemoryKeyStore()).clear()


def test_a_key_store_that_answers_only_sometimes_costs_compiles_and_no_more(tmp_path: Path) -> None:
    """Each kind of process accepts entries sealed with its own key and refuses others by name."""
    with_store = Rig(tmp_path, keys=MemoryKeyStore())
    without = Rig(tmp_path)
    assert with_store.saved()
    assert without.refuses(errors.RegistryMissing)
    assert without.saved()
    assert with_store.refuses(errors.SealBroken)
    assert with_store.saved()
    assert without.refuses(errors.SealBroken)
    assert without.saved("elsewhere")
    assert with_store.hits()


def shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:31])


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


OF_KEYS: dict[str, Callable[[Path], None]] = {
    **HARMS,
    "short": shorten,
    "long": lengthen,
    "1 TiB": lambda path: os.truncate(path, 1 << 40),
    "deleted": Path.unlink,
}


@posix
@pytest.mark.parametrize("harm", OF_KEYS)
def test_a_key_that_cannot_be_trusted_is_replaced(rig: Rig, harm: str) -> None:
    assert rig.saved()
    path = rig.state / "key"
    old = path.read_bytes()
    OF_KEYS[harm](path)
    assert cheaply(lambda: rig.refuses(errors.SealBroken))
    assert FileKeyStore(path).key() == path.read_bytes() != old
    assert path.lstat().st_mode == 0o100600
    assert list(rig.state.glob("*.tmp")) == []
    kept = [p for p in rig.state.iterdir() if p.is_dir()]
    assert [p.suffix for p in kept] == ([".aside"] if harm == "full directory" else [])
    assert rig.saved()


@posix
def test_a_key_that_only_its_owner_reads_is_used(rig: Rig) -> None:
    assert rig.saved()
    (rig.state / "key").chmod(0o400)
    assert rig.hits()


def test_a_key_in_whose_place_a_directory_cannot_be_moved_away_is_named(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    path = rig.state / "key"
    path.mkdir()
    (path / "file").touch()
    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(errors.Unreadable, match=f"the key file {path} cannot be read or made"):
        FileKeyStore(path).key()
