"""The right to compile an entry and to publish it."""

from __future__ import annotations

import os
import sys
import time
from contextlib import ExitStack, suppress
from typing import Final

from msgspec import structs

from penstock import knobs
from penstock.cache import naming
from penstock.cache.claim import Claim, mark
from penstock.cache.eviction import awaited_claim, collect
from penstock.cache.store import FileVersion, OpenFiles, Store, seconds_left
from penstock.closing import Closing
from penstock.errors import CacheError, InputError, NotYetWritten, ReadOnly, StateError, Unreadable
from penstock.hal import CacheHandle, CancelToken
from penstock.sealed.files import READ_ONLY, write_all

_DEAD_SECONDS: Final = 1.0


class Lease(Closing):
    """The right to compile one entry, from `CacheDirectory.lease`.

    Only one compile holds it at a time, across all processes and threads. It ends with `close`, at
    the end of a `with` block, or with the process. *waited* means that another process held it
    meanwhile, or has changed the entry since `open`. The entry may exist by now.
    """

    def __init__(self, store: Store, token: bytes, fd: int, *, waited: bool) -> None:
        self.waited = waited
        self._store, self._token = store, token
        self._fd: int | None = fd
        self._awaited: Claim | None = None
        self._pending: list[OpenFiles] = []

    def create(self, needed: tuple[int, int]) -> OpenFiles:
        """New, empty files, invisible until published. Raises `Unreadable`, `ReadOnly`."""
        self._check_open()
        store, made = self._store, list[str]()
        handles: list[CacheHandle] = []
        with ExitStack() as stack, store.naming("written"):
            for name in naming.file_names(self._token, *needed):
                made.append(naming.temporary_name(name))
                stack.callback(store.unlink_quietly, made[-1:])
                try:
                    fd = store.files.open(store.at(made[-1]), os.O_RDWR | os.O_CREAT | os.O_EXCL)
                except OSError as error:
                    if error.errno not in READ_ONLY:
                        raise
                    why = f"cannot be written: {error.strerror or error}"
                    raise ReadOnly(f"the cache directory {store.path} {why}") from None
                handles.append(CacheHandle(fd))
                stack.callback(store.close, fd)
            lock = store.locks.lend(naming.lock_name(self._token))
            stack.pop_all()
        models, datas = handles[: needed[0]], handles[needed[0] :]
        self._pending.append(OpenFiles(store, models, datas, lock, temporaries=tuple(made)))
        return self._pending[-1]

    def publish(
        self,
        files: OpenFiles,
        record: naming.IndexRecord,
        *,
        late: bool = False,
        deadline_ns: int | None = None,
        cancel: CancelToken | None = None,
    ) -> None:
        """Publishes *files* as the entry, all of them or none, and replaces the previous entry.

        *record* describes what they were compiled from. With *late*, the driver has kept duplicates
        and writes them, or writes them again, within the knob `late_write_seconds`. A replaced
        entry is removed from its registry. Then entries beyond the knob `cache_limit_mib` are
        evicted, and files of dead processes removed.

        This thread must not hold the entry open through `CacheDirectory.open`. Raises `Unreadable`
        if the files cannot be published, also not before *deadline_ns* of the monotonic clock, or
        are larger than the whole cache may be. Raises `NotYetWritten` if all are empty and not
        *late*, `Cancelled` within 50 ms while other processes use the entry. After an error the
        files are removed, and the old entry is intact or removed. *files* must still be closed.
        """
        self._check_open()
        if not files.temporaries:
            raise StateError("these files were published or discarded before")
        own = self._token.hex(), len(files.model), len(files.data)
        if (record.token, record.models, record.datas) != own:
            raise InputError("the index record is of another entry")
        store = self._store
        try:
            with store.naming("written"):
                empty = self._check(files, late=late)
                for handle in files.handles:
                    store.files.sync(handle.fd)
                lock = self._lock_to_publish(deadline_ns, cancel)
            try:
                with store.naming("written"):
                    self._replace(files, record)
                awaited = late and empty
                marked = awaited and files.lock is not None and mark(files.lock.fd)
            finally:
                store.locks.release(lock)
        except BaseException:
            self.discard(files)
            store.forget(self._token, record, store.ids_in(files.handles, self._token, record))
            raise
        files.temporaries = ()
        self._awaited = None
        if awaited:  # other processes must not recompile the pending entry
            claim = Claim.of_this_process(store.now(), knobs.late_write_seconds())
            claim = claim.late_writers(record.models, record.datas, marked=marked)
            with suppress(OSError):
                self._write(claim)
                self._awaited = claim
        with suppress(OSError, Unreadable):
            limit = knobs.cache_limit_mib()
            collect(store, limit << 20 if limit > 0 else None, keep=self._token, briefly=True)

    def discard(self, files: OpenFiles) -> None:
        self._store.unlink_quietly(files.temporaries)
        files.temporaries = ()

    def close(self) -> None:
        """Ends the lease and removes files that were not published. A second call does nothing."""
        if self._fd is None:
            return
        fd, self._fd = self._fd, None
        try:
            for files in self._pending:
                self.discard(files)
            name = naming.lease_name(self._token)
            with suppress(OSError, CacheError):
                if self._awaited is None and self._store.locks.is_current(fd, name):
                    self._store.locks.remove(name)
        finally:
            self._store.locks.release(fd)

    def late_writer(self) -> str | None:
        """The process that will still write the entry, or None. Publishing drops its write."""
        return None if self._awaited is None else f"process {self._awaited.pid}"

    def begin(self) -> None:
        """Writes the holder's claim, unless a late writer's stands there. Raises `OSError`."""
        self._awaited = awaited_claim(self._store, self._token)
        if self._awaited is None:
            self._write(Claim.of_this_process(self._store.now(), knobs.lease_seconds()))

    def _write(self, claim: Claim) -> None:
        assert self._fd is not None
        files = self._store.files
        files.truncate(self._fd, 0)
        write_all(files, self._fd, claim.pack(), 0)

    def _check_open(self) -> None:
        if self._fd is None:
            raise StateError("the lease was given up before")

    def _check(self, files: OpenFiles, *, late: bool) -> bool:
        """Checks *files*; returns whether all are empty."""
        sizes = files.sizes()
        if not any(sizes) and not late:
            raise NotYetWritten("the driver wrote nothing into its cache files")
        limit = knobs.cache_limit_mib()
        if 0 < limit << 20 < sum(sizes):
            raise Unreadable(
                f"the entry has {sum(sizes)} bytes, more than the knob cache_limit_mib ({limit}) "
                "lets the whole cache have"
            )
        return not any(sizes)

    def _lock_to_publish(self, deadline_ns: int | None, cancel: CancelToken | None) -> int:
        seconds = seconds_left(deadline_ns)
        lock = self._store.locks.take(
            naming.lock_name(self._token),
            exclusive=True,
            create=True,
            timeout=seconds,
            should_stop=None if cancel is None else cancel.is_set,
        )
        if lock is not None:
            return lock
        if cancel is not None:
            cancel.check()
        raise Unreadable(
            "the entry stays in use by others and cannot be replaced: its lock was not free "
            f"within {seconds:.3g} s"
        )

    def _replace(self, files: OpenFiles, record: naming.IndexRecord) -> None:
        """Replaces the entry under its lock. Until the last rename, readers reject the mixture."""
        store, token = self._store, self._token
        names = naming.file_names(token, record.models, record.datas)
        replaced = store.entry_ids(token, record)
        if sys.platform == "win32":  # some systems cannot rename an open file
            files.close()
        begun = False
        try:
            store.unlink(naming.index_name(token))
            for temporary, name in zip(files.temporaries, names, strict=True):
                begun = True
                store.files.replace(store.at(temporary), store.at(name))
            store.files.sync_directory(store.path)
        except OSError:
            if begun:
                store.unlink_quietly(names)
                store.forget(token, record, replaced)
            raise
        with suppress(OSError, Unreadable):
            store.write_record(token, record)
        store.forget(token, record, replaced - store.entry_ids(token, record))


