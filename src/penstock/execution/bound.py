"""Runs of one compiled model on the same arrays each time."""

# ruff: noqa: SLF001  # the one friend of CompiledModel

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.errors import InputError
from penstock.execution.compiled import CompiledModel
from penstock.execution.state import State
from penstock.execution.targets import bind_targets
from penstock.execution.trace import Trace
from penstock.ir import NDArray


class BoundRun:
    """`CompiledModel.run` without what it checks of its arguments: that is done once, here.

    *inputs* and *out* are as for `run`, in order, and the caller's own: between runs their content may change,
    nothing else. Raises `InputError` for arrays that do not fit, and where an input's shape is not known.
    """

    __slots__ = ("_bound", "_compiled", "_inputs", "_targets")

    def __init__(
        self,
        compiled: CompiledModel,
        inputs: Sequence[NDArray],
        out: Sequence[NDArray | None] | None,
    ) -> None:
        if compiled._dynamic:
            raise InputError("a model with inputs of unknown shape cannot be bound to arrays")
        self._compiled = compiled
        self._inputs = compiled._bind(inputs, False, [])
        self._targets = None
        if out is not None:
            self._targets = bind_targets(
                out, compiled._interface, compiled._base.model.outputs, self._inputs, compiled
            )
        given = [*self._inputs, *(self._targets or ())]
        self._bound = None
        if not all(a is None or isinstance(a, np.ndarray) for a in given):
            self._bound = compiled._base.bound(self._inputs, self._targets)

    def run(self, state: State | None) -> list[NDArray]:
        """The outputs, in order; those given in *out* are these arrays. Raises what `CompiledModel.run` does."""
        compiled = self._compiled
        with compiled._gate:
            results = compiled._base.run(
                self._inputs,
                self._targets,
                compiled._state_for(state),
                compiled._plain,
                Trace(),
                self._bound,
            )
            return compiled._deliver(results, False, [])
