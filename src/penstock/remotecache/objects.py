"""Stores in object storage, through `obstore`.

A read that failed is tried again by plain HTTP at a signed address. Its answer says what `obstore`
does not hand on: how long an overloaded store wants to be left alone. After a write that failed, a
read looks for the object, and waits so long; then the write is tried once more.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import obstore
from obstore import exceptions
from obstore.store import GCSStore, MemoryStore, S3Store

from penstock.errors import InputError, PenstockError, StoreUnavailable, WrongLength
from penstock.logs import printable
from penstock.remotecache import web
from penstock.remotecache.patience import Refusal, patiently
from penstock.remotecache.stores import (
    Named,
    ObjectStore,
    Stored,
    Unconditional,
    checked_name,
    etag_of,
)

if TYPE_CHECKING:
    from obstore import PutMode, UpdateVersion
    from obstore.store import ObjectStore as AnyStore, RetryConfig

Condition: TypeAlias = Literal["e_tag", "version"]

_CHUNK: Final = 1 << 20
_LISTED: Final = 1000
_SHOWN: Final = 200
_FORBIDDEN: Final = 403
_REFUSED: Final = exceptions.PermissionDeniedError, exceptions.UnauthenticatedError
_VERSIONS: Final = {"e_tag": "ETag", "version": "x-goog-generation"}
"""The header with the version of an object, by the condition of writes."""

_memories: Final[dict[str, MemoryStore]] = {}
_lock: Final = threading.Lock()


class Objects:
    """A `penstock.remotecache.stores.ObjectStore` in *store*, a store of `obstore`.

    *reading* is the same store without retries; it is read for at most *seconds*. *condition* is
    the attribute of a version that its conditional writes compare.
    """

    def __init__(
        self,
        url: str,
        store: AnyStore,
        reading: AnyStore,
        seconds: float,
        condition: Condition = "e_tag",
    ) -> None:
        self.url, self._store, self._reading = url, store, reading
        self._seconds, self._condition = seconds, condition

    def get(self, name: str, most: int) -> Stored | None:
        return patiently(lambda number: self._read(name, most, number), self._seconds)

    def _read(self, name: str, most: int, number: int) -> Stored | None:
        if number and (address := self._signed(name)):
            return web.read(address, name, most, self._seconds, _VERSIONS[self._condition])
        with self._naming("read", name):
            try:
                found = obstore.get(self._reading, checked_name(name))
            except FileNotFoundError:
                return None
            except _REFUSED as error:
                raise Refusal(self._words("read", name, error), _FORBIDDEN) from None
            size = found.meta["size"]
            if size > most:
                raise WrongLength(f"{name} has {size} bytes in the store, more than {most}")
            content = bytearray()
            for chunk in found.stream(min_chunk_size=_CHUNK):
                content += chunk
                if len(content) > most:
                    raise WrongLength(f"{name} goes on beyond {most} bytes in the store")
            return Stored(bytes(content), found.meta[self._condition] or "")

    def listed(self, prefix: str, most: int) -> list[Named]:
        with self._naming("listed", prefix):
            found: list[Named] = []
            for chunk in obstore.list(self._store, checked_name(prefix), chunk_size=_LISTED):
                for one in chunk:
                    written = one["last_modified"].timestamp()
                    found.append(Named(one["path"], one["size"], written))
                if len(found) > most:
                    raise WrongLength(f"{self.url} has more than {most} objects in {prefix}")
            return found

    def unfinished(self, most: int) -> list[Named]:  # objects are written whole
        return []

    def create(self, name: str, content: bytes) -> str | None:
        return self._put(name, content, "create", exceptions.AlreadyExistsError)

    def update(self, name: str, content: bytes, etag: str) -> str | None:
        gone = exceptions.PreconditionError, FileNotFoundError
        return self._put(name, content, self._version(etag), *gone)

    def delete(self, name: str) -> None:
        with self._naming("removed", name):
            try:
                obstore.delete(self._store, checked_name(name))
            except FileNotFoundError:
                return

    def _signed(self, name: str) -> str:
        """The address at which anybody may read the object for a while; empty without one."""
        if not isinstance(self._reading, S3Store | GCSStore):
            return ""
        valid = timedelta(seconds=60 + self._seconds)
        try:
            return obstore.sign(self._reading, "GET", checked_name(name), expires_in=valid)
        except (exceptions.BaseError, OSError, ValueError):
            # For example without credentials, for a bucket that everybody may read.
            return ""

    def _version(self, etag: str) -> UpdateVersion:
        return {"version": etag} if self._condition == "version" else {"e_tag": etag}

    def _put(
        self, name: str, content: bytes, mode: PutMode, *otherwise: type[Exception]
    ) -> str | None:
        """The ETag of the object, or None after an error of the kinds *otherwise*.

        The answer to an earlier try may have been lost. The object then has the content already.
        """
        with self._naming("written", name):
            try:
                return self._put_once(name, content, mode, *otherwise)
            except (exceptions.NotSupportedError, NotImplementedError, *_REFUSED):
                raise
            except (exceptions.BaseError, OSError) as error:
                try:
                    etag = etag_of(self, name, content)
                except StoreUnavailable as unavailable:
                    if unavailable.retry_after:
                        raise
                    raise error from None
            if etag is not None:
                return etag
            # The store answers again.
            return self._put_once(name, content, mode, *otherwise)

    def _put_once(
        self, name: str, content: bytes, mode: PutMode, *otherwise: type[Exception]
    ) -> str | None:
        try:
            made = obstore.put(self._store, checked_name(name), content, mode=mode)
        except otherwise:
            return etag_of(self, name, content)
        return made[self._condition] or ""

    @contextmanager
    def _naming(self, act: str, name: str) -> Iterator[None]:
        """Turns an error of the store in the block into `StoreUnavailable`."""
        try:
            yield
        except (PenstockError, Refusal):
            raise
        except (exceptions.NotSupportedError, NotImplementedError):
            raise Unconditional(f"{self.url} has no writes on a condition") from None
        except (exceptions.BaseError, OSError, ValueError) as error:
            raise StoreUnavailable(self._words(act, name, error)) from None

    def _words(self, act: str, name: str, error: Exception) -> str:
        said = printable(next(iter(str(error).splitlines()), ""))[:_SHOWN]
        return f"{name} of {self.url} cannot be {act}: {said}"


def open_objects(url: str, scheme: str, seconds: float) -> ObjectStore:
    """The store at *url*, whose requests may take *seconds*. Raises `InputError`."""
    place, _, prefix = url.partition("://")[2].partition("/")
    if scheme == "memory":
        with _lock:
            memory = _memories.setdefault(url, MemoryStore())
        return Objects(url, memory, memory, seconds)
    if not place:
        raise InputError(f"{url!r} names no bucket or host")
    if scheme in {"http", "https"}:
        return web.WebStore(url, seconds)
    brief: RetryConfig = {
        "max_retries": 2,
        "retry_timeout": timedelta(seconds=seconds),
        "backoff": {
            "base": 2,
            "init_backoff": timedelta(milliseconds=50),
            "max_backoff": timedelta(seconds=max(0.05, seconds / 4)),
        },
    }
    once: RetryConfig = {"max_retries": 0, "retry_timeout": timedelta(seconds=seconds)}
    options: dict[str, Any] = {
        "prefix": prefix or None,
        "client_options": {
            "timeout": timedelta(seconds=seconds),
            "connect_timeout": timedelta(seconds=seconds),
            "allow_http": _endpoint(scheme).startswith("http://"),
        },
    }
    try:
        make = GCSStore if scheme == "gs" else S3Store
        store, reading = (make(place, retry_config=retry, **options) for retry in (brief, once))
        return Objects(url, store, reading, seconds, "version" if scheme == "gs" else "e_tag")
    except (exceptions.BaseError, ValueError) as error:
        said = printable(str(error))[:_SHOWN]
        raise InputError(f"{url!r} cannot be used as a shared store: {said}") from None


def _endpoint(scheme: str) -> str:
    """The endpoint that the cloud's own settings name; empty for the cloud itself."""
    names = ["GOOGLE_BASE_URL"] if scheme == "gs" else ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"]
    return next(filter(None, map(os.environ.get, names)), "")
