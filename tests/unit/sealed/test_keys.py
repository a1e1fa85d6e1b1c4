"""Where the key lies: a file, or the system's key store where it answers at once and without a
prompt.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.errors import Unreadable
from penstock.sealed import FileKeyStore, FileStatus, FileSystem, MemoryKeyStore, keys
from penstock.sealed.keys import (
    KeyringStore,
    default_key_store,
    quiet_backend,
    system_key_store,
    within,
)
from penstock.testing.doubles import Crash, FaultyFiles
from tests.support_sealed import FAULTS

pytestmark = pytest.mark.usefixtures("no_descriptor_leaks")


class Backend:
    """A key ring in memory that counts how often it is asked; hangs from question *hang_at* on."""

    def __init__(self, hang_at: int = 1 << 30) -> None:
        self.kept: dict[tuple[str, str], str] = {}
        self.asked = 0
        self.hang_at = hang_at
        self.release = threading.Event()

    def get_password(self, service: str, username: str) -> str | None:
        self._ask()
        return self.kept.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        self._ask()
        self.kept[service, username] = password

    def delete_password(self, service: str, username: str) -> None:
        self._ask()
        del self.kept[service, username]

    def _ask(self) -> None:
        self.asked += 1
        if self.asked > self.hang_at:
            self.release.wait(30)


@pytest.fixture(autouse=True)
def unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test is a process that has not asked the system's store yet."""
    monkeypatch.setattr(keys, "_asked", False)
    monkeypatch.setattr(keys, "_found", None)


def ring(module: str, kind: str) -> Backend:
    """A backend whose class is *kind* of *module*."""
    backend: Backend = type(kind, (Backend,), {"__module__": module})()
    return backend


def install(monkeypatch: pytest.MonkeyPatch, backend: object) -> None:
    """Makes `keyring` a library that chose *backend*."""
    keyring = ModuleType("keyring")
    monkeypatch.setattr(keyring, "get_keyring", lambda: backend, raising=False)
    monkeypatch.setitem(sys.modules, "keyring", keyring)
    monkeypatch.setenv("DBUS_SESSION_BUS_ADDRESS", "unix:path=/nowhere")


def test_a_key_file_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "key"
    key = FileKeyStore(path).key()
    assert path.read_bytes() == key
    assert len(key) == 32
    assert path.stat().st_mode & 0o777 == 0o600
    assert FileKeyStore(path).key() == key
    assert list(tmp_path.iterdir()) == [path]
    assert FileKeyStore(path).count("any") is None


class Foreign(FileSystem):
    """Files that all belong to somebody else."""

    def status(self, fd: int) -> FileStatus:
        found = super().status(fd)
        return replace(found, owner=found.owner + 1)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows tells no owner by number")
def test_another_user_s_key_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "key"
    key = FileKeyStore(path).key()
    with pytest.raises(Unreadable, match="does not stay as it was made"):
        FileKeyStore(path, files=Foreign()).key()
    assert path.read_bytes() != key


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the platform has no pipes with names")
def test_a_pipe_in_place_of_the_key_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "key"
    os.mkfifo(path, 0o600)
    found: list[bytes] = []
    asking = threading.Thread(target=lambda: found.append(FileKeyStore(path).key()), daemon=True)
    asking.start()
    asking.join(10)
    assert not asking.is_alive()
    assert path.is_file()
    assert found == [path.read_bytes()]


def test_threads_that_make_the_key_at_once_agree(tmp_path: Path) -> None:
    keys: list[bytes] = []
    start = threading.Barrier(8)

    def make() -> None:
        start.wait()
        keys.append(FileKeyStore(tmp_path / "key").key())

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(keys) == 8
    assert len(set(keys)) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["key"]


def test_first_of_two_key_makers_wins(tmp_path: Path) -> None:
    """Whatever moment of making it the other one chooses."""
    counting = FaultyFiles()
    FileKeyStore(tmp_path / "counted", files=counting).key()
    for at in range(len(counting.log)):
        path = tmp_path / f"{at}"
        other: list[bytes] = []
        between = FaultyFiles(at, lambda p=path, o=other: o.append(FileKeyStore(p).key()))  # type: ignore[misc]  # append answers None
        assert [FileKeyStore(path, files=between).key()] == other


