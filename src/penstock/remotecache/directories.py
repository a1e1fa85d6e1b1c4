"""A store in a directory that machines share: objects are files, written whole, by locks."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from typing import Final

from penstock.errors import CacheError, StoreUnavailable, WrongLength
from penstock.remotecache import roles
from penstock.remotecache.stores import Named, Stored, checked_name, etag_of
from penstock.sealed.files import SYSTEM_FILES, open_cache_file, read_exactly, write_all
from penstock.sealed.locks import locked

_LOCK: Final = "lock"
_TEMPORARY: Final = ".tmp"
_FILES: Final = SYSTEM_FILES


class DirectoryStore:
    """An `ObjectStore` in the directory *path*. An object's ETag is a digest of its content.

    Writers hold the lock of the directory, for at most *seconds*. Whoever can write there can hold
    it for longer; nothing is published meanwhile, but reading needs no lock. The file system must
    have locks between machines.
    """

    def __init__(self, path: str, seconds: float) -> None:
        self.path, self.url, self._seconds = path, f"file://{path}", seconds

    def get(self, name: str, most: int) -> Stored | None:
        with self._naming("read", name):
            try:
                fd = open_cache_file(self._at(name))
            except FileNotFoundError:
                return None
            try:
                size = _FILES.status(fd).size
                if size > most:
                    raise WrongLength(f"{name} has {size} bytes in the store, more than {most}")
                content = bytearray(size)
                with memoryview(content) as view:
                    if not read_exactly(_FILES, fd, view, 0):
                        raise WrongLength(f"{name} became shorter while it was read")
            finally:
                _FILES.close(fd)
        return Stored(bytes(content), _etag(content))

    def listed(self, prefix: str, most: int) -> list[Named]:
        files = self._files(prefix, most)
        return [one for one in files if not one.name.endswith(_TEMPORARY)]

    def unfinished(self, most: int) -> list[Named]:
        found: list[Named] = []
        for prefix in (roles.METADATA, roles.ENTRIES, roles.LEASES):
            files = self._files(prefix, most)
            found += [one for one in files if one.name.endswith(_TEMPORARY)]
        return found

    def _files(self, prefix: str, most: int) -> list[Named]:
        """The files below *prefix*, those of writers that are under way too."""
        found: list[Named] = []
        with (
            self._naming("listed", prefix),
            suppress(FileNotFoundError),
            os.scandir(self._at(prefix)) as files,
        ):
            for one in files:
                if one.is_file(follow_symlinks=False):
                    # A writer may replace or remove it meanwhile.
                    with suppress(FileNotFoundError):
                        state = one.stat(follow_symlinks=False)
                        found.append(Named(f"{prefix}/{one.name}", state.st_size, state.st_mtime))
                if len(found) > most:
                    raise WrongLength(f"{self.url} has more than {most} objects in {prefix}")
        return found

    def create(self, name: str, content: bytes) -> str | None:
        with self._writing(name, content) as temporary:
            if os.path.lexists(path := self._at(name)):
                return etag_of(self, name, content)
            os.replace(temporary, path)
        return _etag(content)

    def update(self, name: str, content: bytes, etag: str) -> str | None:
        with self._writing(name, content) as temporary:
            before = self.get(name, 1 << 30)
            if before is None or etag != before.etag != _etag(content):
                return None
            os.replace(temporary, self._at(name))
        return _etag(content)

    def delete(self, name: str) -> None:
        with self._naming("removed", name), suppress(FileNotFoundError), self._locked():
            os.unlink(self._at(name))

    def _at(self, name: str) -> str:
        return os.path.join(self.path, *checked_name(name).split("/"))

    @contextmanager
    def _writing(self, name: str, content: bytes) -> Iterator[str]:
        """A new file with *content* for the block, which holds the lock."""
        naming, new = self._naming("written", name), self._temporary(name, content)
        with naming, new as temporary, self._locked():
            yield temporary

    @contextmanager
    def _temporary(self, name: str, content: bytes) -> Iterator[str]:
        """A new file with *content* for the block, beside the object of that name."""
        path = self._at(name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        temporary = f"{path}.{os.urandom(8).hex()}{_TEMPORARY}"
        try:
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            try:
                write_all(_FILES, fd, content, 0)
                os.fsync(fd)
            finally:
                os.close(fd)
            yield temporary
        finally:
            with suppress(OSError):
                os.unlink(temporary)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Holds the lock of the directory. It lasts as long as a rename."""
        fd = os.open(os.path.join(self.path, _LOCK), os.O_RDWR | os.O_CREAT, 0o666)
        try:
            began = time.monotonic()
            with locked(fd, exclusive=True, timeout=self._seconds) as held:
                if not held:
                    waited = time.monotonic() - began
                    raise StoreUnavailable(
                        f"the lock of {self.url} was not free within {waited:.3g} s"
                    )
                yield
        finally:
            os.close(fd)

    @contextmanager
    def _naming(self, act: str, name: str) -> Iterator[None]:
        """Turns an error of the file system in the block into `StoreUnavailable`."""
        try:
            yield
        except (StoreUnavailable, WrongLength):
            raise
        except OSError as error:
            said = error.strerror or error
            raise StoreUnavailable(f"{name} of {self.url} cannot be {act}: {said}") from None
        except CacheError as error:
            said = error.args[0]
            raise StoreUnavailable(f"{name} of {self.url} cannot be {act}: {said}") from None


def _etag(content: bytes | bytearray) -> str:
    return sha256(content).hexdigest()[:32]
