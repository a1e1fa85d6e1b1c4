"""The caller's progress callback, lent to the runtime and to drivers."""

from __future__ import annotations

from penstock.hal import ProgressEvent
from penstock.hal.config import ProgressCallback


class Reporter:
    """Calls *callback*, and keeps what it raises: that is the caller's own, whoever it passed
    through.
    """

    def __init__(self, callback: ProgressCallback) -> None:
        self._callback = callback
        self.error: BaseException | None = None

    def __call__(self, event: ProgressEvent) -> None:
        try:
            self._callback(event)
        except BaseException as error:
            self.error = self.error or error
            raise
