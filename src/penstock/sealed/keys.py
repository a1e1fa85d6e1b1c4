"""The user's secret key for seals, and its storage: a file, or the system's key store.

The system's key store is used through the `keyring` library if that is installed, and only if it
answers without asking the user: the Windows Credential Locker, and a Secret Service whose default
collection is unlocked.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Literal, Protocol, TypeVar

from penstock.arguments import path_of
from penstock.errors import Unreadable
from penstock.sealed.files import (
    SYSTEM_FILES,
    FileStatus,
    FileSystem,
    StrPath,
    is_private,
    read_exactly,
    unreadable,
)

T = TypeVar("T")

SERVICE: Final = "penstock"
LIMIT_SECONDS: Final = 1.0
KEY_BYTES: Final = 32
_KEY_NAME: Final = "seal key 2"
_FORMER_KEY_NAME: Final = "seal key"
"""The key of earlier versions, which drivers in the sandbox could read."""
_SECRET_SERVICE: Final = ("keyring.backends.SecretService", "Keyring")
_QUIET: Final = {("keyring.backends.Windows", "WinVaultKeyring"), _SECRET_SERVICE}
_CHAIN: Final = ("keyring.backends.chainer", "ChainerBackend")

_lock = threading.Lock()
_asked = False
_found: KeyringStore | None = None


class Backend(Protocol):
    """The methods of a `keyring` backend that are used here."""

    def get_password(self, service: str, username: str) -> str | None: ...

    def set_password(self, service: str, username: str, password: str) -> None: ...

    def delete_password(self, service: str, username: str) -> None: ...


class KeyringStore:
    """A `KeyStore` over a `keyring` backend; holds the registries' counts.

    Each request has *limit_s* seconds. After a timeout the store is not used again, and counts are
    those that this process knows.
    """

    name = "keyring"

    def __init__(self, backend: Backend, *, limit_s: float = LIMIT_SECONDS) -> None:
        self._backend, self._limit_s = backend, limit_s
        self._counts: dict[str, int] = {}
        self._lock = threading.Lock()
        self._silent = False
        self._key = self._first_key()

    def key(self) -> bytes:
        return self._key

    def refresh(self) -> bytes:
        return self._key

    def count(self, registry: str) -> int | None:
        with self._lock:
            if registry not in self._counts:
                text = None if self._silent else self._ask(self._get, f"count {registry}")
                self._counts[registry] = _number(text)
            return self._counts[registry]

    def store_count(self, registry: str, count: int) -> None:
        with self._lock:
            if count <= self._counts.get(registry, 0):
                return
            # Another process may have stored a higher one.
            stored = 0 if self._silent else _number(self._ask(self._get, f"count {registry}"))
            self._counts[registry] = max(count, stored)
            if count > stored and not self._silent:
                self._ask(self._set, f"count {registry}", str(count))

    def _first_key(self) -> bytes:
        """The stored key, or a new confirmed one. Raises `TimeoutError`, and as the backend."""
        if (key := _key(within(self._limit_s, self._get, _KEY_NAME))) is not None:
            return key
        within(self._limit_s, self._set, _KEY_NAME, os.urandom(KEY_BYTES).hex())
        if (key := _key(within(self._limit_s, self._get, _KEY_NAME))) is None:
            raise KeyError(_KEY_NAME)
        # Seals of the former key are rejected from now on, even if the key cannot be deleted.
        with suppress(Exception):
            within(self._limit_s / 4, self._backend.delete_password, SERVICE, _FORMER_KEY_NAME)
        return key

    def _ask(self, question: Callable[..., T], *arguments: str) -> T | None:
        try:
            return within(self._limit_s, question, *arguments)
        except Exception:  # noqa: BLE001  # a backend fails as it likes
            self._silent = True
            return None

    def _get(self, name: str) -> str | None:
        return self._backend.get_password(SERVICE, name)

    def _set(self, name: str, value: str) -> None:
        self._backend.set_password(SERVICE, name, value)


def system_key_store() -> KeyringStore | None:
    """The system's key store; None if none answers in time without a prompt.

    Tried once in a process: later calls return the first result.
    """
    global _asked, _found  # noqa: PLW0603  # one answer a process
    with _lock:
        if not _asked:
            _asked = True
            try:
                _found = within(LIMIT_SECONDS, _open)
            except Exception:  # noqa: BLE001  # a backend fails as it likes
                _found = None
        return _found


def _open() -> KeyringStore | None:
    backend = quiet_backend()
    return None if backend is None else KeyringStore(backend)


def quiet_backend() -> Backend | None:
    """The `keyring` backend if it never prompts; None if it may, or without `keyring`."""
    if sys.platform != "win32" and "DBUS_SESSION_BUS_ADDRESS" not in os.environ:
        # No store can be running; importing `keyring` would be slow.
        return None
    try:
        # Optional: Penstock runs without it.
        keyring: Any = importlib.import_module("keyring")
    except ImportError:
        return None
    backend: Any = keyring.get_keyring()
    if _class_of(backend) == _CHAIN:
        backend = next(iter(backend.backends), None)
    kind = _class_of(backend)
    if kind not in _QUIET or (kind == _SECRET_SERVICE and not _unlocked()):
        return None
    chosen: Backend = backend
    return chosen


def _class_of(backend: object) -> tuple[str, str]:
    return type(backend).__module__, type(backend).__name__


def _unlocked() -> bool:
    """Whether the Secret Service's default collection exists and is open."""
    secretstorage: Any = importlib.import_module("secretstorage")
    bus = secretstorage.dbus_init()
    try:
        return not secretstorage.collection.get_collection_by_alias(bus, "default").is_locked()
    except secretstorage.exceptions.SecretStorageException:
        return False
    finally:
        bus.close()


