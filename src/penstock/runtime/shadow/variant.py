"""A compiled form whose runs are compared with the reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from penstock.compilation.receipt import CopyReceipt
from penstock.execution.trace import StepTrace, Trace
from penstock.execution.variant import Variant
from penstock.hal import Device, ExecutionConfig, PrepareConfig
from penstock.partitioning.support import REFERENCE_DEVICE
from penstock.runtime.shadow.investigation import Investigation, Job, Note
from penstock.runtime.shadow.worker import Stop, Worker

if TYPE_CHECKING:
    from penstock.compilation.compilation import Compilation
    from penstock.execution.shadow import Shadow
    from penstock.execution.state import State
    from penstock.ir import NDArray
    from penstock.memory.bound import BoundMemory

KEPT: Final = "kept for shadow verification"


class ShadowedVariant(Variant):
    """A `Variant` some of whose runs *shadow* chooses. What such a run was given and gave is copied, which stands in its
    receipt; comparing goes on in a thread of its own and changes no answer.
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
        inputs: Sequence[NDArray],
        out: Sequence[NDArray | None] | None,
        state: State | None,
        config: ExecutionConfig,
        trace: Trace,
        bound: Mapping[int, BoundMemory] | None = None,
    ) -> list[NDArray]:
        """As of `Variant`."""
        if self._investigation.done or not self._shadow.choose():
            return super().run(inputs, out, state, config, trace, bound)
        note = Note()
        trace.notes += (note,)
        if not self._worker.has_room():
            self._drop(note)
            return super().run(inputs, out, state, config, trace, bound)
        if bound or not all(type(array) is np.ndarray for array in inputs):
            self._skip(note, "not all that it reads and writes is the host's memory")
            return super().run(inputs, out, state, config, trace, bound)
        try:
            if state is None or not self._states:
                return self._kept(inputs, out, None, config, trace, bound, note)
            with state.held(config):
                return self._kept(inputs, out, state, config, trace, bound, note)
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
        inputs: Sequence[NDArray],
        out: Sequence[NDArray | None] | None,
        state: State | None,
        config: ExecutionConfig,
        trace: Trace,
        bound: Mapping[int, BoundMemory] | None,
        note: Note,
    ) -> list[NDArray]:
        given = self._copies(inputs, "caller", "inputs", trace)
        if state is not None:
            state.fetch(trace.copies)
        before = None if state is None else state.copied()
        results = super().run(inputs, out, state, config, trace, bound)
        used = frozenset(_devices_of(trace.steps)) - {REFERENCE_DEVICE}
        if not used:
            self._skip(note, "the reference itself computed it")
            return results
        if not all(type(array) is np.ndarray for array in results):
            self._skip(note, "not all that it reads and writes is the host's memory")
            return results
        after = None if state is None else state.copied()
        if before is not None:
            nbytes = 2 * sum(v.nbytes for v in before.as_list())
            trace.copies.append(CopyReceipt(nbytes, "state", "shadow", f"state {KEPT}"))
        outputs = self._copies(results, "host", "outputs", trace)
        if not self._worker.offer(Job(given, before, outputs, after, used, note)):
            self._drop(note)
        return results

    def _copies(
        self, arrays: Sequence[NDArray], source: str, what: str, trace: Trace
    ) -> list[NDArray]:
        kept = [np.array(array) for array in arrays]
        nbytes = sum(array.nbytes for array in kept)
        trace.copies.append(CopyReceipt(nbytes, source, "shadow", f"{what} {KEPT}"))
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
