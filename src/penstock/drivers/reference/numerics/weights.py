"""Filters, scales and biases of quantised convolutions and matrix products."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from penstock.driverkit.fixed_point import quantize_multipliers
from penstock.drivers.reference import kernel
from penstock.drivers.reference.numerics.products import SignedInput
from penstock.drivers.reference.numerics.requantize import (
    RealRequantizer,
    Requantizer,
    quantized_range,
)
from penstock.ir import DType, NDArray, Operand, Quantization
from penstock.ir.types import element_count, static_shape

REAL: Final = frozenset({DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16})
"""Types of layers that are computed in float32."""

QUANTIZED: Final = frozenset({DType.INT8, DType.UINT8, DType.INT16})

Layer = Callable[..., NDArray]
"""Computes one layer from its inputs. The layer's weights are prepared."""

Prepare = Callable[[NDArray, "NDArray | None"], Layer]
"""Prepares a layer with given weights and bias."""


NARROW: Final = frozenset({DType.INT8, DType.UINT8, DType.INT4, DType.INT2})
"""Types of integer weights of 8 bits or fewer."""

BIASES: Final = REAL | {DType.INT32, DType.INT64}

MOST_WEIGHTS: Final = 1 << 29
"""The most weights of 8 bits whose sum of products with 16-bit values is exact in float64 whatever
they are.
"""


def layer_kernel(
    site: kernel.Site,
    prepare: Prepare,
    *,
    rank: int = 4,
    axis: int = 0,
    sources: Sequence[int] = (0,),
    bias: int = 2,
) -> kernel.Kernel:
    """The kernel of a layer whose weights are input 1, with channels along *axis* of *rank*.
    *sources* are the positions of the layer's other inputs, *bias* that of an optional bias.

    Constant weights and bias are prepared once, with the model; computed ones in each run. If
    preparing constants may raise, they are prepared here: the operation is refused.
    """
    biased = site.has(bias)
    if site.is_constant(1) and (not biased or site.is_constant(bias)):
        layer = _Once(lambda: prepare(given(site.constant(1)), site.constant(bias)))
        if not _are_sound(site, rank, axis, bias):
            layer.value()
        site.preparations.append(layer.value)
        return lambda inputs: (layer.value()(*[given(inputs[i]) for i in sources]),)
    return lambda inputs: (
        prepare(given(inputs[1]), inputs[bias] if biased else None)(
            *[given(inputs[i]) for i in sources]
        ),
    )


class _Once:
    """A layer that the first call of `value` prepares. Calls in two threads may each prepare it."""

    def __init__(self, prepare: Callable[[], Layer]) -> None:
        self._prepare = prepare
        self._made: Layer | None = None

    def value(self) -> Layer:
        if self._made is None:
            self._made = self._prepare()
        return self._made


def _are_sound(site: kernel.Site, rank: int, axis: int, bias: int) -> bool:
    """Whether types and shapes alone show that a layer can be prepared with any constants such as
    its own.
    """
    weights, made = site.input(1), site.output().dtype
    shape = static_shape(weights.shape) or ()
    if len(shape) != rank or not 0 < element_count(shape) <= MOST_WEIGHTS:
        return False
    if site.has(bias):
        offset = site.input(bias)
        count = element_count(static_shape(offset.shape) or ())
        if offset.dtype not in BIASES or count != shape[axis]:
            return False
    return weights.dtype in NARROW or weights.dtype is made in REAL


def flattened(array: NDArray) -> NDArray:
    """*array* as rows along its first dimension; also for an empty array."""
    return array.reshape(len(array), math.prod(array.shape[1:]))


def given(array: NDArray | None) -> NDArray:
    """A required input."""
    if array is None:
        raise ValueError("an input is missing")
    return array


def weight_quantization(operand: Operand) -> Quantization:
    """The quantisation of integer weights.

    Per-channel weights are symmetric (TFLite's quantisation specification). Raises `Unsupported`
    for per-channel weights with a zero point, and for weights without a scale.
    """
    quantization = operand.quantization
    if quantization is None:
        raise kernel.Unsupported(f"weights of type {operand.dtype.value} without a scale")
    symmetric = not quantization.per_channel or not any(quantization.zero_points)
    kernel.require(symmetric, "per-channel weights with zero points")
    return quantization


def centred(values: NDArray, operand: Operand) -> NDArray:
    """Stored weights minus their zero point, as int32."""
    wide: NDArray = values.astype(np.int32)
    wide -= weight_quantization(operand).zero_point
    return wide


