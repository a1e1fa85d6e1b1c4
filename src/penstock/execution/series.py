"""A series of runs, one at a time, that keeps arguments, outputs and the drivers' bursts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
from msgspec.structs import replace

from penstock.compilation.prepared import PreparedStep
from penstock.errors import DriverError
from penstock.execution.adapters import BurstAdapter
from penstock.execution.arena import NO_PLACES, Arena, Places, allocate, is_sized, lent
from penstock.execution.run import Run
from penstock.execution.state import State
from penstock.execution.step import Step
from penstock.execution.variant import Variant
from penstock.hal import HostMemory
from penstock.hal.device import is_isolated
from penstock.hal.prepared import PreparedModel
from penstock.ir import NDArray
from penstock.ir.types import static_shape
from penstock.memory.copies import CopyReceipt

if TYPE_CHECKING:
    from penstock.execution.control import ControlStep


ALIASED: Final = "the input lies in an output of the series"


class Series(Variant):
    """The runs of one caller, into arrays kept for it; *hold* wraps each prepared model."""

    def __init__(self, origin: Variant, hold: Callable[[PreparedModel], BurstAdapter]) -> None:
        self._origin, self._hold = origin, hold
        self._held: list[BurstAdapter] = []
        self._spare: Arena | None = None
        super().__init__(origin.compilation, *origin.made_with)
        self._own = self._outputs_of_its_own()
        self._owners = frozenset(
            id(own if own.base is None else own.base) for own in self._own if own is not None
        )
        self._repeats = (
            origin.shadow is None and self.is_direct and all(own is not None for own in self._own)
        )
        self._kept: Kept | None = None

    def step_of(self, prepared: PreparedStep) -> Step | ControlStep:
        """As `Variant.step_of`, with the prepared model wrapped for this series."""
        if prepared.branches:
            # The branches of a control step are plans of their own, without a series.
            return next(s for s in self._origin.steps if s.prepared is prepared)
        held = self._hold(prepared.prepared)
        self._held.append(held)
        step = super().step_of(replace(prepared, prepared=held))
        if isinstance(step, Step) and step.prepared.prepared is held:
            step.call = held.executor
        return step

    def take_compiled(self) -> None:
        """As `Variant`."""
        super().take_compiled()
        self._kept = None

    def take_arena(self) -> Arena:
        """As `Variant`."""
        spare, self._spare = self._spare, None
        return super().take_arena() if spare is None else spare

    def give_back(self, arena: Arena) -> None:
        """As `Variant`."""
        self._spare = arena

    def run(
        self,
        run: Run,
        inputs: Sequence[NDArray],
        out: Sequence[NDArray | None] | None = None,
        state: State | None = None,
    ) -> list[NDArray]:
        """As `Variant`; shadow verification compares it as a run of the origin."""
        if self._origin.shadow is not None:
            return self._origin.run(run, inputs, out, state)
        return super().run(run, inputs, out, state)

    def repeat(
        self, run: Run, inputs: Sequence[NDArray], out: Sequence[NDArray | None] | None
    ) -> list[NDArray] | None:
        """As `run` on valid arrays, if it is driver calls with arrays only; else None."""
        if self.is_pending:
            self.take_compiled()
        if not self._repeats:
            return None
        kept = self._kept
        if kept is None:
            kept = self._kept = Kept(self)
        kept.place(out)
        kept.take(inputs, run)
        return self.again(run)

    @property
    def is_settled(self) -> bool:
        """Whether `again` can repeat the last run unchanged, into outputs of the series."""
        kept = self._kept
        return kept is not None and kept.is_settled and not self.is_pending

    def again(self, run: Run) -> list[NDArray]:
        """Repeats the last run on the same arrays. Errors are those of `repeat`."""
        kept = self._kept
        assert kept is not None
        run.values, run.places = kept.values, kept
        try:
            self.execute(run)
        except DriverError as error:
            # A copy of the mapping: results must be written to the same arrays.
            run.values = dict(kept.values)
            self.repeat_whole(run, error)
        return list(kept.results)

    def targets(
        self, inputs: Sequence[NDArray], out: Sequence[NDArray | None] | None, run: Run
    ) -> tuple[list[NDArray], list[NDArray | None]]:
        """The inputs and targets for `run`; an input inside an output of the series is copied."""
        apart = list(inputs)
        for k, array in enumerate(inputs):
            if type(array) is np.ndarray and self.owns(array):
                apart[k] = np.array(array)
                run.copies.append(CopyReceipt(array.nbytes, "caller", "input", ALIASED))
        given = out or [None] * len(self._own)
        return apart, [own if a is None else a for a, own in zip(given, self._own, strict=True)]

    def delivered(
        self, results: Sequence[NDArray], out: Sequence[NDArray | None] | None
    ) -> list[NDArray]:
        """*results* for the caller: read-only, except in arrays that the caller gave in *out*."""
        given = out or [None] * len(results)
        return [
            r if type(r) is not np.ndarray or (g is not None and r is g) else lent(r)
            for r, g in zip(results, given, strict=True)
        ]

    @property
    def own_outputs(self) -> Sequence[NDArray | None]:
        """The series' array of each output; None if its size is known only during a run."""
        return self._own

    def owns(self, array: NDArray) -> bool:
        """Whether *array* is part of an output of this series."""
        base = array.base
        if id(array if base is None else base) not in self._owners and (
            base is None or (type(base) is np.ndarray and base.base is None)
        ):
            return False
        return any(own is not None and np.may_share_memory(array, own) for own in self._own)

    def close(self) -> None:
        """Closes what this series made; the origin stays open. A second call does nothing."""
        for step in (*self.replaced, *self.steps):
            if isinstance(step, Step):
                step.close()
        self.close_whole()
        for held in self._held:
            held.close()
        self._kept = None
        self._repeats = False

    def _outputs_of_its_own(self) -> list[NDArray | None]:
        operands = [self.model.operands[i] for i in self.outputs]
        # A pool needs no copies to the process of an isolated device.
        if any(is_isolated(step.device) for step in self.compilation.steps):
            from penstock.execution.arena import in_a_pool

            return in_a_pool(operands)
        return [
            allocate(static_shape(o.shape) or (), o.dtype.numpy) if is_sized(o) else None
            for o in operands
        ]


