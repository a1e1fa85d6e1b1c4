"""A step that is compiled in a thread of its own while another device already runs it."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import structs

from penstock.compilation.calls import describe
from penstock.compilation.patience import BackgroundToken
from penstock.errors import Cancelled
from penstock.hal import PrepareConfig
from penstock.logs import Log

if TYPE_CHECKING:
    from penstock.compilation.compilation import PreparedStep

log = Log(__name__)


class PendingStep:
    """A compile under way. Any thread may ask for its result; `close` cancels it and waits.

    A program that ends without closing waits for a compile that has begun, since an engine is not to be
    stopped within one, and the next start finds the entry; it does not wait for another process's.
    """

    def __init__(
        self, make: Callable[[PrepareConfig], PreparedStep], config: PrepareConfig, name: str
    ) -> None:
        self._cancel = BackgroundToken()
        self._config = structs.replace(config, deadline_ns=None, progress=None, cancel=self._cancel)
        self._make = make
        self._made: PreparedStep | None = None
        self._done = threading.Event()
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

    def close(self) -> None:
        """Cancels what is under way, waits for the driver to let go of it, and closes what was made."""
        self._cancel.set()
        self._thread.join()
        if self._made is not None:
            self._made.close()

    def _run(self) -> None:
        try:
            self._made = self._make(self._config)
        except Cancelled:
            log.debug("a compile in the background was cancelled")
        except Exception as error:  # noqa: BLE001  # the step goes on where it runs
            log.warning("a compile in the background failed: %s", describe(error))
        finally:
            self._done.set()