def channel_scales(operand: Operand, axis: int) -> NDArray:
    """The weights' scales, float64: one, or one for each channel along *axis*.

    For matrices, TFLite's kernels ignore the quantised dimension. They apply the scales to the
    channels, in order, and ignore extra scales. Raises `Unsupported` for other weights quantised
    along another dimension, and for too few scales.
    """
    quantization = operand.quantization
    if quantization is None:
        raise kernel.Unsupported(f"weights of type {operand.dtype.value} without a scale")
    scales = np.array(quantization.scales, np.float64)
    channels = None if operand.shape is None else operand.shape[axis]
    matrix = operand.shape is not None and len(operand.shape) == 2
    fitting = quantization.dimension == axis and channels in {None, scales.size}
    enough = matrix and channels is not None and channels <= scales.size
    if scales.size > 1 and not (fitting or enough):
        raise kernel.Unsupported(
            f"{scales.size} scales along dimension {quantization.dimension} of weights of shape "
            f"{operand.shape}, where one scale, or one for each channel of "
            f"dimension {axis}, is needed"
        )
    return scales if scales.size == 1 else scales[:channels]


@dataclass(frozen=True, slots=True)
class Scaling:
    """The scaling of one quantised layer, from sums of stored products to stored outputs.

    *axis* is the filters' dimension with a scale for each element. *wide* sums have 64 bits.
    """

    source: Operand
    filters: Operand
    target: Operand
    axis: int
    activation: str
    wide: bool

    @classmethod
    def of(cls, site: kernel.Site, *, source: int, weights: int, bias: int, axis: int) -> Scaling:
        """The scaling of *site*'s first output; *source*, *weights* and *bias* are positions of
        inputs.

        Sums of 16-bit inputs have 64 bits, unless the bias has 32, or would have by an attribute.
        """
        inputs = site.input(source), site.input(weights)
        absent = (
            DType.INT32 if site.attributes.get("quantized_bias_type") == "INT32" else DType.INT64
        )
        offset = site.input(bias).dtype if site.has(bias) else absent
        scaling = cls(
            *inputs,
            site.output(),
            axis,
            str(site.attributes.get("fused_activation_function", "NONE")),
            inputs[0].dtype is DType.INT16 and offset is DType.INT64,
        )
        weight_quantization(scaling.filters)
        quantize_multipliers(scaling.multipliers(single=False))
        quantized_range(scaling.activation, scaling.target.dtype, scaling.target.quantization)
        return scaling

    @property
    def signed_input(self) -> SignedInput:
        zero_point = kernel.tensor_quantization(self.source, "an input").zero_point
        return SignedInput(self.source.dtype, zero_point)

    def multipliers(self, *, single: bool) -> NDArray:
        """Input scale * filter scale / output scale, one number or one for each channel.

        *single* computes the product in float32, as TFLite's per-tensor kernels do.
        """
        source = kernel.tensor_quantization(self.source, "an input").scale
        target = kernel.tensor_quantization(self.target, "an output").scale
        scales = channel_scales(self.filters, self.axis)
        if single:
            product = (np.float32(source) * scales.astype(np.float32)).astype(np.float64)
        else:
            product = source * scales
        return np.asarray(product / target)

    def requantizer(self, bound: NDArray, sums: NDArray, bias: NDArray | None) -> Requantizer:
        """The requantizer of a layer whose sums, of inputs with their zero point, are at most
        *bound*.

        *bound*, and *sums*, the sums of the centred weights, have one element for each channel. The
        bias compensates for the input's zero point.
        """
        return Requantizer(
            self.multipliers(single=self.source.dtype is DType.UINT8),
            bound.size,
            bound,
            self.target.dtype,
            self._zero_point,
            self._limits,
            self._offsets(sums, bias),
            wide=self.wide,
        )

    def real_requantizer(
        self, bound: NDArray, sums: NDArray, bias: NDArray | None
    ) -> RealRequantizer:
        """As `requantizer`, for TFLite's kernels that scale in float64."""
        return RealRequantizer(
            self.multipliers(single=False),
            self._zero_point,
            self._limits,
            self._offsets(sums, bias),
            bound,
            wide=self.wide,
        )

    @property
    def _zero_point(self) -> int:
        return kernel.tensor_quantization(self.target, "an output").zero_point

    @property
    def _limits(self) -> tuple[int, int]:
        return quantized_range(self.activation, self.target.dtype, self.target.quantization)

    def _offsets(self, sums: NDArray, bias: NDArray | None) -> NDArray:
        correction: NDArray = -self.signed_input.zero_point * sums
        return correction if bias is None else correction + bias.reshape(-1).astype(np.int64)
