"""No fork while a thread uses a registry: SQLite's locks, and ours, would stay locked in the child for ever."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_MOST_SECONDS: Final = 10.0
"""How long a fork waits for registries in use; a child of one that waited in vain uses none of their locks."""


class ForkGate:
    """One lock, which whoever uses a registry holds and a fork waits for. Reentrant."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._held = False
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(
                before=self._close, after_in_parent=self._open, after_in_child=self._renew
            )

    @contextmanager
    def passed(self) -> Iterator[None]:
        """While the block runs this process does not fork."""
        lock = self._lock
        with lock:
            yield

    def _close(self) -> None:
        self._held = self._lock.acquire(timeout=_MOST_SECONDS)

    def _open(self) -> None:
        if self._held:
            self._lock.release()

    def _renew(self) -> None:
        self._lock = threading.RLock()


FORK_GATE: Final = ForkGate()
