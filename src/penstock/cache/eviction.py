"""Eviction of entries, and removal of files that dead processes left."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Final

from penstock.cache import naming
from penstock.cache.claim import Claim
from penstock.cache.naming import Role, file_names, index_name, lease_name, lock_name
from penstock.cache.store import Store
from penstock.errors import CacheError
from penstock.sealed.files import FileStatus

MOST_NAMES: Final = 65_536
MOST_FILES: Final = 16_384
"""Maximum names and entry files that a compile examines; other users may fill the directory."""

_OTHERS_SECONDS: Final = 86_400.0
"""Seconds that another user's unpublished files are kept: their lease is invisible."""

MOST_REMOVED: Final = 256
"""Maximum entries and orphans that a compile removes; the next compile continues."""


class Found:
    """The files of one *token*: published *files* by role and number, *temporaries*, *status*."""

    def __init__(self, token: bytes) -> None:
        self.token = token
        self.files: dict[tuple[Role, int], str] = {}
        self.temporaries: list[str] = []
        self.status: dict[str, FileStatus] = {}

    def names(self, *roles: Role) -> list[str]:
        """The published files of these roles, in the order of their numbers."""
        return [name for (role, _), name in sorted(self.files.items()) if role in roles]

    @property
    def is_entry(self) -> bool:
        return bool(self.names("model", "data"))

    @property
    def nbytes(self) -> int:
        return sum(self.status[n].size for n in self.names("model", "data", "index"))

    @property
    def written(self) -> bool:
        """Whether any cache file has content."""
        return any(self.status[name].size for name in self.names("model", "data"))

    @property
    def used_ns(self) -> int:
        """The time of the last use: that of the index, else that of the newest file."""
        names = self.names("index") or self.names("model", "data")
        return max((self.status[name].modified_ns for name in names), default=0)


def scan(store: Store, *, briefly: bool = False) -> list[Found]:
    """The cache's files, by token; *briefly*: what a compile has time for. Raises `OSError`."""
    found: dict[bytes, Found] = {}
    left = MOST_FILES if briefly else sys.maxsize
    for name in store.files.names(store.path, MOST_NAMES if briefly else None):
        parsed = naming.parse_name(name)
        if parsed is None:
            continue
        left -= 1
        if left < 0:
            break
        try:
            status = store.files.status_of(store.at(name))
        except FileNotFoundError:
            continue
        group = found.setdefault(parsed.token, Found(parsed.token))
        group.status[name] = status
        if parsed.temporary:
            group.temporaries.append(name)
        else:
            group.files[parsed.role, parsed.number] = name
    return list(found.values())


def collect(
    store: Store,
    most_bytes: int | None,
    keep: bytes | None = None,
    refused: dict[bytes, str] | None = None,
    *,
    briefly: bool = False,
) -> list[bytes]:
    """Evicts the least recently used entries until at most *most_bytes* are left.

    Also removes every orphan. Entries that a process reads, writes or compiles are kept, and so is
    *keep*. *briefly* limits the work; later compiles continue. Returns the tokens of the removed
    entries. *refused* receives the tokens that could not be removed, with reasons. Raises
    `OSError`, `Unreadable`.
    """
    refused = {} if refused is None else refused
    found = scan(store, briefly=briefly)
    left = MOST_REMOVED if briefly else sys.maxsize
    gone: list[bytes] = []
    total = sum(group.nbytes for group in found)
    for group in sorted((g for g in found if g.is_entry), key=lambda g: g.used_ns):
        if group.token == keep:
            continue
        over = most_bytes is not None and total > most_bytes
        if not over and (
            group.written or _are_anothers(store, group, group.names("model", "data"))
        ):
            continue
        left -= 1
        if left < 0:
            return gone
        with _noting(store, group, refused):
            if remove(store, group, only_if_dead=not over):
                total -= group.nbytes
                gone.append(group.token)
    for group in found:
        of_old = group.names("lease", "lock")
        orphaned = group.temporaries or (group.names("index") and not group.is_entry)
        swept = orphaned and group.token != keep
        if not swept and not of_old:
            continue
        left -= 1
        if left < 0:
            return gone
        # Locks of earlier versions, which were next to the entries and are no longer used.
        store.unlink_quietly(of_old)
        if swept:
            with _noting(store, group, refused):
                _sweep(store, group)
    return gone


