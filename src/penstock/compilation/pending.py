"""Compiles in the background, while another device runs the step."""

from __future__ import annotations

import contextvars
import math
import threading
import time
from collections.abc import Callable

from msgspec.structs import replace

from penstock.compilation import prepared
from penstock.compilation.calls import describe
from penstock.compilation.prepared import PreparedStep
from penstock.errors import Cancelled
from penstock.hal import CancelToken, PrepareConfig
from penstock.logs import Log

log = Log(__name__)


class BackgroundToken(CancelToken):
    """The cancel token of a compile in the background."""

    def while_waiting(self) -> CancelToken:
        """The token for waits, in which nothing is lost: the end of the program also sets it."""
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
    """The token of a compile's waits for other processes; *cancel* is the token of that compile."""
    return cancel.while_waiting() if isinstance(cancel, BackgroundToken) else cancel


class PendingStep:
    """A background compile. Any thread may ask for its result.

    `close` cancels the compile and waits for a limited time, because a driver may ignore the token.

    A program that ends waits for a compile that has begun: an engine must not be stopped within
    one, and the next start loads the entry. It does not wait for a compile of another process.
    """

    def __init__(
        self, make: Callable[[PrepareConfig], PreparedStep], config: PrepareConfig, name: str
    ) -> None:
        self._cancel = BackgroundToken()
        self._config = replace(config, deadline_ns=None, progress=None, cancel=self._cancel)
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
        """Whether the compile has ended, with success or not."""
        return self._done.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Waits at most *timeout* seconds for the end; returns whether the compile has ended."""
        return self._done.wait(timeout)

    @property
    def result(self) -> PreparedStep | None:
        """The compiled step; None before the end, and after a failure."""
        return self._made

    def stop(self, end: float) -> None:
        """Cancels the compile; `close` waits for its end until *end* at most."""
        self._end = min(self._end, end)
        self._cancel.set()

    def close(self) -> None:
        """Cancels the compile and waits for it. A model that it still produces later is closed."""
        self.stop(time.monotonic() + prepared.CLOSE_SECONDS)
        self._thread.join(max(0.0, self._end - time.monotonic()))
        with self._lock:
            self._is_left, made = True, self._made
        if made is not None:
            made.close()
        elif not self.done:
            why = "since its driver does not stop; what it makes is closed then"
            log.warning("the compile of step %s in the background goes on, %s", self._name, why)

    def _run(self) -> None:
        made = None
        try:
            made = self._make(self._config)
        except Cancelled:
            log.debug("a compile in the background was cancelled")
        except Exception as error:  # noqa: BLE001  # the step stays on its present device
            log.warning("a compile in the background failed: %s", describe(error))
        finally:
            with self._lock:
                self._made, is_left = made, self._is_left
            if made is not None and is_left:
                made.close()
            self._done.set()
