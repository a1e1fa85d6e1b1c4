"""FULLY_CONNECTED with weights in other formats: a scale for each block of a row, and shuffled.

The format SHUFFLED4x16INT8 has weights [units, depth] in blocks of 4 rows and 16 columns, row by
row within a block. The highest bit of each byte is flipped, which makes it int8. Both zero points
count as 128, whatever the operands say. The second output is the work space of TFLite's kernel: the
input with its highest bits flipped, in the same blocks.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.drivers.reference.kernel import Inputs, Kernel, Outputs, Site, require
from penstock.drivers.reference.numerics import requantize
from penstock.drivers.reference.numerics.hybrid import quantize_rows
from penstock.drivers.reference.numerics.products import Columns
from penstock.drivers.reference.numerics.weights import given
from penstock.errors import ShapeMismatch
from penstock.ir import DType, NDArray
from penstock.ir.types import element_count, static_shape


def block_scaled(site: Site) -> Kernel:
    """Rows are quantised asymmetrically at run time. Products are summed as integers within each
    block, and the blocks' sums are weighted by the scales.
    """
    source, weights, target = site.input(0), site.input(1), site.output()
    site.require_types(
        source.dtype is target.dtype is DType.FLOAT32 and weights.dtype is DType.INT4
    )
    activation = requantize.fused_activation(site)
    keep = site.attributes.flag("keep_num_dims")

    def run(inputs: Inputs) -> Outputs:
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
        return (requantize.clamp_in_place(sums, activation).reshape(shape),)

    return run


ROWS: Final = 4
COLUMNS: Final = 16
BATCHES: Final = (1, 4)
"""The numbers of input rows that TFLite's kernel supports."""

FLIP: Final = np.uint8(0x80)


def shuffled_layer(site: Site) -> Kernel:
    """uint8 inputs [1 or 4, 16 * n] and weights [4 * m, 16 * n] to int16 [rows, 4 * m]."""
    types = [site.input(0).dtype, site.input(1).dtype, site.output().dtype]
    site.require_types(types == [DType.UINT8, DType.UINT8, DType.INT16])
    require(len(site.outputs) == 2, "shuffled weights without a work space")
    source, filters = (site.quantization(i).scale for i in (0, 1))
    target = site.output_quantization()
    product = float(np.float32(source) * np.float32(filters))
    limits = requantize.quantized_range(
        site.attributes.text("fused_activation_function"), DType.INT16, target
    )
    keep = site.attributes.flag("keep_num_dims")
    space = static_shape(site.outputs[1].shape)

    def run(inputs: Inputs) -> Outputs:
        x, stored = given(inputs[0]), given(inputs[1])
        units, depth = stored.shape
        if units % ROWS or depth % COLUMNS or not depth or x.size // depth not in BATCHES:
            raise ShapeMismatch(f"shuffled weights {stored.shape} with an input of {x.shape}")
        work = (x ^ FLIP).view(np.int8).reshape(-1, depth)
        blocks = stored.view(np.int8).reshape(units // ROWS, depth // COLUMNS, ROWS, COLUMNS)
        weights = blocks.transpose(0, 2, 1, 3).reshape(units, depth)
        columns = Columns(weights.astype(np.int32), 128)
        bias = inputs[2] if site.has(2) else None
        finish = requantize.Requantizer(
            [product / target.scale],
            units,
            columns.bound,
            DType.INT16,
            0,
            limits,
            None if bias is None else bias.reshape(-1),
        )
        out = np.empty((len(work), units), np.int16)
        finish(np.matmul(work.astype(columns.values.dtype), columns.values.T), out)
        shape = (*x.shape[:-1], units) if keep else out.shape
        return out.reshape(shape), _work_space(work, space)

    return run


def _work_space(rows: NDArray, shape: tuple[int, ...] | None) -> NDArray:
    """The input as TFLite's kernel stores it, in the declared *shape*."""
    count, depth = rows.shape
    blocks = rows.reshape(count, depth // COLUMNS, COLUMNS).transpose(1, 0, 2)
    flat = np.ascontiguousarray(blocks).reshape(-1).view(np.uint8)
    if shape is None:
        return flat.reshape(count, depth)
    if element_count(shape) != flat.size:
        raise ShapeMismatch(f"a work space of shape {shape} for an input of {flat.size} elements")
    return flat.reshape(shape)
