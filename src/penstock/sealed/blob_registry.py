"""The registry kept in a blob cache, for a driver that has one anyway."""

from __future__ import annotations

import hashlib
import hmac
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from penstock.arguments import check_kind, path_of
from penstock.blobcache import Capacity, Limits, PersistentBlobCache, Policy, Select
from penstock.errors import OtherVersion, RolledBack, SealBroken, Unreadable
from penstock.sealed.forks import FORK_GATE
from penstock.sealed.keys import KeyStore
from penstock.sealed.locks import locked
from penstock.sealed.places import make_private_directory
from penstock.sealed.registry import (
    Measure,
    Measures,
    Owner,
    RegistryState,
    Row,
    pack_records,
    row_mac,
    unpack_records,
)

_POLICY: Final = Policy(Select.LRU, Capacity.FIT)
_STATE_KEY: Final = b"state"
_ROW_KEY: Final = b"row "
_STATE: Final = struct.Struct("<H32s32s16sQ32s")
_ROW: Final = struct.Struct("<16sQB")
_FORMAT: Final = 1
_STATE_DOMAIN: Final = b"penstock blob registry\x00"
_MAC_BYTES: Final = 32
_LOCK_SECONDS: Final = 10.0


class _Books(NamedTuple):
    """A registry that *key* authenticates."""

    key: bytes
    state: RegistryState


