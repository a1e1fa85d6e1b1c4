"""Rows of reductions along axes or over windows, and of image resizing (NHWC)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from penstock.errors import InvalidAttribute, ShapeMismatch
from penstock.ir.operations import rules, signature
from penstock.ir.operations.requirements import same_quantization
from penstock.ir.operations.spec import FoldRule, OperationSpec, ShapeContext
from penstock.ir.types import NDArray, Shape


def _axes(context: ShapeContext, rank: int) -> set[int] | None:
    axes = rules.constant_integers(context, 1)
    return None if axes is None else {rules.normalize_axis(axis, rank) for axis in axes}


def _reduce(context: ShapeContext) -> Sequence[Shape]:
    """Without axes there is no reduction; with all axes, not kept, the result is a scalar."""
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
        values = rules.small_values(context)
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
    shape = rules.at_least(context, 0, 1)
    axis = rules.constant_integer(context, 1)
    if shape is None:
        return (None,)
    if axis is None:
        return ((None,) * (len(shape) - 1),)
    axis = rules.normalize_axis(axis, len(shape))
    return ((*shape[:axis], *shape[axis + 1 :]),)


def _cumulative(context: ShapeContext) -> Sequence[Shape]:
    shape, axis = context.shape(0), rules.constant_integer(context, 1)
    if shape is not None and axis is not None:
        rules.normalize_axis(axis, len(shape))
    return (shape,)


def _reduction(
    name: str,
    doc: str,
    level: int | None,
    fold: Callable[..., Any] | None = None,
    types: str = "number",
    nnapi_name: str = "",
    versions: int = 1,
) -> OperationSpec:
    return signature.row(
        name,
        f"input: {types} T, axes: index -> output: {types} T",
        _reduce,
        (signature.flag("keep_dims"),),
        require=same_quantization if name in {"REDUCE_MAX", "REDUCE_MIN"} else None,
        fold=_fold_reduce(fold) if fold else None,
        level=level,
        nnapi_name=nnapi_name,
        versions=versions,
        doc=doc,
    )


def _search_row(name: str, nnapi_name: str, word: str) -> OperationSpec:
    return signature.row(
        name,
        "input: number|bool, axis: index -> index: index",
        _search,
        (signature.tensor_type("output_type"),),
        level=3,
        nnapi_name=nnapi_name,
        versions=3,
        doc=f"The index of the {word} element along an axis, which goes; the first one of equals.",
    )


POOL: Final = (
    signature.PADDING,
    signature.STRIDE_W,
    signature.STRIDE_H,
    signature.integer("filter_width"),
    signature.integer("filter_height"),
    signature.FUSED_ACTIVATION,
)


def _pool(context: ShapeContext) -> Sequence[Shape]:
    image = rules.ranked(context, 0, 4)
    padding = context.attributes.text("padding")
    height, width = (
        rules.window(
            rules.dimension(image, axis),
            rules.positive(context, extent),
            rules.positive(context, stride),
            1,
            padding,
        )
        for axis, extent, stride in (
            (1, "filter_height", "stride_h"),
            (2, "filter_width", "stride_w"),
        )
    )
    return ((rules.dimension(image, 0), height, width, rules.dimension(image, 3)),)


def _reduce_window(context: ShapeContext) -> Sequence[Shape]:
    """Inputs are vectors with one number for each dimension: window extents, strides and
    dilations.
    """
    shape = context.shape(0)
    extents, strides, holes = (rules.constant_integers(context, i) for i in (2, 3, 4))
    if shape is None:
        return (None,)
    if extents is None or strides is None or holes is None:
        return ((None,) * len(shape),)
    if not len(shape) == len(extents) == len(strides) == len(holes):
        raise ShapeMismatch(f"window of rank {len(extents)} over an input of rank {len(shape)}")
    if min((*extents, *strides, *holes), default=1) < 1:
        raise ShapeMismatch("window extents, strides and dilations must be positive")
    return (
        tuple(
            rules.positions(size, extent, stride, hole)
            for size, extent, stride, hole in zip(shape, extents, strides, holes, strict=True)
        ),
    )


def _resize(context: ShapeContext) -> Sequence[Shape]:
    """The second input is [height, width]."""
    image = rules.ranked(context, 0, 4)
    rules.agree(rules.dimension(rules.ranked(context, 1, 1), 0), 2, "length of the size vector")
    size = rules.constant_integers(context, 1)
    if size is not None and min(size) < 0:
        raise ShapeMismatch(f"an image cannot be resized to {size}")
    height, width = size or (None, None)
    return ((rules.dimension(image, 0), height, width, rules.dimension(image, 3)),)


def _bilinear(context: ShapeContext) -> Sequence[Shape]:
    """Half-pixel centres and aligned corners exclude each other, and the output has pixels."""
    if context.attributes.flag("half_pixel_centers") and context.attributes.flag("align_corners"):
        raise InvalidAttribute("half_pixel_centers and align_corners cannot both be set")
    (shape,) = _resize(context)
    if shape is not None and 0 in shape[1:3]:
        raise ShapeMismatch("an image cannot be interpolated to no pixels")
    return (shape,)


RESIZE: Final = (signature.flag("align_corners"), signature.flag("half_pixel_centers"))


ROWS: Final = (
    _reduction("MEAN", "The mean along the axes.", 2, versions=3),
    _reduction(
        "SUM", "The sum along the axes.", 3, np.sum, "number|bool", "REDUCE_SUM", versions=2
    ),
    _reduction("REDUCE_PROD", "The product along the axes.", 3, np.prod, "number|bool", versions=2),
    _reduction("REDUCE_MAX", "The maximum along the axes.", 3, np.max, "number|bool", versions=3),
    _reduction("REDUCE_MIN", "The minimum along the axes.", 3, np.min, "number|bool", versions=3),
    _reduction("REDUCE_ANY", "Whether any element along the axes is true.", 3, np.any, "bool"),
    _reduction("REDUCE_ALL", "Whether all elements along the axes are true.", 3, np.all, "bool"),
    _search_row("ARG_MAX", "ARGMAX", "largest"),
    _search_row("ARG_MIN", "ARGMIN", "smallest"),
    signature.row(
        "CUMSUM",
        "input: any_number T, axis: int32 -> output: any_number T",
        _cumulative,
        (signature.flag("exclusive"), signature.flag("reverse")),
        doc="The running sum along an axis, optionally from the end, or without the element "
        "itself.",
    ),
    signature.row(
        "AVERAGE_POOL_2D",
        "input: activation T -> output: activation T",
        _pool,
        POOL,
        level=1,
        versions=3,
        doc="The mean of each window; padding does not count.",
    ),
    signature.row(
        "MAX_POOL_2D",
        "input: activation T -> output: activation T",
        _pool,
        POOL,
        level=1,
        versions=3,
        doc="The maximum of each window.",
    ),
    signature.row(
        "L2_POOL_2D",
        "input: float T -> output: float T",
        _pool,
        POOL,
        level=1,
        doc="The root of the mean square of each window.",
    ),
    signature.row(
        "REDUCE_WINDOW",
        "input: any_number T, initial: any_number T, window_shape: index, window_strides: "
        "index, window_dilations: index -> output: any_number T",
        _reduce_window,
        (
            signature.choice(
                "reduce_function", "UNSUPPORTED", "ADD", "MUL", "MINIMUM", "MAXIMUM", "ALL", "ANY"
            ),
        ),
        doc="Each window of the input reduced with one function, from an initial value.",
    ),
    signature.row(
        "RESIZE_BILINEAR",
        "image: activation T, size: int32 -> resized: activation T",
        _bilinear,
        RESIZE,
        level=1,
        versions=4,
        doc="The image scaled to [height, width], each pixel interpolated between its four "
        "neighbours.",
    ),
    signature.row(
        "RESIZE_NEAREST_NEIGHBOR",
        "image: any_number T, size: int32 -> resized: any_number T",
        _resize,
        RESIZE,
        level=3,
        versions=4,
        doc="The image scaled to [height, width], each pixel its nearest neighbour.",
    ),
)
