"""`State`: the values of a network's variables, kept by the runtime from run to run."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from penstock.arguments import check_kind
from penstock.errors import DriverError, InputError, MissedDeadlinePersistent, StateError, counted
from penstock.execution import arena
from penstock.ir import DType, Model, NDArray
from penstock.ir.subgraph import constant_array
from penstock.logs import Log

if TYPE_CHECKING:
    from penstock.execution.cells import Cells
    from penstock.hal import ExecutionConfig
    from penstock.memory.copies import CopyReceipt

log = Log(__name__)

POLL_SECONDS: Final = 0.01
"""Seconds between checks of the cancel token while a run waits for the state."""


class MakesCells(Protocol):
    """Allocates the device memory of a state: the feedback of one compiled model."""

    def make_cells(
        self, state: State, values: Sequence[NDArray], copies: list[CopyReceipt]
    ) -> Cells:
        """The memory for *state*, whose variables have *values*."""


class State:
    """The present values of a model's variables.

    Runs on the same `State` are serialised; runs on different ones may overlap. A failed run leaves
    its `State` unchanged. `reset()` restores the initial values.
    """

    def __init__(self, model: Model) -> None:
        check_kind(model, Model, "a State is of a Model; compiled.new_state() makes one")
        self.model = model
        """The model that has these variables."""
        self.lock = threading.RLock()
        """Held by the run that uses this state."""

        self._values = _initial_values(model)
        self._assigned = _assigned(model)
        self._turns: arena.DoubleBuffer | None = None
        # Whether no caller holds an array of it. Then runs may overwrite past values.
        self._alone = True
        # The device memory of fed-back values. *_away*: it is newer than the values here.
        # *_changed*: it is older.
        self._cells: Cells | None = None
        self._feedback: object = None
        self._away = self._changed = False

    def held(self, config: ExecutionConfig) -> AbstractContextManager[object]:
        """The lock for one run; the wait ends at the run's deadline or when its token is set."""
        if config.deadline_ns is None and config.cancel is None:
            return self.lock
        return _held(self.lock, config)

    def get(self, variable: int) -> NDArray:
        """The value of a variable, read-only; later runs replace it. Raises `InputError`."""
        self._check(variable)
        self._fetch()
        self._alone, self._turns = False, None
        return self._values[variable]

    def _check(self, variable: object) -> None:
        if type(variable) is not int or not 0 <= variable < len(self._values):
            amount = counted(len(self._values), "variable")
            none = f"the model has {amount}, and none is {variable!r}"
            raise InputError(f"variables are named by their number; {none}")

    def is_assigned(self, variable: int) -> bool:
        """Whether a variable has a value, initial or from a run. Raises as `get`."""
        self._check(variable)
        return variable in self._assigned

    def fetch(self, copies: list[CopyReceipt]) -> None:
        """Copies values from devices for a run on the host; adds each copy to *copies*."""
        if self._away:
            self._fetch(copies)

    def replace(self, values: Mapping[int, NDArray]) -> None:
        """Stores the values of a finished run, all at once. Takes over the arrays."""
        self._alone, self._turns = False, None
        self._put(values)

    def turn(
        self, ports: Sequence[arena.BufferedVariable], copies: list[CopyReceipt] | None
    ) -> arena.StateBuffers | None:
        """The buffers that the next run of a model with *ports* reads and writes.

        None if new values must have arrays of their own. After the run succeeds, call `end_turn`.
        If *copies* is given, values on a device are first copied to the host, and each copy is
        added to *copies*. Without *copies*, values on a device give None. The caller holds the
        lock.
        """
        if self._away:
            if copies is None:
                return None
            self._fetch(copies)
        if not self._alone:
            return None
        turns = self._turns
        if turns is None or turns.ports is not ports:
            if not ports or not arena.can_double_buffer(ports, self._values):
                return None
            turns = self._turns = arena.DoubleBuffer(ports, self._values)
        return turns.now

    def end_turn(self, turn: arena.StateBuffers) -> None:
        """Commits what *turn* wrote, all at once, even if a caller holds an earlier value."""
        if (turns := self._turns) is not None and turns.now is turn:
            turns.swap()
        self._values = turn.after
        if not turn.known:
            self._assigned |= turn.written
            turn.known = True
        self._changed = True

    def cells(self, feedback: MakesCells, copies: list[CopyReceipt] | None = None) -> Cells:
        """The device memory of *feedback*, with the present values.

        Values copied to it from the host are added to *copies*. The caller holds the lock. Raises
        `StateError` if the values are in the memory of another model's feedback.
        """
        cells = self._cells
        if cells is not None and self._feedback is not feedback:
            raise StateError(
                "the values of this State are in the memory of another compiled model; use one "
                "that new_state() made, or close that model first"
            )
        if cells is None:
            cells = feedback.make_cells(self, self._values, [] if copies is None else copies)
            self._cells, self._feedback = cells, feedback
        elif self._changed:
            cells.put_variables(self._values, [] if copies is None else copies)
        self._changed = False
        return cells

    def end_on_device(self) -> None:
        """Records that a run put new values into `cells`. The caller holds the lock."""
        if (cells := self._cells) is not None:
            cells.turn()
            self._away = bool(cells.variables)
            self._assigned |= set(cells.variables)

    def written_on_device(self) -> None:
        """Records that the caller changed a value in `cells`."""
        with self.lock:
            if (cells := self._cells) is not None:
                self._away = bool(cells.variables)
                self._assigned |= set(cells.variables)

    def release(self, feedback: object = None) -> None:
        """Frees device memory that belongs to *feedback*. Values are kept, except bound ones."""
        with self.lock:
            if feedback is not None and self._feedback is not feedback:
                return
            if (cells := self._cells) is not None:
                try:
                    self._fetch()
                except (DriverError, StateError) as error:
                    log.warning("values that were on a device are lost: %s", error)
                    self._away = False
                self._cells = None
                cells.close()

    def _fetch(self, copies: list[CopyReceipt] | None = None) -> None:
        if self._away and (cells := self._cells) is not None:
            with self.lock:
                self._values = list(self._values)
                fetched = cells.fetch_variables([] if copies is None else copies)
                for variable, value in fetched.items():
                    self._values[variable] = value
                self._away, self._turns = False, None

    def _put(self, values: Mapping[int, NDArray]) -> None:
        # The list may belong to a double buffer.
        self._fetch()
        self._values = list(self._values)
        self._changed = True
        for variable, value in values.items():
            self._values[variable] = value
        self._assigned.update(values)

    def reset(self) -> None:
        """Restores the initial values. Bound values become zeros, if their size is known."""
        with self.lock:
            self._values = _initial_values(self.model)
            self._assigned = _assigned(self.model)
            self._turns = None
            self._away, self._changed = False, True
            # Memory that was lost with its device stays lost, so the next run allocates new memory.
            cells, self._cells = self._cells, None
            if cells is not None:
                cells.close()

    def as_dict(self) -> dict[str, NDArray]:
        """Copies of the values by variable name. Raises `StateError` if two share a name."""
        names = [v.name for v in self.model.variables]
        if len(set(names)) != len(names):
            raise StateError("two variables share a name; their values cannot be told apart by it")
        with self.lock:
            self._fetch()
            return {name: np.array(value) for name, value in zip(names, self._values, strict=True)}

    def as_list(self) -> list[NDArray]:
        """The present values by variable. The caller must neither change nor keep them."""
        with self.lock:
            self._fetch()
            return list(self._values)

    def copied(self) -> State:
        """A new State with copies of the present values."""
        with self.lock:
            self._fetch()
            values = {v: np.array(self._values[v]) for v in self._assigned}
        return _rebuild(self.model, values)

    def __reduce__(self) -> tuple[Any, ...]:
        with self.lock:
            self._fetch()
            values = {v: np.array(self._values[v]) for v in sorted(self._assigned)}
            return _rebuild, (self.model, values)