def test_files_of_dead_processes_are_swept(tmp_path: Path) -> None:
    old, young = tmp_path / "key.1.tmp", tmp_path / "key.2.tmp"
    old.write_bytes(b"")
    young.write_bytes(b"")
    os.utime(old, (0, 0))
    FileKeyStore(tmp_path / "key").key()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["key", "key.2.tmp"]


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_at_any_operation_leaves_no_key_or_a_whole_one(tmp_path: Path, name: str) -> None:
    counting = FaultyFiles()
    FileKeyStore(tmp_path / "counted", files=counting).key()
    for at in range(len(counting.log)):
        path = tmp_path / f"{at}"
        faulty = FileKeyStore(path, files=FaultyFiles(at, FAULTS[name]))
        with suppress(Unreadable, Crash):
            faulty.key()
        assert not path.exists() or len(path.read_bytes()) == 32
        if name != "crash":
            assert list(tmp_path.glob(f"{at}.*")) == [] or counting.log[at] == "unlink"
        assert FileKeyStore(path).key() == path.read_bytes()


def test_file_system_without_hard_links_is_named(tmp_path: Path) -> None:
    files = FaultyFiles(0, FAULTS["EACCES"], only=("link",))
    with pytest.raises(Unreadable, match=os.strerror(errno.EACCES)):
        FileKeyStore(tmp_path / "key", files=files).key()
    assert list(tmp_path.iterdir()) == []


def test_the_double_keeps_the_highest_count() -> None:
    store = MemoryKeyStore()
    store.store_count("r", 5)
    store.store_count("r", 3)
    assert store.count("r") == 5
    assert store.count("other") == 0
    assert store.key() == store.key()


def test_the_key_ring_keeps_one_key_for_all_processes() -> None:
    backend = Backend()
    key = KeyringStore(backend).key()
    assert KeyringStore(backend).key() == key
    assert list(backend.kept) == [("penstock", "seal key 2")]