def take_lease(
    store: Store,
    token: bytes,
    wait_ns: int | None,
    cancel: CancelToken | None,
    seen: tuple[str, FileVersion | None] | None,
) -> Lease | str:
    """A lease, or why there is none; *seen* is a file of the entry and its version in `open`."""
    name = naming.lease_name(token)
    store.make_directory()
    if cancel is not None:
        cancel.check()
    waiting = _Waiting(store, wait_ns, cancel)
    with store.naming("written"):
        fd = store.locks.take(
            name,
            exclusive=True,
            create=True,
            timeout=waiting.seconds,
            should_stop=waiting.is_over,
            opened=waiting.look_at,
        )
    if fd is None:
        if cancel is not None:
            cancel.check()
        return waiting.reason()
    lease = Lease(store, token, fd, waited=waiting.begun)
    try:
        if seen is not None and store.version_of(seen[0]) != seen[1]:
            lease.waited = True
        with store.naming("written"):
            lease.begin()
    except BaseException:
        lease.close()
        raise
    return lease


class _Waiting:
    """Decides how long to wait for a lease's holder, and why to stop."""

    def __init__(self, store: Store, wait_ns: int | None, cancel: CancelToken | None) -> None:
        self._store, self._cancel = store, cancel
        seconds = knobs.lease_seconds()
        self.seconds = seconds if wait_ns is None else min(seconds, wait_ns / 1e9)
        self.begun, self._fd = False, -1
        self._holder: Claim | None = None
        # Why the holder's time is over, its claim, and since when that is known.
        self._past: tuple[str, Claim | None, float] | None = None

    def look_at(self, fd: int) -> None:
        self._fd = fd

    def is_over(self) -> bool:
        self.begun = True
        if self._cancel is not None and self._cancel.is_set():
            return True
        try:
            claim = self._holder = Claim.read(self._store.files, self._fd)
        except OSError:
            return False
        if not (why := self._why_past(claim)):
            self._past = None
            return False
        # A new holder may not have written its claim yet; the file is empty or has the previous
        # claim.
        now = time.monotonic()
        if self._past is None or self._past[:2] != (why, claim):
            self._past = why, claim, now
        return now - self._past[2] > _DEAD_SECONDS

    def reason(self) -> str:
        """Why the lease was not acquired, in a sentence."""
        if self._past is not None:
            return self._past[0]
        who = "another process" if self._holder is None else f"process {self._holder.pid}"
        return f"{who} was still compiling it after a wait of {self.seconds:.3g} s"

    def _why_past(self, claim: Claim | None) -> str:
        if claim is None:
            return "its lease is held by somebody who does not say which process that is"
        if claim.dead():
            return (
                f"process {claim.pid}, which was compiling it, has ended, but what it started "
                "still holds its lease"
            )
        if claim.over(self._store.now()):
            return (
                f"process {claim.pid} has been compiling it for longer than the {claim.seconds:g} "
                "s that it had"
            )
        return ""


def restore(
    store: Store, token: bytes, record: naming.IndexRecord, first: str, seen: FileVersion | None
) -> bool:
    """`CacheDirectory.restore`; *seen* is the version of the file *first* in `open`."""
    with suppress(OSError, CacheError):
        held = store.locks.take(naming.lock_name(token), exclusive=True, create=False, timeout=0)
        if held is None:
            return False
        try:
            if seen is None or store.version_of(first) != seen or store.read_record(token):
                return False
            store.unlink(naming.index_name(token))
            store.write_record(token, structs.replace(record, created=seen[2] / 1e9))
        finally:
            store.locks.release(held)
        return True
    return False
