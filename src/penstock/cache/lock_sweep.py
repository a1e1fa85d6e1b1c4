"""Removing lock files that nobody uses, where there are too many."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from penstock import knobs
from penstock.cache.claim import MOST_CLAIM_BYTES, Claim, Now
from penstock.cache.marks import is_marked
from penstock.errors import CacheError
from penstock.sealed.files import FileSystem, open_cache_file, read_small
from penstock.sealed.locks import lock, unlock

MOST_LOCK_FILES: Final = 1024
"""Lock files in the directory; with one more, locks that nobody uses are removed."""

MOST_REMOVED: Final = 256
"""How far below that number a removal goes, and how many files beyond it are looked at."""

_OURS: Final = re.compile(r"[0-9a-f]{64}\.(lock|lease)")


def make_room(directory: str, files: FileSystem, now: Callable[[], Now]) -> None:
    """Makes room for one more lock file in *directory*: leases that are over go, and beyond the
    limit the oldest locks that nobody uses.

    Those stay that somebody holds, whose opening is marked, or that say that a late writer will
    still write its entry. Raises `OSError`.
    """
    found = files.names(directory, MOST_LOCK_FILES + MOST_REMOVED)
    ours = [os.path.join(directory, name) for name in filter(_OURS.fullmatch, found)]
    over = [path for path in ours if path.endswith(".lease")][:MOST_REMOVED]
    if (many := len(found) - MOST_LOCK_FILES) >= 0:
        over += _oldest([path for path in ours if path not in over], many + MOST_REMOVED, files)
    for path in over:
        with suppress(OSError, CacheError):
            _remove_unused(path, files, now)


def _oldest(paths: list[str], count: int, files: FileSystem) -> list[str]:
    dated = []
    for path in paths:
        with suppress(FileNotFoundError):
            dated.append((files.status_of(path).modified_ns, path))
    return [path for _, path in sorted(dated)[:count]]


def _remove_unused(path: str, files: FileSystem, now: Callable[[], Now]) -> None:
    fd = open_cache_file(path, files=files)
    try:
        if not lock(fd, exclusive=True, timeout=0, locks=files):
            return
        try:
            if not (is_marked(fd, unknown=False) or _is_awaited(path, fd, files, now)):
                _unlink(path, fd, files)
        finally:
            unlock(fd, locks=files)
    finally:
        files.close(fd)


def _is_awaited(path: str, fd: int, files: FileSystem, now: Callable[[], Now]) -> bool:
    """Whether the claim of a late writer that may still write stands in a lease file."""
    claim = Claim.unpack(read_small(files, fd, MOST_CLAIM_BYTES))
    if claim is None or not claim.late or claim.expired(now(), knobs.late_write_seconds()):
        return False
    return not claim.dead() and (not claim.marked or _is_marked(path, files))


def _is_marked(lease: str, files: FileSystem) -> bool:
    fd = open_cache_file(lease.removesuffix(".lease") + ".lock", files=files)
    try:
        return is_marked(fd)
    finally:
        files.close(fd)


def _unlink(path: str, fd: int, files: FileSystem) -> None:
    """Removes the file unless another has taken its name since it was opened."""
    if files.status_of(path).identity == files.status(fd).identity:
        files.unlink(path)
