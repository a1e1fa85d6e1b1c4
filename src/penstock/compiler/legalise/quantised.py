"""Integers of quantised layers: multipliers, limits, and the expression from sums to results.

The rules are those of TFLite's reference kernels (TensorFlow Lite's quantisation specification;
NNAPI section 8.1).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.compiler.expression import Expression, Scope, Value
from penstock.compiler.legalise.builder import Operation
from penstock.compiler.program import Access, Position
from penstock.driverkit.fixed_point import (
    quantize_multiplier,
    quantize_multipliers,
    round_half_away,
)
from penstock.driverkit.site import Refused, Site, require
from penstock.ir import DType, NDArray, Operand, Quantization

BOUNDS = {
    "NONE": (None, None),
    "RELU": (0.0, None),
    "RELU_N1_TO_1": (-1.0, 1.0),
    "RELU6": (0.0, 6.0),
}
"""The real bounds of the activations that TFLite's kernels fuse; None: unbounded."""

GREATEST = float(np.finfo(np.float32).max)

NARROW = frozenset({DType.INT8, DType.UINT8})
STORED = NARROW | {DType.INT16}


def bounds_of(activation: str) -> tuple[float | None, float | None]:
    """The real bounds of a fused activation."""
    require(activation in BOUNDS, f"no fused activation {activation}")
    return BOUNDS[activation]


def finite_bounds_of(activation: str) -> tuple[float, float]:
    """As `bounds_of`; the greatest floats in the place of no bound."""
    low, high = bounds_of(activation)
    return -GREATEST if low is None else low, GREATEST if high is None else high


def scale_of(operand: Operand, what: str) -> Quantization:
    """The one scale and zero point of *operand*."""
    quantization = operand.quantization
    if quantization is None or quantization.per_channel:
        raise Refused(f"{what} without one scale and zero point")
    return quantization


def integer_range(dtype: DType) -> tuple[int, int]:
    """(least, greatest) value of an integer type."""
    bits = dtype.bits or 0
    if dtype.value.startswith("u"):
        return 0, 2**bits - 1
    return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1


def limits_of(activation: str, operand: Operand) -> tuple[int, int]:
    """(least, greatest) stored value of a result after its fused activation."""
    least, greatest = integer_range(operand.dtype)
    low, high = bounds_of(activation)
    if low is None and high is None:
        return least, greatest
    made = scale_of(operand, "a result with an activation")
    scale, zero_point = np.float32(made.scale), made.zero_point
    if low is not None:
        least = max(least, zero_point + int(round_half_away(float(np.float32(low) / scale))))
    if high is not None:
        greatest = min(greatest, zero_point + int(round_half_away(float(np.float32(high) / scale))))
    return least, greatest


def weight_zero(operand: Operand) -> int:
    """The zero point of integer weights, which is 0 where they have a scale for each channel."""
    quantization = operand.quantization
    if quantization is None:
        raise Refused("integer weights without a scale")
    require(
        not quantization.per_channel or not any(quantization.zero_points),
        "weights with a zero point for each channel",
    )
    return quantization.zero_point


def channel_scales(site: Site, weights: int, axis: int, channels: int) -> NDArray:
    """The scales of the weights: one, or one for each of *channels*, along *axis*."""
    operand = site.input(weights)
    quantization = operand.quantization
    if quantization is None:
        raise Refused("integer weights without a scale")
    scales = np.array(quantization.scales, np.float64)
    if scales.size == 1:
        return scales
    matrix = len(operand.shape or ()) == 2 and scales.size >= channels
    require(
        matrix or (scales.size == channels and quantization.dimension == axis),
        f"{scales.size} scales of weights along another dimension than their outputs",
    )
    return scales[:channels]


def layer_multipliers(
    site: Site, data: int, weights: int, axis: int, channels: int, *, single: bool
) -> NDArray:
    """Input scale * weight scale / output scale. *single* multiplies in float32, as TFLite's
    kernels for uint8 do.
    """
    source = scale_of(site.input(data), "an input").scale
    made = scale_of(site.output(), "an output").scale
    scales = channel_scales(site, weights, axis, channels)
    if single:
        product = (np.float32(source) * scales.astype(np.float32)).astype(np.float64)
    else:
        product = source * scales
    return np.asarray(product / made)


