"""Looks an entry up in a store: verified metadata first, then the entry that it names."""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

from msgspec import Struct
from tuf.api import exceptions

from penstock.errors import (
    CacheError,
    NoEntry,
    PenstockError,
    SealBroken,
    StoreUnavailable,
    WrongLength,
)
from penstock.hal import CancelToken
from penstock.logs import Log
from penstock.remotecache import parcel, roles
from penstock.remotecache.parcel import Parcel
from penstock.remotecache.stores import ObjectStore
from penstock.remotecache.verification import Listed, Metadatas

log = Log(__name__)

T = TypeVar("T")

_PAUSE_SECONDS: Final = 0.05


class Fetched(Struct, frozen=True):
    """A verified entry, and where it was listed."""

    parcel: Parcel
    listed: Listed


class Remote:
    """*store* as seen by a machine that trusts *root*, the bytes of a TUF root.

    *directory* has the history; None is below the state directory.
    """

    def __init__(self, store: ObjectStore, root: bytes, directory: str | None = None) -> None:
        self.store = store
        self.metadata = Metadatas(store, root, directory)

    def look_up(self, token: bytes) -> Fetched:
        """The entry of *token* that a trusted publisher lists, verified.

        Raises `NoEntry` if none lists it, and the errors of `Metadatas.refresh`.
        """
        self.metadata.refresh()
        refused: CacheError | None = None
        for publisher in self.metadata.publishers():
            try:
                listed = self.metadata.find(publisher, token.hex())
                if listed is not None:
                    return Fetched(self.fetch(listed), listed)
            except CacheError as error:
                # Another publisher may list an entry that can be used.
                refused = refused or error
        if refused is not None:
            raise refused
        raise NoEntry(f"{self.store.url} has no entry for this key")

    def fetch(self, listed: Listed) -> Parcel:
        """The entry *listed*, whose bytes are those that its publisher signed.

        Raises `WrongLength`, `SealBroken`, `StoreUnavailable`.
        """
        target = listed.target
        if target.length > parcel.MOST_BYTES:
            raise WrongLength(f"the entry has {target.length} bytes, more than an entry may have")
        found = self.store.get(listed.name, target.length)
        if found is None:
            raise StoreUnavailable("the store lists the entry but does not have it")
        try:
            target.verify_length_and_hashes(found.content)
        except exceptions.LengthOrHashMismatchError as error:
            raise SealBroken(f"the entry in the store was altered: {error}") from None
        return parcel.unpack(found.content)


def within(seconds: float, work: Callable[[], T], cancel: CancelToken | None = None) -> T:
    """The result of *work*(), which may take *seconds*; later it goes on in its thread, unused.

    Raises the `PenstockError` that *work* raises, `StoreUnavailable` for any other error and after
    that time, and `Cancelled` within 50 ms.
    """
    results: list[T] = []
    errors: list[BaseException] = []
    done = threading.Event()

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001  # raised in the caller's thread
            errors.append(error)
        finally:
            done.set()

    context = contextvars.copy_context()
    # A daemon: a store that never answers must not keep the program from ending.
    threading.Thread(target=context.run, args=(run,), name="penstock-store", daemon=True).start()
    until = time.monotonic() + seconds
    while not done.wait(min(_PAUSE_SECONDS, max(0.0, until - time.monotonic()))):
        if cancel is not None:
            cancel.check()
        if time.monotonic() >= until:
            raise StoreUnavailable(f"the store did not answer within {seconds:.3g} s")
    if not errors:
        return results[0]
    if isinstance(errors[0], PenstockError):
        raise errors[0]
    # A library that a store's answer leads astray costs a compile, not the program.
    log.warning("a library failed with what the store answered: %r", errors[0])
    raise StoreUnavailable(f"a library failed with what the store answered: {errors[0]!r:.200}")


def trusted_root(path: str) -> bytes:
    """The trusted root in the file at *path*. Raises `NotTrusted` if none is named."""
    from penstock.errors import NotTrusted

    if not path:
        raise NotTrusted("the knob store_root names no trusted root, so nothing is believed")
    return roles.read_file(path, "the trusted root", roles.MOST_ROOT)
