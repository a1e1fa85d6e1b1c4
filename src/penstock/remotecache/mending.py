"""The last state of a store whose timestamp readers refuse, so that a publisher can go on from it.

Its date has passed, its key was revoked, or somebody overwrote it.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final, TypeVar

from msgspec import Struct
from tuf.api import exceptions
from tuf.api.metadata import Metadata, Root, Snapshot, Timestamp
from tuf.api.serialization import DeserializationError

from penstock.errors import (
    CacheError,
    Expired,
    NotTrusted,
    RolledBack,
    SealBroken,
    StoreUnavailable,
    WrongLength,
)
from penstock.remotecache import roles
from penstock.remotecache.fetching import Remote

T = TypeVar("T", Snapshot, Timestamp)

REFUSALS: Final = (Expired, NotTrusted, RolledBack, SealBroken, WrongLength)


class Present(Struct):
    """A verified *snapshot* and *timestamp*, and the ETag of the timestamp in the store; None if it
    has none.
    """

    snapshot: Snapshot
    timestamp: Timestamp
    etag: str | None


def last_known(remote: Remote) -> Present:
    """The newest snapshot and timestamp that keys of the present root have signed, in the store or
    in this machine's history, whatever their dates.

    Raises `StoreUnavailable`, and `NotTrusted` if there are none.
    """
    store, history = remote.store, remote.metadata.history
    with suppress(WrongLength):
        found = store.get(roles.TIMESTAMP, roles.MOST_TIMESTAMP)
        etag = None if found is None else found.etag
        if found is not None:
            with suppress(CacheError):
                root = history("root", Root)
                timestamp = _verified(root, "timestamp", found.content, Timestamp)
                version = timestamp.snapshot_meta.version
                name = f"{roles.METADATA}/{version}.snapshot.json"
                stored = store.get(name, roles.MOST_SNAPSHOT)
                if stored is not None:
                    snapshot = _verified(root, "snapshot", stored.content, Snapshot)
                    return Present(snapshot, timestamp, etag)
        return Present(history("snapshot", Snapshot), history("timestamp", Timestamp), etag)
    raise StoreUnavailable(f"remove {roles.TIMESTAMP} of {store.url}, which is too large")


def _verified(root: Root, role: str, content: bytes, kind: type[T]) -> T:
    try:
        found = Metadata.from_bytes(content)
        root.verify_delegate(role, found.signed_bytes, found.signatures)
    except (DeserializationError, exceptions.RepositoryError, ValueError) as error:
        raise NotTrusted(str(error)) from None
    if not isinstance(found.signed, kind):
        raise NotTrusted("it is the metadata of another role")
    return found.signed
