"""A request's arguments as arrays, and results written into the memory that the request names.

Every driver needs this, and each rule below is part of the contract of `penstock.hal`:

- The request was checked by `validate_request` before. Pools are mapped by name for one run.
- An input is a view of the caller's memory: it is neither copied nor to be written. A string input
  is unpacked into an object array of `bytes`. An optional input without a value is an empty array.
- A token names a buffer of the driver's own memory domain. The driver claims the request's buffers
  first (`MemoryDomain.claim`) and passes the claim; without one every token is refused.
- `OutputInsufficientSize`, and memory that cannot be written, are raised before the first output
  changes.

There are two ways to return results. A driver that computes into memory of its own calls
`write_results`. An engine that writes its outputs itself, in static shapes, gets arrays over the
caller's memory from `bound_arrays`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import numpy as np

from penstock import hal
from penstock.errors import GeneralFailure, InvalidArgument, OutputInsufficientSize
from penstock.ir import DType, NDArray, Operand, Subgraph
from penstock.ir.subgraph import unpack_strings
from penstock.ir.types import is_static, static_shape

if TYPE_CHECKING:
    from penstock.memory.domain import Claim


@contextmanager
def mapped_pools(request: hal.Request) -> Iterator[list[NDArray]]:
    """The request's pools as flat uint8 arrays, mapped for the time of the block."""
    if not request.pools:
        yield []
        return
    from penstock.memory import map_memory

    with ExitStack() as stack:
        yield [stack.enter_context(map_memory(pool)).array for pool in request.pools]


def input_arrays(
    request: hal.Request,
    operands: Sequence[Operand],
    pools: Sequence[NDArray],
    claim: Claim | None = None,
    *,
    copy_integers: bool = False,
) -> list[NDArray]:
    """One array for each input, in its shape in this run.

    *copy_integers* copies integers and booleans. A kernel that checks indices before it uses
    them needs the copy, because another process may change shared memory in between.
    """
    arrays = []
    for at, (argument, operand) in enumerate(zip(request.inputs, operands, strict=True)):
        if claim is not None and at in claim.inputs:
            arrays.append(claim.inputs[at].content)
            continue
        array = _input(argument, operand, pools)
        is_whole = operand.dtype is DType.BOOL or operand.dtype.is_integer
        arrays.append(array.copy() if copy_integers and is_whole else array)
    return arrays


def write_results(
    request: hal.Request,
    operands: Sequence[Operand],
    results: Sequence[NDArray],
    pools: Sequence[NDArray],
    claim: Claim | None = None,
    inputs: Sequence[NDArray] = (),
) -> tuple[hal.OutputShape, ...]:
    """Writes *results* into the request's outputs, and into the buffers of *claim*.

    Returns the shapes of the results, or nothing if all shapes were known before. Results may be
    views of *inputs*, or constants. Raises `OutputInsufficientSize` if a result does not fit.
    """
    contents = list(results)
    for at, operand in enumerate(operands):
        if operand.dtype is DType.STRING:
            from penstock.ir.builder import pack_strings

            contents[at] = np.frombuffer(pack_strings(results[at]), np.uint8)
    targets = [_output_memory(argument, pools) for argument in request.outputs]
    fits = [t is None or t.nbytes >= c.nbytes for t, c in zip(targets, contents, strict=True)]
    if not all(fits):
        shapes = [(result.shape, fit) for result, fit in zip(results, fits, strict=True)]
        raise OutputInsufficientSize("an output does not fit the memory it was given", shapes)
    for at, argument in enumerate(request.outputs):
        if type(argument) is hal.TokenArgument:
            if claim is None:
                raise unknown_memory(argument)
            claim.put(at, _owned(contents[at], inputs), results[at].shape)
    for target, content in zip(targets, contents, strict=True):
        if target is None:
            continue
        if target.shape == content.shape and target.dtype == content.dtype:
            np.copyto(target, content)
        else:
            flat = np.ascontiguousarray(content).reshape(-1).view(np.uint8)
            target.reshape(-1).view(np.uint8)[: flat.nbytes] = flat
    if all(is_static(o.shape) and o.dtype is not DType.STRING for o in operands):
        return ()
    return tuple(hal.OutputShape(result.shape) for result in results)


