"""Random inputs for a model that is measured before its first run."""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.ir import DType, Model, NDArray, Operand
from penstock.ir.types import static_shape

RANGED: Final = frozenset({DType.INT8, DType.UINT8, DType.INT16})
WHOLE: Final = frozenset({DType.UINT8, DType.INT16, DType.INT32, DType.INT64})

PICTURE_RANK: Final = 4
COLOURS: Final = (1, 3, 4)
"""Channel counts of a picture: grey; red, green, blue; these and opacity."""

BRIGHTEST: Final = 255


def example(operand: Operand, seed: int = 0) -> NDArray:
    """Random values of an input with a known shape; the same for each call with one *seed*.

    - Floats: from 0 to 1; with an odd seed from -1 to 1.
    - Quantised types: real numbers over the type's range.
    - Integers without a scale: from 0 to 255 if the shape is that of a picture (rank 4, with 1, 3
      or 4 channels last).
    - Any other type: zeros.
    """
    shape = static_shape(operand.shape) or ()
    rng = np.random.default_rng(seed)
    dtype = operand.dtype.numpy
    if operand.dtype is DType.STRING:
        array: NDArray = np.empty(shape, object)
        array[...] = b""
        return array
    if operand.dtype.is_float:
        values: NDArray = rng.random(shape, np.float32)
        if seed % 2:
            values = values * np.float32(2) - np.float32(1)
        return values.astype(dtype)
    if _is_picture(operand):
        return rng.integers(0, BRIGHTEST, shape, dtype, endpoint=True)
    if operand.quantization is not None and operand.dtype in RANGED:
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    return np.zeros(shape, dtype)


def examples(model: Model) -> list[NDArray]:
    """An example of each of the model's inputs, in order."""
    return [example(operand) for operand in model.inputs]


def _is_picture(operand: Operand) -> bool:
    shape = operand.shape or ()
    is_whole = operand.dtype in WHOLE and operand.quantization is None
    return is_whole and len(shape) == PICTURE_RANK and shape[-1] in COLOURS
