"""Handing host arrays to a device that takes pools only: one pool a request, copies both ways."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.compilation.compilation import PreparedStep
from penstock.execution.transfer import Copying, Ports, call_execute
from penstock.hal import (
    ExecutionConfig,
    ExecutionResult,
    HostMemory,
    PoolArgument,
    Request,
    RequestArgument,
)
from penstock.ir import DataLocation, NDArray
from penstock.memory import MemoryPool


def execute_in_pools(
    ports: Ports,
    prepared: PreparedStep,
    request: Request,
    config: ExecutionConfig,
    copying: Copying,
) -> ExecutionResult:
    """Executes *request* with its `HostMemory` arguments in one anonymous pool.

    Inputs are copied in and, after a success, outputs out.
    """
    copying.reason = f"device {prepared.device.name} takes pools only"
    arrays = [a.array for a in (*request.inputs, *request.outputs) if isinstance(a, HostMemory)]
    offsets, size = _lay_out(arrays, prepared.device.capabilities.alignment)
    number = len(request.pools)
    with MemoryPool.anonymous(max(size, 1)) as pool:
        content = pool.view(np.uint8, (max(size, 1),))
        places = iter(offsets)
        inputs: list[RequestArgument] = []
        for argument, (operand, _) in zip(request.inputs, ports.inputs, strict=True):
            if not isinstance(argument, HostMemory):
                inputs.append(argument)
                continue
            at, array = next(places), argument.array
            copying.copy(content[at : at + array.nbytes], _bytes(array), operand, out=False)
            shape = argument.dimensions if argument.dimensions is not None else array.shape
            inputs.append(PoolArgument(DataLocation(number, at, array.nbytes), shape))
        outputs: list[RequestArgument] = []
        targets: list[tuple[NDArray, int, int]] = []
        for argument, (operand, _) in zip(request.outputs, ports.outputs, strict=True):
            if not isinstance(argument, HostMemory):
                outputs.append(argument)
                continue
            at = next(places)
            targets.append((argument.array, at, operand))
            outputs.append(PoolArgument(DataLocation(number, at, argument.array.nbytes)))
        pooled = Request(tuple(inputs), tuple(outputs), (*request.pools, pool.memory))
        result = call_execute(prepared, pooled, config)
        for array, at, operand in targets:
            copying.copy(_bytes(array), content[at : at + array.nbytes], operand, out=True)
        del content
        return result


def _bytes(array: NDArray) -> NDArray:
    """A C-contiguous array as the bytes it is made of."""
    return array.reshape(-1).view(np.uint8)


def _lay_out(arrays: Sequence[NDArray], alignment: int) -> tuple[list[int], int]:
    offsets, size = [], 0
    for array in arrays:
        size += -size % alignment
        offsets.append(size)
        size += array.nbytes
    return offsets, size
