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
    Dimension,
    bounded,
    constant_integers,
    dimension,
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


def dilated(size: Dimension, factor: int) -> Dimension:
    """Size of a dimension with *factor* - 1 holes between its elements."""
    return size if size is None or size == 0 else bounded((size - 1) * factor + 1)


def _reduce_window(context: ShapeContext) -> Sequence[Shape]:
    """Inputs are read as padded and dilated: window extents, strides and dilations per dimension."""
    shape = context.shape(0)
    extents, strides, base, holes = (constant_integers(context, i) for i in (2, 3, 4, 5))
    if shape is None:
        return (None,)
    if extents is None or strides is None or base is None or holes is None:
        return ((None,) * len(shape),)
    if not len(shape) == len(extents) == len(strides) == len(base) == len(holes):
        raise ShapeMismatch(f"window of rank {len(extents)} over an input of rank {len(shape)}")
    if min((*extents, *strides, *base, *holes), default=1) < 1:
        raise ShapeMismatch("window extents, strides and dilations must be positive")
    return (
        tuple(
            window(dilated(size, b), extent, stride, hole, "VALID")
            for size, extent, stride, b, hole in zip(
                shape, extents, strides, base, holes, strict=True
            )
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
            Port("base_dilations", INDEX),
            Port("window_dilations", INDEX),
        ),
        (Port("output", ANY_NUMBER, "T"),),
        _reduce_window,
        (
            choice(
                "reduce_function", "UNSUPPORTED", "ADD", "MUL", "MINIMUM", "MAXIMUM", "ALL", "ANY"
            ),
        ),
        doc="Each window of the dilated input reduced with one function, from an initial value.",
    ),
)
