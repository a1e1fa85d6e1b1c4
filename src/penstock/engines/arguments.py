"""Request arguments as arrays over the caller's memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from penstock.errors import GeneralFailure, InvalidArgument
from penstock.hal import HostMemory, NoValue, PoolArgument, Request, RequestArgument
from penstock.ir import NDArray, Operand, Subgraph
from penstock.ir.types import static_shape
from penstock.memory import map_memory

if TYPE_CHECKING:
    from penstock.memory.domain import Claim


def lent(arguments: Sequence[RequestArgument]) -> list[NDArray] | None:
    """The caller's own arrays, or None where an argument is anything else."""
    arrays = []
    for argument in arguments:
        if type(argument) is not HostMemory:
            return None
        arrays.append(argument.array)
    return arrays


@contextmanager
def bound(
    request: Request, entry: Subgraph, claim: Claim | None = None
) -> Iterator[tuple[list[NDArray], list[NDArray | None]]]:
    """Inputs and outputs (None: nobody wants it) of a checked request, viewing pools that are
    mapped for the time of the block. Buffers of *claim* are read and written where they lie; what
    is written has its value when the block ends without an error.
    """
    mappings = [map_memory(pool) for pool in request.pools]
    try:
        pools = [mapping.array for mapping in mappings]
        inputs = [
            claim.inputs[at].content
            if claim is not None and at in claim.inputs
            else _input(argument, entry.operands[index], pools)
            for at, (argument, index) in enumerate(zip(request.inputs, entry.inputs, strict=True))
        ]
        managed = () if claim is None else tuple(claim.outputs)
        outputs = [
            claim.room(at, static_shape(entry.operands[index].shape) or ())
            if claim is not None and at in managed
            else _output(argument, entry.operands[index], pools)
            for at, (argument, index) in enumerate(zip(request.outputs, entry.outputs, strict=True))
        ]
        yield inputs, outputs
        for at in managed:
            if claim is not None and (written := outputs[at]) is not None:
                claim.put(at, written, written.shape)
    finally:
        for mapping in mappings:
            mapping.close()


def _input(argument: RequestArgument, operand: Operand, pools: Sequence[NDArray]) -> NDArray:
    match argument:
        case HostMemory(array, _):
            return array
        case PoolArgument():
            return _region(argument, operand, pools)
    raise _unknown(argument)


def _output(
    argument: RequestArgument, operand: Operand, pools: Sequence[NDArray]
) -> NDArray | None:
    match argument:
        case HostMemory(array, _):
            return array
        case PoolArgument():
            region = _region(argument, operand, pools)
            if not region.flags.writeable:
                raise GeneralFailure("an output lies in memory that cannot be written")
            return region
        case NoValue():
            return None
    raise _unknown(argument)


def _region(argument: PoolArgument, operand: Operand, pools: Sequence[NDArray]) -> NDArray:
    place, shape = argument.location, static_shape(operand.shape) or ()
    nbytes = math.prod(shape) * operand.dtype.numpy.itemsize
    content = pools[place.pool][place.offset : place.offset + nbytes]
    array: NDArray = np.asarray(content.view(operand.dtype.numpy).reshape(shape))
    return array


def _unknown(argument: RequestArgument) -> InvalidArgument:
    kind = type(argument).__name__
    return InvalidArgument(f"no buffer of this device is meant by a {kind}")
