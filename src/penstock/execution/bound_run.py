"""Runs with fixed arrays, as an interpreter makes them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.errors import InputError
from penstock.execution.executable import Executable
from penstock.execution.run import Run
from penstock.execution.targets import bind_targets
from penstock.ir import NDArray

if TYPE_CHECKING:
    from penstock.execution.series import Series
    from penstock.execution.state import State


class BoundRun:
    """Runs with fixed arrays, which are validated and bound once, when this object is made.

    Drivers bind the arguments by `PreparedModel.create_reusable_execution`. *inputs* and *out* are
    as for `run`, in order, and belong to the caller. Between runs only their content may change.
    Raises `InputError` for arrays that do not fit, and if an input's shape is not known.
    """

    def __init__(
        self,
        executable: Executable,
        inputs: Sequence[NDArray],
        out: Sequence[NDArray | None] | None,
    ) -> None:
        if executable.is_dynamic:
            raise InputError("a model with inputs of unknown shape cannot be bound to arrays")
        exchange = executable.exchange
        self._executable = executable
        self._inputs = exchange.bind(executable, inputs, False, [])
        self._targets = None
        self._whole: list[NDArray] | None = None
        """The targets, if every output has one; outputs without are new in each run."""
        self._in_order = exchange.has_all_outputs
        self._series: Series | None = None
        self._busy = threading.Lock()
        self._closed = False
        if out is not None:
            self._targets = bind_targets(
                out, exchange.interface, executable.form.model.outputs, self._inputs
            )
            whole = [target for target in self._targets if target is not None]
            self._whole = whole if len(whole) == len(self._targets) else None

    def run(self, state: State | None) -> list[NDArray]:
        """Returns the outputs in order, in the arrays of *out*. Raises as `CompiledModel.run`."""
        executable, whole = self._executable, self._whole
        gate = executable.gate
        # Inlined `with gate:`, which saves two calls on the hot path.
        gate.inside.append(None)
        try:
            if gate.shut:
                gate.check()
            if state is None and whole is not None:
                if self._in_order and executable.base.compute_into(self._inputs, whole):
                    return [*whole]
                if not self._closed and self._busy.acquire(blocking=False):
                    try:
                        found = self._repeating().repeat(
                            Run(executable.plain), self._inputs, self._targets
                        )
                    finally:
                        self._busy.release()
                    if found is not None:
                        return executable.exchange.deliver(found, False, [])
            run, own = Run(executable.plain), executable.state_for(state)
            results = executable.base.run(run, self._inputs, self._targets, own)
            return executable.exchange.deliver(results, False, [])
        finally:
            gate.inside.pop()
            if gate.shut:
                gate.leave_shut()

    def _repeating(self) -> Series:
        """The series of the runs whose driver has no shorter way."""
        if self._series is None:
            from penstock.execution.adapters import ReusedRequests
            from penstock.execution.series import Series

            self._series = Series(self._executable.base, ReusedRequests)
        return self._series

    def close(self) -> None:
        """Releases what drivers have bound, not during a run. A second call does nothing."""
        self._closed = True
        series, self._series = self._series, None
        if series is not None:
            series.close()

    def __del__(self) -> None:
        if hasattr(self, "_series") and not self._executable.gate.forked:
            self.close()
