"""Starts `penstock.runtime.calibration.background` for a program that runs for long."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct

from penstock import knobs
from penstock.hal import AccuracyClass
from penstock.threads import VARIABLES

if TYPE_CHECKING:
    from penstock.partitioning.plan import ExecutionPlan

DELAY_S: Final = 10.0
"""Seconds that a program must have run after its first compile: short ones are left alone."""

WORKER: Final = "penstock.runtime.calibration.background"
"""The module that does a `Task`."""


class Task(Struct, frozen=True):
    """What to measure: *devices* in the class *accuracy* with *num_threads*, *cells* first, for the
    cache *directory*, as long as the process *parent* is the parent.
    """

    directory: str
    devices: tuple[str, ...]
    accuracy: AccuracyClass
    num_threads: int
    cells: tuple[str, ...]
    parent: int


_begun = threading.Event()
"""Whether this process has made a timer."""


def measure_later(
    plan: ExecutionPlan,
    directory: str,
    num_threads: int,
    start: Callable[[Task], None] | None = None,
    delay: float = DELAY_S,
) -> None:
    """After *delay* seconds, *start* measures the devices of *plan*, whose costs are shipped ones.

    Once in a process, and not if the knob `calibrate` forbids it. *start* None starts a process.
    """
    if _begun.is_set() or knobs.calibrate() == "never" or not is_python(sys.executable):
        return
    _begun.set()
    given = plan, directory, num_threads, spawn if start is None else start
    timer = threading.Timer(delay, _begin, given)
    timer.name, timer.daemon = "penstock-calibrate", True
    timer.start()


def is_python(executable: str | None) -> bool:
    """Whether *executable* is an interpreter, and no program that contains one."""
    name = os.path.basename(executable or "").lower()  # noqa: PTH119  # pathlib is slow to import
    return name.startswith(("python", "pypy"))


def _begin(
    plan: ExecutionPlan, directory: str, num_threads: int, start: Callable[[Task], None]
) -> None:
    cells, parent = cells_of(plan), os.getpid()
    start(Task(directory, plan.devices, plan.accuracy, num_threads, cells, parent))


def cells_of(plan: ExecutionPlan) -> tuple[str, ...]:
    """The cells of the operations of *plan*, without those of subgraphs that it enters."""
    from penstock.partitioning.costs import cell_of

    entry = plan.model.entry
    return tuple(dict.fromkeys(cell_of(entry, operation) for operation in entry.operations))


def spawn(task: Task) -> None:
    """Starts a process that does *task*. A failure is silent: shipped costs remain."""
    import subprocess

    environment = {**os.environ, **dict.fromkeys(VARIABLES, str(task.num_threads))}
    command = [sys.executable, "-P", "-m", WORKER, msgspec.json.encode(task).decode()]
    quiet = subprocess.DEVNULL
    with suppress(OSError):
        child = subprocess.Popen(  # noqa: S603  # itself
            command, env=environment, stdin=quiet, stdout=quiet, stderr=quiet
        )
        # The thread waits for it, so that no zombie is left.
        child.wait()
