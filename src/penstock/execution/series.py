"""A series of runs, one at a time, with everything kept from one to the next: arguments, outputs, drivers' bursts."""

# ruff: noqa: SLF001  # the friend of Variant and of StepRunner

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
from msgspec.structs import replace

from penstock.compilation.compilation import PreparedStep
from penstock.compilation.receipt import CopyReceipt
from penstock.execution.direct import ALIASED, Direct, read_only
from penstock.execution.results import allocate, is_sized
from penstock.execution.step import StepRunner
from penstock.execution.trace import Trace
from penstock.execution.variant import Variant
from penstock.hal import Device, ExecutionConfig
from penstock.hal.prepared import PreparedModel
from penstock.ir import NDArray
from penstock.ir.types import static_shape

if TYPE_CHECKING:
    from penstock.execution.arena import Arena
    from penstock.execution.control import ControlRunner
    from penstock.execution.state import State
    from penstock.memory.bound import BoundMemory


class Series(Variant):
    """The runs of one caller, one at a time, on an *origin* that others use too.

    *hold* makes of a step's prepared model the one that executes for this series, and is closed with it. Outputs
    lie in arrays of the series, each run's over the last one's, unless the caller gives others.
    """

    def __init__(self, origin: Variant, hold: Callable[[PreparedModel], PreparedModel]) -> None:
        self._origin, self._hold = origin, hold
        self._held: list[PreparedModel] = []
        # What a device in another process can reach need not be copied there and back.
        self._elsewhere = any(is_isolated(step.device) for step in origin.compilation.steps)
        super().__init__(
            origin.compilation, origin._devices, origin._config, origin._allow_fallback
        )
        self._own = self._outputs_of_its_own()
        self._owners = frozenset(
            id(own if own.base is None else own.base) for own in self._own if own is not None
        )
        self._views = [None if a is None else read_only(a) for a in self._own]
        self._given: Sequence[NDArray | None] | None = None
        # None is not known, False not possible.
        self._direct: Direct | Literal[False] | None = None

    def _outputs_of_its_own(self) -> list[NDArray | None]:
        """An array for each output of known size."""
        operands = [self._operand(i) for i in self.outputs]
        if self._elsewhere:
            from penstock.execution.shared import in_a_pool

            return in_a_pool(operands)
        return [
            allocate(static_shape(o.shape) or (), o.dtype.numpy) if is_sized(o) else None
            for o in operands
        ]

    def _take_arena(self) -> Arena:
        if self._elsewhere and not self._arenas:
            from penstock.execution.shared import arena_in_a_pool

            return arena_in_a_pool(self._slots, self._arena_size, self._alignment)
        return super()._take_arena()

    def _runner(self, step: PreparedStep) -> StepRunner | ControlRunner:
        if step.branches:
            # Its branches are plans of their own, which have no series.
            return next(r for r in self._origin._runners if r.prepared is step)
        prepared = self._hold(step.prepared)
        self._held.append(prepared)
        return super()._runner(replace(step, prepared=prepared))

    def _take_compiled(self) -> None:
        super()._take_compiled()
        self._direct = None

    def run(
        self,
        inputs: Sequence[NDArray],
        out: Sequence[NDArray | None] | None,
        state: State | None,
        config: ExecutionConfig,
        trace: Trace,
        bound: Mapping[int, BoundMemory] | None = None,
    ) -> list[NDArray]:
        """As of `Variant`; what is compared in the shadow is a run of the origin."""
        if self._origin.shadow is not None:
            return self._origin.run(inputs, out, state, config, trace, bound)
        return super().run(inputs, out, state, config, trace, bound)

    def repeat(
        self,
        inputs: Sequence[NDArray],
        out: Sequence[NDArray | None] | None,
        config: ExecutionConfig,
        trace: Trace,
    ) -> list[NDArray] | None:
        """As `run`, where that is a matter of calling drivers with arrays alone; None where it is more.

        What is in *inputs* and *out* was checked; results that are not the caller's own are read-only.
        """
        if self._pending:
            self._take_compiled()
        direct = self._direct
        if direct is None:
            direct = self._direct = Direct(self) if self._is_direct() else False
        return direct.run(inputs, out, config, trace) if direct else None

    @property
    def settled(self) -> Direct | None:
        """What repeats the last run as it was, by `Direct.again`; None where that cannot be."""
        direct = self._direct
        return direct if direct and direct.settled and not self._pending else None

    def targets(
        self, inputs: Sequence[NDArray], out: Sequence[NDArray | None] | None, trace: Trace
    ) -> tuple[list[NDArray], list[NDArray | None]]:
        """For `run`: *inputs*, copied where they lie in an output of this series; and where all outputs go."""
        apart = list(inputs)
        for k, array in enumerate(inputs):
            if type(array) is np.ndarray and self.owns(array):
                apart[k] = np.array(array)
                trace.copies.append(CopyReceipt(array.nbytes, "caller", "input", ALIASED))
        given = out or [None] * len(self._own)
        return apart, [own if a is None else a for a, own in zip(given, self._own, strict=True)]

    def delivered(
        self, results: Sequence[NDArray], out: Sequence[NDArray | None] | None
    ) -> list[NDArray]:
        """*results* of `run` as the caller gets them: read-only, but for those he gave the arrays of in *out*."""
        given = out or [None] * len(results)
        return [
            r if type(r) is not np.ndarray or (g is not None and r is g) else read_only(r)
            for r, g in zip(results, given, strict=True)
        ]

    def owns(self, array: NDArray) -> bool:
        """Whether *array* lies in an output of this series."""
        base = array.base
        if id(array if base is None else base) not in self._owners and (
            base is None or (type(base) is np.ndarray and base.base is None)
        ):
            return False
        return any(own is not None and np.may_share_memory(array, own) for own in self._own)

    def close(self) -> None:
        """Closes what this series made; the origin stays open. Twice is harmless."""
        for runner in (*self._replaced, *self._runners):
            if isinstance(runner, StepRunner):
                runner.close()
        if self._whole is not None:
            self._whole.close()
        for held in self._held:
            held.close()
        self._direct = None

    def _is_direct(self) -> bool:
        return (
            self._origin.shadow is None
            and not self._states
            and self._delivers_its_own
            and all(own is not None for own in self._own)
            and all(isinstance(r, StepRunner) and r.is_direct for r in self._runners)
        )


def is_isolated(device: Device) -> bool:
    """Whether *device* says that its driver lives in another process."""
    return getattr(device, "isolated", False) is True
