"""The registry deleted, altered, exchanged and rolled back."""

from __future__ import annotations

import random
import shutil
import sqlite3
from pathlib import Path

import pytest

from penstock.errors import (
    CacheError,
    OtherVersion,
    RegistryMissing,
    RolledBack,
    SealBroken,
    Unreadable,
)
from penstock.sealed import FileKeyStore, MemoryKeyStore
from tests.support_sealed import TOKEN, Rig

pytestmark = pytest.mark.usefixtures("no_descriptor_leaks")


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def snapshot(rig: Rig, name: str) -> Path:
    """A copy of cache and registry as they stand."""
    target = rig.root / name
    shutil.copytree(rig.root / "cache", target / "cache")
    shutil.copyfile(rig.database, target / "registry")
    return target


def test_a_deleted_registry_is_a_named_miss(rig: Rig) -> None:
    assert rig.saved()
    rig.database.unlink()
    assert rig.refuses(RegistryMissing)
    assert rig.saved()


def test_an_emptied_registry_is_a_named_miss(rig: Rig) -> None:
    assert rig.saved()
    rig.database.write_bytes(b"")
    assert rig.refuses(RegistryMissing)
    assert rig.saved()


def test_a_registry_that_was_lost_and_serves_another_entry_is_a_named_miss(rig: Rig) -> None:
    assert rig.saved()
    rig.database.unlink()
    assert rig.saved("elsewhere", token=bytes(32))
    assert rig.refuses(RegistryMissing)
    assert rig.saved()


def test_registry_and_key_lost_together_are_a_named_miss(rig: Rig) -> None:
    assert rig.saved()
    shutil.rmtree(rig.state)
    rig.state.mkdir()
    assert rig.refuses(RegistryMissing)
    assert rig.saved()


def test_another_version_s_registry_is_refused(rig: Rig, tmp_path: Path) -> None:
    other = Rig(tmp_path, version="2")
    assert other.saved("other")
    assert rig.saved()
    shutil.copyfile(other.database, rig.database)
    assert rig.refuses(OtherVersion)
    assert rig.saved()
    assert other.hits("other")


def test_another_driver_s_registry_is_refused(rig: Rig, tmp_path: Path) -> None:
    other = Rig(tmp_path, driver="other")
    assert other.saved("other")
    assert rig.saved()
    shutil.copyfile(other.database, rig.database)
    assert rig.refuses(SealBroken)
    assert rig.saved()


def test_a_rolled_back_pair_of_another_version_is_refused(rig: Rig, tmp_path: Path) -> None:
    older = Rig(tmp_path, version="0")
    assert older.saved()
    old = tmp_path / "old"
    shutil.copytree(tmp_path / "cache", old)
    shutil.copyfile(older.database, tmp_path / "old registry")
    assert rig.saved()
    shutil.copytree(old, tmp_path / "cache", dirs_exist_ok=True)
    assert rig.refuses(OtherVersion)
    shutil.copyfile(tmp_path / "old registry", rig.database)
    assert rig.refuses(OtherVersion)
    assert rig.saved()


def test_a_rolled_back_pair_of_the_same_version_is_refused_where_the_key_store_counts(
    tmp_path: Path,
) -> None:
    rig = Rig(tmp_path, keys=MemoryKeyStore())
    assert rig.saved()
    old = snapshot(rig, "old")
    assert rig.saved()
    shutil.copytree(old / "cache", tmp_path / "cache", dirs_exist_ok=True)
    shutil.copyfile(old / "registry", rig.database)
    assert rig.refuses(RolledBack)
    assert rig.saved()
    assert rig.saved()


def test_a_rolled_back_pair_of_the_same_version_may_load_without_a_count(rig: Rig) -> None:
    """What it loads is what was saved then, of the same token and binding: the right answer."""
    assert rig.saved()
    old = snapshot(rig, "old")
    assert rig.saved()
    shutil.copytree(old / "cache", rig.root / "cache", dirs_exist_ok=True)
    shutil.copyfile(old / "registry", rig.database)
    assert rig.hits()


