"""Handing host arrays to a device that takes pools only: one pool a request, copies both ways."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.compilation.compilation import PreparedStep
from penstock.compilation.receipt import CopyReceipt
from penstock.errors import Cancelled, DriverError, GeneralFailure
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
    prepared: PreparedStep, request: Request, config: ExecutionConfig, copies: list[CopyReceipt]
) -> ExecutionResult:
    """Executes *request*, whose arguments are `HostMemory`, through one anonymous pool.

    Inputs are copied in and outputs out; every copy is added to *copies*.
    """
    arrays = [a.array for a in (*request.inputs, *request.outputs) if isinstance(a, HostMemory)]
    offsets, size = _lay_out(arrays, prepared.device.capabilities.alignment)
    reason = f"device {prepared.device.name} takes pools only"
    with MemoryPool.anonymous(max(size, 1)) as pool:
        content = pool.view(np.uint8, (max(size, 1),))
        places = iter(offsets)
        inputs: list[RequestArgument] = []
        for argument in request.inputs:
            if not isinstance(argument, HostMemory):
                inputs.append(argument)
                continue
            at = next(places)
            content[at : at + argument.array.nbytes] = argument.array.reshape(-1).view(np.uint8)
            copies.append(CopyReceipt(argument.array.nbytes, "host", "pool", reason))
            shape = argument.dimensions if argument.dimensions is not None else argument.array.shape
            inputs.append(PoolArgument(DataLocation(0, at, argument.array.nbytes), shape))
        outputs: list[RequestArgument] = []
        targets: list[tuple[NDArray, int]] = []
        for argument in request.outputs:
            if not isinstance(argument, HostMemory):
                outputs.append(argument)
                continue
            at = next(places)
            targets.append((argument.array, at))
            outputs.append(PoolArgument(DataLocation(0, at, argument.array.nbytes)))
        pooled = Request(tuple(inputs), tuple(outputs), (pool.memory,))
        try:
            result = prepared.prepared.execute(pooled, config)
        except (DriverError, Cancelled):
            raise
        except Exception as error:
            raise GeneralFailure(
                f"device {prepared.device.name} failed in execute: {error!r}"
            ) from error
        for target, at in targets:
            target.reshape(-1).view(np.uint8)[:] = content[at : at + target.nbytes]
            copies.append(CopyReceipt(target.nbytes, "pool", "host", reason))
        del content
        return result


def _lay_out(arrays: Sequence[NDArray], alignment: int) -> tuple[list[int], int]:
    offsets, size = [], 0
    for array in arrays:
        size += -size % alignment
        offsets.append(size)
        size += array.nbytes
    return offsets, size
