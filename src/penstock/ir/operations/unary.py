"""Rows of functions of one operand: element by element, conversions of types, and Fourier
transforms.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from penstock.errors import ShapeMismatch
from penstock.ir.operations import rules
from penstock.ir.operations.requirements import quantized_output
from penstock.ir.operations.signature import NUMBER, flag, integer, real, row, tensor_type
from penstock.ir.operations.spec import FoldRule, OperationSpec, ShapeContext
from penstock.ir.types import DType, NDArray, Shape


def _unary(
    name: str, doc: str, level: int | None = None, fold: FoldRule | None = None, versions: int = 1
) -> OperationSpec:
    signature = "x: any_number T -> y: any_number T"
    return row(name, signature, rules.like(0), fold=fold, level=level, versions=versions, doc=doc)


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
    rules.agree(rules.dimension(rules.ranked(context, 1, 1), 0), 2, "number of transform lengths")
    lengths = rules.constant_integers(context, 1)
    if lengths is not None and any(n < 1 or n & (n - 1) for n in lengths):
        raise ShapeMismatch(f"transform lengths {lengths} are not powers of two")
    if shape is None:
        return (None,)
    rows, columns = (None, None) if lengths is None else (lengths[0], lengths[1] // 2 + 1)
    return ((*shape[:-2], rows, columns),)


ROWS: Final = (
    _unary("ABS", "|x|.", 3, rules.elementwise(np.abs), versions=5),
    _unary("NEG", "-x.", 3, rules.elementwise(np.negative)),
    _unary("SIGN", "-1, 0 or 1 by the sign of x.", None, rules.elementwise(np.sign), versions=2),
    _unary("FLOOR", "The largest integer that is not above x.", 1, rules.elementwise(np.floor)),
    _unary("CEIL", "The smallest integer that is not below x.", None, rules.elementwise(np.ceil)),
    _unary("ROUND", "The nearest integer, halves to even.", None, rules.elementwise(np.rint)),
    _unary("EXP", "e to the power of x.", 3, versions=2),
    _unary("LOG", "The natural logarithm of x.", 3, versions=2),
    _unary("SQRT", "The square root of x.", 3, versions=2),
    _unary("RSQRT", "1 / sqrt(x).", 3, versions=3),
    _unary("SQUARE", "x * x.", None, rules.elementwise(np.square)),
    _unary("SIN", "The sine of x radians.", 3, versions=2),
    _unary("COS", "The cosine of x radians.", versions=2),
    _unary("ZEROS_LIKE", "Zeros in the shape of x.", None, rules.elementwise(np.zeros_like)),
    row(
        "CAST",
        "x: any_number -> y: any_number",
        rules.like(0),
        (tensor_type("in_data_type"), tensor_type("out_data_type")),
        fold=_fold_cast,
        level=3,
        versions=9,
        doc="x converted to the output's type, fractions cut off; scale and zero point do not "
        "count.",
    ),
    row(
        "BITCAST",
        "x: value -> y: value",
        _bitcast,
        doc="The same bytes read as the output's type; a change of width adds or takes a last "
        "dimension.",
    ),
    row("REAL", "x: complex -> y: float", rules.like(0), doc="The real part of x."),
    row("IMAG", "x: complex -> y: float", rules.like(0), doc="The imaginary part of x."),
    row("COMPLEX_ABS", "x: complex -> y: float", rules.like(0), doc="The magnitude of x."),
    row(
        "QUANTIZE",
        "input: number -> output: number",
        rules.like(0),
        require=quantized_output,
        level=3,
        versions=6,
        doc="Real values rounded to the output's quantisation, or quantised ones requantised to "
        "it.",
    ),
    row(
        "DEQUANTIZE",
        "input: number -> output: float",
        rules.like(0),
        level=1,
        versions=9,
        doc="scale * (stored - zero point); float16 widened to float32.",
    ),
    row(
        "FAKE_QUANT",
        "input: float T -> output: float T",
        rules.like(0),
        (real("min"), real("max"), integer("num_bits"), flag("narrow_range")),
        versions=2,
        doc="Floats rounded to what a quantisation of min..max to num_bits could hold.",
    ),
    row(
        "DENSIFY",
        "input: value T -> output: value T",
        rules.like(0),
        doc="A sparse constant as a dense one; constants are dense here, so the values are the "
        "input's.",
    ),
    row(
        "RFFT2D",
        "input: float32, fft_length: int32 -> output: complex",
        _rfft_2d,
        doc="The two-dimensional Fourier transform of real images, the redundant half of the last "
        "dimension left out.",
    ),
)