def within(limit_s: float, question: Callable[..., T], *arguments: str) -> T:
    """The result of *question*, called in another thread. Raises `TimeoutError`."""
    answer: list[T] = []
    failure: list[BaseException] = []

    def ask() -> None:
        try:
            answer.append(question(*arguments))
        except BaseException as error:  # noqa: BLE001  # carried over to the asking thread
            failure.append(error)

    thread = threading.Thread(target=ask, name="penstock-key-store", daemon=True)
    thread.start()
    thread.join(limit_s)
    if failure:
        raise failure[0]
    if not answer:
        raise TimeoutError(f"the key store did not answer within {limit_s:g} s")
    return answer[0]


def _number(text: str | None) -> int:
    return int(text) if text and text.isascii() and text.isdigit() else 0


def _key(text: str | None) -> bytes | None:
    try:
        key = bytes.fromhex(text or "")
    except ValueError:
        return None
    return key if len(key) == KEY_BYTES else None


_STALE_SECONDS: Final = 60.0
_MOST_NAMES: Final = 4096
_NONBLOCK: Final[int] = getattr(os, "O_NONBLOCK", 0)


class KeyStore(Protocol):
    """Holds one secret key of 32 bytes for each user, and perhaps a count for each registry.

    The count shows that a registry was rolled back: a copy of the files cannot restore it.
    Thread-safe.
    """

    @property
    def name(self) -> str:
        """A short word for messages and file names: "file", "keyring"."""
        ...

    def key(self) -> bytes:
        """The key; created at a user's first call. Raises `Unreadable` if there can be none."""
        ...

    def refresh(self) -> bytes:
        """The key as it is stored now, which `key` returns from then on.

        A missing key is stored again. Raises `Unreadable`; `key` then stays the same. A store that
        is read once in a process returns `key`.
        """
        ...

    def count(self, registry: str) -> int | None:
        """The highest count stored for *registry*, 0 if none; None if this store keeps none."""
        ...

    def store_count(self, registry: str, count: int) -> None:
        """Stores *count* for *registry*, or does nothing: the next call may succeed."""
        ...


