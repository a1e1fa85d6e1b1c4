"""From a departing run to the faulty operation, and the verdict on the driver's version."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from penstock import knobs
from penstock.cache.ingredients import driver_verdict_key
from penstock.cache.verdicts import FAULTS, DriverVerdict, DriverVerdicts, Fault
from penstock.distribution import FALLBACK_DEVICE
from penstock.errors import CacheError, DriverError
from penstock.execution.inputs import same
from penstock.execution.run import Run
from penstock.execution.transfer import transfer
from penstock.hal import AccuracyClass, CancelToken, Device, ExecutionConfig
from penstock.ir.digest import form_of
from penstock.logs import Log
from penstock.partitioning.plan import ports_of
from penstock.partitioning.policy import Policy
from penstock.runtime.comparison import AMPLIFIED, Departure, Search
from penstock.runtime.distance import Distance, distances_of
from penstock.runtime.session import compile_alone

if TYPE_CHECKING:
    from penstock.compilation.prepared import Compilation, PreparedStep
    from penstock.execution.compiled import CompiledModel
    from penstock.execution.shadow import Shadow
    from penstock.execution.state import State
    from penstock.ir import Model, NDArray

log = Log(__name__)

TRIES: Final = 8
"""Runs of a part whose results may vary from run to run."""

GROWTH: Final = 2.0
"""Factor over the known rounding error at which departing outputs are investigated again."""


MOST_UNEXPLAINED: Final = 8
"""Unexplained, unrepeatable departures after which a compiled form is no longer investigated."""


class Note:
    """The receipt's remark on one run's comparison, with the state at the time of reading."""

    __slots__ = ("text",)

    def __init__(self) -> None:
        self.text = "shadow verification: not compared with the reference yet"

    def __str__(self) -> str:
        return self.text


class Job(Struct, frozen=True):
    """One run to compare: arguments and results, state before and after, the devices *used*."""

    inputs: Sequence[NDArray]
    before: State | None
    outputs: Sequence[NDArray]
    after: State | None
    used: frozenset[str]
    note: Note


class Investigation:
    """Compares runs of one *compilation* with the reference, by the rule of the class *accuracy*.

    *run* executes the compilation. The investigation is *done* once it has found a fault, or too
    many departures that it could not explain. *stop* ends it with `Cancelled`. Used by one thread
    at a time.
    """

    def __init__(
        self,
        compilation: Compilation,
        devices: Mapping[str, Device],
        accuracy: AccuracyClass,
        shadow: Shadow,
        run: Callable[..., list[NDArray]],
        stop: CancelToken,
    ) -> None:
        self._compilation, self._devices, self._accuracy = compilation, devices, accuracy
        self._shadow, self._run = shadow, run
        self._model: Model = compilation.plan.model
        self._judge: CompiledModel | None = None
        self._rounding: dict[int, float] = {}
        self._unexplained = 0
        self._stop = stop
        self.done = False

    def close(self) -> None:
        """Closes the reference's form of the model."""
        if self._judge is not None:
            self._judge.close()

    def compare(self, job: Job) -> None:
        """Compares the run, writes the outcome to its note. Raises the reference's errors."""
        apart = [
            found
            for found in self._distances(job, *self._expected(job))
            # An error that does not exceed the known rounding error is none; NaN exceeds it.
            if found.departs
            and (found.problem or not _size(found) <= GROWTH * self._rounding.get(found.output, 0))
        ]
        if not apart:
            self._shadow.count("compared")
            job.note.text = "shadow verification: agrees with the reference"
            return
        worst = max(apart, key=lambda d: (bool(d.problem), d.severity))
        fault = self._look_into(job, worst, apart)
        self._shadow.count("compared", *(("departed",) if fault else ()))

    def _look_into(self, job: Job, found: Distance, apart: Sequence[Distance]) -> bool:
        """Searches for the faulty operation; returns whether the error is more than rounding."""
        again = self._again(job)
        repeats = again is not None and all(map(same, again, job.outputs))
        departure = self._culprit(job, tries=1 if repeats else TRIES)
        if departure is None:
            if repeats and not found.problem:
                for each in apart:
                    self._rounding[each.output] = _size(each)
                why = "the roundings of many operations, each within its class"
                job.note.text = f"shadow verification: {found.show()}: {why}"
                return False
            self._unexplained += 1
            self.done = self._unexplained >= MOST_UNEXPLAINED
            what = "departs from the reference, and no operation by itself does"
            job.note.text = f"shadow verification: {what}: {found.show()}"
            log.warning("%s (devices: %s)", job.note.text, ", ".join(sorted(job.used)))
            return True
        self.done = True
        verdict = self._keep(departure, _fault(departure, repeats=repeats))
        job.note.text = f"{verdict.show()} (on {verdict.device})"
        self._keep_evidence(departure, self._devices[departure.device])
        return True

    def _expected(self, job: Job) -> tuple[Sequence[NDArray], State | None]:
        """The reference's results for the job: outputs, and the state afterwards."""
        if self._judge is None:
            policy = Policy(accuracy="exact", allow_fallback=False)
            with knobs.override(driver_verdicts=False, keep_failures=False):
                self._judge = compile_alone(self._model, FALLBACK_DEVICE, policy)
        state = None if job.before is None else job.before.copied()
        return list(self._judge.run(list(job.inputs), state=state, cancel=self._stop)), state

    def _distances(
        self, job: Job, expected: Sequence[NDArray], after: State | None
    ) -> list[Distance]:
        entry = self._model.entry
        given = dict(zip(entry.ordinary_inputs, job.inputs, strict=True))
        got = dict(zip(entry.ordinary_outputs, job.outputs, strict=True))
        want = dict(zip(entry.ordinary_outputs, expected, strict=True))
        for port in entry.states:
            if port.input is not None and job.before is not None:
                given[port.input] = job.before.get(port.variable)
            if port.output is not None and job.after is not None and after is not None:
                got[port.output] = job.after.get(port.variable)
                want[port.output] = after.get(port.variable)
        return distances_of(
            self._model,
            [given[i] for i in entry.inputs],
            [got[i] for i in entry.outputs],
            [want[i] for i in entry.outputs],
            self._accuracy,
        )

    def _again(self, job: Job) -> list[NDArray] | None:
        """The results of a repeated run; None if it failed."""
        state = None if job.before is None else job.before.copied()
        self._stop.check()
        try:
            config = ExecutionConfig(cancel=self._stop)
            return self._run(Run(config), job.inputs, None, state)
        except DriverError:
            return None

    def _culprit(self, job: Job, tries: int) -> Departure | None:
        """The operation whose results depart, or the shortest sequence that departs together."""
        first: Search | None = None
        for name in sorted(job.used):
            operations = self._compilation.plan.operations
            only = frozenset(p.index for p in operations if p.device == name)
            limits = None, lambda _: self._stop.check(), only
            search = Search(self._model, self._devices[name], self._accuracy, *limits)
            if first is None:
                state = None if job.before is None else job.before.copied()
                search.record(list(job.inputs), self._devices[FALLBACK_DEVICE], state)
                first = search
            else:
                search.cases, search.values = first.cases, first.values
            for look in (search.first, search.together):
                for _ in range(tries):
                    # An error that the device raises is no wrong result.
                    if (found := look()) is not None and found.distance is not None:
                        return found
            if (found := self._as_compiled(search, name)) is not None:
                return found
        return None

    def _as_compiled(self, search: Search, name: str) -> Departure | None:
        for step in self._compilation.steps:
            if step.device.name != name or step.branches or step.pending is not None:
                continue
            for _ in range(TRIES):
                self._stop.check()
                if (found := _step_departs(search, step)) is not None:
                    return found
        return None

    def _keep(self, departure: Departure, fault: Fault) -> DriverVerdict:
        """Makes, stores (if possible), logs and counts the verdict on *departure*."""
        operations = [self._model.operations[i] for i in departure.operations]
        forms = tuple(dict.fromkeys(form_of(self._model, o) for o in operations))
        device = self._devices[departure.device]
        reason = departure.error if departure.distance is None else departure.distance.show()
        verdict = DriverVerdict(
            key=driver_verdict_key(device.name, device.version, forms),
            device=device.name,
            version=device.version,
            forms=forms,
            types=tuple(o.key for o in operations),
            fault=fault,
            accuracy=self._accuracy,
            reason=reason,
            # Read from `sys.modules`: an import would be circular.
            penstock=sys.modules["penstock"].__version__,
        )
        self._shadow.add(verdict)
        text = "device %s %s in %s (%r): %s; the next compile refuses it there, on version %s"
        place = departure.type, departure.name
        log.warning(text, verdict.device, FAULTS[fault], *place, reason, verdict.version)
        try:
            DriverVerdicts().save(verdict)
        except CacheError as error:
            log.warning("the verdict is not kept: %s", error)
        return verdict

    def _keep_evidence(self, departure: Departure, device: Device) -> None:
        from penstock.capsules.evidence import keep_capsule
        from penstock.runtime.reproducing import capsule_of

        self._stop.check()
        if knobs.keep_failures():
            plan = self._compilation.plan
            keep_capsule(capsule_of(self._model, departure, device, self._accuracy, plan=plan))


def _fault(departure: Departure, *, repeats: bool) -> Fault:
    distance = departure.distance
    if distance is not None and distance.not_finite:
        return "not_finite"
    return "wrong" if repeats else "not_repeatable"


def _size(found: Distance) -> float:
    """The error in multiples of the limit, or the error itself if the limit is 0. Always finite."""
    return found.value / found.limit if found.limit else found.value


def _step_departs(search: Search, prepared: PreparedStep) -> Departure | None:
    step: Any = prepared.step
    values = {i: search.values[i] for i in step.inputs}
    try:
        transfer(ports_of(step), prepared, Run(ExecutionConfig(), values=values))
    except DriverError:
        return None
    results = {i: values[i] for i in step.outputs}
    worst = search.worst(step.outputs, results)
    if worst.severity <= max(GROWTH, len(step.operations)):
        return None
    # An error that a newly compiled form has too is rounding, which the search has examined.
    if worst.severity <= AMPLIFIED * search.severity(step.operations):
        return None
    case = search.case_of(step.operations, step.model, step.inputs, step.outputs)
    return search.departure(step.operations, case, worst)
