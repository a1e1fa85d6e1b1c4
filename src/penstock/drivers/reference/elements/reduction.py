"""Reductions along axes, running sums, and the positions of extremes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import numpy as np

from penstock.driverkit import fixed_point
from penstock.drivers.reference.kernel import Inputs, Kernel, Outputs, Site, direct, kernel, require
from penstock.drivers.reference.numerics.one_operand import QUANTIZED
from penstock.drivers.reference.numerics.requantize import integer_range
from penstock.drivers.reference.structure.shape import dimensions, normal_axis
from penstock.ir import DType, NDArray
from penstock.ir.operations.requirements import of_tensor

Axes = tuple[int, ...]
Reduce = Callable[[NDArray, Axes], NDArray]
"""Reduces the given axes, which remain as dimensions of size 1."""

PLAIN: Final = frozenset({DType.FLOAT32, DType.INT32, DType.INT64})


@kernel("MEAN", "SUM")
def mean_or_sum(site: Site) -> Kernel:
    """The mean or sum along the axes. Integer means are truncated, quantised means rounded.

    A quantised sum is the sum of the real values, for all quantised types.
    """
    dtype, mean = site.input(0).dtype, site.operation.type == "MEAN"
    site.require_types(dtype is site.output().dtype)
    if dtype is DType.BOOL and not mean:
        return _any_or_all(site, np.logical_or)
    if dtype in QUANTIZED:
        return _reduction(site, _quantized_sum(site, mean=mean))
    site.require_types(dtype in PLAIN)
    return _reduction(site, _mean if mean else _sum)


def _reduction(site: Site, reduce: Reduce) -> Kernel:
    keep = site.attributes.flag("keep_dims")

    def run(inputs: Inputs) -> Outputs:
        x = np.asarray(inputs[0])
        axes = tuple(
            {normal_axis(axis, x.ndim) for axis in dimensions(inputs[1])} if x.ndim else ()
        )
        result = reduce(x, axes)
        return (result if keep else np.squeeze(result, axes),)

    return run


def _sum(x: NDArray, axes: Axes) -> NDArray:
    return np.add.reduce(x, axes, x.dtype, keepdims=True)


def _mean(x: NDArray, axes: Axes) -> NDArray:
    count = math.prod(x.shape[axis] for axis in axes)
    if x.dtype.kind == "f":
        return _sum(x, axes) / np.float32(count)
    total = np.add.reduce(x, axes, np.int64, keepdims=True)
    if count == 0:
        return np.zeros(total.shape, x.dtype)
    quotient = total // count
    quotient += (total < 0) & (quotient * count != total)
    return np.asarray(quotient.astype(x.dtype))


def _quantized_sum(site: Site, *, mean: bool) -> Reduce:
    """The rescaled sum of values minus the zero point; a mean's multiplier is divided."""
    given, made = site.quantizations()
    mantissa, shift = fixed_point.quantize_multiplier(given.scale / made.scale)
    dtype = site.output().dtype
    limits = integer_range(dtype)

    def reduce(x: NDArray, axes: Axes) -> NDArray:
        count = math.prod(x.shape[axis] for axis in axes)
        total = np.add.reduce(x, axes, np.int64, keepdims=True) - given.zero_point * count
        if x.size == 0:
            return np.zeros(total.shape, x.dtype)
        multiplier = _divided(mantissa, shift, count) if mean else (mantissa, shift)
        scaled = fixed_point.rescale(fixed_point.wrapped(total), *multiplier) + made.zero_point
        return np.asarray(np.clip(scaled, *limits).astype(dtype.numpy))

    return reduce


def _divided(mantissa: int, shift: int, count: int) -> tuple[int, int]:
    """A multiplier divided by *count*.

    It is first shifted left, so that the truncating division loses little: by as many bits as
    *count* has and the shift allows.
    """
    more = min(count.bit_length() - 1, 32, 31 + shift)
    return (mantissa << more) // count, shift - more


@kernel("REDUCE_MAX", "REDUCE_MIN")
def extreme(site: Site) -> Kernel:
    """The largest or smallest stored value along the axes; NaN is ignored."""
    dtype = site.input(0).dtype
    if dtype is DType.BOOL:
        largest = site.operation.type == "REDUCE_MAX"
        return _any_or_all(site, np.logical_or if largest else np.logical_and)
    site.require_types(dtype in PLAIN | QUANTIZED)
    if dtype in QUANTIZED:
        # As in LiteRT's kernel, per-channel scales count as no quantisation.
        given, made = (of_tensor(o.quantization) for o in (site.input(0), site.output()))
        require(given == made, f"{site.operation.type} to another scale or zero point")
    largest = site.operation.type == "REDUCE_MAX"
    function = np.fmax if largest else np.fmin
    limits = np.finfo(np.float32) if dtype.is_float else np.iinfo(dtype.numpy)
    start = dtype.numpy.type(limits.min if largest else limits.max)

    def reduce(x: NDArray, axes: Axes) -> NDArray:
        # A reduction of all axes starts from the first element, other reductions from the least
        # finite value.
        if x.size and len(axes) == x.ndim:
            return np.asarray(function.reduce(x, axes, keepdims=True))
        return np.asarray(function.reduce(x, axes, keepdims=True, initial=start))

    return _reduction(site, reduce)