@contextmanager
def _noting(store: Store, group: Found, refused: dict[bytes, str]) -> Iterator[None]:
    """Records a failure of the block, so that one entry does not prevent the removal of others."""
    try:
        with store.naming("emptied"):
            yield
    except CacheError as error:
        refused.setdefault(group.token, str(error))


def remove(store: Store, group: Found, *, only_if_dead: bool = False) -> bool:
    """Removes an entry with its index, lock and registry row; returns whether it did.

    An entry in use is kept. With *only_if_dead* it is also kept while a late writer may still write
    it. A directory in place of one of its files is kept and raises `IsADirectoryError`. Raises
    `OSError`, `CacheError`.
    """
    token, names = group.token, group.names("index", "model", "data")
    entries: set[bytes] = set()
    stays: list[IsADirectoryError] = []
    with _exclusively(store, token) as held:
        if not held:
            return False
        try:  # an entry that was published or used since the scan is kept
            if any(store.files.status_of(store.at(n)) != group.status[n] for n in names):
                return False
        except FileNotFoundError:
            return False
        if only_if_dead and awaited_claim(store, token):
            return False
        if (record := store.read_record(token)) is not None:
            entries = store.entry_ids(token, record)
        for name in names:
            try:
                store.unlink(name)
            except IsADirectoryError as error:
                stays.append(error)
        store.locks.remove(lock_name(token))
        store.unlink_quietly(group.names("lease", "lock"))
    if record is not None:
        store.forget(token, record, entries)
    if stays:
        raise stays[0]
    return True


def _sweep(store: Store, group: Found) -> None:
    """Removes files that belong to no entry, unless a process compiles the entry now."""
    token = group.token
    with _exclusively(store, token) as held:
        if not held:
            return
        # The process that made them held the lease.
        store.unlink_quietly(
            name for name in group.temporaries if not _are_anothers(store, group, [name])
        )
        if not any(map(store.exists, file_names(token, 1, 1))):
            store.unlink_quietly([index_name(token)])
            store.locks.remove(lock_name(token))


def _are_anothers(store: Store, group: Found, names: Iterable[str]) -> bool:
    """Whether another user made one of the files so recently that the compile may still run."""
    if sys.platform == "win32":
        return False
    since_ns = (store.clock() - _OTHERS_SECONDS) * 1e9
    user = os.geteuid()
    return any(
        group.status[name].owner != user and group.status[name].modified_ns > since_ns
        for name in names
    )


@contextmanager
def _exclusively(store: Store, token: bytes) -> Iterator[bool]:
    """Holds lease and lock for the block. The value is whether no other process held either.

    The lease file is removed at the end, unless it has a late writer's claim. Only the holder of a
    lock may remove its file, and only once: afterwards the name may belong to another file.
    """
    with ExitStack() as stack:
        for name in (lease_name(token), lock_name(token)):
            try:
                fd = store.locks.take(name, exclusive=True, create=True, timeout=0)
            except (OSError, CacheError):
                # On a full disk no lock file can be made, but removal must work. A lock file that
                # does not exist is held by no process.
                if store.locks.exists(name):
                    raise
                continue
            if fd is None:
                yield False
                return
            stack.callback(store.locks.release, fd)
            if name == lease_name(token):
                stack.callback(_remove_lease, store, token)
        yield True


def _remove_lease(store: Store, token: bytes) -> None:
    if awaited_claim(store, token) is None:
        store.locks.remove(lease_name(token))


def awaited_claim(store: Store, token: bytes) -> Claim | None:
    """The claim of the late writer that the empty entry waits for; None if there is none."""
    with suppress(OSError, CacheError):
        lease = store.locks.path_of(lease_name(token))
        with store.opened(lease) as fd:
            claim = Claim.read(store.files, fd)
        if claim is None or not claim.awaits(store.now()):
            return None
        names = file_names(token, claim.models, claim.datas)
        if any(store.files.status_of(store.at(name)).size for name in names):
            return None
        return claim if claim.is_open(lease, store.files) else None
    return None
