"""Request arguments to arrays, and results back into the memory of the request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

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
    TokenArgument,
)
from penstock.ir import DType, NDArray, Operand
from penstock.ir.builder import pack_strings
from penstock.ir.subgraph import unpack_strings
from penstock.ir.types import is_static
from penstock.memory import map_memory

if TYPE_CHECKING:
    from penstock.memory.domain import Claim

UNKNOWN: Final = "no buffer of this device has that token"

Regions = list[NDArray]
"""The mapped pools of a request, as flat uint8 arrays."""


@contextmanager
def mapped_pools(request: Request) -> Iterator[Regions]:
    """Maps every pool of *request* by its name for the time of the block."""
    mappings = [map_memory(pool) for pool in request.pools]
    try:
        yield [m.array for m in mappings]
    finally:
        for mapping in mappings:
            mapping.close()


def bind_inputs(
    request: Request, operands: Sequence[Operand], regions: Regions, claim: Claim | None = None
) -> list[NDArray]:
    """One array an input: floats viewing the caller's memory, or a buffer of *claim*. Whole numbers
    and truths are read once: where NumPy has checked indices, or counted what is true, nobody may
    change them before it goes by them.
    """
    return [
        claim.inputs[at].content
        if claim is not None and at in claim.inputs
        else _once(_input(argument, operand, regions), operand.dtype)
        for at, (argument, operand) in enumerate(zip(request.inputs, operands, strict=True))
    ]


def deliver(
    request: Request,
    operands: Sequence[Operand],
    results: Sequence[NDArray],
    regions: Regions,
    timing: Timing,
    claim: Claim | None = None,
    inputs: Sequence[NDArray] = (),
) -> ExecutionResult:
    """Writes *results* into the request's outputs, and the buffers of *claim*; those may view
    *inputs*, or constants.

    Raises `OutputInsufficientSize`, before anything is written, when one of unknown shape does not
    fit.
    """
    flats = [
        _flat(r) if o.dtype is DType.STRING else r for r, o in zip(results, operands, strict=True)
    ]
    pairs = list(zip(request.outputs, flats, strict=True))
    enough = [_capacity(a, f) >= f.nbytes for a, f in pairs]
    if not all(enough):
        shapes = [(r.shape, ok) for r, ok in zip(results, enough, strict=True)]
        raise OutputInsufficientSize("an output does not fit the memory it was given", shapes)
    for at, (argument, flat) in enumerate(pairs):
        if type(argument) is TokenArgument:
            if claim is None:
                raise InvalidArgument(UNKNOWN)
            claim.put(at, _kept(flat, inputs), results[at].shape)
    for argument, flat in pairs:
        _write(argument, flat, regions)
    if all(is_static(o.shape) and o.dtype is not DType.STRING for o in operands):
        return ExecutionResult((), timing)
    return ExecutionResult(tuple(OutputShape(r.shape) for r in results), timing)


def _input(argument: RequestArgument, operand: Operand, regions: Regions) -> NDArray:
    match argument:
        case HostMemory(array, dimensions):
            if operand.dtype is not DType.STRING:
                return array
            return unpack_strings(array.data.toreadonly().cast("B"), dimensions or ())
        case PoolArgument(place, dimensions):
            shape = dimensions or operand.shape
            if shape is None or not is_static(shape):
                raise InvalidArgument(f"input {operand.name!r} has no complete shape")
            full = tuple(d or 0 for d in shape)
            data = regions[place.pool][place.offset : place.offset + place.length]
            if operand.dtype is DType.STRING:
                return unpack_strings(data.data.toreadonly(), full)
            return data.view(operand.dtype.numpy).reshape(full)
        case NoValue():
            return np.empty(0)
    raise InvalidArgument(UNKNOWN)


def _once(array: NDArray, dtype: DType) -> NDArray:
    return array.copy() if dtype is DType.BOOL or dtype.is_integer else array


def _kept(result: NDArray, inputs: Sequence[NDArray]) -> NDArray:
    """*result* as nobody changes it any more: itself where it has memory of its own."""
    own = result.flags.owndata and result.flags.c_contiguous
    return result if own and not any(result is i for i in inputs) else np.array(result, order="C")


def _flat(strings: NDArray) -> NDArray:
    return np.frombuffer(pack_strings(strings), np.uint8)


def _capacity(argument: RequestArgument, result: NDArray) -> int:
    match argument:
        case HostMemory(array, _):
            return array.nbytes
        case PoolArgument(place, _):
            return place.length
        case NoValue() | TokenArgument():
            return result.nbytes
    raise InvalidArgument(UNKNOWN)


def _write(argument: RequestArgument, result: NDArray, regions: Regions) -> None:
    match argument:
        case HostMemory(array, _):
            if array.shape == result.shape and array.dtype == result.dtype:
                np.copyto(array, result)
            else:
                _write_flat(array.reshape(-1).view(np.uint8), result)
        case PoolArgument(place, _):
            _write_flat(regions[place.pool][place.offset : place.offset + place.length], result)


def _write_flat(target: NDArray, result: NDArray) -> None:
    if result.nbytes > target.nbytes:
        raise GeneralFailure(f"{result.nbytes} bytes of result for {target.nbytes} bytes of memory")
    if not target.flags.writeable:
        raise GeneralFailure("an output lies in memory that cannot be written")
    target[: result.nbytes] = np.ascontiguousarray(result).reshape(-1).view(np.uint8)
