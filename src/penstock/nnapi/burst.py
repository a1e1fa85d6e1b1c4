"""`Burst`: executions of one compilation in quick succession."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from penstock.closing import Closing
from penstock.nnapi.failures import bad_data, bad_state, translated, unexpected_null

if TYPE_CHECKING:
    from penstock.execution.burst import Burst as CompiledBurst
    from penstock.nnapi.compilation import Compilation


class Burst(Closing):
    """Resources kept between executions of *compilation*, which is finished, else BAD_STATE:
    `ANeuralNetworksBurst` (NNAPI section 7.1).

    One execution at a time uses it. It may be closed before or after the memories that its
    executions use.
    """

    def __init__(self, compilation: Compilation) -> None:
        from penstock.nnapi.compilation import Compilation

        if compilation is None:
            raise unexpected_null("the compilation")
        if not isinstance(compilation, Compilation):
            raise bad_data(
                f"a penstock.nnapi.Compilation is needed, not {type(compilation).__name__}"
            )
        self.compilation = compilation
        self._running = threading.Lock()
        self._burst: CompiledBurst | None
        with translated():
            self._burst = compilation.compiled.burst()

    def enter(self, compilation: Compilation) -> CompiledBurst:
        """Begins an execution of *compilation*, which `leave` ends: BAD_DATA for another one than
        the burst's, BAD_STATE where one is under way, or the burst is closed.
        """
        if compilation is not self.compilation:
            raise bad_data("the burst is another compilation's")
        if not self._running.acquire(blocking=False):
            raise bad_state("the burst is executing already")
        if self._burst is None:
            self._running.release()
            raise bad_state("the burst is closed")
        return self._burst

    def leave(self) -> None:
        """Ends what `enter` began."""
        self._running.release()

    def close(self) -> None:
        """Frees it, after an execution under way; twice is harmless."""
        with self._running:
            burst, self._burst = self._burst, None
        if burst is not None:
            burst.close()


def usable_burst(burst: object) -> Burst:
    """*burst*; UNEXPECTED_NULL for None, BAD_DATA for what is none."""
    if burst is None:
        raise unexpected_null("the burst")
    if not isinstance(burst, Burst):
        raise bad_data(f"a penstock.nnapi.Burst is needed, not {type(burst).__name__}")
    return burst
