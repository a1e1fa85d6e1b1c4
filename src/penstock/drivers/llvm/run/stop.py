"""Stops runs: a thread sets the stop flag of a run whose deadline passes or whose token is set.

Generated code reads nothing but its flag, at every unit of work. The thread looks at all runs with
limits once a millisecond. It exists only while there are such runs, and for a moment after the
last: to enter a run costs less than a microsecond then.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Final

from penstock.errors import MissedDeadlineTransient
from penstock.hal import ExecutionConfig
from penstock.ir import NDArray

PERIOD_SECONDS: Final = 0.001

IDLE_SECONDS: Final = 0.2
"""How long the thread lives without runs."""


class _Watcher:
    """Runs with limits, and the thread that stops them. Thread-safe."""

    def __init__(self) -> None:
        self.forget()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.forget)

    def forget(self) -> None:
        """Begins without runs and without a thread, as a forked child does."""
        self._lock = threading.Lock()
        self._runs: dict[int, tuple[NDArray, ExecutionConfig]] = {}
        self._is_alive = False

    def enter(self, flag: NDArray, config: ExecutionConfig) -> None:
        """From now on *flag*, an int32, is set once a limit of *config* is reached."""
        with self._lock:
            self._runs[id(flag)] = flag, config
            if self._is_alive:
                return
            self._is_alive = True
        thread = threading.Thread(target=self._watch, name="penstock-llvm-watch", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no thread, or the interpreter is ending: the run is not stopped
            with self._lock:
                self._is_alive = False

    def leave(self, flag: NDArray) -> None:
        """*flag* is not set from now on."""
        with self._lock:
            del self._runs[id(flag)]

    def _watch(self) -> None:
        used = time.monotonic()
        while True:
            time.sleep(PERIOD_SECONDS)
            with self._lock:
                for flag, config in self._runs.values():
                    if _is_over(config):
                        flag[0] = 1
                now = time.monotonic()
                if self._runs:
                    used = now
                elif now - used > IDLE_SECONDS:
                    self._is_alive = False
                    return


def _is_over(config: ExecutionConfig) -> bool:
    deadline, cancel = config.deadline_ns, config.cancel
    if deadline is not None and time.monotonic_ns() >= deadline:
        return True
    return cancel is not None and cancel.is_set()


_watcher: Final = _Watcher()
enter: Final = _watcher.enter
leave: Final = _watcher.leave


def raise_reason(config: ExecutionConfig) -> None:
    """Raises why a run with *config* was stopped: `Cancelled`, or `MissedDeadlineTransient`."""
    if config.cancel is not None:
        config.cancel.check()
    raise MissedDeadlineTransient("the deadline passed while generated code ran")
