"""One cache directory's files, locks and key, as used by reading, publishing and eviction."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Final, TypeAlias

from penstock.cache import naming
from penstock.cache.lock_files import LockFiles
from penstock.cache.naming import IndexRecord
from penstock.closing import Closing
from penstock.distribution import made_by
from penstock.errors import CacheError, Unreadable
from penstock.hal import CacheHandle
from penstock.sealed import files as sealed_files
from penstock.sealed.files import FileSystem, open_cache_file

if TYPE_CHECKING:
    from penstock.cache.claim import Now
    from penstock.sealed.keys import KeyStore
    from penstock.sealed.seal import Seal

LOCK_SECONDS: Final = 10.0
"""Maximum seconds to wait for an entry's lock, whose holder only reads, renames or writes files."""

LOCK_SHARE: Final = 0.125
"""Largest share of the time to the deadline for one such wait; a compile has several."""

LEASE_SHARE: Final = 0.5
"""As `LOCK_SHARE`, for the wait for another compile. The rest must suffice to compile alone."""

FileVersion: TypeAlias = tuple[tuple[int, int], int, int]

_INDEX_BEGINS: Final = b'{"record":{"token":"'
_SEAL_BEGINS: Final = b'"seal":"'
_SEAL_ENDS: Final = b'"}'
_INDEX_ENDING: Final = 80


def seconds_left(
    deadline_ns: int | None, most: float | None = None, share: float = LOCK_SHARE
) -> float:
    """A wait's seconds: at most *most* (None: `LOCK_SECONDS`), and *share* of the time left."""
    most = LOCK_SECONDS if most is None else most
    if deadline_ns is None:
        return most
    return min(most, max(0.0, (deadline_ns - time.monotonic_ns()) / 1e9 * share))


