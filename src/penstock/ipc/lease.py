"""What came beside a call, and for how long it is kept."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from penstock.errors import InvalidArgument
from penstock.hal import Memory
from penstock.ipc.account import NOTHING, Account, Charge


class Lease:
    """What came beside one call, and is closed after it, or with what the call made where that is
    *kept*; but never while a run uses it: the number of a descriptor that is closed may be another
    client's at once. The memory of the call counts in *account* for as long.
    """

    def __init__(
        self, close: Callable[[], None] = lambda: None, account: Account | None = None
    ) -> None:
        self.kept = False
        self.message_bytes = 0
        self.account = account
        self._charges: list[Charge] = []
        self._close_all = close
        self._users, self._over = 0, False
        self._lock = threading.Lock()

    def close(self) -> None:
        """Closes it, now or when the last run that uses it has ended; twice is harmless."""
        with self._lock:
            first, self._over = not self._over, True
            if not first or self._users:
                return
        self._close()

    def charge(self, memory: Memory) -> Charge:
        """Counts *memory* by itself. Raises `ResourceExhaustedTransient` where there is no room for
        it.
        """
        return NOTHING if self.account is None else self.account.charge(memory)

    def of_own(self, nbytes: int) -> Lease:
        """Another, by which bytes of the host's own count likewise."""
        made = Lease()
        if self.account is not None:
            made._charges.append(self.account.own(nbytes))
        return made

    def count(self, memory: Memory) -> None:
        """Counts *memory*, which the call has mapped, likewise."""
        self._charges.append(self.charge(memory))

    def _close(self) -> None:
        try:
            self._close_all()
        finally:
            for charge in self._charges:
                charge.release()

    @contextmanager
    def used(self) -> Iterator[None]:
        """While the block runs it is not closed. Raises `InvalidArgument` where it is closed
        already.
        """
        with self._lock:
            if self._over:
                raise InvalidArgument("a reusable execution was used after it was closed")
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                last = self._over and not self._users
            if last:
                self._close()


@contextmanager
def closing_unless_kept(lease: Lease) -> Iterator[Lease]:
    """At the end of the block *lease* is closed, unless it is kept."""
    try:
        yield lease
    finally:
        if not lease.kept:
            lease.close()