@contextmanager
def bound_arrays(
    request: hal.Request, entry: Subgraph, claim: Claim | None = None
) -> Iterator[tuple[list[NDArray], list[NDArray | None]]]:
    """The inputs and outputs of *entry* as arrays over the request's memory; None for an output
    that is not wanted.

    Buffers of *claim* are read and written in place. A written buffer becomes valid when the block
    ends without an error. All shapes must be known.
    """
    with mapped_pools(request) as pools:
        inputs = input_arrays(request, [entry.operands[i] for i in entry.inputs], pools, claim)
        managed = () if claim is None else tuple(claim.outputs)
        outputs: list[NDArray | None] = []
        for at, (argument, index) in enumerate(zip(request.outputs, entry.outputs, strict=True)):
            operand = entry.operands[index]
            if claim is not None and at in managed:
                outputs.append(claim.room(at, static_shape(operand.shape) or ()))
                continue
            if type(argument) is hal.TokenArgument:
                raise unknown_memory(argument)
            memory = _output_memory(argument, pools)
            if memory is not None and type(argument) is hal.PoolArgument:
                memory = _viewed(memory, operand, static_shape(operand.shape) or ())
            outputs.append(memory)
        yield inputs, outputs
        for at in managed:
            if claim is not None and (written := outputs[at]) is not None:
                claim.put(at, written, written.shape)


def unknown_memory(argument: hal.RequestArgument) -> InvalidArgument:
    """The error for an argument in memory that the device does not support."""
    if type(argument) is hal.TokenArgument:
        return InvalidArgument(f"no buffer of this device has the token {argument.token}")
    return InvalidArgument(f"this device has no memory for a {type(argument).__name__}")


def _input(argument: hal.RequestArgument, operand: Operand, pools: Sequence[NDArray]) -> NDArray:
    match argument:
        case hal.HostMemory(array, dimensions):
            if operand.dtype is not DType.STRING:
                return array
            return unpack_strings(array.data.toreadonly().cast("B"), dimensions or ())
        case hal.PoolArgument(place, dimensions):
            shape = static_shape(dimensions or operand.shape)
            if shape is None:
                raise InvalidArgument(f"input {operand.name!r} has no complete shape")
            content = pools[place.pool][place.offset : place.offset + place.length]
            if operand.dtype is DType.STRING:
                return unpack_strings(content.data.toreadonly(), shape)
            return _viewed(content, operand, shape)
        case hal.NoValue():
            return np.empty(0)
    raise unknown_memory(argument)


def _output_memory(argument: hal.RequestArgument, pools: Sequence[NDArray]) -> NDArray | None:
    """Where an output goes: the caller's array, or flat bytes; None for a token or `NoValue`."""
    match argument:
        case hal.HostMemory(array, _):
            return array
        case hal.PoolArgument(place, _):
            content = pools[place.pool][place.offset : place.offset + place.length]
            if not content.flags.writeable:
                raise GeneralFailure("an output lies in memory that cannot be written")
            return content
        case hal.NoValue() | hal.TokenArgument():
            return None
    raise unknown_memory(argument)


def _viewed(content: NDArray, operand: Operand, shape: tuple[int, ...]) -> NDArray:
    """The leading bytes of *content* as *operand*'s element type in *shape*."""
    nbytes = math.prod(shape) * operand.dtype.numpy.itemsize
    array: NDArray = np.asarray(content[:nbytes].view(operand.dtype.numpy).reshape(shape))
    return array


def _owned(result: NDArray, inputs: Sequence[NDArray]) -> NDArray:
    """*result* for a buffer to keep: the same array if it owns its memory, otherwise a copy."""
    is_own = result.flags.owndata and result.flags.c_contiguous
    is_own = is_own and not any(result is array for array in inputs)
    return result if is_own else np.array(result, order="C")
