"""Which placement was measured to be best here: stored in the cache directory, sealed with the user's key."""

from __future__ import annotations

import hmac
import os
import time
from collections.abc import Callable, Mapping
from typing import Annotated, Final

import msgspec

from penstock.cache.ingredients import derived_token
from penstock.cache.naming import VERDICTS, temporary_name
from penstock.errors import CacheError, Unreadable
from penstock.sealed.files import SYSTEM_FILES, FileSystem, open_cache_file, read_exactly, write_all

MOST_BYTES: Final = 4 << 20
MOST_VERDICTS: Final = 1024
"""Verdicts that are kept; the oldest go first."""

_DOMAIN: Final = b"penstock placement verdict\0"
Digits = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The device of each operation that measuring chose, under *key*.

    *report* is what was measured, as the writer encoded it, *created* seconds since the epoch, *penstock* the
    version that wrote it.
    """

    key: Digits
    devices: tuple[str, ...]
    report: msgspec.Raw
    created: float = msgspec.field(default_factory=time.time)
    penstock: str = ""


class _Sealed(msgspec.Struct, frozen=True):
    verdict: msgspec.Raw
    seal: str


def verdict_key(ingredients: Mapping[str, str]) -> str:
    """64 digits that stand for everything in *ingredients*."""
    return derived_token({**ingredients, "kind": "placement verdict"}).hex()


class Verdicts:
    """The verdicts below one cache directory. *key* gives the user's key; None takes the key store's.

    One that is altered, cut short, of another key or not readable counts as not there.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        files: FileSystem = SYSTEM_FILES,
        key: Callable[[], bytes] | None = None,
    ) -> None:
        from penstock.cache.directory import CacheDirectory

        self._store = CacheDirectory(directory, files=files).store
        self._path = os.path.join(os.fspath(directory), VERDICTS)  # as the cache does
        self._files, self._key = files, key or self._store.key

    def load(self, key: str) -> Verdict | None:
        """The verdict under *key*; None where there is none to be trusted."""
        try:
            fd = open_cache_file(self._name(key), files=self._files)
            try:
                content = self._read(fd)
            finally:
                self._store.close(fd)
            return _unpacked(content, key, self._key())
        except (OSError, CacheError):
            return None

    def save(self, verdict: Verdict) -> None:
        """Stores *verdict* in the place of the one under its key. Raises `Unreadable`; the old one then stands."""
        encoded = msgspec.json.encode(verdict)
        content = msgspec.json.encode(_Sealed(msgspec.Raw(encoded), _seal(encoded, self._key())))
        if len(content) > MOST_BYTES:
            raise Unreadable(f"a placement of {len(content)} bytes is too large to be stored")
        self._store.make_directory()
        with self._store.naming("written"):
            self._make()
            self._write(self._name(verdict.key), content)
            self._drop_oldest()

    def every(self) -> list[Verdict]:
        """All that can be trusted, the newest first. Raises `Unreadable`."""
        with self._store.naming("read"):
            names = [name for name in self._names() if name.endswith(".json")]
        found = (self.load(name.removesuffix(".json")) for name in names)
        return sorted(filter(None, found), key=lambda verdict: -verdict.created)

    def remove(self, key: str) -> None:
        """Removes the verdict under *key*; without one nothing happens. Raises `Unreadable`."""
        with self._store.naming("emptied"):
            try:
                self._files.unlink(self._name(key))
            except FileNotFoundError:
                return

    def clear(self) -> int:
        """Removes every verdict, and returns how many there were. Raises `Unreadable`."""
        with self._store.naming("emptied"):
            names = self._names()
            for name in names:
                self._files.unlink(os.path.join(self._path, name))
            return sum(not name.endswith(".tmp") for name in names)

    def _name(self, key: str) -> str:
        return os.path.join(self._path, f"{key}.json")

    def _make(self) -> None:
        try:
            self._files.mkdir(self._path)
        except FileExistsError:
            if not self._files.status_of(self._path).regular:
                return
            raise

    def _read(self, fd: int) -> bytes:
        content = bytearray(min(self._files.status(fd).size, MOST_BYTES + 1))
        if len(content) > MOST_BYTES:
            return b""
        with memoryview(content) as view:
            return bytes(content) if read_exactly(self._files, fd, view, 0) else b""

    def _write(self, path: str, content: bytes) -> None:
        temporary = temporary_name(path)
        fd = self._files.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            try:
                write_all(self._files, fd, content, 0)
                self._files.sync(fd)
            finally:
                self._store.close(fd)
            self._files.replace(temporary, path)
        except BaseException:
            self._remove(temporary)
            raise

    def _names(self) -> list[str]:
        try:
            return self._files.names(self._path)
        except FileNotFoundError:
            return []

    def _drop_oldest(self) -> None:
        names = self._names()
        if len(names) <= MOST_VERDICTS:
            return
        dated = []
        for name in names:
            try:
                status = self._files.status_of(os.path.join(self._path, name))
            except FileNotFoundError:
                continue
            dated.append((status.modified_ns, name))
        for _, name in sorted(dated)[: len(names) - MOST_VERDICTS]:
            self._remove(os.path.join(self._path, name))

    def _remove(self, path: str) -> None:
        try:
            self._files.unlink(path)
        except OSError:
            return


def _unpacked(content: bytes, key: str, secret: bytes) -> Verdict | None:
    # TypeError is what comparing a seal that is not ASCII raises.
    try:
        sealed = msgspec.json.decode(content, type=_Sealed)
        if not hmac.compare_digest(_seal(bytes(sealed.verdict), secret), sealed.seal):
            return None
        verdict = msgspec.json.decode(sealed.verdict, type=Verdict)
    except (msgspec.DecodeError, UnicodeDecodeError, TypeError, RecursionError):
        return None
    return verdict if verdict.key == key else None


def _seal(content: bytes, secret: bytes) -> str:
    return hmac.digest(secret, _DOMAIN + content, "sha256").hex()
