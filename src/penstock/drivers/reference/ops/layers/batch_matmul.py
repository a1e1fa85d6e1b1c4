"""BATCH_MATMUL: matrix products of the last two dimensions, the others broadcast."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.drivers.reference.ops.kernel import (
    Kernel,
    Site,
    Unsupported,
    kernel,
    tensor_quantization,
)
from penstock.drivers.reference.ops.numerics.activation_range import integer_range
from penstock.drivers.reference.ops.numerics.hybrid import (
    MAGNITUDE,
    NARROW,
    quantize_rows,
    weight_values,
)
from penstock.drivers.reference.ops.numerics.products import exact_dtype
from penstock.drivers.reference.ops.numerics.requantize import Requantizer
from penstock.drivers.reference.ops.numerics.weights import given
from penstock.errors import ShapeMismatch
from penstock.ir import DType, NDArray, Operand

INTEGER = frozenset({DType.INT8, DType.INT16, DType.UINT8})


@kernel("BATCH_MATMUL")
def batch_matmul(site: Site) -> Kernel:
    """Float, int32, quantised (int8, int16), hybrid products, and int8 ones kept in int32."""
    a, b, target = site.input(0), site.input(1), site.output()
    if a.dtype.is_float and b.dtype is a.dtype is target.dtype:
        return _float(site)
    if a.dtype is b.dtype is target.dtype and a.dtype in {DType.INT32, DType.INT64}:
        return _plain_integers(site)
    if a.dtype is b.dtype is DType.INT8 and target.dtype is DType.INT32:
        return _stored_values(site)
    if a.dtype in INTEGER and b.dtype in INTEGER | NARROW and target.dtype is a.dtype:
        return _quantized(site)
    if a.dtype is target.dtype is DType.FLOAT32 and b.dtype in NARROW:
        return _hybrid(site)
    raise site.unsupported_types()


def _operands(site: Site, inputs: Sequence[NDArray | None]) -> tuple[NDArray, NDArray]:
    """The two sides, transposed as the attributes say."""
    a, b = given(inputs[0]), given(inputs[1])
    if site.attributes.flag("adj_x"):
        a = a.swapaxes(-1, -2)
    if site.attributes.flag("adj_y"):
        b = b.swapaxes(-1, -2)
    return a, b


def _float(site: Site) -> Kernel:
    dtype = site.output().dtype.numpy

    def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
        a, b = _operands(site, inputs)
        wide = np.float64 if dtype == np.float64 else np.float32
        product = np.matmul(a.astype(wide, copy=False), b.astype(wide, copy=False))
        return (product.astype(dtype, copy=False),)

    return run


def _plain_integers(site: Site) -> Kernel:
    return lambda inputs: (np.matmul(*_operands(site, inputs)),)


def _stored_values(site: Site) -> Kernel:
    """Products of int8 kept in 32 bits: TFLite's kernel takes the stored values as they are, and no
    scale.
    """

    def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
        a, b = _operands(site, inputs)
        dtype = exact_dtype(float(MAGNITUDE * MAGNITUDE * a.shape[-1]))
        return (np.matmul(a.astype(dtype), b.astype(dtype)).astype(np.int32),)

    return run


def _magnitude(operand: Operand, zero_point: int) -> int:
    """Greatest magnitude of a stored value less the zero point."""
    least, greatest = integer_range(operand.dtype)
    return max(greatest - zero_point, zero_point - least)


def _quantized(site: Site) -> Kernel:
    """Scales multiply in float32; 16-bit inputs sum in 64 bits.

    TFLite's kernel knows one scale of each side: it takes that of a right side with a scale a
    channel for 0, so that every product is zero and none needs to be computed.
    """
    a, b, target = site.input(0), site.input(1), site.output()
    left, right = tensor_quantization(a, "a factor"), b.quantization
    if right is None:
        raise Unsupported(f"a right side of type {b.dtype.value} without a scale")
    quantization = tensor_quantization(target, "an output")
    if right.per_channel:
        return _zeros(site, quantization.zero_point)
    product = float(np.float32(left.scale) * np.float32(right.scale))
    each = _magnitude(a, left.zero_point) * _magnitude(b, right.zero_point)
    limits = integer_range(target.dtype)

    def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
        x, y = _operands(site, inputs)
        bound = float(each * x.shape[-1])
        dtype = exact_dtype(bound)
        sums = np.matmul(_centred(x, left.zero_point, dtype), _centred(y, right.zero_point, dtype))
        out = np.empty(sums.shape, target.dtype.numpy)
        columns = sums.shape[-1]
        requantizer = Requantizer(
            [product / quantization.scale],
            columns,
            bound,
            target.dtype,
            quantization.zero_point,
            limits,
            wide=a.dtype is DType.INT16,
        )
        if out.size:
            requantizer(sums.reshape(-1, columns), out.reshape(-1, columns))
        return (out,)

    return run


def _zeros(site: Site, zero_point: int) -> Kernel:
    """What stands for 0, in the shape of the product."""
    dtype = site.output().dtype.numpy

    def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
        a, b = _operands(site, inputs)
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        return (np.full((*batch, a.shape[-2], b.shape[-1]), zero_point, dtype),)

    return run


def _centred(values: NDArray, zero_point: int, dtype: np.dtype[np.generic]) -> NDArray:
    real: NDArray = values.astype(dtype)
    if zero_point:
        real -= zero_point
    return real


def _hybrid(site: Site) -> Kernel:
    """Each row of the left side is quantised over its own range.

    Scales a channel of the right side are those of the product's columns, in order, whatever
    dimension they are said to belong to (TFLite); there may be more of them than columns.
    """
    b = site.input(1)
    if b.quantization is None:
        raise Unsupported(f"a right side of type {b.dtype.value} without a scale")
    every = np.array(b.quantization.scales, np.float32)
    asymmetric = site.attributes.flag("asymmetric_quantize_inputs")

    def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
        a, y = _operands(site, inputs)
        scales = every[: y.shape[-1]] if every.size > 1 else every
        if every.size > 1 and scales.size < y.shape[-1]:
            raise ShapeMismatch(f"{every.size} scales for {y.shape[-1]} columns of a product")
        weights = weight_values(y, b)
        dtype = exact_dtype(float(2 * MAGNITUDE * 128 * a.shape[-1]))
        rows = quantize_rows(
            np.ascontiguousarray(a).reshape(-1, a.shape[-1]), asymmetric=asymmetric
        )
        left = rows.values.astype(dtype) - rows.offsets.astype(dtype)[:, None]
        sums = np.matmul(left.reshape(a.shape), weights.astype(dtype)).astype(np.float32)
        sums *= rows.scales.reshape(*a.shape[:-1], 1) * scales
        return (sums,)

    return run
