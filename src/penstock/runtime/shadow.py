"""Shadow verification: recomputes chosen runs on the reference, in a background thread."""

from __future__ import annotations

import contextvars
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import numpy as np

from penstock.compilation.calls import describe
from penstock.distribution import FALLBACK_DEVICE
from penstock.errors import Cancelled
from penstock.execution.run import Run, StepTrace
from penstock.execution.shadow import Shadow
from penstock.execution.variant import Variant
from penstock.hal import CancelToken, Device, PrepareConfig
from penstock.logs import Log
from penstock.memory.copies import CopyReceipt
from penstock.partitioning.policy import Policy
from penstock.runtime.investigation import Investigation, Job, Note

if TYPE_CHECKING:
    from penstock.compilation.prepared import Compilation
    from penstock.execution.state import State
    from penstock.ir import NDArray


log = Log(__name__)

T = TypeVar("T")

MOST_WAITING: Final = 2
"""Maximum queued jobs; further jobs are dropped."""
IDLE_SECONDS: Final = 0.2
CLOSE_SECONDS: Final = 10.0
"""Seconds that closing lets jobs continue. They are then stopped at the next part of a model."""


class Stop(CancelToken):
    """Set when the worker must stop, also at the end of the program."""

    def is_set(self) -> bool:
        return super().is_set() or not threading.main_thread().is_alive()

    def check(self) -> None:
        if self.is_set():
            raise Cancelled("shadow verification was stopped")


class Worker(Generic[T]):
    """Executes jobs by *work*, in order; *lost* is called for those that *stop* ends."""

    def __init__(
        self, work: Callable[[T], None], lost: Callable[[T], None], name: str, stop: Stop
    ) -> None:
        self._work, self._lost, self._name, self._stop = work, lost, name, stop
        self._changed = threading.Condition()
        self._jobs: deque[T] = deque()
        self._thread: threading.Thread | None = None
        self._running = self._closing = self._warned = False
        self._context = contextvars.copy_context()

    def has_room(self) -> bool:
        """Whether a job offered now would be accepted."""
        return len(self._jobs) < MOST_WAITING and not self._closing

    def offer(self, job: T) -> bool:
        """Offers *job*; returns whether it was accepted. It is not if too many are queued."""
        with self._changed:
            if not self.has_room():
                return False
            self._jobs.append(job)
            if not self._running and not self._start():
                self._jobs.pop()
                return False
            self._changed.notify_all()
            return True

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Lets jobs continue for *timeout* seconds, then stops them and waits for the thread."""
        end = time.monotonic() + timeout
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            thread = self._thread
        if thread is None or thread is threading.current_thread():
            return
        thread.join(max(0.0, end - time.monotonic()))
        self._stop.set()
        thread.join()

    def _start(self) -> bool:
        self._thread = threading.Thread(
            target=self._context.run, args=(self._loop,), name=self._name
        )
        try:
            self._thread.start()
        except RuntimeError:  # the interpreter is shutting down, or has no thread left
            self._thread = None
        self._running = self._thread is not None
        return self._running

    def _next(self) -> T | None:
        with self._changed:
            if not self._jobs and not self._closing:
                self._changed.wait(IDLE_SECONDS)
            if self._jobs:
                return self._jobs.popleft()
            self._running = False
            return None

    def _loop(self) -> None:
        while (job := self._next()) is not None:
            try:
                self._stop.check()
                self._work(job)
            except Cancelled:
                self._lost(job)
            except Exception as error:  # noqa: BLE001  # the caller already has the result
                self._lost(job)
                # Later errors are only counted.
                if not self._warned:
                    self._warned = True
                    text = "a run could not be compared with the reference: %s"
                    log.warning(text, describe(error))


KEPT: Final = "kept for shadow verification"


class ShadowedVariant(Variant):
    """A `Variant` of which *shadow* chooses some runs for comparison.

    The arguments and results of a chosen run are copied, and its receipt records the copies. The
    comparison runs in a thread of its own and changes no result.
    """

    def __init__(
        self,
        shadow: Shadow,
        compilation: Compilation,
        devices: Mapping[str, Device],
        config: PrepareConfig,
        allow_fallback: bool,
    ) -> None:
        super().__init__(compilation, devices, config, allow_fallback)
        self.shadow = self._shadow = shadow
        self._investigation = Investigation(
            compilation, devices, config.accuracy, shadow, super().run, stop := Stop()
        )
        name = f"penstock-shadow-{id(self):x}"
        self._worker = Worker(self._investigation.compare, self._lose, name, stop)

    def run(
        self,
        run: Run,
        inputs: Sequence[NDArray],
        out: Sequence[NDArray | None] | None = None,
        state: State | None = None,
    ) -> list[NDArray]:
        """As `Variant.run`."""
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
        """Ends the comparisons, then closes as `Variant` does."""
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

    def _lose(self, job: Job) -> None:
        self._shadow.count("failed")
        job.note.text = "shadow verification was stopped before its end"

    def _drop(self, note: Note) -> None:
        self._shadow.count("dropped")
        note.text = "shadow verification: not compared, for earlier runs still are"

    def _skip(self, note: Note, why: str) -> None:
        self._shadow.count("skipped")
        note.text = f"shadow verification: not compared, for {why}"


def shadowed(policy: Policy) -> Callable[..., ShadowedVariant]:
    """Makes variants that compare runs as *policy* says, and count them together."""
    return partial(ShadowedVariant, Shadow(policy.shadow))


def _devices_of(steps: Sequence[Any]) -> list[str]:
    names = []
    for step in steps:
        first: StepTrace = step
        names.append(first.prepared.device.name)
        names += _devices_of([inner.first for inner in first.inner])
    return names
