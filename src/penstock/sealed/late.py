"""Writing a published entry again after the preparation, for late and staged compiling."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple, Protocol

from msgspec.structs import replace

from penstock.errors import ClosedError, NoEntry, PenstockError, StateError, Unreadable
from penstock.sealed.entry import (
    CacheConfig,
    EntryFiles,
    LoadedEntry,
    Payload,
    SaveReport,
    reason_of,
)
from penstock.sealed.files import FileSystem
from penstock.sealed.locks import locked


class Sealing(Protocol):
    """The methods of a `Seal` that its late writers use."""

    @property
    def file_system(self) -> FileSystem:
        """The operations on files that the seal uses."""
        ...

    @property
    def replace(self) -> Callable[..., SaveReport]:
        """See `Seal.replace`."""
        ...

    @property
    def load(self) -> Callable[..., LoadedEntry]:
        """See `Seal.load`."""
        ...


class _Duplicate(NamedTuple):
    """A `Handle` that the writer owns."""

    fd: int


class LateWriter:
    """Rewrites a cache entry after its preparation, from duplicates of its cache handles.

    A driver uses it once it has compiled, or compiled better. The runtime publishes an entry first,
    by renaming; a late write is in place. It holds the entry's lock, and happens only if the
    handles still are the published files and hold *expected*: the id of the entry that the driver
    loaded or saved there, None while the files are empty. So the second of two late writers fails,
    and neither writes into files that were replaced. If a process dies during the write, the next
    load finds the old entry, the new one, or a miss with its reason.

    Runs call both methods, so neither waits for the lock by default: if it is taken, they do
    nothing. Write after the preparation has returned: during it the runtime itself may hold the
    lock. The open file description of the lock in *config* must not be shared with the runtime or
    with another late writer. The constructor never raises; if no descriptors are left
    for duplicates, each write reports that. Thread-safe. A forked child cannot use it.

        writer = seal.late_writer(config, expected=None)
        ...
        report = writer.write(model=[program], data=[weights])
    """

    def __init__(self, seal: Sealing, config: CacheConfig, *, expected: bytes | None) -> None:
        self._seal, self._files = seal, seal.file_system
        self._token, self._binding, self._expected = config.token, config.binding, expected
        self._models = len(config.model_cache)
        self._process = os.getpid()
        self._mutex = threading.Lock()
        self._closing = threading.Event()
        self._found_taken = False
        self._failure = ""
        self._handles: list[_Duplicate] = []
        self._release = weakref.finalize(self, _close_all, self._files, self._handles)
        self._release.atexit = False
        assert config.lock is not None
        try:
            for handle in (config.lock, *config.model_cache, *config.data_cache):
                self._handles.append(_Duplicate(self._files.duplicate(handle.fd)))
        except OSError as error:
            self._failure = f"the cache handles cannot be kept: {error.strerror or error}"
            self._release()

    @property
    def expected(self) -> bytes | None:
        """The id of the entry that the next `write` replaces."""
        return self._expected

    def is_free(self) -> bool:
        """Whether the entry's lock is free now, so that preparing data for `write` is worthwhile.

        Also True if a write would fail at once for another reason.
        """
        try:
            with self._mutex:
                self._usable()
                with locked(
                    self._handles[0].fd, exclusive=True, timeout=0.0, locks=self._files
                ) as held:
                    return held
        except PenstockError:
            return True

    def write(
        self, *, model: Sequence[Payload] = (), data: Sequence[Payload] = (), timeout: float = 0.0
    ) -> SaveReport:
        """Seals one payload into each file, in place, if the lock is free within *timeout* seconds.

        Never raises. The reason is `NoEntry` if the files were replaced or removed, `ForeignEntry`
        if they hold another entry than expected: later writes fail too. After other failures a
        later call may succeed; *in_use* if the lock was taken.
        """
        try:
            with self._mutex:
                self._found_taken = False
                report = self._seal.replace(
                    self._usable(),
                    expected=self._expected,
                    guard=self._locked(timeout, exclusive=True),
                    model=model,
                    data=data,
                )
                if report.saved or report.emptied:
                    self._expected = report.entry
                return replace(report, in_use=True) if self._found_taken else report
        except PenstockError as error:
            return SaveReport(reason=reason_of(error))

    def load(self, *, timeout: float = 0.0) -> LoadedEntry:
        """The verified contents, perhaps written late by another process.

        The next `write` replaces that entry. Raises as `Seal.load`, `NoEntry` if the files were
        replaced or removed, `Unreadable` if a writer held the lock for *timeout* seconds,
        `ClosedError` after `close`.
        """
        with self._mutex:
            entry = self._usable()
            with self._locked(timeout, exclusive=False):
                loaded = self._seal.load(entry)
            self._expected = loaded.entry
            return loaded

    def close(self) -> None:
        """Closes the handles, once. A write that waits for its lock is dropped."""
        self._closing.set()
        with self._mutex:
            self._release()

    def _usable(self) -> EntryFiles:
        if self._closing.is_set():
            raise ClosedError("the late writer is closed")
        if self._failure:
            raise Unreadable(self._failure)
        if os.getpid() != self._process:
            # It shares its parent's lock, which would exclude neither.
            raise StateError("the late writer is its parent process's")
        end = 1 + self._models
        models, datas = self._handles[1:end], self._handles[end:]
        return EntryFiles(models, datas, self._token, self._binding)

    @contextmanager
    def _locked(self, timeout: float, *, exclusive: bool) -> Iterator[None]:
        fds = [handle.fd for handle in self._handles]
        is_closing = self._closing.is_set
        with locked(
            fds[0], exclusive=exclusive, timeout=timeout, should_stop=is_closing, locks=self._files
        ) as held:
            if not held:
                if is_closing():
                    raise Unreadable("the late writer was closed while it waited for the lock")
                self._found_taken = True
                raise Unreadable(f"the entry is in use: its lock was not free within {timeout:g} s")
            try:
                is_published = all(self._files.status(fd).links for fd in fds)
            except OSError as error:
                raise Unreadable(f"the entry cannot be read: {error.strerror or error}") from None
            if not is_published:
                # No process could find the data in a file without a name.
                raise NoEntry("the entry was replaced or removed since it was opened")
            yield


def _close_all(files: FileSystem, handles: list[_Duplicate]) -> None:
    while handles:
        with suppress(OSError):
            files.close(handles.pop().fd)
