"""What happens to a step that failed in a run (NNAPI section 4.6), and to a plan that nothing else can save.

A step is repeated on the devices that its plan names, then the whole model on the reference device. Missed
deadlines and cancelled runs are never repeated.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from penstock.compilation.calls import call_driver, describe, is_simulated
from penstock.compilation.compilation import PreparedStep
from penstock.compilation.receipt import Failure, Span, StepReceipt
from penstock.compilation.repeating import NOT_CACHED, able_devices
from penstock.errors import Cancelled, DriverError, MissedDeadline
from penstock.execution.carried import note_carried, note_lost
from penstock.execution.lanes import Lane, lane_of
from penstock.execution.trace import StepTrace, Trace
from penstock.execution.transfer import Ports, execute, ports_of
from penstock.hal import Device, ExecutionConfig, PrepareConfig
from penstock.ir import NDArray
from penstock.logs import Log
from penstock.partitioning.fallback import WHOLE, whole_step
from penstock.partitioning.plan import ExecutionPlan, ExecutionStep

if TYPE_CHECKING:
    from penstock.memory.bound import BoundMemory

log = Log(__name__)


class Fallbacks:
    """The devices that may repeat one step, each prepared when it is first needed."""

    def __init__(
        self,
        step: ExecutionStep,
        ports: Ports,
        devices: Mapping[str, Device],
        config: PrepareConfig,
    ) -> None:
        self._step, self._ports, self._devices, self._config = step, ports, devices, config
        self._able: list[tuple[Device, ExecutionStep]] | None = None
        self._prepared: dict[str, PreparedStep] = {}
        self._lanes: dict[str, Lane] = {}
        self._lock = threading.Lock()
        self._told = False

    def repeat(
        self,
        values: dict[int, NDArray],
        config: ExecutionConfig,
        trace: Trace,
        began: int,
        only: str | None = None,
        bound: Mapping[int, BoundMemory] | None = None,
    ) -> bool:
        """Whether one of the devices, or the one named *only*, ran the step; each failure is added to *trace*."""
        for device, step in self._devices_asked():
            if only is not None and device.name != only:
                continue
            self._tell(trace.failures[-1], device)
            try:
                prepared = self._prepare(device, step, config, trace)
                result = execute(self._ports, prepared, values, config, trace.copies, bound)
            except (MissedDeadline, Cancelled):
                raise
            except DriverError as error:
                from penstock.compilation.failing import in_model

                trace.failures += (Failure(device.name, in_model(step, describe(error))),)
                if device.name in self._prepared:
                    note_lost(self._prepared[device.name], error, trace)
                continue
            failures, trace.failures = trace.failures, ()
            ended = time.perf_counter_ns()
            note_carried(prepared, result, trace)
            trace.steps.append(StepTrace(prepared, began, ended, result, failures))
            return True
        return False

    def close(self) -> None:
        """Closes what was prepared."""
        for prepared in self._prepared.values():
            prepared.close()

    def _devices_asked(self) -> list[tuple[Device, ExecutionStep]]:
        with self._lock:
            if self._able is None:
                self._able = list(able_devices(self._step, self._devices, self._config.accuracy))
            return self._able

    def _prepare(
        self, device: Device, step: ExecutionStep, config: ExecutionConfig, trace: Trace
    ) -> PreparedStep:
        with self._lock:
            if device.name not in self._prepared:
                began = time.perf_counter_ns()
                own = replace(self._config, deadline_ns=config.deadline_ns, cancel=config.cancel)
                trace.compiles += 1
                made = call_driver(device, step, own)
                spent = time.perf_counter_ns() - began
                trace.spans += (Span("compile", "fall-back", device.name, began, spent),)
                receipt = StepReceipt(
                    device.name,
                    step.operations,
                    spent,
                    cache=NOT_CACHED,
                    simulated=is_simulated(device),
                )
                self._prepared[device.name] = PreparedStep(step, device, made, receipt)
                lane = self._lanes[device.name] = lane_of(device)
                lane.expect(own.priority)
            lane = self._lanes[device.name]
            lane.expect(config.priority)
            if lane.takes_turns:
                from penstock.execution.scheduler import scheduled

                self._prepared[device.name] = scheduled(self._prepared[device.name])
            return self._prepared[device.name]

    def _tell(self, failure: Failure, device: Device) -> None:
        """Logs the first fall-back; the receipts have the others."""
        if not self._told:
            self._told = True
            what = "the whole model" if self._step.index == WHOLE else f"step {self._step.index}"
            text = "%s: %s failed to run it, falling back to %s: %s"
            log.warning(text, what, failure.device, device.name, failure.error)


class WholeModel:
    """The whole model on the reference device, for a run of a plan that failed at a step nothing could repeat."""

    def __init__(
        self, plan: ExecutionPlan, devices: Mapping[str, Device], config: PrepareConfig
    ) -> None:
        step = whole_step(plan.model)
        self._fallbacks = Fallbacks(step, ports_of(step), devices, config)

    def repeat(
        self,
        values: dict[int, NDArray],
        config: ExecutionConfig,
        trace: Trace,
        bound: Mapping[int, BoundMemory] | None = None,
    ) -> bool:
        """Whether it ran: inputs and state are read from *values*, outputs put there, as they were at first; those
        that are *bound* there.
        """
        began = time.perf_counter_ns()
        return self._fallbacks.repeat(values, config, trace, began, bound=bound)

    def close(self) -> None:
        """Closes what was prepared."""
        self._fallbacks.close()
