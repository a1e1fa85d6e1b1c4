"""L2_NORMALIZATION and LOCAL_RESPONSE_NORMALIZATION, along the last dimension."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.drivers.reference.ops.kernel import (
    Kernel,
    Site,
    kernel,
    require,
    tensor_quantization,
)
from penstock.drivers.reference.ops.numerics.fixed_point import multiply_by_quantized_multiplier
from penstock.drivers.reference.ops.numerics.fixed_point_functions import inverse_square_root
from penstock.drivers.reference.ops.numerics.parts import by_rows
from penstock.drivers.reference.ops.numerics.tables import QUANTIZED_8
from penstock.ir import DType, NDArray

LEAST_NORM = np.float32(1e-6)


@kernel("L2_NORMALIZATION")
def l2_normalization(site: Site) -> Kernel:
    """Vectors over their length. Quantised outputs have the scale 1/128 and its middle for zero."""
    dtype, activation = site.input(0).dtype, site.attributes.text("fused_activation_function")
    require(activation == "NONE", f"L2_NORMALIZATION with {activation}")
    if dtype is DType.FLOAT32:
        return lambda inputs: (by_rows(_l2_float, np.asarray(inputs[0])),)
    if dtype not in QUANTIZED_8 or dtype is not site.output().dtype:
        raise site.unsupported_types()
    zero_point = tensor_quantization(site.input(0), "the input").zero_point
    made = tensor_quantization(site.output(), "the output")
    least, middle = (0, 128) if dtype is DType.UINT8 else (-128, 0)
    require(made.scale == 1 / 128, "L2_NORMALIZATION to another scale than 1/128")
    require(made.zero_point == middle, "L2_NORMALIZATION with this output zero point")

    def compute(stored: NDArray) -> NDArray:
        x = stored.astype(np.int64) - zero_point
        mantissas, shifts = inverse_square_root((x * x).sum(axis=-1, keepdims=True))
        if dtype is DType.UINT8:
            scaled = multiply_by_quantized_multiplier(128 * x, mantissas, shifts)
        else:
            scaled = multiply_by_quantized_multiplier(x, mantissas, shifts + 7)
        clamped: NDArray = np.clip(scaled + middle, least, least + 255).astype(dtype.numpy)
        return clamped

    return lambda inputs: (by_rows(compute, np.asarray(inputs[0])),)


def _l2_float(x: NDArray) -> NDArray:
    length = np.sqrt(np.square(x).sum(axis=-1, keepdims=True))
    result: NDArray = x / np.maximum(length, LEAST_NORM)
    return result


@kernel("LOCAL_RESPONSE_NORMALIZATION")
def local_response_normalization(site: Site) -> Kernel:
    """`x / (bias + alpha * sum of squares of its neighbours in depth) ** beta`.

    Neighbours on both sides count, as TensorFlow, NNAPI and LiteRT's default kernel have
    it; LiteRT's reference kernel leaves the farthest one above out.
    """
    if site.input(0).dtype is not DType.FLOAT32:
        raise site.unsupported_types()
    radius = site.attributes.integer("radius")
    bias, alpha, beta = (
        np.float32(site.attributes.number(name)) for name in ("bias", "alpha", "beta")
    )
    require(radius >= 0, "a negative radius")

    def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
        x = np.asarray(inputs[0])
        depth = x.shape[-1]
        if depth == 0:
            return (x,)
        reach = min(radius, depth)
        squares = np.pad(np.square(x), [*[(0, 0)] * (x.ndim - 1), (reach, reach)])
        windows = np.lib.stride_tricks.sliding_window_view(squares, 2 * reach + 1, axis=-1)
        total = windows.sum(axis=-1, dtype=np.float32)
        with np.errstate(all="ignore"):
            return (x * np.power(bias + alpha * total, -beta),)

    return run
