"""Small sealed records by key: one file for each, in a separate directory."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import ClassVar, Final, Generic, TypeVar

import msgspec

from penstock.cache.naming import Digits, sealed, unsealed
from penstock.cache.store import Store
from penstock.errors import CacheError, Unreadable

MOST_BYTES: Final = 4 << 20


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A record under *key*, *created* in seconds since the epoch, by the version *penstock*."""

    key: Digits
    created: float = msgspec.field(default_factory=time.time)
    penstock: str = ""


R = TypeVar("R", bound=Record)


MOST_REMOVED: Final = 256
"""Maximum records that one save removes, because others may fill the directory."""


class SealedRecords(Generic[R]):
    """The records of type *kind* in the directory *name* below *directory*.

    They are sealed for *domain* with the user's key. *key* returns that key; None uses the key
    store's. At most *most* are kept; the oldest are removed first. A record that is altered,
    truncated, of another key or domain, or unreadable counts as missing.
    """

    name: ClassVar[str]
    domain: ClassVar[bytes]
    most: ClassVar[int]
    kind: type[R]

    def __init__(
        self, directory: str | os.PathLike[str], *, key: Callable[[], bytes] | None = None
    ) -> None:
        self._store = Store(os.fspath(directory))
        self._files = self._store.files
        self._path = self._store.at(self.name)
        self._key = key or self._store.key

    def load(self, key: str) -> R | None:
        """The record under *key*; None if there is no authentic one."""
        try:
            content = self._store.read(self._store.at(self._name(key)), MOST_BYTES)
            found = unsealed("verdict", content, self.kind, self.domain, self._key())
        except (OSError, CacheError):
            return None
        return None if found is None or found.key != key else found

    def save(self, record: R) -> None:
        """Stores *record* under its key. Raises `Unreadable`; the previous record is then kept."""
        content = sealed("verdict", record, self.domain, self._key())
        if len(content) > MOST_BYTES:
            raise Unreadable(f"a record of {len(content)} bytes is too large to be stored")
        self._store.make_directory()
        with self._store.naming("written"):
            try:
                self._files.mkdir(self._path)
            except FileExistsError:
                if self._files.status_of(self._path).regular:
                    raise
            self._store.write(self._name(record.key), content)
            paths = [os.path.join(self._path, n) for n in self._names(self.most + MOST_REMOVED)]
            if (over := len(paths) - self.most) > 0:
                from penstock.cache.claim import oldest

                for path in oldest(paths, over, self._files):
                    with suppress(OSError):
                        self._files.unlink(path)

    def every(self) -> list[R]:
        """At most *most* + `MOST_REMOVED` authentic records, newest first. Raises `Unreadable`."""
        with self._store.naming("read"):
            keys = self._keys()
        return sorted(filter(None, map(self.load, keys)), key=lambda record: -record.created)

    def untrusted(self) -> list[str]:
        """The sorted keys of files that are no authentic records. Raises `Unreadable`."""
        found = []
        with self._store.naming("read"):
            for key in self._keys():
                if self.load(key) is None:
                    with suppress(FileNotFoundError):  # another process may have removed it
                        self._files.status_of(self._store.at(self._name(key)))
                        found.append(key)
        return sorted(found)

    def remove(self, key: str) -> None:
        """Removes the record under *key*, if there is one. Raises `Unreadable`."""
        with self._store.naming("emptied"):
            self._store.unlink(self._name(key))

    def trim(self, most_bytes: int) -> int:
        """Removes the oldest records until the rest has at most *most_bytes*; returns how many.

        Raises `Unreadable`.
        """
        removed = 0
        with self._store.naming("emptied"):
            found = []
            for name in self._names():
                path = os.path.join(self._path, name)
                with suppress(FileNotFoundError):
                    status = self._files.status_of(path)
                    found.append((status.modified_ns, status.size, path))
            left = sum(size for _, size, _ in found)
            for _, size, path in sorted(found):
                if left <= most_bytes:
                    break
                self._files.unlink(path)
                left, removed = left - size, removed + 1
        return removed

    def clear(self) -> int:
        """Removes every record; returns the number removed. Raises `Unreadable`."""
        with self._store.naming("emptied"):
            names = self._names()
            for name in names:
                self._files.unlink(os.path.join(self._path, name))
            return sum(not name.endswith(".tmp") for name in names)

    def _name(self, key: str) -> str:
        return os.path.join(self.name, f"{key}.json")

    def _keys(self) -> list[str]:
        names = self._names(self.most + MOST_REMOVED)
        return [name.removesuffix(".json") for name in names if name.endswith(".json")]

    def _names(self, most: int | None = None) -> list[str]:
        try:
            return self._files.names(self._path, most)
        except FileNotFoundError:
            return []
