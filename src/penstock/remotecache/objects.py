"""Stores in object storage, through `obstore`."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import obstore
from obstore import exceptions
from obstore.store import GCSStore, HTTPStore, MemoryStore, S3Store

from penstock.errors import InputError, PenstockError, StoreUnavailable, WrongLength
from penstock.logs import printable
from penstock.remotecache.stores import Stored, Unconditional, checked_name

if TYPE_CHECKING:
    from obstore.store import ObjectStore as AnyStore

_CHUNK: Final = 1 << 20
_SHOWN: Final = 200

_memories: Final[dict[str, MemoryStore]] = {}
_lock: Final = threading.Lock()


class Objects:
    """A `penstock.remotecache.stores.ObjectStore` in *store*, a store of `obstore`."""

    def __init__(self, url: str, store: AnyStore) -> None:
        self.url, self._store = url, store

    def get(self, name: str, most: int) -> Stored | None:
        with self._naming("read", name):
            try:
                found = obstore.get(self._store, checked_name(name))
            except FileNotFoundError:
                return None
            size = found.meta["size"]
            if size > most:
                raise WrongLength(f"{name} has {size} bytes in the store, more than {most}")
            content = bytearray()
            for chunk in found.stream(min_chunk_size=_CHUNK):
                content += chunk
                if len(content) > most:
                    raise WrongLength(f"{name} goes on beyond {most} bytes in the store")
            return Stored(bytes(content), found.meta["e_tag"] or "")

    def create(self, name: str, content: bytes) -> str | None:
        with self._naming("written", name):
            try:
                made = obstore.put(self._store, checked_name(name), content, mode="create")
            except exceptions.AlreadyExistsError:
                return None
            return made["e_tag"] or ""

    def update(self, name: str, content: bytes, etag: str) -> str | None:
        with self._naming("written", name):
            try:
                made = obstore.put(self._store, checked_name(name), content, mode={"e_tag": etag})
            except (exceptions.PreconditionError, FileNotFoundError):
                return None
            return made["e_tag"] or ""

    def delete(self, name: str) -> None:
        with self._naming("removed", name):
            try:
                obstore.delete(self._store, checked_name(name))
            except FileNotFoundError:
                return

    @contextmanager
    def _naming(self, act: str, name: str) -> Iterator[None]:
        """Turns an error of the store in the block into `StoreUnavailable`."""
        try:
            yield
        except PenstockError:
            raise
        except (exceptions.NotSupportedError, NotImplementedError):
            raise Unconditional(f"{self.url} has no writes on a condition") from None
        except (exceptions.BaseError, OSError, ValueError) as error:
            said = printable(next(iter(str(error).splitlines()), ""))[:_SHOWN]
            raise StoreUnavailable(f"{name} of {self.url} cannot be {act}: {said}") from None


def open_objects(url: str, scheme: str, seconds: float) -> Objects:
    """The store at *url*, whose requests may take *seconds*. Raises `InputError`."""
    place, _, prefix = url.partition("://")[2].partition("/")
    if scheme == "memory":
        with _lock:
            return Objects(url, _memories.setdefault(url, MemoryStore()))
    if not place:
        raise InputError(f"{url!r} names no bucket or host")
    brief = {
        "max_retries": 2,
        "retry_timeout": timedelta(seconds=seconds),
        "backoff": {
            "base": 2,
            "init_backoff": timedelta(milliseconds=50),
            "max_backoff": timedelta(seconds=max(0.05, seconds / 4)),
        },
    }
    options: dict[str, Any] = {
        "retry_config": brief,
        "client_options": {
            "timeout": timedelta(seconds=seconds),
            "connect_timeout": timedelta(seconds=seconds),
            "allow_http": scheme == "http" or _endpoint().startswith("http://"),
        },
    }
    try:
        if scheme == "s3":
            return Objects(url, S3Store(place, prefix=prefix or None, **options))
        if scheme == "gs":
            return Objects(url, GCSStore(place, prefix=prefix or None, **options))
        return Objects(url, HTTPStore.from_url(url, **options))
    except (exceptions.BaseError, ValueError) as error:
        said = printable(str(error))[:_SHOWN]
        raise InputError(f"{url!r} cannot be used as a shared store: {said}") from None


def _endpoint() -> str:
    """The endpoint that the cloud's own settings name."""
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", "")
