"""Between a request's arguments and arrays: memory of every kind mapped, viewed, and written at the
end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import numpy as np

from penstock.errors import GeneralFailure, InvalidArgument, OutputInsufficientSize
from penstock.hal import (
    HostMemory,
    NoValue,
    OutputShape,
    PoolArgument,
    Request,
    RequestArgument,
)
from penstock.ir import NDArray, Operand
from penstock.ir.types import static_shape
from penstock.memory import map_memory


@contextmanager
def mapped(request: Request) -> Iterator[list[NDArray]]:
    """The pools of *request* as flat uint8 arrays, for the time of the block."""
    with ExitStack() as stack:
        yield [stack.enter_context(map_memory(pool)).array for pool in request.pools]


def bind(
    request: Request, operands: Sequence[Operand], regions: Sequence[NDArray]
) -> list[NDArray]:
    """A read-only array an input, over the caller's memory."""
    arrays = []
    for argument, operand in zip(request.inputs, operands, strict=True):
        array = _input(argument, operand, regions).view()
        array.flags.writeable = False
        arrays.append(array)
    return arrays


def deliver(
    request: Request,
    operands: Sequence[Operand],
    results: Sequence[NDArray],
    regions: Sequence[NDArray],
) -> tuple[OutputShape, ...]:
    """Writes *results* where the request wants them, and gives their shapes where one was not
    known.

    Raises `OutputInsufficientSize` before anything is written.
    """
    targets = [_region(argument, regions) for argument in request.outputs]
    fits = [t is None or r.nbytes <= t.nbytes for r, t in zip(results, targets, strict=True)]
    if not all(fits):
        shapes = [(r.shape, fit) for r, fit in zip(results, fits, strict=True)]
        raise OutputInsufficientSize("an output does not fit into its memory", shapes)
    if not all(target is None or target.flags.writeable for target in targets):
        raise GeneralFailure("an output lies in memory that cannot be written")
    for result, target in zip(results, targets, strict=True):
        if target is not None:
            flat = np.ascontiguousarray(result).reshape(-1).view(np.uint8)
            target[: flat.nbytes] = flat
    if all(static_shape(operand.shape) is not None for operand in operands):
        return ()
    return tuple(OutputShape(result.shape) for result in results)


def _input(argument: RequestArgument, operand: Operand, regions: Sequence[NDArray]) -> NDArray:
    if isinstance(argument, HostMemory):
        return argument.array
    region = _region(argument, regions)
    if region is None or not isinstance(argument, PoolArgument):
        raise InvalidArgument(f"input {operand.name!r} has no value")
    shape = static_shape(argument.dimensions or operand.shape)
    if shape is None:
        raise InvalidArgument(f"input {operand.name!r} has no complete shape")
    array: NDArray = region.view(operand.dtype.numpy).reshape(shape)
    return array


def _region(argument: RequestArgument, regions: Sequence[NDArray]) -> NDArray | None:
    """The bytes that an argument names; None for an output that nobody wants."""
    match argument:
        case PoolArgument(location=place):
            return regions[place.pool][place.offset : place.offset + place.length]
        case HostMemory(array=array):
            flat: NDArray = array.reshape(-1).view(np.uint8)
            return flat
        case NoValue():
            return None
    raise InvalidArgument("this device has no memory domains; a token means nothing to it")
