"""Limits of memory: what a version of a model needs, and what all versions may have together.

What a version needs is estimated from its file, so that the answer is the same every time and is
known before anything is compiled.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, Literal

from penstock.errors import PenstockError
from penstock.ir import Model
from penstock.ir.infer import infer_shapes
from penstock.memory.layout import ArenaRequest, array_nbytes, plan_arena
from penstock.serve import batching
from penstock.serve.errors import NoMemory
from penstock.serve.settings import Settings

FORMS: Final = 2
"""The file, and the form that the devices made of its constants."""

ROOM_SECONDS: Final = 30.0
"""How long a load waits for memory of versions that have been unloaded and still run."""

MIB: Final = 1 << 20

State = Literal["loading", "held", "leaving", "ended"]
STATES: Final[tuple[State, ...]] = ("loading", "held", "leaving", "ended")


class Lease:
    """The memory of one version: *loading*, then *held*, *leaving* once it is unloaded and only
    finishes its requests, and then *ended*.
    """

    def __init__(self, budget: MemoryBudget, nbytes: int) -> None:
        self._budget, self.nbytes = budget, nbytes
        self.state: State = "loading"

    def become(self, state: State) -> None:
        """The version's memory is in *state* from here on."""
        self._budget.change(self, state)


class MemoryBudget:
    """The memory of all versions: at most *total* bytes, None for any number. Thread-safe."""

    def __init__(self, total: int | None) -> None:
        self._total = math.inf if total is None else total
        self._changed = threading.Condition()
        self._sums = dict.fromkeys(STATES, 0)
        self._changes = 0
        """How often a version's memory has changed its state."""

    @property
    def used(self) -> int:
        """Bytes of all versions in memory."""
        with self._changed:
            return self._taken()

    def lease(self, nbytes: int, unload: Callable[[], bool]) -> Lease:
        """Memory for a version. While there is too little, calls *unload*, which unloads a model
        and returns whether there was one, and waits for what has been unloaded to end.

        Raises `NoMemory` if that does not help.
        """
        lease = Lease(self, nbytes)
        end = time.monotonic() + ROOM_SECONDS
        while True:
            with self._changed:
                short, changes = self._short(nbytes), self._changes
                if short <= 0:
                    self._sums["loading"] += nbytes
                    return lease
                if short <= self._sums["leaving"]:
                    self._wait(nbytes, end)
                    continue
            if not unload():
                with self._changed:
                    # A model that has been loaded meanwhile may be unloaded.
                    if self._changes != changes:
                        continue
                    if not self._sums["leaving"] and not self._sums["loading"]:
                        raise self._refusal(nbytes)
                    self._wait(nbytes, end)

    def change(self, lease: Lease, state: State) -> None:
        """Moves the bytes of *lease* to *state*. Does nothing if it has passed that state."""
        with self._changed:
            if STATES.index(state) > STATES.index(lease.state):
                self._sums[lease.state] -= lease.nbytes
                self._sums[state] += lease.nbytes
                lease.state = state
                self._changes += 1
                self._changed.notify_all()

    def _short(self, nbytes: int) -> float:
        return self._taken() + nbytes - self._total

    def _taken(self) -> int:
        return self._sums["loading"] + self._sums["held"] + self._sums["leaving"]

    def _wait(self, nbytes: int, end: float) -> None:
        left = end - time.monotonic()
        if left <= 0 or not self._changed.wait(left):
            raise self._refusal(nbytes)

    def _refusal(self, nbytes: int) -> NoMemory:
        return NoMemory(
            f"it needs {_mib(nbytes)} MiB; {_mib(self._taken())} of {_mib(self._total)} MiB are in "
            "use by models that stay"
        )


def memory_of(model: Model, settings: Settings) -> int:
    """Bytes that *model* needs when it is served: its file, the devices' form of its constants,
    and for each signature the inputs, outputs and intermediate values of the greatest batch, times
    the runs at the same time.

    An unknown dimension counts as 1, and what a device needs beside that is not counted.
    """
    constants = sum(map(len, model.pools))
    names: Sequence[str | None] = [*model.signatures] or [None]
    rows, running = settings.batching.rows, settings.compile.running
    entries = [model if name is None else model.signature_model(name) for name in names]
    return FORMS * constants + running * sum(_values(entry, rows) for entry in entries)


def check_model(nbytes: int, limit: int | None) -> None:
    """Raises `NoMemory` for a version that needs more than *limit*, None for no limit."""
    if limit is not None and nbytes > limit:
        raise NoMemory(f"it needs {_mib(nbytes)} MiB; a model may have {_mib(limit)} MiB")


def _values(model: Model, rows: int) -> int:
    """Bytes of the values of one run that live at the same time, at most."""
    batch = rows if batching.is_open(model.inputs) and batching.is_open(model.outputs) else 1
    shapes = {
        place: tuple(_size(size, batch if axis == 0 else 1) for axis, size in enumerate(shape))
        for place, shape in enumerate(operand.shape for operand in model.inputs)
        if shape is not None
    }
    try:
        known = infer_shapes(model, shapes)
    except PenstockError:
        # The compile of such a model tells why.
        return 0
    return _peak(known)


def _size(size: int | None, unknown: int) -> int:
    return unknown if size is None else size


def _peak(model: Model) -> int:
    entry, count = model.entry, len(model.entry.operations)
    first: dict[int, int] = dict.fromkeys(entry.inputs, 0)
    last: dict[int, int] = dict.fromkeys(entry.inputs, 0)
    for step, operation in enumerate(entry.operations):
        for index in operation.outputs:
            first.setdefault(index, step)
            last[index] = step
        for index in operation.inputs:
            if index in first:
                last[index] = step
    for index in entry.outputs:
        if index in first:
            last[index] = count
    requests = [
        ArenaRequest(index, nbytes, begin, last[index])
        for index, begin in first.items()
        if (nbytes := array_nbytes(entry.operands[index])) is not None
    ]
    return plan_arena(requests).nbytes


def _mib(nbytes: float) -> str:
    return f"{nbytes / MIB:.1f}"