def test_one_process_sees_a_roll_back_without_a_count(rig: Rig) -> None:
    assert rig.saved()
    old = snapshot(rig, "old")
    with rig.handles() as (model, data):
        seal = rig.seal()
        arguments = (model, data, TOKEN, bytes(range(100, 132)))
        assert seal.save(*arguments, model=rig.program, data=rig.weights).saved
        shutil.copytree(old / "cache", rig.root / "cache", dirs_exist_ok=True)
        shutil.copyfile(old / "registry", rig.database)
        with pytest.raises(RolledBack, match="RolledBack: the registry stands at change 1"):
            seal.load(*arguments)
        assert seal.save(*arguments, model=rig.program, data=rig.weights).saved
        assert bytes(seal.load(*arguments).model[0]) == rig.program[0]


def test_rolled_back_files_alone_are_refused(rig: Rig) -> None:
    assert rig.saved()
    old = snapshot(rig, "old")
    assert rig.saved()
    shutil.copytree(old / "cache", rig.root / "cache", dirs_exist_ok=True)
    assert rig.refuses(RolledBack)
    assert rig.saved()


def test_a_rolled_back_registry_alone_is_refused(rig: Rig) -> None:
    assert rig.saved()
    old = snapshot(rig, "old")
    assert rig.saved()
    shutil.copyfile(old / "registry", rig.database)
    assert rig.refuses(RolledBack)
    assert rig.saved()


def test_an_entry_that_was_forgotten_is_refused(rig: Rig) -> None:
    assert rig.saved()
    with rig.handles() as (model, _):
        entry = rig.seal().entry_of(model[0], TOKEN)
    assert entry is not None
    rig.seal().forget(TOKEN, entry)
    assert rig.refuses(RolledBack)
    assert rig.saved()


ALTERATIONS = {
    "format": ("UPDATE registry SET format = 2", OtherVersion),
    "driver": ("UPDATE registry SET driver = zeroblob(32)", SealBroken),
    "version": ("UPDATE registry SET version = zeroblob(32)", OtherVersion),
    "registry id": ("UPDATE registry SET registry = zeroblob(16)", SealBroken),
    "short id": ("UPDATE registry SET registry = x'00'", SealBroken),
    "higher count": ("UPDATE registry SET count = count + 1", SealBroken),
    "negative count": ("UPDATE registry SET count = -1", SealBroken),
    "count as text": ("UPDATE registry SET count = 'many'", SealBroken),
    "mac": ("UPDATE registry SET mac = zeroblob(32)", SealBroken),
    "mac as null": ("UPDATE registry SET mac = ''", SealBroken),
    "two states": ("INSERT INTO registry SELECT * FROM registry", SealBroken),
    "no state": ("DELETE FROM registry", RegistryMissing),
    "row deleted": ("DELETE FROM entry", SealBroken),
    "token": ("UPDATE entry SET token = zeroblob(32)", SealBroken),
    "entry": ("UPDATE entry SET entry = zeroblob(16)", SealBroken),
    "sequence": ("UPDATE entry SET sequence = 9", SealBroken),
    "models": ("UPDATE entry SET models = 1", SealBroken),
    "models beyond": ("UPDATE entry SET models = 99", SealBroken),
    "files": ("UPDATE entry SET files = zeroblob(length(files))", SealBroken),
    "fewer files": ("UPDATE entry SET files = substr(files, 1, 40)", SealBroken),
    "torn files": ("UPDATE entry SET files = substr(files, 1, 41)", SealBroken),
    "row's mac": ("UPDATE entry SET mac = zeroblob(32)", SealBroken),
    "row added": (
        "INSERT INTO entry SELECT zeroblob(32), entry, sequence, models, files, mac FROM entry",
        SealBroken,
    ),
    "no table of rows": ("DROP TABLE entry", SealBroken),
    "no table of states": ("DROP TABLE registry", SealBroken),
    "another table": (
        "DROP TABLE entry; CREATE TABLE entry (token, entry, mac); INSERT INTO entry VALUES (1, 2, 3)",
        SealBroken,
    ),
}


