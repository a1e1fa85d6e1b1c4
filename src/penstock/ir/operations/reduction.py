"""Rows of reductions along axes or over windows, and of image resizing (NHWC)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from penstock.errors import InvalidAttribute, ShapeMismatch
from penstock.ir.operations import rules
from penstock.ir.operations.requirements import same_quantization
from penstock.ir.operations.signature import row
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
    return (rules.with_dimension(shape, rules.normalize_axis(axis, len(shape))),)


def _cumulative(context: ShapeContext) -> Sequence[Shape]:
    shape, axis = context.shape(0), rules.constant_integer(context, 1)
    if shape is not None and axis is not None:
        rules.normalize_axis(axis, len(shape))
    return (shape,)


def _reduction(
    name: str,
    doc: str,
    facts: str,
    compute: Callable[..., Any] | None = None,
    types: str = "number|bool",
) -> OperationSpec:
    text = f"{name}(input: {types} T, axes: index; keep_dims: bool) -> output: {types} T; {facts}"
    fold = None if compute is None else _fold_reduce(compute)
    require = same_quantization if name in {"REDUCE_MAX", "REDUCE_MIN"} else None
    return row(f"{text} # {doc}")(_reduce, fold=fold, require=require)


def _search_row(name: str, nnapi_name: str, word: str) -> OperationSpec:
    return row(f"""{name}(input: number|bool, axis: index; output_type: type) -> index: index;
        version 3; NNAPI 3 {nnapi_name}
        # The index of the {word} element along an axis, which goes; the first one of equals.
        """)(_search)


def _window_row(name: str, types: str, facts: str, doc: str) -> OperationSpec:
    return row(f"""{name}(input: {types} T; padding, stride_w, stride_h, filter_width: int,
        filter_height: int, fused_activation_function) -> output: {types} T; {facts} # {doc}
        """)(_pool)


def _pool(context: ShapeContext) -> Sequence[Shape]:
    batch, height, width, channels = rules.dimensions(context, 0, 4)
    padding = context.attributes.text("padding")
    size = [
        rules.window(
            whole, rules.positive(context, extent), rules.positive(context, stride), 1, padding
        )
        for whole, extent, stride in (
            (height, "filter_height", "stride_h"),
            (width, "filter_width", "stride_w"),
        )
    ]
    return ((batch, *size, channels),)


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
    batch, _, _, channels = rules.dimensions(context, 0, 4)
    rules.agree(rules.vector(context, 1), 2, "length of the size vector")
    size = rules.constant_integers(context, 1)
    if size is not None and min(size) < 0:
        raise ShapeMismatch(f"an image cannot be resized to {size}")
    return ((batch, *(size or (None, None)), channels),)


def _bilinear(context: ShapeContext) -> Sequence[Shape]:
    """Half-pixel centres and aligned corners exclude each other, and the output has pixels."""
    if context.attributes.flag("half_pixel_centers") and context.attributes.flag("align_corners"):
        raise InvalidAttribute("half_pixel_centers and align_corners cannot both be set")
    (shape,) = _resize(context)
    if shape is not None and 0 in shape[1:3]:
        raise ShapeMismatch("an image cannot be interpolated to no pixels")
    return (shape,)


ROWS: Final = (
    _reduction("MEAN", "The mean along the axes.", "version 3; NNAPI 2", None, "number"),
    _reduction("SUM", "The sum along the axes.", "version 2; NNAPI 3 REDUCE_SUM", np.sum),
    _reduction("REDUCE_PROD", "The product along the axes.", "version 2; NNAPI 3", np.prod),
    _reduction("REDUCE_MAX", "The maximum along the axes.", "version 3; NNAPI 3", np.max),
    _reduction("REDUCE_MIN", "The minimum along the axes.", "version 3; NNAPI 3", np.min),
    _reduction(
        "REDUCE_ANY", "Whether any element along the axes is true.", "NNAPI 3", np.any, "bool"
    ),
    _reduction(
        "REDUCE_ALL", "Whether all elements along the axes are true.", "NNAPI 3", np.all, "bool"
    ),
    _search_row("ARG_MAX", "ARGMAX", "largest"),
    _search_row("ARG_MIN", "ARGMIN", "smallest"),
    row("""CUMSUM(input: any_number T, axis: int32; exclusive: bool, reverse: bool)
        -> output: any_number T
        # The running sum along an axis, optionally from the end, or without the element itself.
        """)(_cumulative),
    _window_row(
        "AVERAGE_POOL_2D",
        "activation",
        "version 3; NNAPI 1",
        "The mean of each window; padding does not count.",
    ),
    _window_row("MAX_POOL_2D", "activation", "version 3; NNAPI 1", "The maximum of each window."),
    _window_row("L2_POOL_2D", "float", "NNAPI 1", "The root of the mean square of each window."),
    row("""REDUCE_WINDOW(input: any_number T, initial: any_number T, window_shape: index,
        window_strides: index, window_dilations: index;
        reduce_function: UNSUPPORTED|ADD|MUL|MINIMUM|MAXIMUM|ALL|ANY) -> output: any_number T
        # Each window of the input reduced with one function, from an initial value.
        """)(_reduce_window),
    row("""RESIZE_BILINEAR(image: activation T, size: int32; align_corners: bool,
        half_pixel_centers: bool) -> resized: activation T; version 4; NNAPI 1
        # The image scaled to [height, width], each pixel interpolated between its four neighbours.
        """)(_bilinear),
    row("""RESIZE_NEAREST_NEIGHBOR(image: any_number T, size: int32; align_corners: bool,
        half_pixel_centers: bool) -> resized: any_number T; version 4; NNAPI 3
        # The image scaled to [height, width], each pixel its nearest neighbour.""")(_resize),
)
