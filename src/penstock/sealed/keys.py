"""The per-user key that seals are made with, and where it lies."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Literal, Protocol

from penstock.arguments import path_of
from penstock.errors import Unreadable
from penstock.sealed.files import (
    SYSTEM_FILES,
    FileStatus,
    FileSystem,
    StrPath,
    is_private,
    read_exactly,
    write_all,
)

KEY_BYTES: Final = 32
_STALE_SECONDS: Final = 60.0
_MOST_NAMES: Final = 4096
_NONBLOCK: Final[int] = getattr(os, "O_NONBLOCK", 0)


class KeyStore(Protocol):
    """Holds one secret key of 32 bytes a user, and perhaps a count for each registry.

    A count that lies where a copy of the files cannot reach it is what tells a registry that was
    rolled back from the newest one. Thread-safe.
    """

    @property
    def name(self) -> str:
        """A short word for messages and file names: "file", "keyring"."""
        ...

    def key(self) -> bytes:
        """The key; made at the first call of a user. Raises `Unreadable` when there can be none."""
        ...

    def refresh(self) -> bytes:
        """The key as it is stored now, which `key` gives from then on; one that is gone is stored
        again.

        Raises `Unreadable`; `key` then stays as it was. A store that is asked once a process gives
        `key`.
        """
        ...

    def count(self, registry: str) -> int | None:
        """The highest count stored for *registry*: 0 where none was, None when this store holds
        none.
        """
        ...

    def store_count(self, registry: str, count: int) -> None:
        """Remembers *count* for *registry*. A store that cannot does nothing: the next call may."""
        ...


class MemoryKeyStore:
    """A `KeyStore` that forgets: the smallest one, and the double of a system key store in tests."""

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
    """A `KeyStore` in one 0600 file, *path*; holds no counts.

    Whatever is not a regular file of this user's, of mode 0600 or 0400 and 32 bytes, is not
    trusted: a new key takes its place, and whatever the old one sealed is refused from then on. An
    empty directory in its place is removed, one that is not empty is renamed to
    `<path>.<digits>.aside`. Read once, and at each `refresh`.
    """

    name = "file"

    def __init__(self, path: StrPath, *, files: FileSystem = SYSTEM_FILES) -> None:
        self.path, self._files = path_of(path, "a key lies in a file at a path"), files
        self._known: bytes | None = None

    def key(self) -> bytes:
        return self.refresh() if self._known is None else self._known

    def refresh(self) -> bytes:
        # Without a lock, which a child that is forked meanwhile would wait for in vain: of two
        # threads that find different keys, the next one to ask settles it.
        self._known = key = self._read_or_create()
        return key

    def count(self, registry: str) -> int | None:
        return None

    def store_count(self, registry: str, count: int) -> None:
        return

    def _read_or_create(self) -> bytes:
        try:
            found = self._read()
            if not isinstance(found, bytes):
                untrusted = found == "untrusted"
                known = None if untrusted else self._known
                self._create(known or os.urandom(KEY_BYTES), instead=untrusted)
                found = self._read()
        except OSError as error:
            raise Unreadable(
                f"the key file {self.path} cannot be read or made: {error.strerror or error}"
            ) from None
        if not isinstance(found, bytes):
            raise Unreadable(f"the key file {self.path} does not stay as it was made")
        return found

    def _read(self) -> bytes | Literal["missing", "untrusted"]:
        try:
            fd = self._files.open(self.path, os.O_RDONLY | _NONBLOCK)
        except FileNotFoundError:
            return "missing"
        except OSError:
            # A link, a socket, or a mode that keeps its owner out; else the system failed.
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
        """Writes *key* under a name of its own, then gives it the file's name if nobody was faster;
        with *instead*, in place of the file that is there.
        """
        from penstock.sealed.replacing import make_private, put_in_place

        self._sweep()
        temporary = f"{self.path}.{os.urandom(8).hex()}.tmp"
        fd = self._files.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            try:
                make_private(fd)
                write_all(self._files, fd, key, 0)
                self._files.sync(fd)
            finally:
                self._files.close(fd)
            if instead:
                put_in_place(temporary, self.path, self._files)
            else:
                with suppress(FileExistsError):
                    self._files.link(temporary, self.path)
        finally:
            with suppress(OSError):
                self._files.unlink(temporary)

    def _sweep(self) -> None:
        """Removes what processes that died left behind."""
        above, name = os.path.split(self.path)
        with suppress(OSError):
            for left in self._files.names(above or ".", _MOST_NAMES):
                if left.startswith(f"{name}.") and left.endswith(".tmp"):
                    self._sweep_one(os.path.join(above, left))

    def _sweep_one(self, left: str) -> None:
        with suppress(OSError):
            if time.time() - os.stat(left).st_mtime > _STALE_SECONDS:
                os.unlink(left)


def _is_key(status: FileStatus) -> bool:
    return status.size == KEY_BYTES and is_private(status)


def default_key_store(directory: StrPath, choose: Callable[[], str]) -> KeyStore:
    """The user's key store: the system's where it answers and *choose*() allows it, else a file in
    *directory*.

    The system's store is asked at most once a process.
    """
    if choose() == "auto":
        from penstock.sealed.keyring_store import system_key_store

        if (store := system_key_store()) is not None:
            return store
    return FileKeyStore(os.path.join(directory, "key"))