class Store:
    """The directory *path*, accessed through *files*, with the user's key and the locks of entries.

    The key is from *keys*, or the default key store. *clock* gives seconds since the epoch,
    *uptime* seconds since boot. *seals* makes another `Seal` of a driver version. The locks are in
    the directory *locks*, or in the state directory.
    """

    def __init__(
        self,
        path: str,
        files: FileSystem = sealed_files.SYSTEM_FILES,
        keys: KeyStore | None = None,
        clock: Callable[[], float] = time.time,
        uptime: Callable[[], float] | None = None,
        seals: Callable[[str, str, tuple[int, int]], Seal] | None = None,
        locks: str | None = None,
    ) -> None:
        self.path, self.files, self.clock = path, files, clock
        self._keys, self._uptime, self._seals = keys, uptime, seals
        self.locks = LockFiles(path, files, locks, self.now)

    def at(self, name: str) -> str:
        return os.path.join(self.path, name)

    def seal(self, device: str, version: str, needed: tuple[int, int], source: str) -> Seal:
        """The seal of that driver version, of the origin *source*, with its registry."""
        if self._seals is not None:
            return self._seals(device, version, needed)
        from penstock.sealed.seal import Seal

        with made_by(source):
            return Seal(device, version, files=needed, keys=self._keys, file_system=self.files)

    def seal_of(self, record: IndexRecord) -> Seal:
        """The seal of the driver version of *record*'s entry."""
        needed = record.models, record.datas
        return self.seal(record.device, record.version, needed, record.source)

    def key(self) -> bytes:
        """The user's key. Raises `Unreadable`."""
        if self._keys is None:
            from penstock import knobs
            from penstock.sealed.keys import default_key_store
            from penstock.sealed.places import sealed_directory

            self._keys = default_key_store(sealed_directory(), knobs.key_store)
        return self._keys.key()

    def now(self) -> Now:
        from penstock import processes
        from penstock.cache import claim

        return claim.Now(self.clock(), (self._uptime or claim.uptime)(), processes.boot())

    def make_directory(self) -> None:
        """Makes the directory and its parents, private to their owner. Raises `Unreadable`."""
        with self.naming("made"):
            self._make(self.path)
            if os.path.islink(self.path) and not os.path.exists(self.path):
                raise FileNotFoundError(errno.ENOENT, "it is a symbolic link to nothing")

    def _make(self, path: str) -> None:
        try:
            self.files.mkdir(path)
        except FileExistsError:
            return
        except FileNotFoundError:
            if (parent := os.path.dirname(path)) == path:
                raise
            self._make(parent)
            with suppress(FileExistsError):
                self.files.mkdir(path)

    def naming(self, act: str) -> sealed_files.Renaming:
        """Turns an `OSError` of the block into `Unreadable`."""
        return sealed_files.Renaming(lambda error: self.unreadable(error, act))

    def unreadable(self, error: OSError, act: str) -> Unreadable:
        """*error* as an `Unreadable` that says that the directory cannot be *act*."""
        path = error.filename2 or error.filename
        if isinstance(error, IsADirectoryError) and isinstance(path, str | os.PathLike):
            above, name = os.path.split(os.fspath(path))
            shown = os.path.join(above, naming.short_name(name))
            return Unreadable(
                f"{shown} is a directory where a file of the cache belongs: remove it"
            )
        said = error.strerror or error
        return Unreadable(f"the cache directory {self.path} cannot be {act}: {said}")

    def close(self, fd: int) -> None:
        """Closes *fd* and ignores errors: the important data was synced before."""
        with suppress(OSError):
            self.files.close(fd)

    def exists(self, name: str) -> bool:
        with suppress(OSError):
            self.files.status_of(self.at(name))
            return True
        return False

    def version_of(self, name: str) -> FileVersion | None:
        """Identity, size and time of a file, which change if it is replaced; None without it."""
        with suppress(OSError):
            status = self.files.status_of(self.at(name))
            return status.identity, status.size, status.modified_ns
        return None

    def unlink(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self.files.unlink(self.at(name))

    def unlink_quietly(self, names: Iterable[str]) -> None:
        """Removes the files that can be removed; the next sweep may remove the rest."""
        for name in names:
            with suppress(OSError):
                self.files.unlink(self.at(name))

    def read(self, path: str, most: int) -> bytes:
        """The whole file at *path*; empty if it has more than *most* bytes. Raises as `opened`."""
        with self.opened(path) as fd:
            return sealed_files.read_small(self.files, fd, most)

    @contextmanager
    def opened(self, path: str) -> Iterator[int]:
        """A descriptor of the file at *path* for the block. Raises `OSError`, `CacheError`."""
        fd = open_cache_file(path, files=self.files)
        try:
            yield fd
        finally:
            self.close(fd)

    def write(self, name: str, content: bytes) -> None:
        """Replaces the file *name* by a new one. Raises `OSError`; the old one is then kept."""
        temporary = naming.temporary_name(name)
        fd = self.files.open(self.at(temporary), os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            try:
                sealed_files.write_all(self.files, fd, content, 0)
                self.files.sync(fd)
            finally:
                self.close(fd)
            self.touch(temporary)
            self.files.replace(self.at(temporary), self.at(name))
        except BaseException:
            self.unlink_quietly([temporary])
            raise

    def read_record(self, token: bytes) -> IndexRecord | None:
        """The entry's index record; None if it is missing, unreadable or altered."""
        try:
            content = self.read(self.at(naming.index_name(token)), naming.MOST_INDEX_BYTES)
            return naming.unpack_record(content, self.key(), token)
        except (OSError, CacheError):
            return None

    def looks_like_index(self, token: bytes) -> bool:
        """Whether the index of *token* has a valid beginning and end. The seal is not checked."""
        try:
            with self.opened(self.at(naming.index_name(token))) as fd:
                size = self.files.status(fd).size
                content = bytearray(min(size, len(_INDEX_BEGINS) + 2 * len(token)))
                ending = bytearray(min(size, _INDEX_ENDING))
                with memoryview(content) as head, memoryview(ending) as tail:
                    sealed_files.read_exactly(self.files, fd, head, 0)
                    sealed_files.read_exactly(self.files, fd, tail, size - len(ending))
        except (OSError, CacheError):
            return False
        begins = content == _INDEX_BEGINS + token.hex().encode()
        return begins and _ends_with_a_seal(bytes(ending))

    def write_record(self, token: bytes, record: IndexRecord) -> None:
        """Writes the entry's index. Raises `OSError`, `CacheError`; the old index is then kept."""
        self.write(naming.index_name(token), naming.pack_record(record, self.key()))

    def touch(self, name: str) -> None:
        """Sets the file's modification time to now. Raises `OSError`."""
        self.files.touch(self.at(name), int(self.clock() * 1e9))

    def entry_ids(self, token: bytes, record: IndexRecord) -> set[bytes]:
        """The entry ids in the headers of the published files."""
        with ExitStack() as stack:
            handles = []
            for name in naming.file_names(token, record.models, record.datas):
                with suppress(OSError, CacheError):
                    handles.append(CacheHandle(stack.enter_context(self.opened(self.at(name)))))
            return self.ids_in(handles, token, record)

    def ids_in(
        self, handles: Iterable[CacheHandle], token: bytes, record: IndexRecord
    ) -> set[bytes]:
        """The entry ids in the headers of open files."""
        seal = self.seal_of(record)
        found: set[bytes] = set()
        for handle in handles:
            with suppress(OSError, CacheError):
                if (entry := seal.entry_of(handle, token)) is not None:
                    found.add(entry)
        return found

    def forget(self, token: bytes, record: IndexRecord, entries: set[bytes]) -> None:
        """Removes *entries* from their driver's registry, which then rejects restored files."""
        if not entries:
            return
        seal = self.seal_of(record)
        for entry in sorted(entries):
            with suppress(OSError, CacheError):
                seal.forget(token, entry)


class OpenFiles(Closing):
    """An entry's *model* and *data* cache files, open for reading and writing, and its *lock* file.

    They are a `PrepareConfig`'s `model_cache`, `data_cache` and `lock`; *lock* is opened for the
    driver only. In a read-only directory the files are open for reading, and *lock* is None,
    because nothing can be written later.

    Close it, or use it in a `with` block, when the driver's call has returned. The driver's
    duplicates stay open. A second close does nothing.
    """

    def __init__(
        self,
        store: Store,
        model: Sequence[CacheHandle],
        data: Sequence[CacheHandle],
        lock: CacheHandle | None,
        *,
        held: int | None = None,
        temporaries: tuple[str, ...] = (),
    ) -> None:
        self.model, self.data, self.lock = tuple(model), tuple(data), lock
        self.temporaries = temporaries
        """The names of unpublished files, in the order of the handles."""
        self._store, self._held, self._open = store, held, True

    @property
    def handles(self) -> tuple[CacheHandle, ...]:
        """The cache files, model files first."""
        return (*self.model, *self.data)

    def sizes(self) -> list[int]:
        """The present size of each file in bytes. Raises `OSError`."""
        return [self._store.files.status(handle.fd).size for handle in self.handles]

    def close(self) -> None:
        if not self._open:
            return
        self._open = False
        with ExitStack() as stack:
            if self._held is not None:
                stack.callback(self._store.locks.release, self._held)
            for handle in (*self.handles, *filter(None, [self.lock])):
                stack.callback(self._store.close, handle.fd)


def _ends_with_a_seal(content: bytes) -> bool:
    """Whether *content* ends as an index does. White space at the end is ignored."""
    content = content.rstrip()
    before, digits = content[: -64 - len(_SEAL_ENDS)], content[: -len(_SEAL_ENDS)][-64:]
    return (
        content.endswith(_SEAL_ENDS)
        and before.endswith(_SEAL_BEGINS)
        and not digits.strip(b"0123456789abcdef")
    )
