"""Fallback during a run, after a step failed (NNAPI section 4.6)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from time import perf_counter_ns
from typing import Final

from msgspec.structs import replace

from penstock.capsules.evidence import StepFailure, keep_soon, noted
from penstock.compilation.calls import call_driver, receipt_of
from penstock.compilation.failing import in_model
from penstock.compilation.prepared import PreparedStep
from penstock.compilation.recovery import NOT_CACHED, fallback_devices, first_success, recover
from penstock.compilation.step_receipt import Failure, Span
from penstock.errors import DriverError
from penstock.execution.adapters import scheduled
from penstock.execution.priority import QUEUES, DeviceQueue
from penstock.execution.run import Alternatives, Run, StepTrace, note_copies, note_lost
from penstock.execution.transfer import transfer
from penstock.hal import Device
from penstock.logs import Log
from penstock.memory.copies import CopyReceipt
from penstock.partitioning.plan import WHOLE, ExecutionPlan, ExecutionStep, ports_of

log = Log(__name__)

KEPT: Final = "kept for a capsule of the failure"


class Recovery:
    """Runs *step*, or a whole model as one, on fallback devices. Thread-safe."""

    def __init__(self, step: ExecutionStep, alternatives: Alternatives) -> None:
        self._step, self._ports = step, ports_of(step)
        self._devices, self._config = alternatives.devices, alternatives.config
        self._allowed = alternatives.allowed
        self._plan: ExecutionPlan | None = alternatives.plan
        self._found: tuple[tuple[Device, ExecutionStep], ...] | None = None
        self._prepared: dict[str, PreparedStep] = {}
        # Keeps each device's queue alive while this object may run on the device.
        self._lanes: dict[str, DeviceQueue] = {}
        self._lock = threading.Lock()
        self._warned = False

    def recover(self, run: Run, failed: PreparedStep, error: DriverError, began: int) -> None:
        """Runs the step on a fallback device, after *failed* raised *error*.

        Raises *error*, with the message of `final_error`, if no fallback device can run the step;
        `run.failures` then lists every failure. `MissedDeadline*` and `Cancelled` propagate.
        """
        note_lost(failed, error, run)
        failures: list[Failure] = []
        plan, self._plan = self._plan, None
        evidence = () if plan is None else self._noted(run, failed, error)
        attempt = partial(self._execute, run=run, began=began, failures=failures)
        bound, ports = run.bound or {}, (*self._ports.inputs, *self._ports.outputs)
        # Device memory that the step reads or writes may be lost with its device.
        lost = any(i in bound and bound[i].gone() is not None for i, _ in ports)
        limits = {"allowed": self._allowed, "lost": lost}
        step, device, others = self._step, failed.device.name, self._fallbacks()
        try:
            recover(step, error, device, others, attempt, failures, self._warn, **limits)
        except BaseException:
            run.failures = tuple(failures)
            raise
        finally:
            for failure in evidence:
                if plan is not None:
                    keep_soon(failure, plan, run.receipt().to_json, self._config.accuracy)

    def repeat(self, run: Run, began: int, only: str | None = None) -> bool:
        """Runs the step on a fallback device, or on *only* that one; returns whether it succeeded.

        Values are read from those of *run*, and put there. If no device succeeded, `run.failures`
        lists every failure.
        """
        if not self._allowed:
            return False
        failures = [*run.failures]
        others = ((d, step) for d, step in self._fallbacks() if only in {None, d.name})
        attempt = partial(self._execute, run=run, began=began, failures=failures)
        done = first_success(others, attempt, failures, self._warn)
        run.failures = () if done else tuple(failures)
        return done is not None

    def close(self) -> None:
        """Closes the models prepared on fallback devices."""
        for prepared in self._prepared.values():
            prepared.close()

    def _fallbacks(self) -> Iterator[tuple[Device, ExecutionStep]]:
        with self._lock:
            if self._found is None:
                found = fallback_devices(self._step, self._devices, self._config.accuracy)
                self._found = tuple(found)
        return iter(self._found)

    def _execute(
        self, device: Device, step: ExecutionStep, run: Run, began: int, failures: list[Failure]
    ) -> bool:
        """Runs *step* on *device* and records it in *run*. Raises the driver's `DriverError`."""
        prepared = self._prepare(device, step, run)
        try:
            result = transfer(self._ports, prepared, run)
        except DriverError as error:
            note_lost(prepared, error, run)
            raise
        ended = perf_counter_ns()
        note_copies(prepared, result, run)
        run.steps.append(StepTrace(prepared, began, ended, result, tuple(failures)))
        return True

    def _prepare(self, device: Device, step: ExecutionStep, run: Run) -> PreparedStep:
        """The step compiled for *device*, by the first run that needs it, within its deadline."""
        config = run.config
        with self._lock:
            lane = self._lanes.setdefault(device.name, QUEUES.of(device))
            prepared = self._prepared.get(device.name)
            if prepared is None:
                began = perf_counter_ns()
                own = replace(self._config, deadline_ns=config.deadline_ns, cancel=config.cancel)
                run.compiles += 1
                made = call_driver(device, step, own)
                receipt = receipt_of(step, device, began, NOT_CACHED)
                spent = receipt.wall_ns
                run.spans += (Span("compile", "fallback", device.name, began, spent),)
                prepared = PreparedStep(step, device, made, receipt)
                lane.expect(own.priority)
            lane.expect(config.priority)
            if lane.queues_runs:
                prepared = scheduled(prepared)
            self._prepared[device.name] = prepared
            return prepared

    def _warn(self, failure: Failure, device: Device) -> None:
        """Logs the first fallback of this step; later ones are recorded in the receipts alone."""
        if not self._warned:
            self._warned = True
            what = "the whole model" if self._step.index == WHOLE else f"step {self._step.index}"
            text = "%s: %s failed to run it, falling back to %s: %s"
            log.warning(text, what, failure.device, device.name, failure.error)

    def _noted(self, run: Run, failed: PreparedStep, error: DriverError) -> tuple[StepFailure, ...]:
        """The error and copies of the step's inputs, each in the receipt, for a capsule."""
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
