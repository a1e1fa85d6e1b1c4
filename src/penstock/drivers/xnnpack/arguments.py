"""Request arguments as arrays over the caller's memory, and results into it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from penstock.errors import GeneralFailure, InvalidArgument, OutputInsufficientSize
from penstock.hal import (
    ExecutionResult,
    HostMemory,
    NoValue,
    OutputShape,
    PoolArgument,
    Request,
    RequestArgument,
    Timing,
)
from penstock.ir import NDArray, Operand
from penstock.ir.types import is_static
from penstock.memory import map_memory


@contextmanager
def mapped(request: Request) -> Iterator[list[NDArray]]:
    """The request's pools as flat uint8 arrays, mapped for the time of the block."""
    mappings = [map_memory(pool) for pool in request.pools]
    try:
        yield [mapping.array for mapping in mappings]
    finally:
        for mapping in mappings:
            mapping.close()


def read(argument: RequestArgument, operand: Operand, pools: Sequence[NDArray]) -> NDArray:
    """An input of a checked request, in the caller's memory."""
    match argument:
        case HostMemory(array, _):
            return array
        case PoolArgument(place, dimensions):
            shape = tuple(d or 0 for d in dimensions or operand.shape or ())
            nbytes = math.prod(shape) * operand.dtype.numpy.itemsize
            content = pools[place.pool][place.offset : place.offset + nbytes]
            return content.view(operand.dtype.numpy).reshape(shape)
    raise unknown(argument)


def deliver(
    request: Request,
    operands: Sequence[Operand],
    results: Sequence[NDArray],
    pools: Sequence[NDArray],
    timing: Timing,
) -> ExecutionResult:
    """Copies *results* into the request's outputs, and reports their shapes where one was not
    known.

    Raises `OutputInsufficientSize`, before anything is written, when one of unknown shape does not
    fit.
    """
    pairs = list(zip(request.outputs, results, strict=True))
    targets = [_target(argument, pools) for argument, _ in pairs]
    enough = [t is None or t.nbytes >= r.nbytes for t, (_, r) in zip(targets, pairs, strict=True)]
    if not all(enough):
        shapes = [(r.shape, ok) for r, ok in zip(results, enough, strict=True)]
        raise OutputInsufficientSize("an output does not fit the memory it was given", shapes)
    for target, result in zip(targets, results, strict=True):
        if target is None:
            continue
        if target.shape == result.shape and target.dtype == result.dtype:
            np.copyto(target, result)
        else:
            flat = np.ascontiguousarray(result).reshape(-1).view(np.uint8)
            target.reshape(-1).view(np.uint8)[: flat.nbytes] = flat
    if all(is_static(o.shape) for o in operands):
        return ExecutionResult((), timing)
    return ExecutionResult(tuple(OutputShape(r.shape) for r in results), timing)


def _target(argument: RequestArgument, pools: Sequence[NDArray]) -> NDArray | None:
    match argument:
        case HostMemory(array, _):
            return array
        case PoolArgument(place, _):
            region = pools[place.pool][place.offset : place.offset + place.length]
            if not region.flags.writeable:
                raise GeneralFailure("an output lies in memory that cannot be written")
            return region
        case NoValue():
            return None
    raise unknown(argument)


def chosen(
    arguments: Sequence[RequestArgument], positions: Sequence[int]
) -> tuple[RequestArgument, ...]:
    """The arrays of *arguments* at *positions*; the others must be arrays, too."""
    for argument in arguments:
        if type(argument) is not HostMemory:
            raise unknown(argument)
    return tuple([arguments[k] for k in positions])


def unknown(argument: RequestArgument) -> InvalidArgument:
    """The refusal of an argument of a kind that this device has no memory for."""
    kind = type(argument).__name__
    return InvalidArgument(f"this device has no memory of its own; a {kind} means nothing to it")
