"""Measures the devices of a program that runs for long, in a process of low priority beside it.

The process works a tenth of the time, ends with the program, and measures what no process has
measured yet. Its results are of use for the next compile.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from penstock import knobs
from penstock.cache.store import Store
from penstock.errors import CacheError, PenstockError
from penstock.hal import Device
from penstock.runtime.calibration.calibrating import calibrate
from penstock.runtime.calibration.later import Task
from penstock.runtime.calibration.tables import kept_costs
from penstock.runtime.discovery import manager

SHARE: Final = 0.1
"""Share of the time in which it works."""

LOWEST: Final = 19
"""The niceness of the process."""

LOOK_SECONDS: Final = 0.5
"""How often it looks whether the program is still there, also while it measures or pauses."""

LOCK: Final = "calibrating"
"""The name of the lock that the measuring process of a cache directory holds."""


def perform(task: Task, alive: Callable[[], bool], sleep: Callable[[float], None]) -> list[str]:
    """Measures the devices of *task* that have no costs yet, while *alive*; returns their names.

    *sleep* is called between samples, so that `SHARE` of the time is worked.
    """
    done: list[str] = []
    pause = Pauses(alive, sleep)
    locks = Store(task.directory).locks
    try:
        held = locks.take(LOCK, exclusive=True, create=True, timeout=0.0)
    except (OSError, CacheError):
        return done
    if held is None:
        return done
    try:
        for name in task.devices:
            with suppress(PenstockError):
                (device,) = manager.choose([name])
                if not _is_measured(task, device):
                    calibrate(
                        device, task.directory, accuracy=task.accuracy,
                        num_threads=task.num_threads, cells=task.cells, pause=pause,
                    )  # fmt: skip
                    done.append(name)
    except Ended:
        pass
    finally:
        os.close(held)
    return done


def _is_measured(task: Task, device: Device) -> bool:
    return kept_costs(task.directory, device, task.accuracy, task.num_threads) is not None


class Ended(Exception):
    """The program for which the process measures has ended."""


class Pauses:
    """Sleeps so long that work takes `SHARE` of the time; raises `Ended` without *alive*.

    The *clock* is of the wall, since a device may compute in another process.
    """

    def __init__(
        self,
        alive: Callable[[], bool],
        sleep: Callable[[float], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._alive, self._sleep, self._clock = alive, sleep, clock
        self._last = clock()

    def __call__(self) -> None:
        if not self._alive():
            raise Ended
        now = self._clock()
        self._sleep((now - self._last) * (1 / SHARE - 1))
        if not self._alive():
            raise Ended
        self._last = self._clock()


def main(arguments: Sequence[str]) -> None:
    """Does the `Task` that the only argument encodes."""
    task = msgspec.json.decode(arguments[0], type=Task)
    if hasattr(os, "nice"):
        os.nice(LOWEST)

    def alive() -> bool:
        return os.getppid() == task.parent

    def end_with_it() -> None:
        while alive():
            time.sleep(LOOK_SECONDS)
        # A sample may take long, and so may the pause after it. Nothing is half written then.
        os._exit(0)

    threading.Thread(target=end_with_it, name="penstock-parent", daemon=True).start()
    with knobs.override(calibrate="never"):
        perform(task, alive, time.sleep)


if __name__ == "__main__":
    main(sys.argv[1:])
