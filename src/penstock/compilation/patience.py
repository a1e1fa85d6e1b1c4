"""How long a compile in the background waits for others: not beyond the program's end."""

from __future__ import annotations

import threading

from penstock.errors import Cancelled
from penstock.hal import CancelToken


class BackgroundToken(CancelToken):
    """The cancel token of a compile in the background."""

    def while_waiting(self) -> CancelToken:
        """The token for its waits, in which nothing is lost: the end of the program sets it too."""
        return _UntilTheEnd(self)


class _UntilTheEnd(CancelToken):
    def __init__(self, given: CancelToken) -> None:
        super().__init__()
        self._given = given

    def is_set(self) -> bool:
        return self._given.is_set() or not threading.main_thread().is_alive()

    def check(self) -> None:
        if self.is_set():
            raise Cancelled("the compile in the background is no longer wanted")


def patience(cancel: CancelToken | None) -> CancelToken | None:
    """The token that ends a wait for other processes, of a compile that *cancel* ends."""
    return cancel.while_waiting() if isinstance(cancel, BackgroundToken) else cancel
