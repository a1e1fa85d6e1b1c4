"""A compiled form whose runs are compared with the reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from penstock.distribution import FALLBACK_DEVICE
from penstock.execution.run import Run, StepTrace
from penstock.execution.variant import Variant
from penstock.hal import Device, PrepareConfig
from penstock.memory.copies import CopyReceipt
from penstock.runtime.shadow.investigation import Investigation, Job, Note
from penstock.runtime.shadow.worker import Stop, Worker

if TYPE_CHECKING:
    from penstock.compilation.prepared import Compilation
    from penstock.execution.shadow import Shadow
    from penstock.execution.state import State
    from penstock.ir import NDArray

KEPT: Final = "kept for shadow verification"


class ShadowedVariant(Variant):
    """A `Variant` some of whose runs *shadow* chooses. What such a run was given and gave is
    copied, which stands in its receipt; comparing goes on in a thread of its own and changes no
    answer.
    """

    def __init__(
        self,
        compilation: Compilation,
        devices: Mapping[str, Device],
        config: PrepareConfig,
        allow_fallback: bool,
        shadow: Shadow,
    ) -> None:
        super().__init__(compilation, devices, config, allow_fallback)
        self.shadow = self._shadow = shadow
        self._investigation = Investigation(
            compilation, devices, config.accuracy, shadow, super().run, stop := Stop()
        )
        self._worker = Worker(self._compare, self._lose, f"penstock-shadow-{id(self):x}", stop)

    def run(
        self,
        run: Run,
        inputs: Sequence[NDArray],
        out: Sequence[NDArray | None] | None = None,
        state: State | None = None,
    ) -> list[NDArray]:
        """As of `Variant`."""
        if self._investigation.done or not self._shadow.choose():
            return super().run(run, inputs, out, state)
        note = Note()
        run.notes += (note,)
        if not self._worker.has_room():
            self._drop(note)
            return super().run(run, inputs, out, state)
        if run.bound or not all(type(array) is np.ndarray for array in inputs):
            self._skip(note, "not all that it reads and writes is the host's memory")
            return super().run(run, inputs, out, state)
        try:
            if state is None or not self.states:
                return self._kept(run, inputs, out, None, note)
            with state.held(run.config):
                return self._kept(run, inputs, out, state, note)
        except BaseException:
            self._skip(note, "the run failed")
            raise

    def close(self) -> None:
        """Ends the comparisons, then as of `Variant`."""
        self._worker.close()
        self._investigation.close()
        super().close()

    def _kept(
        self,
        run: Run,
        inputs: Sequence[NDArray],
        out: Sequence[NDArray | None] | None,
        state: State | None,
        note: Note,
    ) -> list[NDArray]:
        given = self._copies(inputs, "caller", "inputs", run)
        if state is not None:
            state.fetch(run.copies)
        before = None if state is None else state.copied()
        results = super().run(run, inputs, out, state)
        used = frozenset(_devices_of(run.steps)) - {FALLBACK_DEVICE}
        if not used:
            self._skip(note, "the reference itself computed it")
            return results
        if not all(type(array) is np.ndarray for array in results):
            self._skip(note, "not all that it reads and writes is the host's memory")
            return results
        after = None if state is None else state.copied()
        if before is not None:
            nbytes = 2 * sum(v.nbytes for v in before.as_list())
            run.copies.append(CopyReceipt(nbytes, "state", "shadow", f"state {KEPT}"))
        outputs = self._copies(results, "host", "outputs", run)
        if not self._worker.offer(Job(given, before, outputs, after, used, note)):
            self._drop(note)
        return results

    def _copies(self, arrays: Sequence[NDArray], source: str, what: str, run: Run) -> list[NDArray]:
        kept = [np.array(array) for array in arrays]
        nbytes = sum(array.nbytes for array in kept)
        run.copies.append(CopyReceipt(nbytes, source, "shadow", f"{what} {KEPT}"))
        return kept

    def _compare(self, job: Job) -> None:
        self._investigation.compare(job)

    def _lose(self, job: Job) -> None:
        self._shadow.count("failed")
        job.note.text = "shadow verification was stopped before its end"

    def _drop(self, note: Note) -> None:
        self._shadow.count("dropped")
        note.text = "shadow verification: not compared, for earlier runs still are"

    def _skip(self, note: Note, why: str) -> None:
        self._shadow.count("skipped")
        note.text = f"shadow verification: not compared, for {why}"


def _devices_of(steps: Sequence[Any]) -> list[str]:
    """The devices that ran *steps*, and what is inside them."""
    names = []
    for step in steps:
        first: StepTrace = step
        names.append(first.prepared.device.name)
        names += _devices_of([inner.first for inner in first.inner])
    return names
