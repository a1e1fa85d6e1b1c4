"""Rows of functions of one operand: element by element, conversions of types, and Fourier
transforms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from penstock.errors import ShapeMismatch
from penstock.ir.operations import rules
from penstock.ir.operations.requirements import quantized_output
from penstock.ir.operations.signature import NUMBER, row
from penstock.ir.operations.spec import OperationSpec, ShapeContext
from penstock.ir.types import DType, NDArray, Shape


def _unary(
    name: str, doc: str, facts: str = "", compute: Callable[..., Any] | None = None
) -> OperationSpec:
    fold = None if compute is None else rules.elementwise(compute)
    text = f"{name}(x: any_number T) -> y: any_number T{facts} # {doc}"
    return row(text)(rules.like(0), fold=fold)


def _fold_cast(context: ShapeContext) -> Sequence[NDArray] | None:
    values = rules.small_values(context)
    target = context.output_dtype(0)
    if values is None or target not in NUMBER | {DType.BOOL}:
        return None
    (value,) = values
    if value.dtype.kind == "f" and not target.is_float and not np.all(np.isfinite(value)):
        return None
    with np.errstate(all="ignore"):
        return (value.astype(target.numpy),)


def _bitcast(context: ShapeContext) -> Sequence[Shape]:
    """The last dimension changes with the element width: narrower elements add one, wider ones
    remove it (TensorFlow's bitcast).
    """
    shape, source, target = context.shape(0), context.dtype(0).bits, context.output_dtype(0).bits
    if shape is None or source is None or target is None:
        return (None,)
    if source == target:
        return (shape,)
    if source > target:
        return ((*shape, source // target),)
    if not shape or shape[-1] not in (None, target // source):
        raise ShapeMismatch(
            f"elements of {source} bits of shape {shape} do not make elements of {target} bits"
        )
    return (shape[:-1],)


def _rfft_2d(context: ShapeContext) -> Sequence[Shape]:
    """The last two dimensions become fft_length[0] and fft_length[1] / 2 + 1; lengths are powers of
    two.
    """
    shape = rules.at_least(context, 0, 2)
    rules.agree(rules.vector(context, 1), 2, "number of transform lengths")
    lengths = rules.constant_integers(context, 1)
    if lengths is not None and any(n < 1 or n & (n - 1) for n in lengths):
        raise ShapeMismatch(f"transform lengths {lengths} are not powers of two")
    if shape is None:
        return (None,)
    rows, columns = (None, None) if lengths is None else (lengths[0], lengths[1] // 2 + 1)
    return ((*shape[:-2], rows, columns),)


ROWS: Final = (
    _unary("ABS", "|x|.", "; version 5; NNAPI 3", np.abs),
    _unary("NEG", "-x.", "; NNAPI 3", np.negative),
    _unary("SIGN", "-1, 0 or 1 by the sign of x.", "; version 2", np.sign),
    _unary("FLOOR", "The largest integer that is not above x.", "; NNAPI 1", np.floor),
    _unary("CEIL", "The smallest integer that is not below x.", "", np.ceil),
    _unary("ROUND", "The nearest integer, halves to even.", "", np.rint),
    _unary("EXP", "e to the power of x.", "; version 2; NNAPI 3"),
    _unary("LOG", "The natural logarithm of x.", "; version 2; NNAPI 3"),
    _unary("SQRT", "The square root of x.", "; version 2; NNAPI 3"),
    _unary("RSQRT", "1 / sqrt(x).", "; version 3; NNAPI 3"),
    _unary("SQUARE", "x * x.", "", np.square),
    _unary("SIN", "The sine of x radians.", "; version 2; NNAPI 3"),
    _unary("COS", "The cosine of x radians.", "; version 2"),
    _unary("ZEROS_LIKE", "Zeros in the shape of x.", "", np.zeros_like),
    row("""CAST(x: any_number; in_data_type: type, out_data_type: type) -> y: any_number; version 9;
        NNAPI 3 # x converted to the output's type, fractions cut off; scale and zero point do not
        count.""")(rules.like(0), fold=_fold_cast),
    row("""BITCAST(x: value) -> y: value
        # The same bytes read as the output's type; a change of width adds or takes a last
        dimension.""")(_bitcast),
    row("REAL(x: complex) -> y: float # The real part of x.")(rules.like(0)),
    row("IMAG(x: complex) -> y: float # The imaginary part of x.")(rules.like(0)),
    row("COMPLEX_ABS(x: complex) -> y: float # The magnitude of x.")(rules.like(0)),
    row("""QUANTIZE(input: number) -> output: number; version 6; NNAPI 3
        # Real values rounded to the output's quantisation, or quantised ones requantised to it.
        """)(rules.like(0), require=quantized_output),
    row("""DEQUANTIZE(input: number) -> output: float; version 9; NNAPI 1
        # scale * (stored - zero point); float16 widened to float32.""")(rules.like(0)),
    row("""FAKE_QUANT(input: float T; min: float, max: float, num_bits: int, narrow_range: bool)
        -> output: float T; version 2
        # Floats rounded to what a quantisation of min..max to num_bits could hold.
        """)(rules.like(0)),
    row("""DENSIFY(input: value T) -> output: value T
        # A sparse constant as a dense one; constants are dense here, so the values are the input's.
        """)(rules.like(0)),
    row("""RFFT2D(input: float32, fft_length: int32) -> output: complex
        # The two-dimensional Fourier transform of real images, the redundant half of the last
        dimension left out.""")(_rfft_2d),
)
