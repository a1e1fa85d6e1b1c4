"""Leases in a store: one machine compiles an entry, others wait for it.

A lease is not signed, and nothing is believed that it says: it can only make others wait, for as
long as they choose to. No clocks are compared. A holder changes its lease every few seconds, and
who sees the same version for long enough, by his own clock, takes the lease over.
"""

from __future__ import annotations

import os
import random
import threading
import time
from contextlib import suppress
from functools import partial
from typing import Final

from penstock.closing import Closing
from penstock.errors import CacheError
from penstock.hal import CancelToken
from penstock.remotecache import roles
from penstock.remotecache.stores import ObjectStore, etag_of
from penstock.sealed.locks import sleep

BEAT_SECONDS: Final = 2.5
DEAD_SECONDS: Final = 10.0
"""A holder changes its lease every `BEAT_SECONDS`; after `DEAD_SECONDS` without it counts as dead.
"""

_MOST_BYTES: Final = 1 << 12
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 1.0


def lease_name(token: bytes) -> str:
    return f"{roles.LEASES}/{token.hex()}"


class BuildLease(Closing):
    """The right to compile the entry of *token*, held in *store* until `close`.

    It may be lost to another machine while this one cannot reach the store; the entry is then
    compiled twice, which does no harm.
    """

    def __init__(
        self, store: ObjectStore, token: bytes, etag: str, beat: float = BEAT_SECONDS
    ) -> None:
        self._store, self._name, self._etag, self._beat = store, lease_name(token), etag, beat
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="penstock-lease", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Gives the lease up. A second call does nothing. Never raises."""
        if self._ended.is_set():
            return
        self._ended.set()
        self._thread.join()
        with suppress(CacheError):
            if self._etag:
                self._store.delete(self._name)

    def _renew(self) -> None:
        tried: bytes | None = None
        while not self._ended.wait(self._beat):
            with suppress(CacheError):
                if tried is not None:
                    # An error of the last change leaves open whether it happened.
                    self._etag = etag_of(self._store, self._name, tried) or self._etag
                tried = _content()
                after = self._store.update(self._name, tried, self._etag)
                tried = None
                self._etag = after or ""
                if after is None:
                    return


class Waiting:
    """A wait for whoever holds the lease of *token*. *dead* is for tests."""

    def __init__(self, store: ObjectStore, token: bytes, dead: float = DEAD_SECONDS) -> None:
        self._store, self._token, self._dead = store, token, dead
        self._etag, self._since = "", 0.0
        self.begun = False

    def take(self) -> BuildLease | None:
        """The lease, if nobody holds it or its holder counts as dead. Raises `CacheError`."""
        name = lease_name(self._token)
        if self._is_dead():
            made = self._store.update(name, _content(), self._etag)
        else:
            made = self._store.create(name, _content())
        return None if made is None else BuildLease(self._store, self._token, made)

    def until_free(self, seconds: float, cancel: CancelToken | None = None) -> bool:
        """Waits at most *seconds*; whether the lease is free or its holder counts as dead by then.

        Raises `CacheError`, and `Cancelled` within 50 ms.
        """
        until, pause = time.monotonic() + seconds, _FIRST_PAUSE
        while True:
            found = self._store.get(lease_name(self._token), _MOST_BYTES)
            now = time.monotonic()
            if found is None:
                return True
            if found.etag != self._etag:
                self._etag, self._since = found.etag, now
            if self._is_dead():
                return True
            self.begun = True
            if now >= until:
                return False
            # Machines that wait for the same holder do not ask in step.
            jittered = random.uniform(0.5, 1.5) * pause  # noqa: S311  # a pause
            sleep(min(jittered, until - now), None if cancel is None else partial(_stops, cancel))
            pause = min(_LONGEST_PAUSE, 1.5 * pause)

    def _is_dead(self) -> bool:
        return bool(self._etag) and time.monotonic() - self._since >= self._dead


def _content() -> bytes:
    """The content of a lease, which is never the same twice, so that its ETag changes."""
    return os.urandom(16).hex().encode()


def _stops(cancel: CancelToken) -> bool:
    """Raises `Cancelled` if *cancel* is set."""
    cancel.check()
    return False
