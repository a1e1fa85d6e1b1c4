"""Asks a shared store now and then which publishers are trusted, though the local cache hits."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from penstock import errors, knobs
from penstock.cache.store import LOCK_SHARE, Store, seconds_left
from penstock.compilation.calls import token_while_waiting
from penstock.hal import PrepareConfig
from penstock.logs import Log
from penstock.sealed.places import asked_path

if TYPE_CHECKING:
    from penstock.remotecache.fetching import Remote

log = Log(__name__)

RETRY_SECONDS: Final = 600.0
"""Seconds after which a store that did not answer is asked again by a start that hits."""


def ask_again(store: str, copies: Store, config: PrepareConfig) -> None:
    """Asks the shared store at the URL *store* which publishers are trusted now, and refuses those
    of the local *copies* that are of others.

    Takes at most the knob `store_seconds`, or a share of the time to the deadline. A store that
    does not answer is asked again in ten minutes; its copies are used meanwhile. Raises
    `Cancelled`.
    """
    from penstock.remotecache import fetching
    from penstock.remotecache.stores import open_store

    seconds = seconds_left(config.deadline_ns, knobs.store_seconds(), LOCK_SHARE)

    def ask() -> None:
        root = fetching.trusted_root(knobs.store_root())
        remote = fetching.Remote(open_store(store, seconds), root)
        try:
            remote.metadata.refresh(seconds)
        finally:
            refuse_revoked(remote, copies)

    later = 0.0
    try:
        fetching.within(seconds, ask, token_while_waiting(config.cancel))
    except (errors.CacheError, errors.InputError) as error:
        log.warning("the shared store %s was not asked: %s", store, error)
        later = 3600 * knobs.store_check_hours() - RETRY_SECONDS
    mark_asked(store, time.time() - max(0.0, later))


def refuse_revoked(remote: Remote, copies: Store) -> None:
    """Refuses local *copies* of publishers that are not trusted any more, as far as is known."""
    from penstock.remotecache import sealing

    try:
        sealing.refuse_revoked(remote, copies)
    except errors.CacheError as error:
        log.info("copies of revoked publishers were not looked for: %s", error)


def mark_asked(store: str, at: float) -> None:
    """Notes that the store at the URL *store* was asked *at* these seconds since the epoch."""
    path = asked_path(store)
    with suppress(OSError, errors.Unreadable), open(path, "ab"):  # noqa: PTH123  # as in the cache
        os.utime(path, (at, at))
