"""Which local entries are copies from a store, so that those of a revoked publisher are refused."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Final

import msgspec

from penstock.cache.naming import Count, Digits
from penstock.cache.store import Store
from penstock.errors import CacheError, StoreUnavailable
from penstock.sealed.locks import locked

MOST_COPIES: Final = 4096
"""Maximum copies that are remembered. The oldest beyond it are refused, and fetched again."""

_NAME: Final = "copies.json"
_MOST_BYTES: Final = 16 << 20
_LOCK_SECONDS: Final = 2.0


class Copy(msgspec.Struct, frozen=True, kw_only=True):
    """A local entry that *publisher* signed with one of *keys*, in the registry of *device*.

    *token* and *entry* name it there, in hexadecimal digits.
    """

    publisher: str
    keys: tuple[str, ...]
    device: str
    version: str
    source: str
    models: Count
    datas: Count
    token: Digits
    entry: str


class Copies:
    """The copies of one store, in the *directory* of its history."""

    def __init__(self, directory: str, cache: Store) -> None:
        self._path, self._cache = os.path.join(directory, _NAME), cache

    def add(self, copy: Copy) -> None:
        """Remembers *copy*. Raises `OSError`, `StoreUnavailable`."""
        with self._held():
            found = [*self._read(), copy]
            for one in found[:-MOST_COPIES]:
                self._refuse(one)
            self._write(found[-MOST_COPIES:])

    def refuse_revoked(self, publishers: Mapping[str, Sequence[str]]) -> int:
        """Refuses the copies that no key of *publishers* signed; returns how many.

        Raises `OSError`, `StoreUnavailable`.
        """
        with self._held():
            kept = []
            for one in (found := self._read()):
                if set(one.keys).isdisjoint(publishers.get(one.publisher, ())):
                    self._refuse(one)
                else:
                    kept.append(one)
            if len(kept) < len(found):
                self._write(kept)
            return len(found) - len(kept)

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Holds the list. Nobody who does waits for a store."""
        fd = os.open(f"{self._path}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            with locked(fd, exclusive=True, timeout=_LOCK_SECONDS) as held:
                if not held:
                    raise StoreUnavailable("the list of copies stays in use by another process")
                yield
        finally:
            os.close(fd)

    def _refuse(self, copy: Copy) -> None:
        """Removes the entry from its driver's registry: no driver loads its files from then on."""
        needed = copy.models, copy.datas
        with suppress(OSError, CacheError):
            seal = self._cache.seal(copy.device, copy.version, needed, copy.source)
            seal.forget(bytes.fromhex(copy.token), bytes.fromhex(copy.entry))

    def _read(self) -> list[Copy]:
        try:
            with open(self._path, "rb") as file:
                return msgspec.json.decode(file.read(_MOST_BYTES), type=list[Copy])
        except (FileNotFoundError, msgspec.DecodeError):
            return []

    def _write(self, copies: list[Copy]) -> None:
        temporary = f"{self._path}.tmp"
        with open(temporary, "wb") as file:
            file.write(msgspec.json.encode(copies))
        os.replace(temporary, self._path)
