"""What happens to a step that failed in a run (NNAPI section 4.6).

Another device that its plan names repeats it, or else the reference device runs the whole model. A
failure that is the first of its step is kept for a capsule.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from time import perf_counter_ns
from typing import Final

from msgspec.structs import replace

from penstock.capsules.evidence import StepFailure, keep_soon, noted
from penstock.compilation.calls import call_driver, is_simulated
from penstock.compilation.failing import in_model
from penstock.compilation.prepared import PreparedStep
from penstock.compilation.recovery import NOT_CACHED, able_devices, first_able, recover
from penstock.compilation.step_receipt import Failure, Span, StepReceipt
from penstock.errors import DriverError
from penstock.execution.adapters import scheduled
from penstock.execution.priority import DeviceQueue, queue_of
from penstock.execution.run import Run, StepTrace, note_lost, note_remote
from penstock.execution.transfer import transfer
from penstock.hal import Device, PrepareConfig
from penstock.logs import Log
from penstock.memory.copies import CopyReceipt
from penstock.partitioning.fallback import WHOLE, whole_step
from penstock.partitioning.plan import ExecutionPlan, ExecutionStep, Ports, ports_of

log = Log(__name__)

KEPT: Final = "kept for a capsule of the failure"


class Recovery:
    """The devices that may repeat one step, each prepared when it is first needed. Safe from any
    thread.

    *devices* maps names to those there are; where a fall-back is not *allowed* none repeats it.
    With the *plan* that the step is of, its first failure is kept.
    """

    def __init__(
        self,
        step: ExecutionStep,
        ports: Ports,
        devices: Mapping[str, Device],
        config: PrepareConfig,
        *,
        allowed: bool = True,
        plan: ExecutionPlan | None = None,
    ) -> None:
        self._step, self._ports, self._devices, self._config = step, ports, devices, config
        self._allowed = allowed
        self._plan = plan
        self._able: tuple[tuple[Device, ExecutionStep], ...] | None = None
        self._prepared: dict[str, PreparedStep] = {}
        # A lane lives as long as somebody has it.
        self._lanes: dict[str, DeviceQueue] = {}
        self._lock = threading.Lock()
        self._told = False

    def recover(self, run: Run, failed: PreparedStep, error: DriverError, began: int) -> None:
        """Repeats the step, at which *failed* has failed with *error*, elsewhere.

        Raises *error* in the words of the caller's model where nothing can, with every failure in
        `run.failures`; `MissedDeadline*` and `Cancelled`.
        """
        note_lost(failed, error, run)
        failures: list[Failure] = []
        plan, self._plan = self._plan, None
        evidence = () if plan is None else self._noted(run, failed, error)
        try:
            recover(
                self._step,
                error,
                failed.device.name,
                self._others(),
                lambda device, step: self._execute(device, step, run, began, failures),
                failures,
                self._tell,
                allowed=self._allowed,
                lost=self._has_lost(run),
            )
        except BaseException:
            run.failures = tuple(failures)
            raise
        finally:
            for failure in evidence:
                if plan is not None:
                    keep_soon(failure, plan, run.receipt().to_json, self._config.accuracy)

    def repeat(self, run: Run, began: int, only: str | None = None) -> bool:
        """Whether another device, or *only*, ran it; `run.failures` has every failure."""
        if not self._allowed:
            return False
        failures = [*run.failures]
        others = ((d, step) for d, step in self._others() if only in {None, d.name})
        done = first_able(
            others,
            lambda device, step: self._execute(device, step, run, began, failures),
            failures,
            self._tell,
        )
        run.failures = () if done else tuple(failures)
        return done is not None

    def close(self) -> None:
        """Closes what was prepared."""
        for prepared in self._prepared.values():
            prepared.close()

    def _others(self) -> Iterator[tuple[Device, ExecutionStep]]:
        with self._lock:
            if self._able is None:
                self._able = tuple(able_devices(self._step, self._devices, self._config.accuracy))
        return iter(self._able)

    def _execute(
        self, device: Device, step: ExecutionStep, run: Run, began: int, failures: list[Failure]
    ) -> bool:
        prepared = self._prepare(device, step, run)
        try:
            result = transfer(self._ports, prepared, run)
        except DriverError as error:
            note_lost(prepared, error, run)
            raise
        ended = perf_counter_ns()
        note_remote(prepared, result, run)
        run.steps.append(StepTrace(prepared, began, ended, result, tuple(failures)))
        return True

    def _prepare(self, device: Device, step: ExecutionStep, run: Run) -> PreparedStep:
        config = run.config
        with self._lock:
            lane = self._lanes.setdefault(device.name, queue_of(device))
            prepared = self._prepared.get(device.name)
            if prepared is None:
                began = perf_counter_ns()
                own = replace(self._config, deadline_ns=config.deadline_ns, cancel=config.cancel)
                run.compiles += 1
                made = call_driver(device, step, own)
                spent = perf_counter_ns() - began
                run.spans += (Span("compile", "fall-back", device.name, began, spent),)
                receipt = StepReceipt(
                    device.name,
                    step.operations,
                    spent,
                    cache=NOT_CACHED,
                    simulated=is_simulated(device),
                )
                prepared = PreparedStep(step, device, made, receipt)
                lane.expect(own.priority)
            lane.expect(config.priority)
            if lane.takes_turns:
                prepared = scheduled(prepared)
            self._prepared[device.name] = prepared
            return prepared

    def _tell(self, failure: Failure, device: Device) -> None:
        """Logs the first fall-back; the receipts have the others."""
        if not self._told:
            self._told = True
            what = "the whole model" if self._step.index == WHOLE else f"step {self._step.index}"
            text = "%s: %s failed to run it, falling back to %s: %s"
            log.warning(text, what, failure.device, device.name, failure.error)

    def _has_lost(self, run: Run) -> bool:
        """Whether memory that the step reads or writes ended with the device that had it."""
        bound = run.bound or {}
        used = (i for i, _ in (*self._ports.inputs, *self._ports.outputs) if i in bound)
        return any(bound[i].gone() is not None for i in used)

    def _noted(self, run: Run, failed: PreparedStep, error: DriverError) -> tuple[StepFailure, ...]:
        """What is to be kept of the failure; the copies are in the receipt."""
        began = perf_counter_ns()
        words = in_model(self._step, error)
        found = noted("execute", self._step, failed.device, words, run.values)
        spent = perf_counter_ns() - began
        for failure in found:
            for operand, array in zip(self._step.inputs, failure.inputs or (), strict=False):
                route, at = ("host", "capsule"), self._step.index
                run.copies.append(
                    CopyReceipt(array.nbytes, *route, KEPT, at, operand, began, spent)
                )
        return found


class WholeModel:
    """The whole of *plan* on the reference device, for a run whose failed step has no fallback."""

    def __init__(
        self, plan: ExecutionPlan, devices: Mapping[str, Device], config: PrepareConfig
    ) -> None:
        step = whole_step(plan.model)
        self._recovery = Recovery(step, ports_of(step), devices, config)

    def repeat(self, run: Run) -> bool:
        """Whether it ran: inputs and state are read from the values of *run*, outputs put there."""
        return self._recovery.repeat(run, perf_counter_ns())

    def close(self) -> None:
        """Closes what was prepared."""
        self._recovery.close()
