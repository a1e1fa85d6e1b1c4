"""The system's key store, through the `keyring` library where it is installed.

Only stores that can answer without asking the user are used: the Windows Credential Locker, and a
Secret Service whose default collection is unlocked.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Protocol, TypeVar

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
    """What is used of a `keyring` backend."""

    def get_password(self, service: str, username: str) -> str | None: ...

    def set_password(self, service: str, username: str, password: str) -> None: ...

    def delete_password(self, service: str, username: str) -> None: ...


class KeyringStore:
    """A `KeyStore` over a `keyring` backend; holds the registries' counts.

    Each question has *limit_s* seconds. After one that was not answered the store is not asked
    again, and counts are what this process knows.
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
        """The stored key, or a new one that the store has confirmed. Raises `TimeoutError`, or what
        the backend does.
        """
        if (key := _key(within(self._limit_s, self._get, _KEY_NAME))) is not None:
            return key
        within(self._limit_s, self._set, _KEY_NAME, os.urandom(KEY_BYTES).hex())
        if (key := _key(within(self._limit_s, self._get, _KEY_NAME))) is None:
            raise KeyError(_KEY_NAME)
        # Nothing that the former key sealed is believed any more, whether or not it can be deleted.
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
    """The system's key store; None where there is none that answers in time without a prompt.

    Asked once a process: later calls return the first answer.
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
    """The backend that `keyring` chose, if it never prompts; None otherwise or without `keyring`."""
    if not may_be_there():
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


def may_be_there() -> bool:
    """Whether a store that is used at all can be running: `keyring` takes long to import, to say
    that none is.
    """
    return sys.platform == "win32" or "DBUS_SESSION_BUS_ADDRESS" in os.environ


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
    """The answer to *question*, asked in a thread of its own. `TimeoutError` when it takes longer."""
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