class BlobRegistry:
    """`Registry` in the `PersistentBlobCache` file *path*, each blob authenticated by *keys*, and their list too.

    The file holds at most *most_bytes* of keys and values: once it is full, the row inserted longest ago goes, and its
    entry is a miss. A file that the blob cache does not believe holds nothing. Who changes the registry locks
    the empty file `<path>.changes`.
    """

    def __init__(
        self, path: Path, owner: Owner, keys: KeyStore, *, most_bytes: int = 1 << 20
    ) -> None:
        self._limits = Limits(key=64, value=4096, total=most_bytes)
        check_kind(owner, Owner, "a registry has an Owner")
        self.path = Path(path_of(path, "a registry lies in a file at a path"))
        self.owner = owner
        self._measures = Measures(keys, f"{owner.digits}-blobs")

    def state(self) -> RegistryState | None:
        measure = self._measures.now()
        books = self._verified(self._blobs(), measure)
        return None if books is None else books.state

    def find(self, token: bytes, entry: bytes) -> Row | None:
        measure = self._measures.now()
        blobs = self._blobs()
        if (books := self._verified(blobs, measure)) is None:
            return None
        blob = blobs.get(_ROW_KEY + token + entry)
        return None if blob is None else self._row(token, entry, blob, books)

    def rows(self) -> tuple[Row, ...]:
        measure = self._measures.now()
        blobs = self._blobs()
        if (books := self._verified(blobs, measure)) is None:
            return ()
        found = (
            self._row(key[4:36], key[36:], blob, books)
            for key, blob in blobs.items()
            if key.startswith(_ROW_KEY)
        )
        return tuple(row for row in found if row is not None)

    def open(self) -> RegistryState:
        self._change(lambda *_: False, repair=True)
        if (state := self.state()) is None:
            raise Unreadable("the registry does not stay as it was made")
        return state

    def begin(self, row: Row) -> None:
        def insert(cache: PersistentBlobCache, books: _Books) -> bool:
            state = books.state
            placed = Row(row.token, row.entry, row.models, row.datas, state.changes + 1)
            head = _ROW.pack(state.registry, placed.sequence, len(row.models))
            mac = row_mac(books.key, self.owner, state.registry, placed)
            return cache.set(key, head + mac + pack_records(row))

        key = _ROW_KEY + row.token + row.entry
        if not self._change(insert, repair=True, kept=key):
            raise Unreadable("the registry has no room for the entry")

    def publish(self, token: bytes, entry: bytes, replaced: Sequence[bytes] = ()) -> None:
        self._delete(token, [old for old in replaced if old != entry])

    def remove(self, token: bytes, entry: bytes) -> None:
        self._delete(token, [entry])

    def clear(self) -> None:
        def everything(cache: PersistentBlobCache, _: _Books) -> bool:
            return sum(cache.delete(k) for k, _ in cache.items() if k.startswith(_ROW_KEY)) > 0

        self._change(everything, repair=True)

    def _delete(self, token: bytes, entries: Sequence[bytes]) -> None:
        def these(cache: PersistentBlobCache, _: _Books) -> bool:
            return sum(cache.delete(_ROW_KEY + token + old) for old in entries) > 0

        if entries and self.path.exists():
            self._change(these)

    def _change(
        self,
        act: Callable[[PersistentBlobCache, _Books], bool],
        *,
        repair: bool = False,
        kept: bytes = _STATE_KEY,
    ) -> bool:
        """Runs *act* and writes what it changed; whether the key *kept* is there afterwards. With *repair* a
        registry is made where none is to be trusted.
        """
        measure = self._measures.now()
        if repair:
            make_private_directory(self.path.parent)
        with FORK_GATE.passed(), self._alone():
            cache = PersistentBlobCache.open(self.path, self._limits, _POLICY)
            changed: _Books | None = None
            try:
                if (
                    books := self._books_to_change(cache, measure, repair=repair)
                ) is not None and act(cache, books):
                    state = RegistryState(books.state.registry, books.state.changes + 1)
                    changed = _Books(books.key, state)
                    self._set_state(cache, changed)
                there = kept in cache
            finally:
                written = cache.terminate()
            if not written:
                raise Unreadable(f"the registry {self.path} cannot be used: {cache.problem}")
        if changed is not None:
            self._measures.store(changed.key, changed.state.changes)
        return there

    def _books_to_change(
        self, cache: PersistentBlobCache, measure: Measure, *, repair: bool
    ) -> _Books | None:
        try:
            books = self._verified(dict(cache.items()), measure)
        except (SealBroken, OtherVersion, RolledBack):
            if not repair:
                raise
            books = None
        if books is None and repair:
            newest = self._measures.renewed()
            for key in sorted(cache.keys()):
                cache.delete(key)
            books = _Books(newest.key, RegistryState(os.urandom(16), newest.least))
            self._set_state(cache, books)
        return books

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keeps other processes from changing the registry: the blob cache would merge what both did."""
        try:
            fd = os.open(
                self.path.with_name(self.path.name + ".changes"), os.O_RDWR | os.O_CREAT, 0o600
            )
        except OSError as error:
            raise Unreadable(f"the registry cannot be changed: {error.strerror}") from None
        try:
            with locked(fd, exclusive=True, timeout=_LOCK_SECONDS) as held:
                if not held:
                    raise Unreadable("the registry is being changed by another process")
                yield
        finally:
            os.close(fd)

    def _set_state(self, cache: PersistentBlobCache, books: _Books) -> None:
        """Sets the state, which lists the rows that are left, and is the last to be evicted."""
        packed = b""
        while packed != (now := self._pack(books, dict(cache.items()))):
            packed = now
            if not cache.set(_STATE_KEY, packed):
                raise Unreadable("the registry has no room for its state")

    def _blobs(self) -> dict[bytes, bytes]:
        if not self.path.exists():
            return {}
        cache = PersistentBlobCache.open(self.path, self._limits, _POLICY)
        try:
            return dict(cache.items())
        finally:
            cache.terminate()

    def _verified(self, blobs: Mapping[bytes, bytes], measure: Measure) -> _Books | None:
        """The registry, if it is authentic and the newest known; None where there is none.

        One that is not may be sealed with a key that has taken the place of the known one meanwhile.
        """
        try:
            return self._measured(blobs, measure)
        except SealBroken:
            if (newer := self._measures.other_than(measure)) is None:
                raise
            return self._measured(blobs, newer)

    def _measured(self, blobs: Mapping[bytes, bytes], measure: Measure) -> _Books | None:
        if (blob := blobs.get(_STATE_KEY)) is None:
            return None
        if len(blob) != _STATE.size + _MAC_BYTES or not hmac.compare_digest(
            blob[_STATE.size :], _state_mac(measure.key, blob[: _STATE.size])
        ):
            raise SealBroken("the registry was altered, or sealed with another key")
        format_, driver, version, registry, count, rows = _STATE.unpack(blob[: _STATE.size])
        if driver != self.owner.driver_digest:
            raise SealBroken("the registry is another driver's")
        if format_ != _FORMAT or version != self.owner.version_digest:
            raise OtherVersion("the registry was written by another version of the driver")
        if not hmac.compare_digest(rows, _list_digest(blobs)):
            raise SealBroken("a row of the registry was altered, added or removed")
        if count < measure.least:
            raise RolledBack(
                f"the registry stands at change {count}, and change {measure.least} was seen before"
            )
        self._measures.seen(measure.key, count)
        return _Books(measure.key, RegistryState(registry, count))

    def _pack(self, books: _Books, blobs: Mapping[bytes, bytes]) -> bytes:
        fields = _STATE.pack(
            _FORMAT,
            self.owner.driver_digest,
            self.owner.version_digest,
            books.state.registry,
            books.state.changes,
            _list_digest(blobs),
        )
        return fields + _state_mac(books.key, fields)

    def _row(self, token: bytes, entry: bytes, blob: bytes, books: _Books) -> Row | None:
        """The row, verified; None for one of a registry that is gone."""
        head, mac = blob[: _ROW.size], blob[_ROW.size : _ROW.size + _MAC_BYTES]
        try:
            registry, sequence, models = _ROW.unpack(head)
            row = Row(
                token, entry, *unpack_records(blob[_ROW.size + _MAC_BYTES :], models), sequence
            )
        except (ValueError, struct.error):
            raise SealBroken("a row of the registry has no possible value") from None
        if not hmac.compare_digest(mac, row_mac(books.key, self.owner, registry, row)):
            raise SealBroken("a row of the registry was altered")
        return row if registry == books.state.registry else None


def _state_mac(key: bytes, fields: bytes) -> bytes:
    return hmac.digest(key, _STATE_DOMAIN + fields, "sha256")


def _list_digest(blobs: Mapping[bytes, bytes]) -> bytes:
    digest = hashlib.sha256()
    for key in sorted(key for key in blobs if key.startswith(_ROW_KEY)):
        for part in (key, blobs[key]):
            digest.update(len(part).to_bytes(8, "little") + part)
    return digest.digest()
