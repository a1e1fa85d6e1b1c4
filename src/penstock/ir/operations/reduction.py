"""Rows of reductions along axes, of argument searches and of running sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from penstock.ir.operations.attributes import flag, tensor_type
from penstock.ir.operations.folding import small_values
from penstock.ir.operations.requirements import same_quantization
from penstock.ir.operations.rules import (
    at_least,
    constant_integer,
    constant_integers,
    normalize_axis,
)
from penstock.ir.operations.spec import FoldRule, OperationSpec, Port, ShapeContext
from penstock.ir.operations.types import ANY_NUMBER, BOOL, INDEX, INT32, NUMBER
from penstock.ir.types import DType, NDArray, Shape


def _axes(context: ShapeContext, rank: int) -> set[int] | None:
    axes = constant_integers(context, 1)
    return None if axes is None else {normalize_axis(axis, rank) for axis in axes}


def _reduce(context: ShapeContext) -> Sequence[Shape]:
    """No axes: no reduction. All axes, not kept: a scalar."""
    shape = context.shape(0)
    if shape is None:
        return (None,)
    axes, keep = _axes(context, len(shape)), context.attributes.flag("keep_dims")
    if axes is None:
        return ((None,) * len(shape) if keep else None,)
    if keep:
        return (tuple(1 if at in axes else size for at, size in enumerate(shape)),)
    return (tuple(size for at, size in enumerate(shape) if at not in axes),)


def _fold_reduce(function: Callable[..., Any]) -> FoldRule:
    def fold(context: ShapeContext) -> Sequence[NDArray] | None:
        values = small_values(context)
        axes = None if values is None else _axes(context, values[0].ndim)
        if values is None or axes is None:
            return None
        value, keep = values[0], context.attributes.flag("keep_dims")
        with np.errstate(all="ignore"):
            try:
                result = function(value, axis=tuple(axes), keepdims=keep)
            except ValueError:
                return None
        return (np.asarray(result).astype(value.dtype, copy=False),)

    return fold


def _search(context: ShapeContext) -> Sequence[Shape]:
    shape = at_least(context, 0, 1)
    axis = constant_integer(context, 1)
    if shape is None:
        return (None,)
    if axis is None:
        return ((None,) * (len(shape) - 1),)
    axis = normalize_axis(axis, len(shape))
    return ((*shape[:axis], *shape[axis + 1 :]),)


def _cumulative(context: ShapeContext) -> Sequence[Shape]:
    shape, axis = context.shape(0), constant_integer(context, 1)
    if shape is not None and axis is not None:
        normalize_axis(axis, len(shape))
    return (shape,)


def _reduction(
    name: str,
    doc: str,
    level: int | None,
    fold: Callable[..., Any] | None = None,
    types: frozenset[DType] = NUMBER,
    nnapi_name: str = "",
) -> OperationSpec:
    return OperationSpec(
        name,
        (Port("input", types, "T"), Port("axes", INDEX)),
        (Port("output", types, "T"),),
        _reduce,
        (flag("keep_dims"),),
        require=same_quantization if name in {"REDUCE_MAX", "REDUCE_MIN"} else None,
        fold=_fold_reduce(fold) if fold else None,
        feature_level=level,
        nnapi_name=nnapi_name,
        doc=doc,
    )


def _search_row(name: str, nnapi_name: str, word: str) -> OperationSpec:
    return OperationSpec(
        name,
        (Port("input", NUMBER | BOOL), Port("axis", INDEX)),
        (Port("index", INDEX),),
        _search,
        (tensor_type("output_type"),),
        feature_level=3,
        nnapi_name=nnapi_name,
        doc=f"The index of the {word} element along an axis, which goes; the first one of equals.",
    )


ROWS: Final = (
    _reduction("MEAN", "The mean along the axes.", 2),
    _reduction("SUM", "The sum along the axes.", 3, np.sum, NUMBER | BOOL, "REDUCE_SUM"),
    _reduction("REDUCE_PROD", "The product along the axes.", 3, np.prod, NUMBER | BOOL),
    _reduction("REDUCE_MAX", "The maximum along the axes.", 3, np.max, NUMBER | BOOL),
    _reduction("REDUCE_MIN", "The minimum along the axes.", 3, np.min, NUMBER | BOOL),
    _reduction("REDUCE_ANY", "Whether any element along the axes is true.", 3, np.any, BOOL),
    _reduction("REDUCE_ALL", "Whether all elements along the axes are true.", 3, np.all, BOOL),
    _search_row("ARG_MAX", "ARGMAX", "largest"),
    _search_row("ARG_MIN", "ARGMIN", "smallest"),
    OperationSpec(
        "CUMSUM",
        (Port("input", ANY_NUMBER, "T"), Port("axis", INT32)),
        (Port("output", ANY_NUMBER, "T"),),
        _cumulative,
        (flag("exclusive"), flag("reverse")),
        doc="The running sum along an axis, optionally from the end, or without the element itself.",
    ),
)
