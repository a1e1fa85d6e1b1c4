"""Inputs drawn for a model that is measured before anybody has run it."""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.ir import DType, Model, NDArray, Operand
from penstock.ir.types import static_shape

BLOCK: Final = 16
"""Rows and columns that are alike in a drawn picture which is no noise."""

RANGED: Final = frozenset({DType.INT8, DType.UINT8, DType.INT16})
WHOLE: Final = frozenset({DType.UINT8, DType.INT16, DType.INT32, DType.INT64})

PICTURE_RANK: Final = 4
COLOURS: Final = (1, 3, 4)
"""Channels of a picture: grey, or red, green, blue and opacity."""

BRIGHTEST: Final = 255

WIDTHS: Final = ((0.0, 1.0), (-1.0, 1.0))
"""What floats are drawn from: the usual ranges of a picture."""


def example(operand: Operand, number: int = 0) -> NDArray:
    """The drawn values of an input whose shape is known, as its example *number*, of which no two of those that are drawn
    (`is_drawn`) are alike.

    Floats from 0 to 1, those of odd ones from -1 to 1; real numbers of a quantised type over its range; whole numbers without
    a scale from 0 to 255 where they have the shape of a picture (rank 4; 1, 3 or 4 channels last); zeros of any
    other type. From number 2 on what has rank 4 has blocks of one colour in the place of noise.
    """
    shape = static_shape(operand.shape) or ()
    rng = np.random.default_rng(number)
    if operand.dtype is DType.STRING:
        array: NDArray = np.empty(shape, object)
        array[...] = b""
        return array
    blocks = number >= len(WIDTHS) and len(shape) == PICTURE_RANK
    drawn = (shape[0], -(-shape[1] // BLOCK), -(-shape[2] // BLOCK), shape[3]) if blocks else shape
    values = _values(operand, drawn, rng, number)
    if not blocks:
        return values
    every = values.repeat(BLOCK, 1).repeat(BLOCK, 2)
    return np.ascontiguousarray(every[:, : shape[1], : shape[2]])


def is_drawn(operand: Operand) -> bool:
    """Whether the examples of an input differ: they are not all zeros."""
    return operand.dtype.is_float or _is_ranged(operand) or _is_picture(operand)


def _is_ranged(operand: Operand) -> bool:
    return operand.quantization is not None and operand.dtype in RANGED


def _is_picture(operand: Operand) -> bool:
    shape = operand.shape or ()
    is_whole = operand.dtype in WHOLE and operand.quantization is None
    return is_whole and len(shape) == PICTURE_RANK and shape[-1] in COLOURS


def examples(model: Model, number: int = 0) -> list[NDArray]:
    """Example *number* of each of the model's inputs, in order."""
    return [example(operand, number) for operand in model.inputs]


def _values(
    operand: Operand, shape: tuple[int, ...], rng: np.random.Generator, number: int
) -> NDArray:
    dtype = operand.dtype.numpy
    if operand.dtype.is_float:
        low, high = WIDTHS[number % len(WIDTHS)]
        values: NDArray = rng.random(shape, np.float32) * np.float32(high - low) + np.float32(low)
        return values.astype(dtype)
    if _is_picture(operand):
        return rng.integers(0, BRIGHTEST, shape, dtype, endpoint=True)
    if _is_ranged(operand):
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    return np.zeros(shape, dtype)
