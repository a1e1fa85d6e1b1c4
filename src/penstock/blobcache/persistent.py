"""A blob cache that keeps its entries in a file, which several processes may share."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Set as AbstractSet
from pathlib import Path
from typing import Final, Self

from penstock.arguments import path_of
from penstock.blobcache import flat
from penstock.blobcache.cache import BlobCache, Blobs, Buffer
from penstock.blobcache.files import Clock, Files, Store
from penstock.blobcache.flat import MalformedBlobs, Version
from penstock.blobcache.policy import Limits, Policy, Select
from penstock.errors import StateError
from penstock.logs import Log


def merge(
    base: Mapping[bytes, bytes],
    mine: Mapping[bytes, bytes],
    theirs: Mapping[bytes, bytes],
    used: AbstractSet[bytes],
) -> dict[bytes, bytes]:
    """Three-way merge: *mine* and *theirs*, both changed since *base*.

    If one side changed, added or removed a key, that change is applied. If both did, mine has
    precedence, but a value has precedence over a removal. All are in order of last use. *used* are
    the keys of mine used since: they come last, in my order.
    """
    last = [key for key in mine if key in used or key not in theirs]
    first = theirs.keys() - set(last)
    merged: dict[bytes, bytes] = {}
    for key in [*(key for key in theirs if key in first), *last]:
        value = _decide(base.get(key), mine.get(key), theirs.get(key))
        if value is not None:
            merged[key] = value
    return merged


def _decide(base: bytes | None, mine: bytes | None, theirs: bytes | None) -> bytes | None:
    if theirs == base:
        return mine
    if mine in {base, None}:
        return theirs
    return mine


log = Log("penstock.blobcache")

SAVE_DELAY_S: Final = 4.0
LOCK_TIMEOUT_S: Final = 10.0


class PersistentBlobCache(Blobs):
    """A `BlobCache` with a file (NNAPI's `NNCache`, without its flaws). Safe from any thread.

    Before `initialize` and after `terminate` every get misses and every set is ignored. The file is
    read at the first use. It is written *save_delay* seconds after the first unsaved change, by
    `terminate`, and when the interpreter ends. Writing merges: entries that other processes wrote
    stay, those that they freed are removed. Without a *path* nothing is persistent.

    A file that cannot be read, written or verified never raises here; `problem` is the reason, and
    a warning is logged. All processes that share a file should use the same limits and version:
    entries beyond the writer's limits are dropped.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        version: Version | None = None,
        save_delay: float = SAVE_DELAY_S,
        lock_timeout: float = LOCK_TIMEOUT_S,
        seed: int | None = None,
        files: Files | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._files, self._clock = files or Files(), clock or Clock()
        self._version, self._seed = version or Version(), seed
        self._save_delay, self._lock_timeout = save_delay, lock_timeout
        self._problem = ""
        self._store: Store | None = None
        self._renew_locks()
        self._forget()
        self.set_path(path)
        _live.add(self)

    def _renew_locks(self) -> None:
        self._saving = threading.Lock()  # held while the file is written; taken before the other
        self._lock = threading.RLock()  # guards all attributes below; never held while writing
        self._cancel_timer: Callable[[], None] | None = None

    def _forget(self) -> None:
        self._cache: BlobCache | None = None
        self._loaded = False
        self._ending = False
        self._changed = False
        self._base: dict[bytes, bytes] = {}  # contents of the file when last read or written
        self._used: set[bytes] = set()  # used since then

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        limits: Limits | None = None,
        policy: Policy | None = None,
        *,
        version: Version | None = None,
        save_delay: float = SAVE_DELAY_S,
    ) -> Self:
        """An initialized cache. As a context manager it terminates at the end of the block."""
        cache = cls(path, version=version, save_delay=save_delay)
        cache.initialize(limits, policy)
        return cache

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.terminate()

    @property
    def path(self) -> Path | None:
        """Path of the file, which may not exist yet."""
        return None if self._store is None else self._store.path

    def set_path(self, path: str | os.PathLike[str] | None) -> None:
        """Sets the file. `StateError` once it has been read, until `terminate`."""
        with self._lock:
            if self._loaded:
                raise StateError("the path of a blob cache in use; call terminate() first")
            self._store = None
            if path is not None:
                # Made absolute: a later change of directory must not move the cache.
                where = Path(path_of(path, "a blob cache's file is named by a path")).absolute()
                self._store = Store(where, self._files, self._clock, self._lock_timeout)

    @property
    def problem(self) -> str:
        """Why the last read or write of the file failed; empty if it did not."""
        return self._problem

    def initialize(self, limits: Limits | None = None, policy: Policy | None = None) -> None:
        """Starts an empty cache; the file is read at the first use. `StateError` if started."""
        with self._saving, self._lock:
            if self._cache is not None:
                raise StateError("this blob cache is initialized; call terminate() first")
            self._cache = BlobCache(limits, policy, version=self._version, seed=self._seed)

    def terminate(self) -> bool:
        """Saves, frees everything, and returns the result of `save`. Not initialized: no effect."""
        with self._saving:
            with self._lock:
                self._ending = True  # later sets are ignored, not lost
            try:
                return self._save()
            finally:
                with self._lock:
                    self._stop_timer()
                    self._forget()

    def set(self, key: Buffer, value: Buffer) -> bool:
        """As `BlobCache.set`. False when not initialized."""
        with self._lock:
            cache = self._ready()
            if cache is None or not cache.set(key, value):
                return False
            self._note_use(key, cache)
            self._note_change()
            return True

    def get(self, key: Buffer) -> bytes | None:
        """As `BlobCache.get`. None when not initialized."""
        with self._lock:
            cache = self._ready()
            found = None if cache is None else cache.get(key)
            if cache is not None and found is not None:
                self._note_use(key, cache)
            return found

    def peek(self, key: Buffer) -> bytes | None:
        """As `BlobCache.peek`. None when not initialized."""
        with self._lock:
            cache = self._ready()
            return None if cache is None else cache.peek(key)

    def delete(self, key: Buffer) -> bool:
        """Frees an entry, in the file too at the next write. Returns whether there was one."""
        with self._lock:
            cache = self._ready()
            if cache is None or not cache.delete(key):
                return False
            self._note_change()
            return True

    def items(self) -> list[tuple[bytes, bytes]]:
        """As `BlobCache.items`. Empty when not initialized."""
        with self._lock:
            cache = self._ready()
            return [] if cache is None else cache.items()

    @property
    def total(self) -> int:
        """Bytes of all keys and values."""
        with self._lock:
            cache = self._ready()
            return 0 if cache is None else cache.total

    def save(self) -> bool:
        """Writes the changes now, merged with those of other processes.

        This cache then has the others' changes too. True if there was nothing to write, or it was
        written. False if that failed: `problem` is the reason, nothing is lost, and it is retried
        after the next change.
        """
        with self._saving:
            return self._save()

    def _save(self) -> bool:
        with self._lock:
            self._stop_timer()
            cache, store, base, used = self._cache, self._store, self._base, self._used
            if cache is None or store is None:
                return True
            # The order of last use is worth a write only if it decides what is evicted.
            if not self._changed and not (used and cache.policy.select is Select.LRU):
                return True
            mine = dict(cache.items())
            changed, self._changed, self._used = self._changed, False, set()
        saved = BlobCache(cache.limits, cache.policy, version=self._version, seed=self._seed)

        def join(file: bytes | None) -> bytes:
            theirs = self._believe(file, cache.limits)
            # Without a file, no other process can have freed entries.
            merged = merge(base, mine, dict(theirs), used) if theirs is not None else mine
            saved.replace(merged.items())
            return flat.wrap(saved.flatten())

        try:
            store.update(flat.largest_file(cache.limits, self._version), join)
        except BaseException as error:
            with self._lock:
                self._changed |= changed
                self._used |= used
            if not isinstance(error, OSError):
                raise
            if not changed:  # only the order of last use is lost
                log.debug("blob cache %s was not written: %s", store.path, error)
                return True
            self._report(f"{store.path} was not written: {error}")
            return False
        with self._lock:
            self._problem = ""
            if self._cache is cache:
                self._base = dict(saved.items())
                if cache.items() != saved.items():
                    now = dict(cache.items())
                    cache.replace(merge(mine, now, self._base, self._used).items())
        return True

    def _ready(self) -> BlobCache | None:
        """The cache, with the file's entries; None if not initialized."""
        cache, store = self._cache, self._store
        if cache is None or self._ending:
            return None
        if self._loaded:
            return cache
        self._loaded = True
        if store is None:
            return cache
        try:
            file = store.read(flat.largest_file(cache.limits, self._version))
        except OSError as error:
            self._report(f"{store.path} was not read: {error}")
            return cache
        self._problem = ""
        cache.replace(self._believe(file, cache.limits) or ())
        self._base = dict(cache.items())
        return cache

    def _believe(self, file: bytes | None, limits: Limits) -> list[tuple[bytes, bytes]] | None:
        """The entries of a file; None if it has another version, or fails a check."""
        if file is None:
            return None
        try:
            if len(file) > (most := flat.largest_file(limits, self._version)):
                raise MalformedBlobs(f"it has more than the {most} bytes that these limits allow")
            return flat.unflatten(flat.unwrap(file), self._version)
        except MalformedBlobs as error:
            self._report(f"{self.path} was not believed: {error}")
            return None

    def _report(self, problem: str) -> None:
        self._problem = problem
        log.warning("blob cache %s", problem)

    def _note_use(self, key: Buffer, cache: BlobCache) -> None:
        self._used.add(memoryview(key).tobytes())
        if len(self._used) > 2 * len(cache) + 64:  # must stay bounded if nothing is ever saved
            self._used.intersection_update(cache.keys())

    def _note_change(self) -> None:
        self._changed = True
        if self._store is None or self._cancel_timer is not None:
            return
        try:
            self._cancel_timer = self._clock.after(self._save_delay, self.save)
        except RuntimeError as error:
            self._report(f"{self._store.path} will be written at the end: {error}")

    def _stop_timer(self) -> None:
        if self._cancel_timer is not None:
            self._cancel_timer()
            self._cancel_timer = None


_live: weakref.WeakSet[PersistentBlobCache] = weakref.WeakSet()
_held: list[PersistentBlobCache] = []


def _save_all() -> None:
    for cache in list(_live):
        cache.save()


def _before_fork() -> None:
    _held[:] = list(_live)
    for cache in _held:
        # A child must not inherit a lock that another thread holds.
        cache._saving.acquire()  # noqa: SLF001
        cache._lock.acquire()  # noqa: SLF001  # as above


def _after_fork_in_parent() -> None:
    for cache in _held:
        cache._lock.release()  # noqa: SLF001  # taken in _before_fork
        cache._saving.release()  # noqa: SLF001  # likewise
    _held.clear()


def _after_fork_in_child() -> None:
    for cache in _held:
        cache._renew_locks()  # noqa: SLF001  # and no timer: threads are not inherited
    _held.clear()


atexit.register(_save_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )
