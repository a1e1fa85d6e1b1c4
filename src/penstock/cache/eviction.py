"""Which entries go when there are too many, and what processes that died left behind."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Final

from penstock import knobs
from penstock.cache.claim import MOST_CLAIM_BYTES, Claim, is_marked
from penstock.cache.naming import (
    Role,
    file_names,
    index_name,
    lease_name,
    letters_of,
    lock_name,
    parse_name,
)
from penstock.cache.store import Store
from penstock.errors import CacheError
from penstock.sealed.files import FileStatus, read_small

MOST_NAMES: Final = 65_536
MOST_FILES: Final = 16_384
"""Names, and entry files, that a compile looks at: others may fill the directory."""

_OTHERS_SECONDS: Final = 86_400.0
"""How long another user's unpublished or unwritten files are left alone: his lease is unseen."""

MOST_REMOVED: Final = 256
"""Entries and orphans that a compile removes: the next one goes on."""


class Found:
    """The files of one *token*: published *files* by role and number, *temporaries*, *status*."""

    def __init__(self, token: bytes) -> None:
        self.token = token
        self.files: dict[tuple[Role, int], str] = {}
        self.temporaries: list[str] = []
        self.status: dict[str, FileStatus] = {}

    def names(self, *roles: Role) -> list[str]:
        """The published files of these roles, in order of their numbers."""
        return [name for (role, _), name in sorted(self.files.items()) if role in roles]

    @property
    def is_entry(self) -> bool:
        return bool(self.names("model", "data"))

    @property
    def nbytes(self) -> int:
        return sum(self.status[n].size for n in self.names("model", "data", "index"))

    @property
    def written(self) -> bool:
        """Whether any cache file holds anything."""
        return any(self.status[name].size for name in self.names("model", "data"))

    @property
    def used_ns(self) -> int:
        """When it was used last: the index tells, else the newest file."""
        names = self.names("index") or self.names("model", "data")
        return max((self.status[name].modified_ns for name in names), default=0)


def scan(store: Store, *, briefly: bool = False) -> list[Found]:
    """All that the directory holds by token, or *briefly* so much of it as a compile has time for;
    files with other names are nobody's. Raises `OSError`.
    """
    found: dict[bytes, Found] = {}
    left = MOST_FILES if briefly else sys.maxsize
    for name in store.files.names(store.path, MOST_NAMES if briefly else None):
        parsed = parse_name(name)
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
    """Removes the entries unused for longest until at most *most_bytes* are left, and every orphan.

    Entries that somebody reads, writes or compiles stay, and so does *keep*; and *briefly* what
    there is no time for, which later compiles remove. Returns the tokens of the entries that went;
    *refused* gets those of what could not be removed, and why. Raises `OSError`, `Unreadable`.
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
        # Nobody uses the locks of earlier versions, which lay beside the entries.
        store.unlink_quietly(of_old)
        if swept:
            with _noting(store, group, refused):
                _sweep(store, group)
    return gone


@contextmanager
def _noting(store: Store, group: Found, refused: dict[bytes, str]) -> Iterator[None]:
    """Records the block's failure: one entry that stays does not keep the others."""
    try:
        yield
    except CacheError as error:
        refused.setdefault(group.token, str(error))
    except OSError as error:
        refused.setdefault(group.token, str(store.unreadable(error, "emptied")))


def remove(store: Store, group: Found, *, only_if_dead: bool = False) -> bool:
    """Removes an entry, files, index, lock and registry row, unless somebody uses it; whether it
    did.

    With *only_if_dead* it stays while a late writer may still write it. A directory in place of one
    of its files stays alone, and is raised as `IsADirectoryError`. Raises `OSError`, `CacheError`.
    """
    token = group.token
    entries: set[bytes] = set()
    stays: IsADirectoryError | None = None
    with _exclusively(store, token) as held:
        if not held or not _unchanged(store, group):
            return False
        if only_if_dead and awaited_claim(store, token):
            return False
        if (record := store.read_record(token)) is not None:
            entries = store.entry_ids(token, record)
        for name in group.names("index", "model", "data"):
            try:
                store.unlink(name)
            except IsADirectoryError as error:
                stays = stays or error
        store.locks.remove(lock_name(token))
        store.unlink_quietly(group.names("lease", "lock"))
    if record is not None:
        store.forget(token, record, entries)
    if stays is not None:
        raise stays
    return True


def _sweep(store: Store, group: Found) -> None:
    """Removes what belongs to no entry, unless somebody compiles it right now."""
    token = group.token
    with _exclusively(store, token) as held:
        if not held:
            return
        # Whoever made them held the lease.
        store.unlink_quietly(
            name for name in group.temporaries if not _are_anothers(store, group, [name])
        )
        if not any(store.exists(letters_of(token) + suffix) for suffix in ("10", "20")):
            store.unlink_quietly([index_name(token)])
            store.locks.remove(lock_name(token))


def _are_anothers(store: Store, group: Found, names: Iterable[str]) -> bool:
    """Whether another user made one of the files recently enough to be still compiling."""
    if sys.platform == "win32":
        return False
    since_ns = (store.clock() - _OTHERS_SECONDS) * 1e9
    user = os.geteuid()
    return any(
        group.status[name].owner != user and group.status[name].modified_ns > since_ns
        for name in names
    )


def _unchanged(store: Store, group: Found) -> bool:
    """Whether nobody published or used the entry since it was looked at."""
    try:
        return all(
            store.files.status_of(store.at(name)) == group.status[name]
            for name in group.names("index", "model", "data")
        )
    except FileNotFoundError:
        return False


@contextmanager
def _exclusively(store: Store, token: bytes) -> Iterator[bool]:
    """Holds lease and lock for the block, which is entered with whether nobody else had either.

    The lease file goes at the end, unless a late writer's claim stands there. Only who holds a lock
    may remove its file, and only once: the name is free for another's from then on.
    """
    with ExitStack() as stack:
        for name in (lease_name(token), lock_name(token)):
            try:
                fd = store.locks.take(name, exclusive=True, create=True, timeout=0)
            except (OSError, CacheError):
                # A disk that is full must let itself be emptied; a file that is not there, nobody
                # holds.
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
    """The claim of the late writer that the entry waits for: it is there and empty, and the writer
    has it open, lives as far as can be told, and has time left.
    """
    with suppress(OSError, CacheError):
        fd = store.locks.open(lease_name(token))
        try:
            claim = Claim.unpack(read_small(store.files, fd, MOST_CLAIM_BYTES))
        finally:
            store.close(fd)
        if claim is None or not claim.late:
            return None
        if claim.expired(store.now(), knobs.late_write_seconds()) or claim.dead():
            return None
        names = [n for names in file_names(token, claim.models, claim.datas) for n in names]
        if any(store.files.status_of(store.at(name)).size for name in names):
            return None
        if not claim.marked or _is_marked(store, token):
            return claim
    return None


def _is_marked(store: Store, token: bytes) -> bool:
    fd = store.locks.open(lock_name(token))
    try:
        return is_marked(fd)
    finally:
        store.close(fd)