class Finish:
    """The expression from the sums of a layer to its results, with what it reads beside them.

    *channel* is the position of the output channel in the *loops* of the kernel.
    """

    def __init__(
        self, operation: Operation, sums: DType, channel: Position, loops: tuple[int, ...] = ()
    ) -> None:
        self._operation, self._channel, self._loops = operation, channel, loops
        self._dtypes: list[DType] = [sums]
        self.extras: list[Access] = []

    def read(self, tensor: int, axes: Sequence[Position] | None = None) -> int:
        """Reads *tensor* at *axes* (None: a vector at [channel]); returns its argument number."""
        if axes is None:
            tensor, channel = self._part(tensor)
            axes = [channel]
        self.extras.append(Access(tensor, tuple(axes)))
        self._dtypes.append(self._operation.build.tensors[tensor].dtype)
        return len(self._dtypes) - 1

    def _part(self, tensor: int) -> tuple[int, Position]:
        """The part of a constant vector that a kernel of some of the channels reads, and the
        position in it.
        """
        build = self._operation.build
        if not self._loops or tensor not in build.constants:
            return tensor, self._channel
        first, last = self._channel.span(self._loops)
        values = build.constants[tensor][first : last + 1]
        if len(values) == len(build.constants[tensor]):
            return tensor, self._channel
        part = build.constant(build.tensors[tensor].dtype, values.shape, lambda: values)
        return part, Position(0, self._channel.steps)

    def bias(self, position: int) -> int | None:
        """The bias at input *position* as an argument; None if it is omitted."""
        site = self._operation.site
        if not site.has(position):
            return None
        tensor = self._operation.tensor(position)
        shape = self._operation.shape(tensor)
        if len(shape) != 1:
            tensor = self._operation.build.alias((int(np.prod(shape)),), tensor)
        return self.read(tensor)

    def vector(self, values: NDArray, dtype: DType) -> int | None:
        """*values* as an argument; None if all are equal (a constant is enough)."""
        if np.all(values == values.reshape(-1)[0]):
            return None
        build = self._operation.build
        return self.read(build.constant(dtype, values.shape, lambda: values))

    def scope(self) -> Scope:
        """The scope to write the expression in, after everything is read."""
        return Scope(*self._dtypes)


def rescaled(
    finish: Finish, multipliers: NDArray, bias: int | None, limits: tuple[int, int],
    zero_point: int, target: DType, *, wide: bool,
) -> Expression:  # fmt: skip
    """Sums plus bias, times the quantised multipliers, plus the zero point, clamped.

    *wide* sums have 64 bits and are scaled as TFLite's kernels for int16 scale them.
    """
    mantissas, shifts = quantize_multipliers(multipliers)
    mantissa = finish.vector(mantissas, DType.INT32)
    shift = finish.vector(shifts, DType.INT32)
    scope = finish.scope()
    total = scope.argument(0)
    if bias is not None:
        total = total + scope.argument(bias).cast(total.dtype)

    def value(argument: int | None, values: NDArray) -> Value:
        if argument is None:
            return scope.constant(int(values.reshape(-1)[0]), DType.INT32)
        return scope.argument(argument)

    operation = "rescale_wide" if wide else "rescale"
    factors = value(mantissa, mantissas), value(shift, shifts)
    scaled = scope.add(operation, total, *factors, dtype=DType.INT32)
    return scope.finish((scaled + zero_point).clamp(*limits).cast(target))


def rescale(value: Value, real: float, *, saturating: bool = False) -> Value:
    """The int32 *value* times a real multiplier, in fixed point.

    *saturating*: left shifts saturate at 32 bits.
    """
    mantissa, shift = quantize_multiplier(real)
    scope = value.scope
    if saturating and shift > 0:
        # 31 bits saturate any number but 0.
        wide = (
            value.cast(DType.INT64).apply("shift_left", min(shift, 31)).clamp(-(2**31), 2**31 - 1)
        )
        value, shift = wide.cast(DType.INT32), 0
    constants = [scope.constant(v, DType.INT32) for v in (mantissa, shift)]
    return scope.add("rescale", value, *constants, dtype=DType.INT32)


def table(operation: Operation, results: Sequence[int] | NDArray, dtype: DType) -> int:
    """A constant vector for lookups by a stored 8-bit value plus its offset."""
    array = np.asarray(results)
    return operation.build.constant(dtype, array.shape, lambda: array)
