"""What the shared tier asks of a store: bounded reads, and writes on a condition."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import Final, Protocol

from msgspec import Struct

from penstock.cache.info import checked_store
from penstock.errors import InputError, StoreUnavailable, WrongLength

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}(/[A-Za-z0-9_][A-Za-z0-9_.-]{0,199})*")


class Stored(Struct, frozen=True):
    """The content of an object, and the *etag* of this version of it."""

    content: bytes
    etag: str


class Named(Struct, frozen=True):
    """The *name* of an object, its *size* in bytes, and when it was *written*: seconds since the
    epoch by the store's clock.
    """

    name: str
    size: int
    written: float


class Unconditional(StoreUnavailable):
    """The store has no writes on a condition."""


class ObjectStore(Protocol):
    """A store of objects by name, such as `metadata/timestamp.json`. Thread-safe.

    Every method raises `StoreUnavailable` if the store fails, or gives no answer in the time that
    the store was opened with. Nothing that it returns is trusted.
    """

    @property
    def url(self) -> str: ...

    def get(self, name: str, most: int) -> Stored | None:
        """The object; None if there is none. Reads at most *most* bytes, and raises `WrongLength`
        for an object with more.
        """
        ...

    def listed(self, prefix: str, most: int) -> list[Named]:
        """The objects below *prefix*, such as `entries`. Raises `WrongLength` for more than *most*
        of them.
        """
        ...

    def unfinished(self, most: int) -> list[Named]:
        """What writers that died left half written, which no read returns. Raises `WrongLength` for
        more than *most* of it.
        """
        ...

    def create(self, name: str, content: bytes) -> str | None:
        """Makes the object and returns its ETag; None if there is one of that name already.

        One with the same *content* counts as made: the answer to an earlier try may have been lost.
        """
        ...

    def update(self, name: str, content: bytes, etag: str) -> str | None:
        """Replaces the version *etag* of the object and returns the next ETag; None if the object
        is another version by now, or gone. One with the same *content* counts as replaced.
        """
        ...

    def delete(self, name: str) -> None:
        """Removes the object, if there is one."""
        ...


def checked_name(name: str) -> str:
    """*name*, if a store may have an object of that name. Raises `InputError`."""
    if _NAME.fullmatch(name) is None:
        raise InputError(f"an object of a store cannot be named {name[:200]!r}")
    return name


def etag_of(store: ObjectStore, name: str, content: bytes) -> str | None:
    """The ETag of the object if it has this *content*. Raises `StoreUnavailable`."""
    with suppress(WrongLength):
        found = store.get(name, len(content))
        if found is not None and found.content == content:
            return found.etag
    return None


def open_store(url: str, seconds: float = 5.0) -> ObjectStore:
    """The store at *url*; each request to it may take *seconds*.

    Credentials and endpoints of `s3://` and `gs://` are the clouds' own settings, such as
    `AWS_ENDPOINT_URL`. Raises `InputError` for a URL of no store, `StoreUnavailable` without the
    extra `fleet`.
    """
    scheme, _, rest = checked_store(url).partition("://")
    if scheme == "file":
        from penstock.remotecache.directories import DirectoryStore

        if not rest.startswith("/"):
            raise InputError(f"a store in a directory is file:///PATH, not {url!r}")
        return DirectoryStore(os.path.normpath(rest), seconds)
    try:
        from penstock.remotecache.objects import open_objects
    except ImportError as error:
        raise _without_extra(error) from None
    return open_objects(url, scheme, seconds)


def _without_extra(error: ImportError) -> StoreUnavailable:
    from penstock.distribution import install_command

    return StoreUnavailable(f"{install_command('fleet')} is needed for a shared store: {error}")