@kernel("REDUCE_PROD")
def product(site: Site) -> Kernel:
    """The product along the axes; quantised products are rescaled after each factor."""
    dtype = site.input(0).dtype
    if dtype is DType.BOOL:
        return _any_or_all(site, np.logical_and)
    if site.input(0).quantization is not None:
        site.require_types(dtype in {DType.INT8, DType.INT16})
        return _reduction(site, _quantized_product(site))
    site.require_types(dtype in PLAIN | {DType.INT8, DType.UINT8, DType.INT16})
    return _reduction(
        site, lambda x, axes: np.asarray(np.multiply.reduce(x, axes, x.dtype, keepdims=True))
    )


def _quantized_product(site: Site) -> Reduce:
    given, made = site.quantizations()
    dtype = site.output().dtype

    def reduce(x: NDArray, axes: Axes) -> NDArray:
        count = math.prod(x.shape[axis] for axis in axes)
        shape = [1 if axis in axes else size for axis, size in enumerate(x.shape)]
        if x.size == 0:
            return np.zeros(shape, x.dtype)
        multiplier = fixed_point.quantize_multiplier(
            given.scale / math.pow(made.scale, 1.0 / count)
        )
        factors = np.moveaxis(x, sorted(axes), range(len(axes))).reshape(count, -1)
        values = factors.astype(np.int64) - given.zero_point
        result = values[0]
        for factor in (*values[1:], 1):
            scaled = fixed_point.rescale_wide(result * factor, *multiplier)
            result = scaled.astype(np.int32).astype(np.int64)
        clamped: NDArray = np.clip(result + made.zero_point, *integer_range(dtype))
        return clamped.astype(x.dtype).reshape(shape)

    return reduce


@kernel("REDUCE_ANY", "REDUCE_ALL")
def truth(site: Site) -> Kernel:
    """Whether any element, or every element, along the axes is true."""
    require(site.input(0).dtype is DType.BOOL, f"{site.operation.type} of another type than bool")
    return _any_or_all(
        site, np.logical_or if site.operation.type == "REDUCE_ANY" else np.logical_and
    )


def _any_or_all(site: Site, function: np.ufunc) -> Kernel:
    """A reduction of booleans: sum and maximum are `or`, product and minimum `and`."""
    return _reduction(site, lambda x, axes: np.asarray(function.reduce(x, axes, keepdims=True)))


@direct(
    "ARG_MAX", "ARG_MIN", accepts=lambda s: s.input(0).dtype in PLAIN | QUANTIZED | {DType.BOOL}
)
def arg_extreme(site: Site, inputs: Inputs) -> Outputs:
    """The index of the first largest or smallest stored value along an axis; NaN is ignored."""
    largest = site.operation.type == "ARG_MAX"
    function, extreme = (np.argmax, np.inf) if largest else (np.argmin, -np.inf)
    dtype = site.output().dtype.numpy
    x, (axis,) = np.asarray(inputs[0]), dimensions(inputs[1])
    along = normal_axis(axis, x.ndim)
    found = np.asarray(function(x, along))
    if x.dtype.kind == "f" and (unordered := np.isnan(x)).any():
        ordered = np.where(unordered, -extreme, x)
        best = np.take_along_axis(ordered, np.expand_dims(function(ordered, along), along), along)
        found = np.asarray(np.argmax((ordered == best) & ~unordered, along))
    return (found.astype(dtype),)


@direct("CUMSUM", accepts=lambda s: s.input(0).dtype in PLAIN)
def cumulative_sum(site: Site, inputs: Inputs) -> Outputs:
    """The running sum along an axis; optionally from the end, or without the element itself."""
    exclusive, backward = site.attributes.flag("exclusive"), site.attributes.flag("reverse")
    x, (axis,) = np.asarray(inputs[0]), dimensions(inputs[1])
    along = normal_axis(axis, x.ndim)
    moved = np.moveaxis(x, along, 0)
    moved = moved[::-1] if backward else moved
    sums = np.add.accumulate(moved, 0, x.dtype)
    if exclusive and len(sums):
        sums = np.concatenate([np.zeros_like(sums[:1]), sums[:-1]])
    sums = sums[::-1] if backward else sums
    return (np.asarray(np.moveaxis(sums, 0, along), order="C"),)
