"""The registry kept in a blob cache, for a driver that has one anyway."""

from __future__ import annotations

import hashlib
import hmac
import os
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from penstock.blobcache import Capacity, Limits, PersistentBlobCache, Policy, Select
from penstock.errors import OtherVersion, RolledBack, SealBroken, Unreadable
from penstock.sealed.keys import KeyStore
from penstock.sealed.locks import locked
from penstock.sealed.registry import (
    Owner,
    RegistryState,
    Row,
    pack_records,
    row_mac,
    unpack_records,
)
from penstock.sealed.sqlite_registry import make_private_directory

_POLICY: Final = Policy(Select.LRU, Capacity.FIT)
_STATE_KEY: Final = b"state"
_ROW_KEY: Final = b"row "
_STATE: Final = struct.Struct("<H32s32s16sQ32s")
_ROW: Final = struct.Struct("<16sQB")
_FORMAT: Final = 1
_STATE_DOMAIN: Final = b"penstock blob registry\x00"
_MAC_BYTES: Final = 32
_LOCK_SECONDS: Final = 10.0


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
        self.path, self.owner, self._keys = path, owner, keys
        self._name = f"{owner.digits}-blobs"
        self._lock = threading.Lock()
        self._highest = 0

    def state(self) -> RegistryState | None:
        floor = self._floor()
        return self._state(self._blobs(), floor)

    def find(self, token: bytes, entry: bytes) -> Row | None:
        floor = self._floor()
        blobs = self._blobs()
        if (state := self._state(blobs, floor)) is None:
            return None
        blob = blobs.get(_ROW_KEY + token + entry)
        return None if blob is None else self._row(token, entry, blob, state)

    def rows(self) -> tuple[Row, ...]:
        floor = self._floor()
        blobs = self._blobs()
        if (state := self._state(blobs, floor)) is None:
            return ()
        found = (
            self._row(key[4:36], key[36:], blob, state)
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
        def insert(cache: PersistentBlobCache, state: RegistryState) -> bool:
            placed = Row(row.token, row.entry, row.models, row.datas, state.changes + 1)
            head = _ROW.pack(state.registry, placed.sequence, len(row.models))
            mac = row_mac(self._keys.key(), self.owner, state.registry, placed)
            return cache.set(key, head + mac + pack_records(row))

        key = _ROW_KEY + row.token + row.entry
        if not self._change(insert, repair=True, kept=key):
            raise Unreadable("the registry has no room for the entry")

    def publish(self, token: bytes, entry: bytes, replaced: Sequence[bytes] = ()) -> None:
        self._delete(token, [old for old in replaced if old != entry])

    def remove(self, token: bytes, entry: bytes) -> None:
        self._delete(token, [entry])

    def clear(self) -> None:
        def everything(cache: PersistentBlobCache, _: RegistryState) -> bool:
            return sum(cache.delete(k) for k, _ in cache.items() if k.startswith(_ROW_KEY)) > 0

        self._change(everything, repair=True)

    def _delete(self, token: bytes, entries: Sequence[bytes]) -> None:
        def these(cache: PersistentBlobCache, _: RegistryState) -> bool:
            return sum(cache.delete(_ROW_KEY + token + old) for old in entries) > 0

        if entries and self.path.exists():
            self._change(these)

    def _change(
        self,
        act: Callable[[PersistentBlobCache, RegistryState], bool],
        *,
        repair: bool = False,
        kept: bytes = _STATE_KEY,
    ) -> bool:
        """Runs *act* and writes what it changed; whether the key *kept* is there afterwards. With *repair* a
        registry is made where none is to be trusted.
        """
        floor = self._floor()
        if repair:
            make_private_directory(self.path.parent)
        with self._lock, self._alone():
            cache = PersistentBlobCache.open(self.path, self._limits, _POLICY)
            count = 0
            try:
                if (
                    state := self._state_to_change(cache, floor, repair=repair)
                ) is not None and act(cache, state):
                    count = state.changes + 1
                    self._set_state(cache, RegistryState(state.registry, count))
                there = kept in cache
            finally:
                written = cache.terminate()
            if not written:
                raise Unreadable(f"the registry cannot be used: {cache.problem}")
            if count:
                self._highest = max(self._highest, count)
        if count:
            self._keys.store_count(self._name, count)
        return there

    def _state_to_change(
        self, cache: PersistentBlobCache, floor: int, *, repair: bool
    ) -> RegistryState | None:
        try:
            state = self._state(dict(cache.items()), floor, locked=True)
        except (SealBroken, OtherVersion, RolledBack):
            if not repair:
                raise
            state = None
        if state is None and repair:
            for key in sorted(cache.keys()):
                cache.delete(key)
            state = RegistryState(os.urandom(16), floor)
            self._set_state(cache, state)
        return state

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

    def _set_state(self, cache: PersistentBlobCache, state: RegistryState) -> None:
        """Sets the state, which lists the rows that are left, and is the last to be evicted."""
        packed = b""
        while packed != (now := self._pack(state, dict(cache.items()))):
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

    def _state(
        self, blobs: Mapping[bytes, bytes], floor: int, *, locked: bool = False
    ) -> RegistryState | None:
        if (blob := blobs.get(_STATE_KEY)) is None:
            return None
        if len(blob) != _STATE.size + _MAC_BYTES or not hmac.compare_digest(
            blob[_STATE.size :], self._state_mac(blob[: _STATE.size])
        ):
            raise SealBroken("the registry was altered, or sealed with another key")
        format_, driver, version, registry, count, rows = _STATE.unpack(blob[: _STATE.size])
        if driver != self.owner.driver_digest:
            raise SealBroken("the registry is another driver's")
        if format_ != _FORMAT or version != self.owner.version_digest:
            raise OtherVersion("the registry was written by another version of the driver")
        if not hmac.compare_digest(rows, _list_digest(blobs)):
            raise SealBroken("a row of the registry was altered, added or removed")
        if count < floor:
            raise RolledBack(
                f"the registry stands at change {count}, and change {floor} was seen before"
            )
        if locked:
            self._highest = max(self._highest, count)
        else:
            with self._lock:
                self._highest = max(self._highest, count)
        return RegistryState(registry, count)

    def _pack(self, state: RegistryState, blobs: Mapping[bytes, bytes]) -> bytes:
        fields = _STATE.pack(
            _FORMAT,
            self.owner.driver_digest,
            self.owner.version_digest,
            state.registry,
            state.changes,
            _list_digest(blobs),
        )
        return fields + self._state_mac(fields)

    def _state_mac(self, fields: bytes) -> bytes:
        return hmac.digest(self._keys.key(), _STATE_DOMAIN + fields, "sha256")

    def _row(self, token: bytes, entry: bytes, blob: bytes, state: RegistryState) -> Row | None:
        """The row, verified; None for one of a registry that is gone."""
        head, mac = blob[: _ROW.size], blob[_ROW.size : _ROW.size + _MAC_BYTES]
        try:
            registry, sequence, models = _ROW.unpack(head)
            row = Row(
                token, entry, *unpack_records(blob[_ROW.size + _MAC_BYTES :], models), sequence
            )
        except (ValueError, struct.error):
            raise SealBroken("a row of the registry has no possible value") from None
        if not hmac.compare_digest(mac, row_mac(self._keys.key(), self.owner, registry, row)):
            raise SealBroken("a row of the registry was altered")
        return row if registry == state.registry else None

    def _floor(self) -> int:
        """The highest count known; asked for before the registry is read, so that it cannot be too high."""
        stored = self._keys.count(self._name) or 0
        with self._lock:
            self._highest = max(self._highest, stored)
            return self._highest


def _list_digest(blobs: Mapping[bytes, bytes]) -> bytes:
    digest = hashlib.sha256()
    for key in sorted(key for key in blobs if key.startswith(_ROW_KEY)):
        for part in (key, blobs[key]):
            digest.update(len(part).to_bytes(8, "little") + part)
    return digest.digest()
