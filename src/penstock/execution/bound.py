"""Runs of one compiled model on the same arrays each time."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from penstock.errors import InputError
from penstock.execution.burst_adapters import ReusedRequests
from penstock.execution.executable import Executable
from penstock.execution.run import Run
from penstock.execution.series import Series
from penstock.execution.state import State
from penstock.execution.targets import bind_targets
from penstock.ir import NDArray


class BoundRun:
    """`CompiledModel.run` without what it checks of its arguments: that is done once, here, and
    drivers bind them once (`PreparedModel.create_reusable_execution`).

    *inputs* and *out* are as for `run`, in order, and the caller's own: between runs their content
    may change, nothing else. Raises `InputError` for arrays that do not fit, and where an input's
    shape is not known.
    """

    def __init__(
        self,
        executable: Executable,
        inputs: Sequence[NDArray],
        out: Sequence[NDArray | None] | None,
    ) -> None:
        if executable.is_dynamic:
            raise InputError("a model with inputs of unknown shape cannot be bound to arrays")
        self._executable = executable
        self._inputs = executable.exchange.bind(executable, inputs, False, [])
        self._targets = None
        self._series: Series | None = None
        self._busy = threading.Lock()
        if out is not None:
            self._targets = bind_targets(
                out, executable.exchange.interface, executable.base.model.outputs, self._inputs
            )
            # Outputs without a place of their own are new with each run.
            if all(target is not None for target in self._targets):
                self._series = Series(executable.base, ReusedRequests)

    def run(self, state: State | None) -> list[NDArray]:
        """The outputs, in order; those given in *out* are these arrays. Raises what
        `CompiledModel.run` does.
        """
        executable = self._executable
        with executable.gate:
            series = self._series
            if series is not None and state is None and self._busy.acquire(blocking=False):
                try:
                    found = series.repeat(Run(executable.plain), self._inputs, self._targets)
                finally:
                    self._busy.release()
                if found is not None:
                    return executable.exchange.deliver(found, False, [])
            run, own = Run(executable.plain), executable.state_for(state)
            results = executable.base.run(run, self._inputs, self._targets, own)
            return executable.exchange.deliver(results, False, [])

    def close(self) -> None:
        """Lets go of what drivers have bound; twice is harmless. Not while a run is under way."""
        series, self._series = self._series, None
        if series is not None:
            series.close()

    def __del__(self) -> None:
        if hasattr(self, "_series") and not self._executable.gate.forked:
            self.close()