class Kept(Places):
    """Arrays and requests that a *series* keeps. A request is replaced if an array changed."""

    __slots__ = ("_bound", "_inputs", "_out", "_own", "_series", "_users", "is_settled", "results")

    def __init__(self, series: Series) -> None:
        arena = series.take_arena() if series.slots else NO_PLACES
        super().__init__(dict(arena.values), dict(arena.readable), dict(arena.writable))
        self.keeps_all = True
        self._series = series
        self._inputs: tuple[int, ...] = series.inputs
        self._bound: list[NDArray | None] = [None] * len(self._inputs)
        self._own = [None if a is None else lent(a) for a in series.own_outputs]
        self._out: Sequence[NDArray | None] | None = ()
        self._users: dict[int, list[object]] = {}
        for step in series.steps:
            if isinstance(step, Step):
                for operand in {*step.inputs, *step.outputs}:
                    self._users.setdefault(operand, []).append(step)
        self.results: list[NDArray] = []
        self.is_settled = False
        """Whether the last run can be repeated unchanged, into outputs of the series."""

    def place(self, out: Sequence[NDArray | None] | None) -> None:
        """Directs outputs to *out* from now on, or else to arrays of the series."""
        if out is self._out:
            return
        if out and self._out and all(a is b for a, b in zip(out, self._out, strict=True)):
            return
        self._out, self.results = out, []
        given = out or [None] * len(self._own)
        for index, mine, view, array in zip(
            self._series.outputs, self._series.own_outputs, self._own, given, strict=True
        ):
            target = mine if array is None else array
            assert target is not None
            self._put(index, target)
            self.writable[index] = HostMemory(target)
            self.results.append(view if array is None and view is not None else target)

    def take(self, inputs: Sequence[NDArray], run: Run) -> None:
        """Reads *inputs* from now on; one inside an output of the series is copied each time."""
        aliased, bound, series = False, self._bound, self._series
        for at, array in enumerate(inputs):
            if array is bound[at]:
                continue
            if series.owns(array):
                aliased = True
                bound[at], kept = None, np.array(array)
                run.copies.append(CopyReceipt(array.nbytes, "caller", "input", ALIASED))
            else:
                bound[at] = kept = array
            self._put(self._inputs[at], kept)
        self.is_settled = not aliased and self._out is None

    def _put(self, operand: int, array: NDArray) -> None:
        self.values[operand] = array
        # Inlined `lent`, which saves a call on the hot path.
        view = array.view()
        view.setflags(False)  # type: ignore[call-arg]  # as in `lent`
        self.readable[operand] = HostMemory(view)
        requests = self.requests
        for step in self._users.get(operand, ()):
            if step in requests:
                del requests[step]
