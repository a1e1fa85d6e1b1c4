"""`BoundState`: the caller's access to values fed back on devices (`CompiledModel.bind_state`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from penstock.errors import StateError
from penstock.execution.executable import Executable, initial_state
from penstock.execution.feedback import Feedback
from penstock.execution.state import State
from penstock.ir import NDArray
from penstock.memory.buffer import DeviceBuffer
from penstock.memory.copies import CopyReceipt


class BoundState:
    """The values that are fed back from run to run on devices; result of
    `CompiledModel.bind_state`.

    A value has the name of its input or variable. *state* is the `State` that holds the values;
    None means the model's default state. `copies` are the copies of the last `read` or `write`, by
    any thread.
    """

    def __init__(self, executable: Executable, feedback: Feedback) -> None:
        self._executable, self._feedback = executable, feedback
        self.copies: tuple[CopyReceipt, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all bound values."""
        return self._feedback.names

    def __repr__(self) -> str:
        return f"BoundState({', '.join(self.names) or 'nothing'})"

    def device(self, name: str, state: State | None = None) -> str | None:
        """The device that holds the value; None for a pool. Raises `InputError`."""
        with self._held(name, state) as (buffer, _):
            return buffer.device

    def read(self, name: str, state: State | None = None) -> NDArray:
        """The present value, copied to the host. Raises `StateError` if it has none."""
        with self._held(name, state) as (buffer, _):
            value = buffer.numpy()
            self.copies = buffer.copies
            return value

    def write(self, name: str, value: Any, state: State | None = None) -> None:
        """Replaces the value by that of an array, pool or buffer. Raises as `copy_from` does."""
        with self._held(name, state) as (buffer, own):
            buffer.copy_from(value)
            self.copies = buffer.copies
            own.written_on_device()

    def reset(self, state: State | None = None) -> None:
        """Resets bound values to zeros and variables to their initial values."""
        own = self._state(state)
        with self._executable.gate:
            own.reset()

    def _state(self, state: State | None) -> State:
        own = self._executable.state_for(state)
        if own is None:
            raise StateError("the compiled model has no state")
        return own

    @contextmanager
    def _held(self, name: str, state: State | None) -> Iterator[tuple[DeviceBuffer, State]]:
        """The buffer with the present value, which no run replaces in this block; its state."""
        loop = self._feedback.find(name)
        own = self._state(state)
        with self._executable.gate, own.lock:
            yield own.cells(self._feedback).of([loop])[0][0], own


def bind_state(executable: Executable, bindings: Mapping[str, str]) -> BoundState:
    """Implements `CompiledModel.bind_state`."""
    with executable.gate, executable.lock:
        if executable.feedback is not None:
            raise StateError("bind_state was called already; compile again for other bindings")
        if len(executable.bursts):
            raise StateError("bind_state comes before bursts; close those that there are")
        feedback = Feedback(executable.base, executable.exchange.interface, bindings)
        if feedback.names:
            executable.feedback = feedback
            executable.is_dynamic, executable.awaited = False, None
            if executable.state is None:
                executable.state = initial_state(executable.form.model)
            executable.take(feedback.interface)
        return BoundState(executable, feedback)
