"""Handing host arrays to a device that takes pools only: as they lie, or through one pool, copied
both ways.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.compilation.prepared import PreparedStep
from penstock.errors import GeneralFailure
from penstock.execution.copying import Copying
from penstock.execution.results import call_execute
from penstock.hal import (
    ExecutionConfig,
    ExecutionResult,
    HostMemory,
    Memory,
    PoolArgument,
    Request,
    RequestArgument,
)
from penstock.hal.device import mappable_kinds, preferred_memory
from penstock.ir import DataLocation, NDArray
from penstock.memory import MemoryPool, pool_of
from penstock.memory.arena import lay_out


def execute_in_pools(
    operands: Sequence[int],
    prepared: PreparedStep,
    request: Request,
    config: ExecutionConfig,
    copying: Copying,
) -> ExecutionResult:
    """Executes *request*, whose arguments are these *operands*, with its `HostMemory` arguments in
    pools: those that lie in one that the device maps stay where they are, the others go through an
    anonymous one, laid out as the device prefers (NNAPI section 6.8).

    Inputs are copied in there and, after a success, outputs out.
    """
    device = prepared.device
    copying.reason = f"device {device.name} takes pools only"
    given = [*request.inputs, *request.outputs]
    pools = list(request.pools)
    kinds, preference = mappable_kinds(device), preferred_memory(device)
    arguments: list[RequestArgument | None] = [_in_place(a, pools, kinds) for a in given]
    moved = [at for at, argument in enumerate(arguments) if argument is None]
    arrays = [_array(given[at]) for at in moved]
    places, size = lay_out([a.nbytes for a in arrays], preference)
    if not moved:
        return call_execute(prepared, _request(request, arguments, pools), config)
    with MemoryPool.anonymous(max(size, 1)) as pool:
        content = pool.view(np.uint8, (max(size, 1),))
        reading = len(request.inputs)
        for at, array, (offset, padding) in zip(moved, arrays, places, strict=True):
            place = DataLocation(len(pools), offset, array.nbytes)
            if at < reading:
                there = content[offset : offset + array.nbytes]
                copying.copy(there, _bytes(array), operands[at], out=False)
                arguments[at] = PoolArgument(place, _shape(given[at]), padding)
            else:
                arguments[at] = PoolArgument(place, (), padding)
        whole = _request(request, arguments, [*pools, pool.memory])
        result = call_execute(prepared, whole, config)
        for at, array, (offset, _) in zip(moved, arrays, places, strict=True):
            if at >= reading:
                there = content[offset : offset + array.nbytes]
                copying.copy(_bytes(array), there, operands[at], out=True)
        return result


def _in_place(
    argument: RequestArgument, pools: list[Memory], kinds: Sequence[str]
) -> RequestArgument | None:
    """How the device gets *argument* without a copy, its pool added to *pools*; None where it must
    be copied.
    """
    if not isinstance(argument, HostMemory):
        return argument
    array = argument.array
    place = pool_of(array)
    if place is None or place.memory.name not in kinds or place.offset % array.itemsize:
        return None
    if place.memory not in pools:
        pools.append(place.memory)
    location = DataLocation(pools.index(place.memory), place.offset, array.nbytes)
    return PoolArgument(location, _shape(argument))


def _array(argument: RequestArgument) -> NDArray:
    if not isinstance(argument, HostMemory):
        raise GeneralFailure(f"a {type(argument).__name__} is no memory of the host")
    return argument.array


def _shape(argument: RequestArgument) -> tuple[int, ...]:
    array = _array(argument)
    given = argument.dimensions if isinstance(argument, HostMemory) else None
    return array.shape if given is None else given


def _request(
    request: Request, arguments: Sequence[RequestArgument | None], pools: Sequence[Memory]
) -> Request:
    every = [a for a in arguments if a is not None]
    reading = len(request.inputs)
    return Request(tuple(every[:reading]), tuple(every[reading:]), tuple(pools))


def _bytes(array: NDArray) -> NDArray:
    """A C-contiguous array as the bytes it is made of."""
    return array.reshape(-1).view(np.uint8)
