"""Small sealed records by key: one file for each, in a separate directory."""

from __future__ import annotations

import hmac
import os
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

import msgspec

from penstock.cache.naming import sealed, temporary_name, unsealed
from penstock.errors import CacheError, Unreadable
from penstock.sealed.files import SYSTEM_FILES, FileSystem, open_cache_file, read_exactly, write_all

MOST_BYTES: Final = 4 << 20


class Record(Protocol):
    """A frozen struct with its *key*, 64 digits, and *created*, seconds since the epoch."""

    @property
    def key(self) -> str: ...
    @property
    def created(self) -> float: ...


R = TypeVar("R", bound=Record)


MOST_REMOVED: Final = 256
"""Maximum records that one save removes, because others may fill the directory."""


class SealedRecords(Generic[R]):
    """The records of type *kind* in the directory *name* below *directory*.

    They are sealed for *domain* with the user's key. *key* returns that key; None uses the key
    store's. At most *most* are kept; the oldest are removed first. A record that is altered,
    truncated, of another key or domain, or unreadable counts as missing.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        name: str,
        kind: type[R],
        domain: bytes,
        most: int,
        *,
        files: FileSystem = SYSTEM_FILES,
        key: Callable[[], bytes] | None = None,
    ) -> None:
        from penstock.cache.directory import CacheDirectory

        self._store = CacheDirectory(directory, files=files).store
        self._path = os.path.join(os.fspath(directory), name)  # as the cache does
        self._kind, self._domain, self._most = kind, domain + b"\0", most
        self._files, self._key = files, key or self._store.key

    def load(self, key: str) -> R | None:
        """The record under *key*; None if there is no authentic one."""
        try:
            fd = open_cache_file(self._name(key), files=self._files)
            try:
                content = self._read(fd)
            finally:
                self._store.close(fd)
            return self._unpacked(content, key)
        except (OSError, CacheError):
            return None

    def save(self, record: R) -> None:
        """Stores *record* under its key. Raises `Unreadable`; the previous record is then kept."""
        encoded = msgspec.json.encode(record)
        content = sealed("verdict", encoded, self._seal(encoded))
        if len(content) > MOST_BYTES:
            raise Unreadable(f"a record of {len(content)} bytes is too large to be stored")
        self._store.make_directory()
        with self._store.naming("written"):
            self._make()
            self._write(self._name(record.key), content)
            self._drop_oldest()

    def every(self) -> list[R]:
        """All authentic records, the newest first. Raises `Unreadable`.

        At most *most* plus `MOST_REMOVED` names are examined, because others may fill the
        directory.
        """
        with self._store.naming("read"):
            keys = self._keys()
        return sorted(filter(None, map(self.load, keys)), key=lambda record: -record.created)

    def untrusted(self) -> list[str]:
        """The sorted keys of files that are not authentic records.

        Examines as many names as `every`. Raises `Unreadable`.
        """
        with self._store.naming("read"):
            keys = self._keys()
            return sorted(k for k in keys if self.load(k) is None and self._stands(k))

    def remove(self, key: str) -> None:
        """Removes the record under *key*, if there is one. Raises `Unreadable`."""
        with self._store.naming("emptied"):
            try:
                self._files.unlink(self._name(key))
            except FileNotFoundError:
                return

    def clear(self) -> int:
        """Removes every record; returns the number removed. Raises `Unreadable`."""
        with self._store.naming("emptied"):
            names = self._names()
            for name in names:
                self._files.unlink(os.path.join(self._path, name))
            return sum(not name.endswith(".tmp") for name in names)

    def _name(self, key: str) -> str:
        return os.path.join(self._path, f"{key}.json")

    def _stands(self, key: str) -> bool:
        """Whether the file exists; another process may have removed it."""
        try:
            self._files.status_of(self._name(key))
        except FileNotFoundError:
            return False
        return True

    def _make(self) -> None:
        try:
            self._files.mkdir(self._path)
        except FileExistsError:
            if not self._files.status_of(self._path).regular:
                return
            raise

    def _read(self, fd: int) -> bytes:
        content = bytearray(min(self._files.status(fd).size, MOST_BYTES + 1))
        if len(content) > MOST_BYTES:
            return b""
        with memoryview(content) as view:
            return bytes(content) if read_exactly(self._files, fd, view, 0) else b""

    def _write(self, path: str, content: bytes) -> None:
        temporary = temporary_name(path)
        fd = self._files.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            try:
                write_all(self._files, fd, content, 0)
                self._files.sync(fd)
            finally:
                self._store.close(fd)
            self._files.replace(temporary, path)
        except BaseException:
            self._remove(temporary)
            raise

    def _keys(self) -> list[str]:
        names = self._names(self._most + MOST_REMOVED)
        return [name.removesuffix(".json") for name in names if name.endswith(".json")]

    def _names(self, most: int | None = None) -> list[str]:
        try:
            return self._files.names(self._path, most)
        except FileNotFoundError:
            return []

    def _drop_oldest(self) -> None:
        names = self._names(self._most + MOST_REMOVED)
        if len(names) <= self._most:
            return
        dated = []
        for name in names:
            try:
                status = self._files.status_of(os.path.join(self._path, name))
            except FileNotFoundError:
                continue
            dated.append((status.modified_ns, name))
        for _, name in sorted(dated)[: len(names) - self._most]:
            self._remove(os.path.join(self._path, name))

    def _remove(self, path: str) -> None:
        try:
            self._files.unlink(path)
        except OSError:
            return

    def _unpacked(self, content: bytes, key: str) -> R | None:
        if (found := unsealed("verdict", content, self._seal)) is None:
            return None
        try:
            record = msgspec.json.decode(found, type=self._kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        return record if record.key == key else None

    def _seal(self, content: bytes) -> str:
        return hmac.digest(self._key(), self._domain + content, "sha256").hex()
