"""Rows of element-by-element functions of one operand, and of conversions between element types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from penstock.errors import ShapeMismatch
from penstock.ir.operations.attributes import tensor_type
from penstock.ir.operations.folding import elementwise, small_values
from penstock.ir.operations.rules import like
from penstock.ir.operations.spec import FoldRule, OperationSpec, Port, ShapeContext
from penstock.ir.operations.types import ANY_NUMBER, COMPLEX, FLOAT, NUMBER, VALUE
from penstock.ir.types import DType, NDArray, Shape


def _unary(
    name: str, doc: str, level: int | None = None, fold: FoldRule | None = None
) -> OperationSpec:
    return OperationSpec(
        name,
        (Port("x", ANY_NUMBER, "T"),),
        (Port("y", ANY_NUMBER, "T"),),
        like(0),
        fold=fold,
        feature_level=level,
        doc=doc,
    )


def _fold_cast(context: ShapeContext) -> Sequence[NDArray] | None:
    values = small_values(context)
    target = context.output_dtype(0)
    if values is None or target not in NUMBER | {DType.BOOL}:
        return None
    (value,) = values
    if value.dtype.kind == "f" and not target.is_float and not np.all(np.isfinite(value)):
        return None
    with np.errstate(all="ignore"):
        return (value.astype(target.numpy),)


def _bitcast(context: ShapeContext) -> Sequence[Shape]:
    """A change of element width is absorbed by the last dimension, which narrower elements add and
    wider ones take away (TensorFlow's bitcast).
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


ROWS: Final = (
    _unary("ABS", "|x|.", 3, elementwise(np.abs)),
    _unary("NEG", "-x.", 3, elementwise(np.negative)),
    _unary("SIGN", "-1, 0 or 1 by the sign of x.", None, elementwise(np.sign)),
    _unary("FLOOR", "The largest integer that is not above x.", 1, elementwise(np.floor)),
    _unary("CEIL", "The smallest integer that is not below x.", None, elementwise(np.ceil)),
    _unary("ROUND", "The nearest integer, halves to even.", None, elementwise(np.rint)),
    _unary("EXP", "e to the power of x.", 3),
    _unary("LOG", "The natural logarithm of x.", 3),
    _unary("SQRT", "The square root of x.", 3),
    _unary("RSQRT", "1 / sqrt(x).", 3),
    _unary("SQUARE", "x * x.", None, elementwise(np.square)),
    _unary("SIN", "The sine of x radians.", 3),
    _unary("COS", "The cosine of x radians."),
    _unary("ZEROS_LIKE", "Zeros in the shape of x.", None, elementwise(np.zeros_like)),
    OperationSpec(
        "CAST",
        (Port("x", ANY_NUMBER),),
        (Port("y", ANY_NUMBER),),
        like(0),
        (tensor_type("in_data_type"), tensor_type("out_data_type")),
        fold=_fold_cast,
        feature_level=3,
        doc="x converted to the output's type, fractions cut off; scale and zero point do not count.",
    ),
    OperationSpec(
        "BITCAST",
        (Port("x", VALUE),),
        (Port("y", VALUE),),
        _bitcast,
        doc="The same bytes read as the output's type; a change of width adds or takes a last dimension.",
    ),
    OperationSpec(
        "REAL",
        (Port("x", COMPLEX),),
        (Port("y", FLOAT),),
        like(0),
        doc="The real part of x.",
    ),
    OperationSpec(
        "IMAG",
        (Port("x", COMPLEX),),
        (Port("y", FLOAT),),
        like(0),
        doc="The imaginary part of x.",
    ),
    OperationSpec(
        "COMPLEX_ABS",
        (Port("x", COMPLEX),),
        (Port("y", FLOAT),),
        like(0),
        doc="The magnitude of x.",
    ),
)
