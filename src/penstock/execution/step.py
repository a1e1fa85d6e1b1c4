"""One step of a run: bind its arguments, execute, learn shapes, fall back."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Final

import numpy as np
from msgspec import Struct, field

from penstock.compilation.calls import call_driver, describe
from penstock.compilation.compilation import FALLBACK_DEVICE, PreparedStep, supports_all
from penstock.compilation.receipt import CopyReceipt
from penstock.errors import (
    Cancelled,
    DriverError,
    GeneralFailure,
    MissedDeadline,
    OutputInsufficientSize,
)
from penstock.execution.pools import execute_in_pools
from penstock.execution.results import allocate, check_result, grown_sizes, is_sized, shaped
from penstock.hal import (
    Device,
    ExecutionConfig,
    ExecutionResult,
    HostMemory,
    PrepareConfig,
    PreparedModel,
    Request,
)
from penstock.ir import DType, NDArray, Operand
from penstock.ir.builder import pack_strings
from penstock.ir.types import static_shape

MAX_ATTEMPTS: Final = 8
"""How often a step may answer "too small" before the runtime stops believing it."""

FIRST_GUESS: Final = 4096
"""Bytes given to an output of unknown shape at the first attempt."""


class Trace(Struct):
    """What one run has done so far; becomes its receipt."""

    steps: list[tuple[PreparedStep, int, int | None, str | None, str | None]] = field(
        default_factory=list
    )
    copies: list[CopyReceipt] = field(default_factory=list)
    compiles: int = 0


class StepRunner:
    """Runs one prepared step, any number of times, from any thread."""

    def __init__(
        self,
        prepared: PreparedStep,
        devices: Mapping[str, Device],
        config: PrepareConfig,
        fallback: bool,
    ) -> None:
        self.prepared = prepared
        step, entry = prepared.step, prepared.step.model.entry
        self._inputs = tuple(
            zip(step.inputs, (entry.operands[i] for i in entry.inputs), strict=True)
        )
        self._outputs = tuple(
            zip(step.outputs, (entry.operands[i] for i in entry.outputs), strict=True)
        )
        capabilities = prepared.device.capabilities
        self._pools_only = not capabilities.accepts_host_memory
        self._private = not capabilities.shares_host_memory
        self._operands = tuple(o for _, o in self._outputs)
        self._plain = (
            not self._pools_only and not self._private and all(map(is_sized, self._operands))
        )
        self._plain = self._plain and all(o.dtype is not DType.STRING for _, o in self._inputs)
        self._fallback_allowed = fallback
        self._devices, self._config = devices, config
        self._fallback: PreparedStep | None = None
        self._lock = threading.Lock()

    def run(self, values: dict[int, NDArray], config: ExecutionConfig, trace: Trace) -> None:
        """Reads its inputs from *values* (operand index -> array) and puts its outputs there.

        Arrays already there for outputs are written in place; others are made here.
        """
        began = time.perf_counter_ns()
        try:
            result = self._execute(self.prepared, values, config, trace)
        except (MissedDeadline, Cancelled):
            raise
        except DriverError as error:
            if not self._run_fallback(values, config, trace, describe(error), began):
                raise
            return
        trace.steps.append(
            (self.prepared, time.perf_counter_ns() - began, result.timing.in_driver_ns, None, None)
        )

    def close(self) -> None:
        """Closes the fall-back, if there is one."""
        if self._fallback is not None:
            self._fallback.prepared.close()

    def _execute(
        self,
        prepared: PreparedStep,
        values: dict[int, NDArray],
        config: ExecutionConfig,
        trace: Trace,
    ) -> ExecutionResult:
        if self._plain:
            targets = [self._target(i, o, values) for i, o in self._outputs]
            request = Request(
                tuple([HostMemory(lent(values[i])) for i, _ in self._inputs]),
                tuple([HostMemory(t) for t in targets]),
            )
            result = call_execute(prepared, request, config)
            if type(result) is not ExecutionResult or result.output_shapes:
                check_result(result, self._operands, targets)
            return result
        return self._execute_general(prepared, values, config, trace)

    @staticmethod
    def _target(index: int, operand: Operand, values: dict[int, NDArray]) -> NDArray:
        array = values.get(index)
        if array is None:
            array = values[index] = allocate(static_shape(operand.shape) or (), operand.dtype.numpy)
        return array

    def _execute_general(
        self,
        prepared: PreparedStep,
        values: dict[int, NDArray],
        config: ExecutionConfig,
        trace: Trace,
    ) -> ExecutionResult:
        capabilities = prepared.device.capabilities
        inputs = [
            self._input(i, o, values, capabilities.shares_host_memory, trace)
            for i, o in self._inputs
        ]
        sizes = [FIRST_GUESS] * len(self._outputs)
        for _ in range(MAX_ATTEMPTS):
            targets = [
                self._target(i, o, values)
                if is_sized(o)
                else allocate((sizes[k],), np.dtype(np.uint8))
                for k, (i, o) in enumerate(self._outputs)
            ]
            request = Request(tuple(inputs), tuple(map(HostMemory, targets)))
            try:
                if capabilities.accepts_host_memory:
                    result = call_execute(prepared, request, config)
                else:
                    result = execute_in_pools(prepared, request, config, trace.copies)
            except OutputInsufficientSize as error:
                sizes = grown_sizes(sizes, self._operands, error)
                continue
            check_result(result, self._operands, targets)
            for k, (index, operand) in enumerate(self._outputs):
                if not is_sized(operand):
                    dimensions = tuple(result.output_shapes[k].dimensions)
                    values[index] = shaped(targets[k], operand, dimensions)
            return result
        raise GeneralFailure(f"device {prepared.device.name} said 'too small' {MAX_ATTEMPTS} times")

    @staticmethod
    def _input(
        index: int, operand: Operand, values: dict[int, NDArray], shared: bool, trace: Trace
    ) -> HostMemory:
        array = values[index]
        if operand.dtype is DType.STRING:
            return HostMemory(np.frombuffer(pack_strings(array), np.uint8), array.shape)
        if not shared:
            trace.copies.append(
                CopyReceipt(array.nbytes, "host", "device", "the device shares no host memory")
            )
            array = array.copy()
        return HostMemory(lent(array))

    def _run_fallback(
        self,
        values: dict[int, NDArray],
        config: ExecutionConfig,
        trace: Trace,
        reason: str,
        began: int,
    ) -> bool:
        """Repeats on the fall-back what failed for *reason*; False where there is none."""
        prepared = self._prepare_fallback(trace)
        if prepared is None:
            return False
        result = self._execute_general(prepared, values, config, trace)
        trace.steps.append(
            (
                prepared,
                time.perf_counter_ns() - began,
                result.timing.in_driver_ns,
                self.prepared.device.name,
                reason,
            )
        )
        return True

    def _prepare_fallback(self, trace: Trace) -> PreparedStep | None:
        device = self._devices.get(FALLBACK_DEVICE)
        step = self.prepared.step
        allowed = self._fallback_allowed and FALLBACK_DEVICE in step.fallbacks
        if not allowed or device is None or device is self.prepared.device:
            return None
        with self._lock:
            if self._fallback is None:
                if not supports_all(device, step, self._config.accuracy):
                    return None
                prepared = call_driver(device, step, self._config)
                self._fallback = PreparedStep(step, device, prepared, self.prepared.receipt)
                trace.compiles += 1
            return self._fallback


def lent(array: NDArray) -> NDArray:
    """*array* as a driver gets it to read: a view it cannot write through."""
    if not array.flags.writeable:
        return array
    view = array.view()
    view.flags.writeable = False
    return view


def call_execute(
    prepared: PreparedStep, request: Request, config: ExecutionConfig
) -> ExecutionResult:
    """`execute` with its contract enforced: whatever else a driver raises is a `GeneralFailure`."""
    model: PreparedModel = prepared.prepared
    try:
        return model.execute(request, config)
    except (DriverError, Cancelled):
        raise
    except Exception as error:
        raise GeneralFailure(
            f"device {prepared.device.name} failed in execute: {error!r}"
        ) from error
