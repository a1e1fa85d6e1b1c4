"""A cache directory: finds, leases and explains entries."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final

from penstock.cache import naming
from penstock.cache.store import FileVersion, OpenFiles, Store, seconds_left
from penstock.errors import CacheError, NoEntry, NotYetWritten
from penstock.hal import CacheHandle, CancelToken
from penstock.sealed.files import open_entry_file

if TYPE_CHECKING:
    from penstock.cache.lease import Lease

_NEAREST_AMONG: Final = 256


class CacheDirectory:
    """The cache in directory *place*, a path or a `Store`. The first lease creates it."""

    def __init__(self, place: str | os.PathLike[str] | Store) -> None:
        self.store = place if isinstance(place, Store) else Store(os.fspath(place))
        self.path = self.store.path
        # By token: the first file's name, and its version when this object last opened the entry.
        self._seen: dict[bytes, tuple[str, FileVersion | None]] = {}
        self._not_leased: dict[bytes, str] = {}

    def open(
        self,
        token: bytes,
        needed: tuple[int, int],
        *,
        deadline_ns: int | None = None,
        cancel: CancelToken | None = None,
    ) -> OpenFiles:
        """Opens the entry's files for reading and writing.

        While they are open, no process of this user publishes or writes the entry. In a read-only
        directory the files are open for reading, without a lock for the driver. If the state
        directory cannot have locks, only the seal detects a concurrent write.

        *needed* are the numbers of model and data cache files. Raises `NoEntry`. Raises
        `NotYetWritten` if all files are empty or are being written; that happens well before
        *deadline_ns* of the monotonic clock. Raises `NotRegularFile` for a link instead of a file,
        `Unreadable`, and `Cancelled` within 50 ms.
        """
        store, names = self.store, naming.file_names(token, *needed)
        if not names:
            raise NoEntry("the device has no cache files")
        self._seen[token] = names[0], store.version_of(names[0])
        held = self._lock_to_read(token, names, deadline_ns, cancel)
        with ExitStack() as stack, store.naming("read"):
            if held is not None:
                stack.callback(store.locks.release, held)
            handles: list[CacheHandle] = []
            writable = True
            for at, name in enumerate(names):
                try:
                    fd, allowed = open_entry_file(store.at(name), files=store.files)
                except FileNotFoundError:
                    if handles or any(map(store.exists, names)):
                        missing = at - needed[0]
                        which = f"data file {missing}" if missing >= 0 else f"model file {at}"
                        raise NoEntry(f"the entry lacks {which}") from None
                    raise NoEntry("nothing is cached here") from None
                stack.callback(store.close, fd)
                handles.append(CacheHandle(fd))
                writable = writable and allowed
            if not any(store.files.status(handle.fd).size for handle in handles):
                from penstock.cache.eviction import awaited_claim

                who = "the entry is empty, and nobody is going to write it any more"
                if (claim := awaited_claim(store, token)) is not None:
                    who = f"the driver of process {claim.pid} has not written the entry yet"
                raise NotYetWritten(who)
            lock = store.locks.lend(naming.lock_name(token)) if writable else None
            stack.pop_all()
        return OpenFiles(store, handles[: needed[0]], handles[needed[0] :], lock, held=held)

    def lease(
        self, token: bytes, *, wait_ns: int | None = None, cancel: CancelToken | None = None
    ) -> Lease | None:
        """Acquires the right to compile the entry of *token*.

        None if another process of this user holds it and waiting is no use; `why_not_leased` has
        the reason. Waits for a living holder at most *wait_ns* nanoseconds and the knob
        `lease_seconds`, and never beyond the holder's own deadline. A holder that dies loses the
        lease. A holder that has not written its claim gets a second. If the lease has `waited`,
        look the entry up again before compiling.

        Raises `Unreadable` if the directory cannot be made, or if the state directory cannot have
        locks. Raises `Cancelled` within 50 ms.
        """
        from penstock.cache.lease import take_lease

        found = take_lease(self.store, token, wait_ns, cancel, self._seen.get(token))
        if isinstance(found, str):
            self._not_leased[token] = found
            return None
        return found

    def why_not_leased(self, token: bytes) -> str:
        """Why the last `lease` for *token* returned None, in a sentence."""
        return self._not_leased.get(token, "")

    def record(
        self, token: bytes, *, deadline_ns: int | None = None, cancel: CancelToken | None = None
    ) -> naming.IndexRecord | None:
        """The entry's authentic index record, or None. Waits and raises `Cancelled` as `open`."""
        if (record := self.store.read_record(token)) is not None:
            return record
        # The index is missing while the entry is being replaced.
        try:
            held = self._lock_to_read(token, naming.file_names(token, 1, 0), deadline_ns, cancel)
        except CacheError:
            return None
        try:
            return self.store.read_record(token)
        finally:
            if held is not None:
                self.store.locks.release(held)

    def records(self, most: int | None = None) -> list[naming.IndexRecord]:
        """The entries' index records, the most recently used first: all, or *most* of those that a
        compile has time for. Empty without a directory.
        """
        from penstock.cache.eviction import scan

        try:
            looked = scan(self.store, briefly=most is not None)
            found = sorted(looked, key=lambda group: group.used_ns, reverse=True)
        except OSError:
            return []
        records = (self.store.read_record(group.token) for group in found if group.is_entry)
        return list(islice((record for record in records if record is not None), most))

    def nearest(self, ingredients: Mapping[str, str]) -> naming.IndexRecord | None:
        """The record most similar to *ingredients*, the same model first, of the 256 used last."""
        structure = ingredients.get("structure")
        return min(
            self.records(_NEAREST_AMONG),
            key=lambda r: (
                r.ingredients.get("structure") != structure,
                sum(
                    r.ingredients.get(name) != ingredients.get(name)
                    for name in {*r.ingredients, *ingredients}
                ),
            ),
            default=None,
        )

    def touch(self, token: bytes) -> bool:
        """Records that the entry was used now; False without an index. Never raises."""
        if not self.store.looks_like_index(token):
            return False
        with suppress(OSError):
            self.store.touch(naming.index_name(token))
        return True

    def restore(self, record: naming.IndexRecord) -> bool:
        """Writes the index again for the entry that `open` found last; returns whether it did.

        It does not wait. It does nothing if other processes use the entry, have replaced it, or
        have written its index. Then the time of the first cache file records the use. *record*'s
        `created` becomes the time of that file. Never raises.
        """
        from penstock.cache.lease import restore

        token = bytes.fromhex(record.token)
        if token not in self._seen:
            return False
        first, seen = self._seen[token]
        if restore(self.store, token, record, first, seen):
            return True
        with suppress(OSError):
            self.store.touch(first)
        return False

    def _lock_to_read(
        self, token: bytes, names: list[str], deadline_ns: int | None, cancel: CancelToken | None
    ) -> int | None:
        """A descriptor of the entry's lock file, locked; None if the lock is impossible."""
        store, name = self.store, naming.lock_name(token)
        take = partial(
            store.locks.take,
            name,
            exclusive=False,
            timeout=seconds_left(deadline_ns),
            should_stop=None if cancel is None else cancel.is_set,
        )
        try:
            try:
                held = take(create=False)
            except FileNotFoundError:
                # A lookup of an unknown token must not create a lock file.
                for name in names:
                    with suppress(FileNotFoundError):
                        store.files.status_of(store.at(name))
                        break
                else:
                    raise NoEntry("nothing is cached here") from None
                held = take(create=True)
        except NoEntry:
            raise
        except (OSError, CacheError):
            return None
        if held is None:
            if cancel is not None:
                cancel.check()
            raise NotYetWritten("the entry is being written at this moment")
        return held
