"""Publishes entries: uploads them, lists them in the publisher's bins, and moves the timestamp.

The timestamp is the only object that changes. Everything else has a version or a hash in its name
and is written once, so a publisher that dies in between leaves what nobody refers to.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from hashlib import sha256
from typing import Any, Final

from msgspec import Struct
from securesystemslib.signer import CryptoSigner
from tuf.api.metadata import (
    Metadata,
    MetaFile,
    Root,
    Signed,
    Snapshot,
    TargetFile,
    Targets,
    Timestamp,
)

from penstock.errors import InputError, NotTrusted, StoreUnavailable, WrongLength
from penstock.remotecache import roles
from penstock.remotecache.bins import OwnLists
from penstock.remotecache.fetching import Remote
from penstock.remotecache.mending import REFUSALS, Present, last_known
from penstock.remotecache.parcel import MOST_BYTES
from penstock.remotecache.stores import ObjectStore, Unconditional
from penstock.remotecache.verification import Metadatas, object_name

MOST_ROUNDS: Final = 64
"""How often a publisher begins again because another one was faster."""

PUBLISHED: Final = "published"
"""The word under which a list has the day of an entry's last publication (UTC)."""

_RENEWED_AFTER: Final = timedelta(days=7)
_RENEWED_SHARE: Final = 2 / 3
"""The share of their validity that must be left of a publisher's lists. A publication signs all of
them again otherwise.
"""

_FRESH_SECONDS: Final = 600.0
_MOST_STEPS: Final = 24


class Validity(Struct, frozen=True):
    """For how long metadata is valid from its signature on: the *timestamp* and the snapshot, a
    publisher's *list*, and what the *root* keys sign.
    """

    timestamp: timedelta = timedelta(days=7)
    list: timedelta = timedelta(days=90)
    root: timedelta = timedelta(days=90)


VALIDITY: Final = Validity()


class Publisher:
    """Publishes through *remote* with the private key *signer* of a publisher that is trusted now.

    Raises `NotTrusted` for another key, and the errors of `Metadatas.refresh`.
    """

    def __init__(self, remote: Remote, signer: CryptoSigner, validity: Validity = VALIDITY) -> None:
        self._remote, self._signer, self._validity = remote, signer, validity
        check_conditional(remote.store)
        try:
            remote.metadata.refresh()
        except REFUSALS:
            commit(remote, signer, validity)
            remote.metadata.refresh()
        self.name = self._own_name()

    def publish(
        self,
        entries: Mapping[bytes, bytes],
        described: Mapping[bytes, Mapping[str, str]] | None = None,
    ) -> list[bytes]:
        """Lists *entries*, packed parcels by token; returns the tokens that were not listed before.

        *described* has what `penstock.remotecache.explaining.described` says of each token.
        Publishing the same again writes nothing, but the date in the list once in 7 days. Raises
        `StoreUnavailable` if other publishers were faster too often, `WrongLength` for an
        entry that is too large, and the errors of `Metadatas.refresh`.
        """
        added: list[bytes] = []
        written = 0.0
        renewed = False
        for content in entries.values():
            if len(content) > MOST_BYTES:
                raise WrongLength(f"an entry has {len(content)} bytes, more than {MOST_BYTES}")

        def change() -> dict[str, Targets] | None:
            nonlocal written, renewed
            own = self._lists()
            added.clear()
            today = datetime.now(UTC).date()
            renewed = False
            for token, content in entries.items():
                path = roles.target_of(self.name, token.hex())
                target = TargetFile.from_data(path, content, ["sha256"])
                words = {} if described is None else dict(described.get(token, {}))
                target.unrecognized_fields["custom"] = {**words, PUBLISHED: today.isoformat()}
                if (before := own.get(path)) is None or before.hashes != target.hashes:
                    added.append(token)
                elif today - published_on(before) < _RENEWED_AFTER:
                    continue
                renewed = True
                own.put(target)
            # An object that no list names is removed a day after it was written.
            if renewed and time.time() - written > _FRESH_SECONDS:
                written = time.time()
                for content in entries.values():
                    _upload(self._remote.store, content)
            return own.changed(self._due())

        self._commit(change)
        if not renewed:
            for content in entries.values():
                self._remote.store.create(_entry_name(content), content)
        return added

    def unlist(self, before: date) -> int:
        """Takes the entries that were last published before that day (UTC) out of the publisher's
        lists; returns how many. Raises as `publish`.
        """
        removed = 0

        def change() -> dict[str, Targets] | None:
            nonlocal removed
            own = self._lists()
            old = [one for one in own.entries() if published_on(one) < before]
            removed = len(old)
            for one in old:
                own.remove(one)
            return own.changed(self._due())

        self._commit(change)
        return removed

    def renew(self) -> None:
        """Signs the publisher's lists, the snapshot and the timestamp again, so that they stay
        valid.

        Raises as `publish`.
        """

        def change() -> dict[str, Targets]:
            own = self._lists()
            return own.whole() if self._remote.metadata.has_list(self.name) else {}

        self._commit(change)

    def _lists(self) -> OwnLists:
        return OwnLists(self._remote.metadata, self._own_name(), self._signer.public_key)

    def _due(self) -> datetime:
        return datetime.now(UTC) + _RENEWED_SHARE * self._validity.list

    def _commit(self, change: Callable[[], dict[str, Targets] | None]) -> None:
        commit(self._remote, self._signer, self._validity, change)

    def _own_name(self) -> str:
        own = self._signer.public_key.keyid
        for name, keys in self._remote.metadata.publishers().items():
            if own in keys:
                return name
        raise NotTrusted(f"the key {own[:12]} is not that of a publisher that is trusted now")


