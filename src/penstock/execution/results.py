"""What drivers answer, believed only as far as it is checked (NNAPI section 4.7).

Every lie becomes a `GeneralFailure`, so that the step can fall back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from penstock.compilation.prepared import PreparedStep
from penstock.errors import (
    FOREIGN,
    Cancelled,
    DriverError,
    GeneralFailure,
    OutputInsufficientSize,
    ResourceExhaustedTransient,
)
from penstock.execution.inputs import fits
from penstock.hal import (
    Device,
    ExecutionConfig,
    ExecutionResult,
    OutputShape,
    PaddedBytes,
    Request,
    Timing,
)
from penstock.ir import DType, NDArray, Operand
from penstock.ir.subgraph import unpack_strings
from penstock.ir.types import is_static
from penstock.memory.arena import MIN_ALIGNMENT

MOST_BESIDE: Final = 1 << 16
"""Bytes of an array that shares its memory with others: larger ones come and go by themselves."""


def is_sized(operand: Operand) -> bool:
    """Whether the memory for an output is known before the run."""
    return is_static(operand.shape) and operand.dtype is not DType.STRING


def call_execute(
    prepared: PreparedStep, request: Request, config: ExecutionConfig
) -> ExecutionResult:
    """`execute` with its contract enforced: whatever else a driver raises is a `GeneralFailure`."""
    try:
        return prepared.prepared.execute(request, config)
    except (DriverError, Cancelled):
        raise
    except FOREIGN as error:
        raise breach_of(prepared.device, error) from error


def breach_of(device: Device, error: BaseException) -> GeneralFailure:
    """What an exception counts as that no driver may raise."""
    return GeneralFailure(f"device {device.name} failed in execute: {error!r}")


def check_result(
    result: object, operands: Sequence[Operand], targets: Sequence[NDArray | None]
) -> None:
    """Checks a successful execution's answer against the outputs it was given, None for memory of
    no known size.

    Shapes are there when any output's was unknown; each is complete, sufficient, as the model
    declares where it does, and fits the memory.
    """
    timing: object = getattr(result, "timing", None)
    if not isinstance(result, ExecutionResult) or not isinstance(timing, Timing):
        raise GeneralFailure(f"execute returned {type(result).__name__}, not an ExecutionResult")
    shapes: object = result.output_shapes
    if not isinstance(shapes, tuple | list) or len(shapes) not in (0, len(operands)):
        raise GeneralFailure(f"the driver reported shapes for other than {len(operands)} outputs")
    if not shapes and not all(map(is_sized, operands)):
        raise GeneralFailure("the driver did not report the shape of an output of unknown shape")
    for shape, operand, target in zip(shapes, operands, targets, strict=False):
        if not isinstance(shape, OutputShape) or shape.is_sufficient is not True:
            raise GeneralFailure(
                f"output {operand.name!r}: the driver succeeded and says it did not fit"
            )
        _check_dimensions(shape.dimensions, operand)
        if is_sized(operand) or target is None:
            continue
        if operand.dtype is not DType.STRING and _nbytes(shape.dimensions, operand) > target.nbytes:
            raise GeneralFailure(
                f"output {operand.name!r} of shape {shape.dimensions} does not fit the memory it was given"
            )


def grown_sizes(
    sizes: Sequence[int], operands: Sequence[Operand], error: OutputInsufficientSize
) -> list[int]:
    """Bytes to give each output after *error*: as many as its reported shape takes, at least twice
    as many as before.
    """
    shapes: tuple[object, ...] = error.output_shapes
    if len(shapes) != len(sizes) or not all(isinstance(s, tuple) and len(s) == 2 for s in shapes):
        raise GeneralFailure("the driver said 'too small' without saying which output") from error
    answers = error.output_shapes
    if all(enough for _, enough in answers):
        raise GeneralFailure(
            "the driver said 'too small' of outputs that are all enough"
        ) from error
    grown = list(sizes)
    for k, (operand, (dimensions, enough)) in enumerate(zip(operands, answers, strict=True)):
        if enough:
            continue
        if is_sized(operand):
            raise GeneralFailure(
                f"output {operand.name!r} has the size the model declares"
            ) from error
        _check_dimensions(dimensions, operand)
        grown[k] = max(_nbytes(dimensions, operand), 2 * sizes[k])
    return grown


def allocate(shape: Sequence[int], dtype: np.dtype[np.generic]) -> NDArray:
    """Fresh memory; `ResourceExhaustedTransient` when there is none."""
    return _made(np.empty, shape, dtype)


def _made(
    make: Callable[[Sequence[int], np.dtype[np.generic]], NDArray],
    shape: Sequence[int],
    dtype: np.dtype[np.generic],
) -> NDArray:
    try:
        return make(shape, dtype)
    except (MemoryError, ValueError) as error:
        raise ResourceExhaustedTransient(
            f"no memory for an output of shape {tuple(shape)} of {dtype}"
        ) from error


def side_by_side(kinds: Sequence[tuple[Sequence[int], np.dtype[np.generic]]]) -> list[NDArray]:
    """Fresh arrays of zeros. The small ones lie in one piece of memory, in order, each at an
    address that is a multiple of 64 bytes, as copies are fastest: a device that keeps its own so
    may copy them all at once. `ResourceExhaustedTransient` as of `allocate`.
    """
    sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in kinds]
    starts, end = [], 0
    for size, (_, dtype) in zip(sizes, kinds, strict=True):
        starts.append(end)
        if size <= MOST_BESIDE and not dtype.hasobject:
            end += size + -size % MIN_ALIGNMENT
    memory = allocate((end + MIN_ALIGNMENT,), np.dtype(np.uint8))
    begin = -memory.ctypes.data % MIN_ALIGNMENT
    shared = memory[begin : begin + end].view(PaddedBytes)
    shared.fill(0)
    found: list[NDArray] = []
    for start, size, (shape, dtype) in zip(starts, sizes, kinds, strict=True):
        if size <= MOST_BESIDE and not dtype.hasobject:
            found.append(shared[start : start + size].view(np.ndarray).view(dtype).reshape(shape))
        else:
            found.append(_made(np.zeros, shape, dtype))
    return found


def shaped(flat: NDArray, operand: Operand, shape: tuple[int, ...]) -> NDArray:
    """The value at the start of *flat*, checked by `check_result`, as an array of its own."""
    if operand.dtype is DType.STRING:
        return unpack_strings(flat.data.toreadonly(), shape)
    return flat[: _nbytes(shape, operand)].view(operand.dtype.numpy).reshape(shape)


def _check_dimensions(dimensions: object, operand: Operand) -> None:
    if not isinstance(dimensions, tuple | list) or any(
        type(d) is not int or d < 0 for d in dimensions
    ):
        raise GeneralFailure(
            f"the driver reported {dimensions!r} as shape of output {operand.name!r}"
        )
    if not fits(tuple(dimensions), operand.shape):
        raise GeneralFailure(
            f"the driver reported shape {tuple(dimensions)} for output {operand.name!r} of shape {operand.shape}"
        )


def _nbytes(dimensions: Sequence[int], operand: Operand) -> int:
    """Counted in Python's integers, which do not wrap."""
    count = operand.dtype.numpy.itemsize
    for dimension in dimensions:
        count *= dimension
    return count
