"""Operands as float32 and back, and elementwise functions of large arrays, part by part."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

import numpy as np

from penstock.drivers.reference.kernel import (
    Kernel,
    Site,
    Unsupported,
    require,
    tensor_quantization,
)
from penstock.drivers.reference.numerics.fixed_point import round_half_away_from_zero
from penstock.drivers.reference.numerics.requantize import integer_range
from penstock.drivers.reference.numerics.weights import given
from penstock.interrupts import watched
from penstock.ir import DType, NDArray, Operand, Quantization

FLOATING: Final = frozenset({DType.FLOAT32, DType.FLOAT16})
STORED: Final = frozenset({DType.INT8, DType.UINT8, DType.INT16, DType.UINT16})

Read: TypeAlias = "Callable[[NDArray | None], NDArray]"
"""Converts the stored values of an input to float32 values, which must not be written."""

Write: TypeAlias = Callable[[NDArray], NDArray]
"""Converts float32 values to the stored values of an output."""


def reader(operand: Operand, role: str) -> Read:
    """A function that reads *operand* as float32. Raises `Unsupported` for types without real
    values.
    """
    if operand.dtype in FLOATING:
        return lambda value: given(value).astype(np.float32, copy=False)
    _require_stored(operand, role)
    quantization = tensor_quantization(operand, role)
    scale, zero_point = np.float32(quantization.scale), quantization.zero_point

    def read(value: NDArray | None) -> NDArray:
        real: NDArray = (given(value).astype(np.int32) - zero_point).astype(np.float32)
        return np.multiply(real, scale, out=real)

    return read


def writer(operand: Operand, role: str) -> Write:
    """A function that stores real values as *operand*, rounded once, halves away from zero, and
    saturated. NaN becomes the zero point.
    """
    dtype = operand.dtype.numpy
    if operand.dtype in FLOATING:
        return lambda real: real.astype(dtype, copy=False)
    _require_stored(operand, role)
    quantization = tensor_quantization(operand, role)
    scale, zero_point = np.float32(quantization.scale), np.float32(quantization.zero_point)
    limits = integer_range(operand.dtype)

    def write(real: NDArray) -> NDArray:
        stored = round_half_away_from_zero(real / scale + zero_point)
        np.copyto(stored, zero_point, where=np.isnan(stored))
        np.clip(stored, *limits, out=stored)
        return stored.astype(dtype)

    return write


def _require_stored(operand: Operand, role: str) -> None:
    if operand.dtype not in STORED:
        raise Unsupported(f"{role} of type {operand.dtype.value}")


BLOCK: Final = 1 << 15
"""The approximate number of elements of a part; smaller arrays are not divided."""

Index: TypeAlias = "tuple[int | slice, ...]"


def by_parts(compute: Callable[..., NDArray], *operands: NDArray) -> NDArray:
    """*compute* of arrays that broadcast, part by part. An element of the result depends only on
    the elements at its own position.
    """
    for operand in operands:
        if operand.size > BLOCK:
            break
    else:
        return np.asarray(compute(*operands))
    shape = np.broadcast(*operands).shape
    if all(o.shape == shape and o.flags.c_contiguous for o in operands):
        flat = [o.reshape(-1) for o in operands]
        return _filled(compute, flat, flat[0].shape).reshape(shape)
    return _filled(compute, [np.broadcast_to(o, shape) for o in operands], shape)


def by_rows(compute: Callable[[NDArray], NDArray], x: NDArray) -> NDArray:
    """*compute* of an array, part by part. The result has the same shape and depends only on the
    row along the last dimension.
    """
    if x.size <= BLOCK or x.ndim < 2:
        return np.asarray(compute(x))
    rows = x.reshape(-1, x.shape[-1])
    step = max(1, BLOCK // rows.shape[1])
    made = [compute(rows[start : start + step]) for start in range(0, len(rows), step)]
    return np.concatenate(made).reshape(x.shape)


def _filled(
    compute: Callable[..., NDArray], operands: list[NDArray], shape: tuple[int, ...]
) -> NDArray:
    out: NDArray | None = None
    for part in parts(shape):
        made = compute(*(o[part] for o in operands))
        if out is None:
            out = np.empty(shape, made.dtype)
        out[part] = made
    return np.asarray(compute(*operands)) if out is None else out


def parts(shape: tuple[int, ...]) -> Iterator[Index]:
    """Indexes of parts of about `BLOCK` elements that together are an array of *shape*, in
    order.
    """
    if 0 in shape:
        return
    inner, axis = 1, len(shape)
    while axis and inner * shape[axis - 1] <= BLOCK:
        axis -= 1
        inner *= shape[axis]
    if not axis:
        yield ()
        return
    step = max(1, BLOCK // inner)
    for outer in watched(np.ndindex(shape[: axis - 1])):
        for start in watched(range(0, shape[axis - 1], step)):
            yield (*outer, slice(start, start + step))


SHORT_FLOATS: Final = frozenset({"float16", "bfloat16"})
"""NumPy's names of the 16-bit floats: the types themselves would import ml_dtypes."""


def elementwise(function: Callable[[NDArray], NDArray]) -> Kernel:
    """The kernel of a function of each element of one operand. 16-bit floats are computed as
    float32 and rounded.
    """

    def compute(x: NDArray) -> NDArray:
        if x.dtype.name in SHORT_FLOATS:
            return function(x.astype(np.float32)).astype(x.dtype)
        return function(x)

    return lambda inputs: (by_parts(compute, np.asarray(inputs[0])),)


def input_and_output(site: Site) -> tuple[Quantization, Quantization]:
    """The quantisation of the first input and the output; int16 must be symmetric."""
    given = tensor_quantization(site.input(0), "the input")
    made = tensor_quantization(site.output(), "the output")
    if site.input(0).dtype is DType.INT16:
        require(given.zero_point == made.zero_point == 0, "int16 with a zero point other than 0")
    return given, made
