"""Rows of pooling over windows of images (NHWC) and of windowed reductions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.errors import ShapeMismatch
from penstock.ir.operations.attributes import (
    FUSED_ACTIVATION,
    PADDING,
    STRIDE_H,
    STRIDE_W,
    choice,
    integer,
)
from penstock.ir.operations.rules import (
    constant_integers,
    dimension,
    positions,
    positive,
    ranked,
    window,
)
from penstock.ir.operations.spec import OperationSpec, Port, ShapeContext
from penstock.ir.operations.types import ACTIVATION, ANY_NUMBER, FLOAT, INDEX
from penstock.ir.types import Shape

POOL: Final = (
    PADDING,
    STRIDE_W,
    STRIDE_H,
    integer("filter_width"),
    integer("filter_height"),
    FUSED_ACTIVATION,
)


def _pool(context: ShapeContext) -> Sequence[Shape]:
    image = ranked(context, 0, 4)
    padding = context.attributes.text("padding")
    height, width = (
        window(
            dimension(image, axis), positive(context, extent), positive(context, stride), 1, padding
        )
        for axis, extent, stride in (
            (1, "filter_height", "stride_h"),
            (2, "filter_width", "stride_w"),
        )
    )
    return ((dimension(image, 0), height, width, dimension(image, 3)),)


def _reduce_window(context: ShapeContext) -> Sequence[Shape]:
    """Inputs are vectors of one number a dimension: window extents, strides and dilations."""
    shape = context.shape(0)
    extents, strides, holes = (constant_integers(context, i) for i in (2, 3, 4))
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
            positions(size, extent, stride, hole)
            for size, extent, stride, hole in zip(shape, extents, strides, holes, strict=True)
        ),
    )


ROWS: Final = (
    OperationSpec(
        "AVERAGE_POOL_2D",
        (Port("input", ACTIVATION, "T"),),
        (Port("output", ACTIVATION, "T"),),
        _pool,
        POOL,
        feature_level=1,
        doc="The mean of each window; padding does not count.",
    ),
    OperationSpec(
        "MAX_POOL_2D",
        (Port("input", ACTIVATION, "T"),),
        (Port("output", ACTIVATION, "T"),),
        _pool,
        POOL,
        feature_level=1,
        doc="The maximum of each window.",
    ),
    OperationSpec(
        "L2_POOL_2D",
        (Port("input", FLOAT, "T"),),
        (Port("output", FLOAT, "T"),),
        _pool,
        POOL,
        feature_level=1,
        doc="The root of the mean square of each window.",
    ),
    OperationSpec(
        "REDUCE_WINDOW",
        (
            Port("input", ANY_NUMBER, "T"),
            Port("initial", ANY_NUMBER, "T"),
            Port("window_shape", INDEX),
            Port("window_strides", INDEX),
            Port("window_dilations", INDEX),
        ),
        (Port("output", ANY_NUMBER, "T"),),
        _reduce_window,
        (
            choice(
                "reduce_function", "UNSUPPORTED", "ADD", "MUL", "MINIMUM", "MAXIMUM", "ALL", "ANY"
            ),
        ),
        doc="Each window of the input reduced with one function, from an initial value.",
    ),
)
