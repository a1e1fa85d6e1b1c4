"""FULLY_CONNECTED with a scale for each block of a row of weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.drivers.reference.ops.kernel import Kernel, Site
from penstock.drivers.reference.ops.numerics.activation_range import (
    activation_bounds,
    clamp_in_place,
)
from penstock.drivers.reference.ops.numerics.hybrid import quantize_rows
from penstock.drivers.reference.ops.numerics.weights import given
from penstock.errors import ShapeMismatch
from penstock.ir import DType, NDArray


def block_scaled(site: Site) -> Kernel:
    """Rows quantised asymmetrically at run time, their products summed as integers in each block,
    the sums of blocks weighed by the scales.
    """
    source, weights, target = site.input(0), site.input(1), site.output()
    if not (source.dtype is target.dtype is DType.FLOAT32 and weights.dtype is DType.INT4):
        raise site.unsupported_types()
    activation = site.attributes.text("fused_activation_function")
    activation_bounds(activation)
    keep = site.attributes.flag("keep_num_dims")

    def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
        x, matrix, bias, scales = given(inputs[0]), given(inputs[1]), inputs[2], given(inputs[3])
        units, depth = matrix.shape
        if not depth or x.size % depth:
            raise ShapeMismatch(f"an input of shape {x.shape} does not make rows of {depth}")
        rows = quantize_rows(x.reshape(-1, depth), asymmetric=True)
        values = rows.values.astype(np.float32) - rows.offsets[:, None].astype(np.float32)
        sums = np.zeros((len(values), units), np.float32)
        size = depth // scales.shape[1]
        for block, scale in enumerate(scales.astype(np.float32).T):
            part = slice(block * size, (block + 1) * size)
            sums += (values[:, part] @ matrix[:, part].astype(np.float32).T) * scale
        sums *= rows.scales[:, None]
        if bias is not None:
            sums += bias.reshape(-1)
        shape = (*x.shape[:-1], units) if keep else sums.shape
        return (clamp_in_place(sums, activation).reshape(shape),)

    return run