@pytest.mark.parametrize("name", ALTERATIONS)
def test_an_altered_registry_is_refused_and_made_anew(rig: Rig, name: str) -> None:
    statement, kind = ALTERATIONS[name]
    assert rig.saved()
    database = sqlite3.connect(rig.database)
    database.executescript(statement)
    database.close()
    assert rig.refuses(kind)
    assert rig.saved()
    assert len(rig.registry().rows()) == 1


def test_no_byte_of_the_registry_s_file_makes_anything_else_load(rig: Rig) -> None:
    assert rig.saved()
    whole = rig.database.read_bytes()
    source = random.Random(7)
    places = [*range(0, 100, 3), *source.sample(range(len(whole)), 500)]
    refused = 0
    for place in places:
        rig.database.write_bytes(whole)
        assert rig.hits()
        altered = bytearray(whole)
        altered[place] ^= 1 << source.randrange(8)
        rig.database.write_bytes(altered)
        try:
            assert rig.hits(), place
        except CacheError:
            refused += 1
        for suffix in ("-wal", "-shm"):
            rig.database.with_name(rig.database.name + suffix).unlink(missing_ok=True)
    assert refused
    assert rig.saved()


@pytest.mark.parametrize("content", [b"not a database" * 100, bytes(4096), b"SQLite format 3\0"])
def test_what_is_no_database_is_refused_and_made_anew(rig: Rig, content: bytes) -> None:
    assert rig.saved()
    rig.database.write_bytes(content)
    assert rig.refuses(SealBroken)
    assert rig.saved()


def test_a_link_in_place_of_the_registry_is_not_followed(rig: Rig) -> None:
    assert rig.saved()
    aside = rig.root / "aside"
    rig.database.rename(aside)
    rig.database.symlink_to(aside)
    before = aside.read_bytes()
    assert rig.refuses(SealBroken)
    assert rig.saved()
    assert aside.read_bytes() == before
    assert not rig.database.is_symlink()


@pytest.mark.parametrize("suffix", ["-wal", "-shm", "-journal"])
def test_a_link_in_place_of_the_registry_s_log_is_not_followed(rig: Rig, suffix: str) -> None:
    assert rig.saved()
    aside = rig.root / "aside"
    aside.write_bytes(b"not to be touched")
    link = rig.database.with_name(rig.database.name + suffix)
    link.unlink(missing_ok=True)
    link.symlink_to(aside)
    assert rig.saved()
    assert aside.read_bytes() == b"not to be touched"
    assert not link.is_symlink()


def test_another_user_s_directory_is_refused(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    assert rig.saved()
    monkeypatch.setattr("os.geteuid", lambda: 4242)
    with pytest.raises(Unreadable, match="belongs to another user"):
        rig.registry(MemoryKeyStore()).clear()


def test_a_key_store_that_answers_only_sometimes_costs_compiles_and_no_more(
    tmp_path: Path,
) -> None:
    """Each kind of process believes what was sealed with its own key, and refuses the rest by name."""
    with_store = Rig(tmp_path, keys=MemoryKeyStore())
    without = Rig(tmp_path)
    assert with_store.saved()
    assert without.refuses(RegistryMissing)
    assert without.saved()
    assert with_store.refuses(SealBroken)
    assert with_store.saved()
    assert without.refuses(SealBroken)
    assert without.saved("elsewhere")
    assert with_store.hits()


@pytest.mark.parametrize("harm", ["readable", "short", "long", "link", "deleted"])
def test_a_key_that_cannot_be_trusted_is_replaced(rig: Rig, harm: str) -> None:
    assert rig.saved()
    path = rig.state / "key"
    old = path.read_bytes()
    if harm == "readable":
        path.chmod(0o644)
    elif harm == "short":
        path.write_bytes(old[:31])
    elif harm == "long":
        path.write_bytes(old + b"x")
    elif harm == "link":
        path.rename(rig.root / "aside")
        path.symlink_to(rig.root / "aside")
    else:
        path.unlink()
    assert rig.refuses(SealBroken)
    assert FileKeyStore(path).key() != old
    assert path.stat().st_mode & 0o777 == 0o600
    assert [p.name for p in rig.state.glob("*.tmp")] == []
    assert rig.saved()
