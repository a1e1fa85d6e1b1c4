"""Removes from a store what nobody needs: superseded metadata, entries that no list names, leases
of dead machines, files of dead writers, and what was signed by publishers that are not trusted any
more.

An object is removed only if it has been of no use for a *grace*, by the store's own clock, so that
readers and publishers that are under way find what they have been told of.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Final

from msgspec import Struct
from tuf.api.metadata import Metadata, Snapshot, Targets, Timestamp
from tuf.api.serialization import DeserializationError

from penstock.errors import StoreUnavailable
from penstock.remotecache import roles
from penstock.remotecache.bins import Lists
from penstock.remotecache.fetching import Remote
from penstock.remotecache.publishing import Publisher
from penstock.remotecache.stores import Named, ObjectStore
from penstock.remotecache.verification import object_name

GRACE: Final = timedelta(days=1)

MOST_OBJECTS: Final = 1 << 20
"""Maximum objects under each prefix of a store that is pruned."""

_VERSIONED: Final = re.compile(rf"{roles.METADATA}/(\d{{1,18}})\.(.+)\.json")


class Pruned(Struct, frozen=True):
    """How many objects were removed, and their size. *needed* names entries that somebody published
    in the moment of their removal: they have to be published again.
    """

    metadata: int
    entries: int
    leases: int
    unfinished: int
    nbytes: int
    needed: tuple[str, ...]


def prune(remote: Remote, publisher: Publisher, grace: timedelta = GRACE) -> Pruned:
    """Removes what has been of no use for *grace* in the store of *remote*.

    *publisher* moves the timestamp first. A publisher that began earlier, and stopped, then has to
    begin again, with objects that are not removed. Raises as `Publisher.renew`, and `WrongLength`
    for a store with more than `MOST_OBJECTS`; nothing is removed then.
    """
    store = remote.store
    publisher.renew()
    remote.metadata.refresh()
    before = _clock(store) - grace.total_seconds()
    current = _current(remote)
    metadata = store.listed(roles.METADATA, MOST_OBJECTS)
    superseded = _superseded(metadata, current, before)
    named = _named_entries(remote, current, metadata, superseded)
    entries = [
        one
        for one in store.listed(roles.ENTRIES, MOST_OBJECTS)
        if one.written < before and one.name not in named
    ]
    leases = [one for one in store.listed(roles.LEASES, MOST_OBJECTS) if one.written < before]
    unfinished = [one for one in store.unfinished(MOST_OBJECTS) if one.written < before]
    removed = (*superseded, *entries, *leases, *unfinished)
    for one in removed:
        store.delete(one.name)
    return Pruned(
        metadata=len(superseded),
        entries=len(entries),
        leases=len(leases),
        unfinished=len(unfinished),
        nbytes=sum(one.size for one in removed),
        needed=_listed_meanwhile(remote, entries),
    )


def _clock(store: ObjectStore) -> float:
    """The time by the store's clock."""
    name = f"{roles.LEASES}/clock-{os.urandom(8).hex()}"
    store.create(name, os.urandom(8).hex().encode())
    try:
        for one in store.listed(roles.LEASES, MOST_OBJECTS):
            if one.name == name:
                return one.written
    finally:
        store.delete(name)
    raise StoreUnavailable(f"{store.url} does not list an object that was just written")


def _current(remote: Remote) -> dict[str, int]:
    """The version of each role that the verified timestamp leads to."""
    history = remote.metadata.history
    trusted = {"targets", *remote.metadata.publishers()}
    versions = {
        role: meta.version
        for name, meta in history("snapshot", Snapshot).meta.items()
        if roles.publisher_of(role := name.removesuffix(".json")) in trusted
    }
    return {**versions, "snapshot": history("timestamp", Timestamp).snapshot_meta.version}


def _superseded(objects: Iterable[Named], current: Mapping[str, int], before: float) -> list[Named]:
    """The metadata that no machine has been led to since *before*.

    Roots stay: a machine follows them one by one.
    """
    versions: dict[str, dict[int, Named]] = defaultdict(dict)
    for one in objects:
        if (found := _VERSIONED.fullmatch(one.name)) is not None and found[2] != "root":
            versions[found[2]][int(found[1])] = one
    removed = []
    for role, known in versions.items():
        now = current.get(role)
        for version, one in known.items():
            if one.written >= before or version == now:
                continue
            followed = (v for v in known if version < v <= (now or 0))
            # Later than the present version: its publisher died before it moved the timestamp.
            unused = now is None or version > now
            if unused or any(known[v].written < before for v in followed):
                removed.append(one)
    return removed


def _named_entries(
    remote: Remote,
    current: Mapping[str, int],
    metadata: Collection[Named],
    superseded: Iterable[Named],
) -> set[str]:
    """The entries that a list names which stays: the present ones, and those just superseded."""
    named: set[str] = set()
    present = {one.name for one in metadata}
    for role, version in current.items():
        name = f"{roles.METADATA}/{version}.{role}.json"
        if name not in present:
            raise StoreUnavailable(f"{remote.store.url} has no {name}, so nothing is removed")
    for publisher in remote.metadata.publishers():
        named.update(map(object_name, Lists(remote.metadata, publisher).entries()))
    gone = {one.name for one in superseded}
    for one in metadata:
        found = _VERSIONED.fullmatch(one.name)
        if found is None or one.name in gone or found[2] in {"root", "snapshot", "targets"}:
            continue
        if current.get(found[2]) == int(found[1]):
            continue
        stored = remote.store.get(one.name, roles.MOST_TARGETS)
        # Somebody may have put anything there. What does not decode names nothing.
        with suppress(DeserializationError):
            if stored is not None:
                older = Metadata[Targets].from_bytes(stored.content).signed
                if isinstance(older, Targets):
                    named.update(map(object_name, older.targets.values()))
    return named


def _listed_meanwhile(remote: Remote, removed: Iterable[Named]) -> tuple[str, ...]:
    """Those of the *removed* entries that a publisher lists by now, and that are not there."""
    remote.metadata.refresh()
    names = {one.name for one in removed}
    listed: set[str] = set()
    for publisher in remote.metadata.publishers():
        if names:
            own = Lists(remote.metadata, publisher).entries()
            listed.update(names.intersection(map(object_name, own)))
    present = {one.name for one in remote.store.listed(roles.ENTRIES, MOST_OBJECTS)}
    return tuple(sorted(listed - present))