@pytest.mark.parametrize("kept", [True, False])
def test_the_key_of_earlier_versions_is_not_used_and_goes(
    kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drivers in the sandbox could ask for it."""
    backend = Backend()
    backend.kept["penstock", "seal key"] = "11" * 32
    if kept:
        monkeypatch.setattr(Backend, "delete_password", None)
    key = KeyringStore(backend).key()
    assert key != b"\x11" * 32
    assert KeyringStore(backend).key() == key
    assert (("penstock", "seal key") in backend.kept) == kept


def test_a_key_ring_that_never_deletes_is_not_waited_for() -> None:
    backend = Backend(hang_at=3)
    began = time.monotonic()
    assert len(KeyringStore(backend, limit_s=0.2).key()) == 32
    assert time.monotonic() - began < 5
    assert backend.asked == 4
    backend.release.set()


def test_the_key_ring_is_asked_for_a_count_once() -> None:
    backend = Backend()
    KeyringStore(backend).store_count("r", 7)
    store = KeyringStore(backend)
    asked = backend.asked
    assert [store.count("r") for _ in range(3)] == [7, 7, 7]
    assert backend.asked == asked + 1
    store.store_count("r", 6)
    assert KeyringStore(backend).count("r") == 7


def test_a_count_that_another_process_stored_is_never_lowered() -> None:
    backend = Backend()
    older = KeyringStore(backend)
    older.store_count("r", 5)
    KeyringStore(backend).store_count("r", 10)
    older.store_count("r", 7)
    assert older.count("r") == 10
    assert KeyringStore(backend).count("r") == 10
    older.store_count("r", 11)
    assert KeyringStore(backend).count("r") == 11


@pytest.mark.parametrize("text", ["", "zz" * 32, "00" * 31, "00" * 33])
def test_a_key_ring_s_key_of_another_form_is_replaced(text: str) -> None:
    backend = Backend()
    backend.kept["penstock", "seal key 2"] = text
    key = KeyringStore(backend).key()
    assert len(key) == 32
    assert KeyringStore(backend).key() == key


@pytest.mark.parametrize("text", ["", "-1", "many", "1.5", "²"])
def test_a_key_ring_s_count_of_another_form_is_none(text: str) -> None:
    backend = Backend()
    backend.kept["penstock", "count r"] = text
    assert KeyringStore(backend).count("r") == 0


def test_a_silent_key_ring_is_left_alone_after_the_limit() -> None:
    backend = Backend(hang_at=0)
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        KeyringStore(backend, limit_s=0.05)
    assert time.monotonic() - began < 5
    backend.release.set()


def test_a_key_ring_that_falls_silent_is_not_asked_again() -> None:
    backend = Backend(hang_at=4)
    store = KeyringStore(backend, limit_s=0.05)
    assert store.count("r") == 0
    asked = backend.asked
    store.store_count("r", 4)
    assert store.count("r") == 4
    assert store.count("other") == 0
    assert backend.asked == asked
    backend.release.set()


def test_the_system_s_store_is_asked_once_a_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install(monkeypatch, backend := ring("keyring.backends.Windows", "WinVaultKeyring"))
    store = default_key_store(tmp_path, lambda: "auto")
    assert store.name == "keyring"
    asked = backend.asked
    assert default_key_store(tmp_path, lambda: "auto") is store
    assert backend.asked == asked


def test_a_store_that_does_not_answer_in_time_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    backend = ring("keyring.backends.Windows", "WinVaultKeyring")
    backend.hang_at = 0
    install(monkeypatch, backend)
    monkeypatch.setattr(keys, "LIMIT_SECONDS", 0.05)
    assert default_key_store(tmp_path, lambda: "auto").name == "file"
    assert default_key_store(tmp_path, lambda: "auto").name == "file"
    assert backend.asked == 1
    backend.release.set()


def test_the_knob_keeps_the_key_in_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(monkeypatch, backend := ring("keyring.backends.Windows", "WinVaultKeyring"))
    assert default_key_store(tmp_path, lambda: "file").name == "file"
    assert backend.asked == 0


@pytest.mark.parametrize(
    ("module", "kind"),
    [
        ("keyring.backends.fail", "Keyring"),
        ("keyring.backends.null", "Keyring"),
        ("keyrings.alt.file", "PlaintextKeyring"),
        ("keyring.backends.kwallet", "DBusKeyring"),
        ("keyring.backends.macOS", "Keyring"),
    ],
)
def test_a_store_that_may_prompt_is_not_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, module: str, kind: str
) -> None:
    install(monkeypatch, backend := ring(module, kind))
    assert default_key_store(tmp_path, lambda: "auto").name == "file"
    assert backend.asked == 0


def secret_service(monkeypatch: pytest.MonkeyPatch, locked: bool | None) -> Backend:
    """A Secret Service whose default collection is *locked*, or missing (None)."""

    class Failure(Exception):
        pass

    class Bus:
        def close(self) -> None:
            return

    class Collection:
        def is_locked(self) -> bool:
            return bool(locked)

    def by_alias(_bus: Bus, alias: str) -> Collection:
        assert alias == "default"
        if locked is None:
            raise Failure
        return Collection()

    install(monkeypatch, backend := ring("keyring.backends.SecretService", "Keyring"))
    library: Any = ModuleType("secretstorage")
    library.dbus_init = Bus
    library.collection = SimpleNamespace(get_collection_by_alias=by_alias)
    library.exceptions = SimpleNamespace(SecretStorageException=Failure)
    monkeypatch.setitem(sys.modules, "secretstorage", library)
    return backend


def test_an_open_secret_service_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = secret_service(monkeypatch, locked=False)
    assert quiet_backend() is backend


def test_preferred_key_store_of_several_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet = ring("keyring.backends.Windows", "WinVaultKeyring")
    asking = ring("keyring.backends.kwallet", "DBusKeyring")
    chain: Any = ring("keyring.backends.chainer", "ChainerBackend")
    install(monkeypatch, chain)
    chain.backends = [quiet, asking]
    assert quiet_backend() is quiet
    chain.backends = [asking, quiet]
    assert quiet_backend() is None
    chain.backends = []
    assert quiet_backend() is None


@pytest.mark.parametrize("locked", [True, None])
def test_a_locked_or_missing_collection_is_not_opened(
    monkeypatch: pytest.MonkeyPatch, locked: bool | None
) -> None:
    backend = secret_service(monkeypatch, locked)
    assert system_key_store() is None
    assert backend.asked == 0


@pytest.mark.skipif(sys.platform == "win32", reason="Windows' store is always there")
def test_without_a_session_bus_the_library_is_not_even_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(monkeypatch, backend := ring("keyring.backends.SecretService", "Keyring"))
    monkeypatch.delenv("DBUS_SESSION_BUS_ADDRESS")
    monkeypatch.delattr(sys.modules["keyring"], "get_keyring")
    assert system_key_store() is None
    assert backend.asked == 0


def test_without_the_library_there_is_no_system_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keyring", None)
    assert system_key_store() is None


def test_a_question_s_error_reaches_the_asker() -> None:
    def broken() -> None:
        raise RuntimeError("no bus")

    with pytest.raises(RuntimeError, match="no bus"):
        within(1, broken)


def test_a_temporary_name_that_is_taken_is_not_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever guessed it would read the key there."""
    monkeypatch.setattr(os, "urandom", bytes)
    taken = tmp_path / f"key.{bytes(8).hex()}.tmp"
    taken.write_bytes(b"somebody's")
    with pytest.raises(Unreadable, match="File exists"):
        FileKeyStore(tmp_path / "key").key()
    assert taken.read_bytes() == b"somebody's"
