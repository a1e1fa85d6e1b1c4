"""By what a process measures the registries that it finds."""

from __future__ import annotations

import threading

from penstock.errors import Unreadable
from penstock.sealed.keys import KeyStore


class Measure:
    """*key* must have authenticated the registry, and its count be *least* or more."""

    __slots__ = ("key", "least")

    def __init__(self, key: bytes, least: int) -> None:
        self.key, self.least = key, least


class Measures:
    """The user's key, and the highest count known of registry *name* under each key. Thread-safe."""

    def __init__(self, keys: KeyStore, name: str) -> None:
        self._keys, self._name = keys, name
        self._lock = threading.Lock()
        self._highest: dict[bytes, int] = {}

    def now(self) -> Measure:
        """To be asked before the registry is read, so that the count cannot be too high. Raises `Unreadable`."""
        return self._of(self._keys.key())

    def renewed(self) -> Measure:
        """By the key as the store holds it now, for a registry that is about to be made. Raises `Unreadable`."""
        return self._of(self._keys.refresh())

    def other_than(self, used: Measure) -> Measure | None:
        """By the key that took the place of the one in *used*; None where none did."""
        try:
            measure = self.renewed()
        except Unreadable:
            return None
        return None if measure.key == used.key else measure

    def seen(self, key: bytes, count: int) -> None:
        """A registry that *key* authenticated stands at *count*."""
        with self._lock:
            self._highest[key] = max(count, self._highest.get(key, 0))

    def store(self, key: bytes, count: int) -> None:
        """As `seen`, for all processes where the key store keeps counts."""
        self.seen(key, count)
        self._keys.store_count(self._name, count)

    def _of(self, key: bytes) -> Measure:
        self.seen(key, self._keys.count(self._name) or 0)
        return Measure(key, self._highest[key])
