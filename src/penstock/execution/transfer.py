"""Executions that need more than lending: private memory, pools, strings, and shapes learned on the way."""

from __future__ import annotations

import time
from typing import Final

import numpy as np
from msgspec import Struct

from penstock.compilation.compilation import PreparedStep
from penstock.compilation.receipt import CopyReceipt
from penstock.errors import Cancelled, DriverError, GeneralFailure, OutputInsufficientSize
from penstock.execution.results import allocate, check_result, grown_sizes, is_sized, shaped
from penstock.hal import ExecutionConfig, ExecutionResult, HostMemory, Request
from penstock.ir import DType, NDArray, Operand
from penstock.ir.types import static_shape
from penstock.partitioning.plan import ExecutionStep

MAX_ATTEMPTS: Final = 8
"""How often a step may answer "too small" before the runtime stops believing it."""

FIRST_GUESS: Final = 4096
"""Bytes given to an output of unknown shape at the first attempt."""


class Ports(Struct, frozen=True):
    """The arguments of a step: the plan's operand that each one is, and how the step's model describes it."""

    step: int
    inputs: tuple[tuple[int, Operand], ...]
    outputs: tuple[tuple[int, Operand], ...]


def ports_of(step: ExecutionStep) -> Ports:
    """The arguments of *step*, in order."""
    entry = step.model.entry
    return Ports(
        step.index,
        tuple(zip(step.inputs, (entry.operands[i] for i in entry.inputs), strict=True)),
        tuple(zip(step.outputs, (entry.operands[i] for i in entry.outputs), strict=True)),
    )


def execute(
    ports: Ports,
    prepared: PreparedStep,
    values: dict[int, NDArray],
    config: ExecutionConfig,
    copies: list[CopyReceipt],
) -> ExecutionResult:
    """Executes once on any device: inputs are read from *values* (operand -> array), outputs put there.

    A device that does not share host memory reads and writes memory of its own, copied both ways; one that
    takes pools only likewise, in a pool. An output of unknown shape is tried with more memory until it
    fits (NNAPI sections 4.6 and 4.7). Arrays already in *values* for outputs of known shape are written in place, and
    only by an execution that succeeded where they are copied.
    """
    capabilities = prepared.device.capabilities
    in_pools = not capabilities.accepts_host_memory
    private = not capabilities.shares_host_memory and not in_pools
    copying = Copying(ports.step, prepared.device.name, copies)
    inputs = tuple(_input(i, o, values[i], copying if private else None) for i, o in ports.inputs)
    operands = tuple(operand for _, operand in ports.outputs)
    sizes = [FIRST_GUESS] * len(operands)
    for _ in range(MAX_ATTEMPTS):
        given = [
            _memory(i, o, size, values, private)
            for (i, o), size in zip(ports.outputs, sizes, strict=True)
        ]
        request = Request(inputs, tuple(map(HostMemory, given)))
        try:
            if in_pools:
                from penstock.execution.pools import execute_in_pools

                result = execute_in_pools(ports, prepared, request, config, copying)
            else:
                result = call_execute(prepared, request, config)
        except OutputInsufficientSize as error:
            sizes = grown_sizes(sizes, operands, error)
            continue
        check_result(result, operands, given)
        for place, (index, operand) in enumerate(ports.outputs):
            if not is_sized(operand):
                dimensions = tuple(result.output_shapes[place].dimensions)
                value = shaped(given[place], operand, dimensions)
                values[index] = copying.home(value, index) if private else value
            elif private:
                copying.copy(target(index, operand, values), given[place], index, out=True)
        return result
    raise GeneralFailure(f"device {prepared.device.name} said 'too small' {MAX_ATTEMPTS} times")


class Copying:
    """Copies at the boundary of one step, each with its receipt in *copies*."""

    def __init__(self, step: int, device: str, copies: list[CopyReceipt]) -> None:
        self._step, self._device, self._copies = step, device, copies
        self.reason = f"device {device} shares no host memory"

    def copy(self, destination: NDArray, source: NDArray, operand: int, *, out: bool) -> None:
        """Copies *source* over *destination*, from the device to the host (*out*) or the other way."""
        began = time.perf_counter_ns()
        np.copyto(destination, source)
        places = (self._device, "host") if out else ("host", self._device)
        self._copies.append(
            CopyReceipt(
                source.nbytes,
                *places,
                self.reason,
                self._step,
                operand,
                began,
                time.perf_counter_ns() - began,
            )
        )

    def home(self, value: NDArray, operand: int) -> NDArray:
        """*value*, which lies in the device's memory, in memory of its own. Strings are objects already."""
        if value.dtype.hasobject:
            return value
        kept = allocate(value.shape, value.dtype)
        self.copy(kept, value, operand, out=True)
        return kept

    def away(self, value: NDArray, operand: int) -> NDArray:
        """*value* in memory that only the device has."""
        lent_away = allocate(value.shape, value.dtype)
        self.copy(lent_away, value, operand, out=False)
        return lent_away


def target(index: int, operand: Operand, values: dict[int, NDArray]) -> NDArray:
    """The array of an output of known shape: the one in *values*, or a new one put there."""
    array = values.get(index)
    if array is None:
        array = values[index] = allocate(static_shape(operand.shape) or (), operand.dtype.numpy)
    return array


def lent(array: NDArray) -> NDArray:
    """*array* as a driver gets it to read: a view it cannot write through."""
    if not array.flags.writeable:
        return array
    view = array.view()
    view.setflags(write=False)
    return view


def call_execute(
    prepared: PreparedStep, request: Request, config: ExecutionConfig
) -> ExecutionResult:
    """`execute` with its contract enforced: whatever else a driver raises is a `GeneralFailure`."""
    try:
        return prepared.prepared.execute(request, config)
    except (DriverError, Cancelled):
        raise
    except Exception as error:
        raise GeneralFailure(
            f"device {prepared.device.name} failed in execute: {error!r}"
        ) from error


def _input(index: int, operand: Operand, value: NDArray, copying: Copying | None) -> HostMemory:
    if operand.dtype is DType.STRING:
        from penstock.ir.builder import pack_strings

        return HostMemory(np.frombuffer(pack_strings(value), np.uint8), value.shape)
    return HostMemory(lent(value if copying is None else copying.away(value, index)))


def _memory(
    index: int, operand: Operand, size: int, values: dict[int, NDArray], private: bool
) -> NDArray:
    """Where the driver writes an output."""
    if not is_sized(operand):
        return allocate((size,), np.dtype(np.uint8))
    if private:
        return allocate(static_shape(operand.shape) or (), operand.dtype.numpy)
    return target(index, operand, values)
