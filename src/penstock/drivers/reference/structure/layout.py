"""Dimensions reordered, padded, mirrored, repeated and reversed; space exchanged for batch or
depth; and the diagonals of batches of matrices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from penstock.drivers.reference.kernel import (
    Inputs,
    Outputs,
    Site,
    direct,
    require,
    types,
)
from penstock.drivers.reference.numerics.weights import given
from penstock.drivers.reference.structure.shape import checked, dimensions, normal_axis, scalar
from penstock.errors import ShapeMismatch
from penstock.ir import DType, NDArray, Operand

QUANTIZED: Final = types("int8 uint8 int16")
OPAQUE: Final = types("string resource variant")


@direct("TRANSPOSE", inputs=2)
def transpose(_: Site, inputs: Inputs) -> Outputs:
    """Output dimension i is input dimension permutation[i]."""
    moved = np.asarray(inputs[0]).transpose(dimensions(inputs[1]))
    return (np.asarray(moved, order="C"),)


@direct("PAD", "PADV2")
def pad(site: Site, inputs: Inputs) -> Outputs:
    """Pads each dimension before and after with zeros (quantised: the output's zero point), or with
    a given scalar.

    As in TFLite, int8 and int16 outputs count as quantised only if the input is.
    """
    signed = site.output().dtype in {DType.INT8, DType.INT16}
    zero = 0 if signed and site.input(0).quantization is None else _zero(site.output())
    given = site.operation.type == "PADV2"
    x, pads = np.asarray(inputs[0]), _paddings(inputs[1])
    value = scalar(inputs[2], "a padding value") if given else zero
    return (padded(x, pads, value),)


def _zero(operand: Operand) -> int:
    """The stored value of 0; 0 for types that kernels do not quantise, and per channel."""
    quantization = operand.quantization
    if operand.dtype not in QUANTIZED or quantization is None or quantization.per_channel:
        return 0
    return quantization.zero_point


def padded(x: NDArray, pads: Sequence[tuple[int, int]], value: NDArray | int) -> NDArray:
    """*x*, padded with *value*."""
    if len(pads) != x.ndim or any(min(pair) < 0 for pair in pads):
        raise ShapeMismatch(f"paddings {pads} of an input of shape {x.shape}")
    shape = [size + sum(pair) for size, pair in zip(x.shape, pads, strict=True)]
    result = np.full(checked(shape, "padding"), value, x.dtype)
    inside = tuple(slice(before, before + n) for n, (before, _) in zip(x.shape, pads, strict=True))
    result[inside] = x
    return result


def _paddings(value: NDArray | None) -> list[tuple[int, int]]:
    flat = dimensions(value)
    return list(zip(flat[::2], flat[1::2], strict=True))


@direct("MIRROR_PAD")
def mirror_pad(site: Site, inputs: Inputs) -> Outputs:
    """Pads the input with its mirror image, without the edge (REFLECT) or with it (SYMMETRIC)."""
    spare = 1 if site.attributes.text("mode") == "REFLECT" else 0
    x, pads = np.asarray(inputs[0]), _paddings(inputs[1])
    if len(pads) != x.ndim:
        raise ShapeMismatch(f"paddings {pads} of an input of shape {x.shape}")
    for axis, (size, pair) in enumerate(zip(x.shape, pads, strict=True)):
        if min(pair) < 0 or max(pair) > max(size - spare, 0):
            raise ShapeMismatch(f"paddings {pads} of an input of shape {x.shape}")
        places = np.arange(-pair[0], size + pair[1])
        places = np.where(places < 0, spare - 1 - places, places)
        places = np.where(places >= size, 2 * size - 1 - spare - places, places)
        x = x if pair == (0, 0) else np.take(x, places, axis)
    return (x,)


@direct("TILE", inputs=2)
def tile(_: Site, inputs: Inputs) -> Outputs:
    x, repeats = np.asarray(inputs[0]), dimensions(inputs[1])
    if len(repeats) != x.ndim or min(repeats, default=0) < 0:
        raise ShapeMismatch(f"multiples {repeats} of an input of shape {x.shape}")
    checked([n * r for n, r in zip(x.shape, repeats, strict=True)], "TILE")
    return (np.tile(x, repeats),)


@direct("DILATE", inputs=3)
def dilate(_: Site, inputs: Inputs) -> Outputs:
    """Inserts dilation - 1 copies of a scalar between adjacent elements."""
    x, factors = np.asarray(inputs[0]), dimensions(inputs[1])
    if len(factors) != x.ndim or min(factors, default=1) < 1:
        raise ShapeMismatch(f"dilations {factors} of an input of shape {x.shape}")
    shape = [max((n - 1) * f + 1, 0) for n, f in zip(x.shape, factors, strict=True)]
    value = scalar(inputs[2], "a padding value")
    result = np.full(checked(shape, "DILATE"), value, x.dtype)
    result[tuple(slice(None, None, f) for f in factors)] = x
    return (result,)


@direct("REVERSE_V2", inputs=2)
def reverse(_: Site, inputs: Inputs) -> Outputs:
    """Reverses the order of elements along the given axes."""
    x = np.asarray(inputs[0])
    axes = {normal_axis(axis, x.ndim) for axis in dimensions(inputs[1])}
    return (np.asarray(np.flip(x, tuple(axes)), order="C"),)


@direct("REVERSE_SEQUENCE")
def reverse_sequence(site: Site, inputs: Inputs) -> Outputs:
    """For each index i of a dimension, reverses the first lengths[i] elements of another."""
    along, batch = site.attributes.integer("seq_dim"), site.attributes.integer("batch_dim")
    x, lengths = np.asarray(inputs[0]), np.asarray(inputs[1]).reshape(-1, 1)
    axes = normal_axis(along, x.ndim), normal_axis(batch, x.ndim)
    if not x.size:
        return (x.copy(),)
    size = x.shape[axes[0]]
    if axes[0] == axes[1] or len(lengths) != x.shape[axes[1]] or (lengths > size).any():
        raise ShapeMismatch(f"REVERSE_SEQUENCE of shape {x.shape} by {len(lengths)} lengths")
    places = np.arange(size)
    places = np.where(places < lengths, lengths - 1 - places, places)
    turned = np.moveaxis(x, axes[::-1], (0, 1))[np.arange(len(lengths))[:, None], places]
    return (np.ascontiguousarray(np.moveaxis(turned, (0, 1), axes[::-1])),)


def _check_block(site: Site) -> None:
    block = site.attributes.integer("block_size")
    require(block > 0, f"a block size of {block}")


@direct("SPACE_TO_DEPTH", check=_check_block)
def space_to_depth(site: Site, inputs: Inputs) -> Outputs:
    """Moves square blocks of an NHWC image into the channels."""
    image, block = np.asarray(inputs[0]), site.attributes.integer("block_size")
    n, h, w, c = image.shape
    cut = image.reshape(n, h // block, block, w // block, block, c).transpose(0, 1, 3, 2, 4, 5)
    return (cut.reshape(n, h // block, w // block, c * block**2),)


@direct("DEPTH_TO_SPACE", check=_check_block)
def depth_to_space(site: Site, inputs: Inputs) -> Outputs:
    """Lays channels of an NHWC image out as square blocks."""
    image, block = np.asarray(inputs[0]), site.attributes.integer("block_size")
    n, h, w, c = image.shape
    cut = image.reshape(n, h, w, block, block, c // block**2).transpose(0, 1, 3, 2, 4, 5)
    return (cut.reshape(n, h * block, w * block, c // block**2),)


@direct("SPACE_TO_BATCH_ND")
def space_to_batch(site: Site, inputs: Inputs) -> Outputs:
    """Moves blocks of the padded dimensions after the first into the first."""
    zero = _zero(site.output())
    blocks, pads = dimensions(inputs[1]), _paddings(inputs[2])
    x = np.asarray(inputs[0])
    rest = x.ndim - 1 - len(blocks)
    x = padded(x, [(0, 0), *pads, *[(0, 0)] * rest], zero)
    spatial = x.shape[1 : 1 + len(blocks)]
    pairs = [d for n, b in zip(spatial, blocks, strict=True) for d in (n // b, b)]
    x = x.reshape(x.shape[0], *pairs, *x.shape[1 + len(blocks) :])
    inner = [2 + 2 * i for i in range(len(blocks))]
    outer = [1 + 2 * i for i in range(len(blocks))]
    x = x.transpose(*inner, 0, *outer, *range(1 + 2 * len(blocks), x.ndim))
    batches = int(np.prod(x.shape[: len(blocks) + 1]))
    return (x.reshape(batches, *x.shape[len(blocks) + 1 :]),)


@direct("BATCH_TO_SPACE_ND", inputs=3)
def batch_to_space(_: Site, inputs: Inputs) -> Outputs:
    """Lays batches out as blocks of the dimensions after the first, then crops."""
    blocks, crops = dimensions(inputs[1]), _paddings(inputs[2])
    x, count = np.asarray(inputs[0]), len(blocks)
    batch = x.shape[0] // int(np.prod(blocks))
    cut = x.reshape(*blocks, batch, *x.shape[1:])
    order = [count, *(a for i in range(count) for a in (count + 1 + i, i))]
    cut = cut.transpose(*order, *range(2 * count + 1, cut.ndim))
    sizes = [n * b for n, b in zip(x.shape[1 : count + 1], blocks, strict=True)]
    whole = cut.reshape(batch, *sizes, *x.shape[count + 1 :])
    if any(min(c) < 0 or sum(c) > n for n, c in zip(sizes, crops, strict=True)):
        raise ShapeMismatch(f"crops {crops} of a shape {whole.shape}")
    inside = [slice(a, n - b) for n, (a, b) in zip(sizes, crops, strict=True)]
    return (np.asarray(whole[(slice(None), *inside)], order="C"),)


@direct("MATRIX_DIAG", accepts=lambda s: s.input(0).dtype not in OPAQUE)
def matrix_diag(_: Site, inputs: Inputs) -> Outputs:
    """Square matrices with the last dimension of the input on their diagonals, zeros elsewhere."""
    diagonal = given(inputs[0])
    if not diagonal.ndim:
        raise ShapeMismatch("a scalar is not a diagonal")
    size = diagonal.shape[-1]
    result = np.zeros(checked((*diagonal.shape, size), "a diagonal matrix"), diagonal.dtype)
    _write(result, diagonal)
    return (result,)


@direct("MATRIX_SET_DIAG", accepts=lambda s: s.input(0).dtype not in OPAQUE)
def matrix_set_diag(_: Site, inputs: Inputs) -> Outputs:
    """The matrices with their diagonals, as long as the shorter side, replaced."""
    result, diagonal = np.array(inputs[0], order="C"), given(inputs[1])
    if result.ndim < 2:
        raise ShapeMismatch(f"a matrix of shape {result.shape}")
    if not result.size:
        return (result,)
    shape = (*result.shape[:-2], min(result.shape[-2:]))
    if diagonal.shape != shape:
        raise ShapeMismatch(f"a diagonal of {diagonal.shape}, where {shape} is needed")
    _write(result, diagonal)
    return (result,)


def _write(matrices: NDArray, diagonal: NDArray) -> None:
    places = np.arange(diagonal.shape[-1])
    matrices[..., places, places] = diagonal
