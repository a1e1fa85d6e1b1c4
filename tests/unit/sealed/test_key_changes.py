"""The key or the whole state directory goes, or is exchanged, while a process runs that knows the
key.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.errors import RegistryMissing, SealBroken
from penstock.sealed import (
    EntryFiles,
    FileKeyStore,
    FileRegistry,
    LoadedEntry,
    MemoryKeyStore,
    Seal,
)
from penstock.testing.doubles import QUICK_FILES, FaultyFiles, failing
from tests.support_programs import run_python
from tests.support_sealed import BINDING, TOKEN, Rig

pytestmark = pytest.mark.usefixtures("no_descriptor_leaks")

OTHER_KEY = b"another key".ljust(32, b"-")


class Process:
    """A process: one seal, which remembers what it learns. `folder` names an entry, of its own
    token.
    """

    def __init__(self, root: Path, files: FaultyFiles | None = None) -> None:
        self.rig = Rig(root)
        files = files or FaultyFiles()
        self.keys = FileKeyStore(self.rig.state / "key", files=files)
        self.registry = FileRegistry(
            self.rig.registry_file, self.rig.owner, self.keys, files=QUICK_FILES
        )
        self.seal: Seal = self.rig.seal_with(self.registry, self.keys)

    def saves(self, folder: str = "cache") -> bool:
        rig = self.rig
        with rig.handles(folder, create=True) as (model, data):
            report = self.seal.save(
                EntryFiles(model, data, token(folder), BINDING), model=rig.program, data=rig.weights
            )
        assert report.saved, report.reason
        return True

    def load(self, folder: str = "cache") -> LoadedEntry:
        with self.rig.handles(folder) as (model, data):
            return self.seal.load(EntryFiles(model, data, token(folder), BINDING))

    def hits(self, folder: str = "cache") -> bool:
        loaded = self.load(folder)
        return tuple(map(bytes, loaded.model)) == self.rig.program


def token(folder: str) -> bytes:
    return TOKEN if folder == "cache" else folder.encode().ljust(32)


def remove_state(root: Path) -> None:
    shutil.rmtree(root / "state")


def remove_key(root: Path) -> None:
    (root / "state" / "key").unlink()


def exchange_key(root: Path) -> None:
    """As a backup does, or a home directory that is moved."""
    remove_key(root)
    FileKeyStore(root / "state" / "key").key()


HARMS: dict[str, Callable[[Path], None]] = {
    "state removed": remove_state,
    "key removed": remove_key,
    "key exchanged": exchange_key,
}


@pytest.mark.parametrize("harm", HARMS)
def test_older_process_accepts_entries_sealed_with_a_newer_key(tmp_path: Path, harm: str) -> None:
    older = Process(tmp_path)
    for folder in ("cache", "more", "most"):
        assert older.saves(folder)
    HARMS[harm](tmp_path)
    newer = Process(tmp_path)
    assert newer.saves()
    registry = newer.registry.open().registry
    assert older.hits()
    assert older.saves("more")
    assert Process(tmp_path).hits("more")
    assert newer.hits()
    assert older.registry.open().registry == registry
    assert len(newer.registry.rows()) == 2


@pytest.mark.parametrize("harm", HARMS)
def test_older_and_newer_processes_lose_each_entry_once_at_most(tmp_path: Path, harm: str) -> None:
    older = Process(tmp_path)
    folders = ("cache", "more", "most")
    for folder in folders:
        assert older.saves(folder)
    HARMS[harm](tmp_path)
    compiles = 0
    for turn in range(6):
        process = older if turn % 2 == 0 else Process(tmp_path)
        for folder in folders:
            try:
                assert process.hits(folder)
            except (RegistryMissing, SealBroken):
                compiles += 1
                assert process.saves(folder)
    assert compiles <= len(folders)


def test_an_older_process_that_is_first_writes_its_key_again(tmp_path: Path) -> None:
    older = Process(tmp_path)
    assert older.saves()
    key = older.keys.key()
    remove_state(tmp_path)
    with pytest.raises(RegistryMissing):
        older.load()
    assert older.saves()
    assert (tmp_path / "state" / "key").read_bytes() == key
    assert (tmp_path / "state" / "key").stat().st_mode & 0o777 == 0o600
    assert Process(tmp_path).hits()


def test_an_entry_sealed_with_the_newer_key_is_forgotten_when_it_is_replaced(
    tmp_path: Path,
) -> None:
    older = Process(tmp_path)
    assert older.saves()
    remove_state(tmp_path)
    newer = Process(tmp_path)
    assert newer.saves()
    assert older.saves()
    assert len(newer.registry.rows()) == 1
    with older.rig.handles() as (model, _):
        entry = Process(tmp_path).seal.entry_of(model[0], TOKEN)
        assert older.seal.entry_of(model[0], TOKEN) == entry is not None


def test_counts_of_a_registry_are_those_of_its_key(tmp_path: Path) -> None:
    """That a process saw a hundred changes says nothing of a registry that another key sealed."""
    older = Process(tmp_path)
    for _ in range(4):
        assert older.saves()
    remove_state(tmp_path)
    newer = Process(tmp_path)
    assert newer.saves()
    assert older.registry.open().changes == newer.registry.open().changes == 1


def test_a_hit_does_not_look_at_the_key_again(tmp_path: Path) -> None:
    files = FaultyFiles()
    process = Process(tmp_path, files=files)
    assert process.saves()
    done = len(files.log)
    for _ in range(3):
        assert process.hits()
    assert process.saves()
    assert files.log[done:] == []


def test_a_key_that_others_can_read_by_now_is_not_used_for_a_new_registry(tmp_path: Path) -> None:
    process = Process(tmp_path)
    assert process.saves()
    leaked = process.keys.key()
    (tmp_path / "state" / "key").chmod(0o644)
    process.rig.registry_file.unlink()
    assert process.saves()
    assert process.keys.key() != leaked
    assert Process(tmp_path).hits()


def test_no_registry_is_made_with_a_key_that_cannot_be_kept(tmp_path: Path) -> None:
    files = FaultyFiles()
    process = Process(tmp_path, files)
    assert process.saves()
    remove_state(tmp_path)
    files.at, files.fault = len(files.log), failing(13)
    rig = process.rig
    with rig.handles() as (model, data):
        report = process.seal.save(
            EntryFiles(model, data, TOKEN, BINDING), model=rig.program, data=rig.weights
        )
    assert (report.reason or "").startswith("Unreadable: the key file")
    newer = Process(tmp_path)
    assert newer.saves()
    assert process.hits()


def test_a_key_that_cannot_be_looked_at_leaves_the_reason_of_a_miss(tmp_path: Path) -> None:
    files = FaultyFiles()
    process = Process(tmp_path, files=files)
    assert process.saves()
    first = process.rig.paths()[0]
    content = bytearray(first.read_bytes())
    content[100] ^= 1
    first.write_bytes(content)
    for harm in (failing(5), failing(13)):
        files.at, files.fault = len(files.log), harm
        with pytest.raises(SealBroken, match="the header of model file 0 was altered"):
            process.load()
    remove_state(tmp_path)
    with pytest.raises(RegistryMissing):
        process.load()


def test_a_store_is_asked_again(tmp_path: Path) -> None:
    path = tmp_path / "key"
    store = FileKeyStore(path, files=QUICK_FILES)
    key = store.key()
    assert store.refresh() == key
    path.unlink()
    assert store.key() == key
    assert not path.exists()
    assert store.refresh() == key == path.read_bytes()
    other = tmp_path / "other"
    other.write_bytes(OTHER_KEY)
    other.chmod(0o600)
    other.replace(path)
    assert store.key() == key
    assert store.refresh() == store.key() == OTHER_KEY
    path.unlink()
    path.symlink_to(other)
    assert store.refresh() == path.read_bytes() not in {key, OTHER_KEY}
    assert MemoryKeyStore(key).refresh() == key


def test_threads_that_ask_again_at_once_agree(tmp_path: Path) -> None:
    for harm in (remove_key, exchange_key):
        (tmp_path / "state").mkdir(exist_ok=True)
        stores = [FileKeyStore(tmp_path / "state" / "key") for _ in range(2)]
        assert stores[0].key() == stores[1].key()
        harm(tmp_path)
        found: list[bytes] = []
        start = threading.Barrier(8)

        def ask(store: FileKeyStore, start: threading.Barrier, found: list[bytes]) -> None:
            start.wait()
            found.append(store.refresh())

        threads = [
            threading.Thread(target=ask, args=(stores[n % 2], start, found)) for n in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 8
        assert set(found) == {(tmp_path / "state" / "key").read_bytes()}
        assert {store.key() for store in stores} == set(found)


FORKING = """
import os, shutil, sys
from pathlib import Path
root = Path(sys.argv[1])
sys.path.insert(0, sys.argv[2])
from tests.unit.sealed.test_key_changes import Process
process = Process(root)
assert process.saves()
child = os.fork()
if child == 0:
    shutil.rmtree(root / "state")
    ok = process.saves() and Process(root).saves("more")
    os._exit(0 if ok else 1)
assert os.waitpid(child, 0)[1] == 0
assert process.hits() and process.hits("more") and process.saves("most")
assert all(Process(root).hits(folder) for folder in ("cache", "more", "most"))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform does not fork")
def test_a_forked_child_and_its_parent_stay_of_one_key(tmp_path: Path) -> None:
    done = run_python("-c", FORKING, tmp_path, str(Path(__file__).parents[3]))
    assert done.returncode == 0, done.stderr
