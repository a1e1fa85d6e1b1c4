"""Blobs by key, in memory, within limits."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol, TypeVar

from penstock.blobcache import flat
from penstock.blobcache.flat import Version
from penstock.blobcache.policy import Limits, Policy, Select
from penstock.errors import InputError


class Buffer(Protocol):
    """Any object with bytes: bytes, bytearray, memoryview, mmap, a contiguous NumPy array."""

    def __buffer__(self, flags: int, /) -> memoryview: ...


B = TypeVar("B", bound=Buffer)


class Blobs:
    """What all blob caches have in common: reading into buffers of the caller."""

    def get(self, key: Buffer) -> bytes | None:
        """The value; None if there is none."""
        raise NotImplementedError

    def peek(self, key: Buffer) -> bytes | None:
        """The value, without counting as a use."""
        raise NotImplementedError

    def items(self) -> list[tuple[bytes, bytes]]:
        """The current entries, in the order of `keys`. Does not count as a use."""
        raise NotImplementedError

    def keys(self) -> list[bytes]:
        """The keys in order of their last use, the oldest first. Does not count as a use."""
        return [key for key, _ in self.items()]

    def __len__(self) -> int:
        return len(self.items())

    def __contains__(self, key: Buffer) -> bool:
        return self.peek(key) is not None

    def get_into(self, key: Buffer, buffer: Buffer | None) -> int:
        """Size of the value, 0 if there is none.

        Writes the value to the start of *buffer* if it fits. *buffer* is a contiguous buffer of any
        type, or None to get the size alone. Only a get that writes counts as a use.
        """
        found = self.peek(key)
        if found is not None and fill(buffer, found):
            self.get(key)
        return 0 if found is None else len(found)

    def get_allocated(
        self, key: Buffer, allocate: Callable[[int], B | None]
    ) -> tuple[int, B | None]:
        """Size of the value, and the buffer from *allocate* with the value in it.

        *allocate* gets the size in bytes, and is called without a lock. `(0, None)` if there is no
        value: *allocate* is not called then. `(size, None)` if *allocate* returned None. Raises
        `InputError` if its buffer is too small.
        """
        found = self.peek(key)
        if found is None:
            return 0, None
        buffer = allocate(len(found))
        if buffer is not None:
            if not fill(buffer, found):
                raise InputError(f"the allocator gave too small a buffer for {len(found)} bytes")
            self.get(key)
        return len(found), buffer


class BlobCache(Blobs):
    """A mapping from bytes to bytes that evicts entries to stay within its limits.

    It is NNAPI's `BlobCache`. `total` counts keys and values, not the memory around them. *seed*
    makes `Select.RANDOM` repeatable. `flatten` writes *version*; `unflatten` rejects another one.
    Not thread-safe; `PersistentBlobCache` is.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        policy: Policy | None = None,
        *,
        version: Version | None = None,
        seed: int | None = None,
    ) -> None:
        self.limits, self.policy = limits or Limits(), policy or Policy()
        self.version = version or Version()
        self._random = random.Random(seed)  # noqa: S311  # picks victims, keeps no secret
        self._entries: OrderedDict[bytes, bytes] = OrderedDict()
        self._slots: list[bytes] = []
        self._places: dict[bytes, int] = {}
        self._total = 0

    @property
    def total(self) -> int:
        """Bytes of all keys and values."""
        return self._total

    def __len__(self) -> int:
        return len(self._entries)

    def items(self) -> list[tuple[bytes, bytes]]:
        return list(self._entries.items())

    def set(self, key: Buffer, value: Buffer) -> bool:
        """Stores a copy of *value* under a copy of *key*. Returns whether it was stored.

        It is not if key or value is empty, if one of them or both together exceed a limit, or if
        the policy frees too little. The key's previous value then stays, unless it was evicted.
        """
        key, value = _bytes(key), _bytes(value)
        if not self.limits.admit(len(key), len(value)):
            return False
        while True:
            old = self._entries.get(key)
            growth = len(value) - len(old) if old is not None else len(key) + len(value)
            if self._total + growth <= self.limits.total:
                break
            if not self.policy.cleanable(self._total, self.limits.total):
                return False
            self._clean(self.policy.target(self.limits.total, growth))
        if old is None:
            self._places[key] = len(self._slots)
            self._slots.append(key)
        self._entries[key] = value
        self._entries.move_to_end(key)
        self._total += growth
        return True

    def get(self, key: Buffer) -> bytes | None:
        found = self.peek(key)
        if found is not None:
            self._entries.move_to_end(_bytes(key))
        return found

    def peek(self, key: Buffer) -> bytes | None:
        return self._entries.get(_bytes(key))

    def delete(self, key: Buffer) -> bool:
        """Frees an entry. Returns whether there was one."""
        if (own := _bytes(key)) not in self._entries:
            return False
        self._remove(own)
        return True

    def clear(self) -> None:
        """Frees all entries."""
        self._entries.clear()
        self._slots.clear()
        self._places.clear()
        self._total = 0

    def flattened_size(self) -> int:
        """Size in bytes of the result of `flatten`."""
        return flat.flattened_size(self._entries.items(), self.version)

    def flatten(self) -> bytes:
        """All entries in the layout of `penstock.blobcache.flat`. Does not count as a use."""
        return flat.flatten(self._entries.items(), self.version)

    def flatten_into(self, buffer: Buffer) -> int:
        """Writes the bytes of `flatten` to the start of *buffer*. Returns their size.

        Raises `InputError`, and writes nothing, if *buffer* is smaller than `flattened_size()`.
        """
        data = self.flatten()
        if not fill(buffer, data):
            size = memoryview(buffer).nbytes
            raise InputError(f"a buffer of {size} bytes for a flattened cache of {len(data)}")
        return len(data)

    def unflatten(self, data: Buffer) -> bool:
        """Replaces the entries by those in *data*, within this cache's limits and policy.

        Returns False if another version wrote them. Raises `MalformedBlobs` if *data* is not in the
        format of `flatten`. The cache is empty after both.
        """
        self.clear()
        entries = flat.unflatten(memoryview(_bytes(data)), self.version)
        for key, value in entries or ():
            self.set(key, value)
        return entries is not None

    def replace(self, entries: flat.Entries) -> None:
        """Replaces the entries, in order of last use, subject to limits and policy."""
        entries = list(entries)
        self.clear()
        for key, value in entries:
            self.set(key, value)

    def _clean(self, target: int) -> None:
        while self._total > target:
            if self.policy.select is Select.LRU:
                self._remove(next(iter(self._entries)))
            else:
                self._remove(self._random.choice(self._slots))

    def _remove(self, key: bytes) -> None:
        self._total -= len(key) + len(self._entries.pop(key))
        place, last = self._places.pop(key), self._slots.pop()
        if last != key:
            self._slots[place] = last
            self._places[last] = place


def fill(buffer: Buffer | None, value: bytes) -> bool:
    """Writes *value* to the start of *buffer* if it fits. Returns whether it did."""
    if buffer is None or (view := memoryview(buffer)).nbytes < len(value):
        return False
    view.cast("B")[: len(value)] = value
    return True


def _bytes(data: Buffer) -> bytes:
    return data if type(data) is bytes else memoryview(data).tobytes()
