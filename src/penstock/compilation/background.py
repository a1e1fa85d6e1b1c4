"""A step that is compiled in a thread of its own while another device already runs it."""

from __future__ import annotations

import contextvars
import math
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import structs

from penstock.compilation.calls import describe
from penstock.compilation.prepared import CLOSE_SECONDS
from penstock.errors import Cancelled
from penstock.hal import CancelToken, PrepareConfig
from penstock.logs import Log

if TYPE_CHECKING:
    from penstock.compilation.prepared import PreparedStep

log = Log(__name__)


class BackgroundToken(CancelToken):
    """The cancel token of a compile in the background."""

    def while_waiting(self) -> CancelToken:
        """The token for its waits, which lose nothing: the end of the program sets it too."""
        return _EndOfProgram(self)


class _EndOfProgram(CancelToken):
    def __init__(self, given: CancelToken) -> None:
        super().__init__()
        self._given = given

    def is_set(self) -> bool:
        return self._given.is_set() or not threading.main_thread().is_alive()

    def check(self) -> None:
        if self.is_set():
            raise Cancelled("the compile in the background is no longer wanted")


def token_while_waiting(cancel: CancelToken | None) -> CancelToken | None:
    """The token that ends a wait for other processes, of a compile that *cancel* ends."""
    return cancel.while_waiting() if isinstance(cancel, BackgroundToken) else cancel


class PendingStep:
    """A compile under way. Any thread may ask for its result; `close` cancels it and waits, but not
    for ever: a driver may look at no token.

    A program that ends without closing, or without having waited so long, waits for a compile that
    has begun, since an engine is not to be stopped within one, and the next start finds the entry;
    it does not wait for another process's.
    """

    def __init__(
        self, make: Callable[[PrepareConfig], PreparedStep], config: PrepareConfig, name: str
    ) -> None:
        self._cancel = BackgroundToken()
        self._config = structs.replace(config, deadline_ns=None, progress=None, cancel=self._cancel)
        self._make = make
        self._name = name
        self._made: PreparedStep | None = None
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._end = math.inf
        self._is_left = False
        context = contextvars.copy_context()
        self._thread = threading.Thread(
            target=context.run, args=(self._run,), name=f"penstock-compile-{name}"
        )
        self._thread.start()

    @property
    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return self._done.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Waits at most *timeout* seconds for the end; whether it has come."""
        return self._done.wait(timeout)

    @property
    def result(self) -> PreparedStep | None:
        """The compiled step; None before the end, and after a failure."""
        return self._made

    def stop(self, end: float) -> None:
        """Cancels the compile; `close` waits for it until *end* at most."""
        self._end = min(self._end, end)
        self._cancel.set()

    def close(self) -> None:
        """Cancels the compile and waits for it; what it makes is closed, even later."""
        self.stop(time.monotonic() + CLOSE_SECONDS)
        self._thread.join(max(0.0, self._end - time.monotonic()))
        with self._lock:
            self._is_left, made = True, self._made
        if made is not None:
            made.close()
        elif not self.done:
            log.warning(
                "the compile of step %s in the background goes on, since its driver does not stop; "
                "what it makes "
                "is closed then",
                self._name,
            )

    def _run(self) -> None:
        made = None
        try:
            made = self._make(self._config)
        except Cancelled:
            log.debug("a compile in the background was cancelled")
        except Exception as error:  # noqa: BLE001  # the step goes on where it runs
            log.warning("a compile in the background failed: %s", describe(error))
        finally:
            with self._lock:
                self._made, is_left = made, self._is_left
            if made is not None and is_left:
                made.close()
            self._done.set()