@contextmanager
def _held(lock: threading.RLock, config: ExecutionConfig) -> Iterator[None]:
    """Acquires *lock*. Raises `MissedDeadlinePersistent` or `Cancelled` when the wait must end."""
    deadline, cancel, is_held = config.deadline_ns, config.cancel, False
    while not is_held:
        if cancel is not None:
            cancel.check()
        left = None if deadline is None else (deadline - time.monotonic_ns()) / 1e9
        if left is not None and left <= 0:
            raise MissedDeadlinePersistent("the deadline passed while another run had the state")
        pause = POLL_SECONDS if left is None else min(POLL_SECONDS, left)
        is_held = lock.acquire(timeout=left if left is not None and cancel is None else pause)
    try:
        yield
    finally:
        lock.release()


def _rebuild(model: Model, values: Mapping[int, NDArray]) -> State:
    state = State(model)
    state._put(values)  # noqa: SLF001  # this state alone owns them
    return state


def _assigned(model: Model) -> set[int]:
    return {at for at, variable in enumerate(model.variables) if variable.assigned}


def _initial_values(model: Model) -> list[NDArray]:
    given = {
        at: constant_array(model.pools, variable)
        for at, variable in enumerate(model.variables)
        if variable.value is not None or variable.location is not None
    }
    kinds: list[tuple[tuple[int, ...], np.dtype[np.generic]]] = []
    for at, variable in enumerate(model.variables):
        shape = tuple(d or 0 for d in variable.shape or ())
        dtype = np.dtype(object) if variable.dtype is DType.STRING else variable.dtype.numpy
        kinds.append((given[at].shape, given[at].dtype) if at in given else (shape, dtype))
    values = arena.side_by_side(kinds)
    for at, value in enumerate(values):
        if at in given:
            np.copyto(value, given[at])
        elif model.variables[at].dtype is DType.STRING:
            value.fill(b"")
    return values