class MemoryKeyStore:
    """A `KeyStore` in memory: the smallest one, used as a system key store in tests."""

    name = "memory"

    def __init__(self, key: bytes | None = None) -> None:
        self._key = os.urandom(KEY_BYTES) if key is None else key
        self.counts: dict[str, int] = {}

    def key(self) -> bytes:
        return self._key

    def refresh(self) -> bytes:
        return self._key

    def count(self, registry: str) -> int | None:
        return self.counts.get(registry, 0)

    def store_count(self, registry: str, count: int) -> None:
        self.counts[registry] = max(count, self.counts.get(registry, 0))


class FileKeyStore:
    """A `KeyStore` in one 0600 file, *path*, without counts. Read once, and at each `refresh`.

    If *path* is anything but a regular file of this user (0600 or 0400, 32 bytes), a new key
    replaces it, which invalidates all earlier seals. A directory at *path* is removed, or renamed
    to `<path>.<digits>.aside` if it is not empty.
    """

    name = "file"

    def __init__(self, path: StrPath, *, files: FileSystem = SYSTEM_FILES) -> None:
        self.path, self._files = path_of(path, "a key lies in a file at a path"), files
        self._known: bytes | None = None

    def key(self) -> bytes:
        return self.refresh() if self._known is None else self._known

    def refresh(self) -> bytes:
        # Without a lock: a child that is forked meanwhile would wait for it forever. If two threads
        # find different keys, the next reader's key is used.
        self._known = key = self._read_or_create()
        return key

    def count(self, registry: str) -> int | None:
        return None

    def store_count(self, registry: str, count: int) -> None:
        return

    def _read_or_create(self) -> bytes:
        with unreadable(f"the key file {self.path} cannot be read or made"):
            found = self._read()
            if not isinstance(found, bytes):
                untrusted = found == "untrusted"
                known = None if untrusted else self._known
                self._create(known or os.urandom(KEY_BYTES), instead=untrusted)
                found = self._read()
        if not isinstance(found, bytes):
            raise Unreadable(f"the key file {self.path} does not stay as it was made")
        return found

    def _read(self) -> bytes | Literal["missing", "untrusted"]:
        try:
            fd = self._files.open(self.path, os.O_RDONLY | _NONBLOCK)
        except FileNotFoundError:
            return "missing"
        except OSError:
            # A link, a socket, or a mode that excludes its owner; any other error is the system's.
            with suppress(OSError):
                if not _is_key(self._files.status_of(self.path)):
                    return "untrusted"
            raise
        try:
            if not _is_key(self._files.status(fd)):
                return "untrusted"
            content = bytearray(KEY_BYTES)
            with memoryview(content) as view:
                whole = read_exactly(self._files, fd, view, 0)
            return bytes(content) if whole else "untrusted"
        finally:
            self._files.close(fd)

    def _create(self, key: bytes, *, instead: bool) -> None:
        """Writes *key* to a new file and links it, or with *instead* replaces the file there."""
        from penstock.sealed.replacing import put_in_place, write_beside

        def place(temporary: str) -> None:
            if instead:
                put_in_place(temporary, self.path, self._files)
            else:
                with suppress(FileExistsError):
                    self._files.link(temporary, self.path)

        self._sweep()
        write_beside(self.path, key, self._files, place)

    def _sweep(self) -> None:
        """Removes temporary files of processes that died."""
        above, name = os.path.split(self.path)
        with suppress(OSError):
            for left in self._files.names(above or ".", _MOST_NAMES):
                path = os.path.join(above, left)
                if left.startswith(f"{name}.") and left.endswith(".tmp"):
                    with suppress(OSError):
                        if time.time() - os.stat(path).st_mtime > _STALE_SECONDS:
                            os.unlink(path)


def _is_key(status: FileStatus) -> bool:
    return status.size == KEY_BYTES and is_private(status)


def default_key_store(directory: StrPath, choose: Callable[[], str]) -> KeyStore:
    """The user's key store: the system's, or a file in *directory*.

    The system's store is used if it answers and *choose*() allows it. It is tried at most once in a
    process.
    """
    if choose() == "auto" and (store := system_key_store()) is not None:
        return store
    return FileKeyStore(os.path.join(directory, "key"))