def commit(
    remote: Remote,
    signer: CryptoSigner,
    validity: Validity,
    change: Callable[[], dict[str, Targets] | None] | None = None,
    renewed: Mapping[str, MetaFile] | None = None,
) -> None:
    """Writes the lists that *change*() returns, by role, then a snapshot and a timestamp of them;
    nothing if it returns None.

    *change* is called again whenever another publisher was faster. *renewed* refers to other
    metadata that is in the store already. The snapshot drops the lists of publishers that are not
    trusted. A timestamp that readers refuse is replaced first. Raises as `publish`.
    """
    metadata = remote.metadata
    for attempt in range(MOST_ROUNDS):
        if attempt:
            time.sleep(random.uniform(0, min(1.0, 0.01 * 2**attempt)))  # noqa: S311  # a pause
        lists: dict[str, Targets] | None = {}
        mended = False
        try:
            metadata.refresh()
        except REFUSALS:
            known = metadata.history("root", Root).roles["timestamp"].keyids
            if signer.public_key.keyid not in known:
                raise
            present, mended = last_known(remote), True
        else:
            timestamp = metadata.history("timestamp", Timestamp)
            present = Present(_without_revoked(metadata), timestamp, metadata.etag)
            lists = {} if change is None else change()
        if lists is None:
            return
        now, snapshot = datetime.now(UTC), present.snapshot
        snapshot.meta.update(renewed or {})
        for role, own in lists.items():
            own.expires = now + validity.list
            if (before := snapshot.meta.get(f"{role}.json")) is not None:
                own.version = max(own.version, before.version)
            snapshot.meta[f"{role}.json"] = _write(remote.store, role, own, signer)
        if _move(remote.store, present, signer, now + validity.timestamp) and (
            not mended or change is None
        ):
            return
    raise StoreUnavailable(f"other publishers were faster {MOST_ROUNDS} times: try again")


def _without_revoked(metadata: Metadatas) -> Snapshot:
    """The present snapshot, of the lists of publishers that are trusted now."""
    snapshot = metadata.history("snapshot", Snapshot)
    trusted = {"targets", *metadata.publishers()}
    snapshot.meta = {n: m for n, m in snapshot.meta.items() if roles.publisher_of(n) in trusted}
    return snapshot


def _move(store: ObjectStore, present: Present, signer: CryptoSigner, expires: datetime) -> bool:
    """Writes the next snapshot and timestamp; False if somebody else was faster."""
    snapshot, timestamp = present.snapshot, present.timestamp
    snapshot.expires = timestamp.expires = expires
    timestamp.snapshot_meta = _write(store, "snapshot", snapshot, signer)
    timestamp.version += 1
    content = _signed(timestamp, signer)
    if present.etag is None:
        return store.create(roles.TIMESTAMP, content) is not None
    return store.update(roles.TIMESTAMP, content, present.etag) is not None


def _write(
    store: ObjectStore, role: str, signed: Targets | Snapshot, signer: CryptoSigner
) -> MetaFile:
    """Writes the next free version of *role*, and returns the reference to it."""
    before = signed.version
    for step in range(_MOST_STEPS):
        signed.version = before + (1 << step)
        content = _signed(signed, signer)
        if store.create(f"{roles.METADATA}/{signed.version}.{role}.json", content) is not None:
            return reference(signed.version, content)
    raise StoreUnavailable(f"the store has objects in place of the next versions of {role}")


def reference(version: int, content: bytes) -> MetaFile:
    """The reference to metadata with this *content*."""
    return MetaFile(version, len(content), {"sha256": sha256(content).hexdigest()})


def _signed(signed: Signed, signer: CryptoSigner) -> bytes:
    metadata: Metadata[Any] = Metadata(signed)
    metadata.sign(signer)
    return metadata.to_bytes()


def published_on(target: TargetFile) -> date:
    """The day (UTC) on which the entry of *target* was last published."""
    try:
        return date.fromisoformat((target.custom or {}).get(PUBLISHED, ""))
    except (AttributeError, TypeError, ValueError):
        return date.min


def _entry_name(content: bytes) -> str:
    return object_name(TargetFile.from_data("entry", content, ["sha256"]))


def _upload(store: ObjectStore, content: bytes) -> None:
    """Writes the entry. One that is there already is written again, so that it counts as new; and
    somebody may have put other bytes there, which nobody would accept.
    """
    name = _entry_name(content)
    found = None
    with suppress(WrongLength):
        found = store.get(name, len(content))
    if found is None:
        if store.create(name, content) is not None:
            return
        found = store.get(name, MOST_BYTES)
    if found is not None:
        store.update(name, content, found.etag)


def check_conditional(store: ObjectStore) -> None:
    """Raises `InputError` if *store* ignores the conditions of a write: two publishers could then
    overwrite each other.
    """
    name = f"{roles.LEASES}/probe-{os.urandom(8).hex()}"
    try:
        first = store.create(name, b"first")
        ignores = first is None or store.create(name, b"second") is not None
        if first is not None:
            ignores = ignores or store.update(name, b"third", first) is None
            ignores = ignores or store.update(name, b"fourth", first) is not None
    except Unconditional:
        raise InputError(_REFUSED.format(store.url)) from None
    store.delete(name)
    if ignores:
        raise InputError(_REFUSED.format(store.url))


_REFUSED: Final = (
    "{} cannot be published to: it has no writes on a condition (create if absent, update by ETag)"
)
