"""Rows of image resizing (NHWC)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.errors import InvalidAttribute, ShapeMismatch
from penstock.ir.operations.attributes import flag
from penstock.ir.operations.rules import agree, constant_integers, dimension, ranked
from penstock.ir.operations.spec import OperationSpec, Port, ShapeContext
from penstock.ir.operations.types import ACTIVATION, ANY_NUMBER, INT32
from penstock.ir.types import Shape


def _resize(context: ShapeContext) -> Sequence[Shape]:
    """The second input is [height, width]."""
    image = ranked(context, 0, 4)
    agree(dimension(ranked(context, 1, 1), 0), 2, "length of the size vector")
    size = constant_integers(context, 1)
    if size is not None and min(size) < 0:
        raise ShapeMismatch(f"an image cannot be resized to {size}")
    height, width = size or (None, None)
    return ((dimension(image, 0), height, width, dimension(image, 3)),)


def _bilinear(context: ShapeContext) -> Sequence[Shape]:
    """Half-pixel centres and aligned corners exclude each other, and there is a pixel to make."""
    if context.attributes.flag("half_pixel_centers") and context.attributes.flag("align_corners"):
        raise InvalidAttribute("half_pixel_centers and align_corners cannot both be set")
    (shape,) = _resize(context)
    if shape is not None and 0 in shape[1:3]:
        raise ShapeMismatch("an image cannot be interpolated to no pixels")
    return (shape,)


RESIZE: Final = (flag("align_corners"), flag("half_pixel_centers"))

ROWS: Final = (
    OperationSpec(
        "RESIZE_BILINEAR",
        (Port("image", ACTIVATION, "T"), Port("size", INT32)),
        (Port("resized", ACTIVATION, "T"),),
        _bilinear,
        RESIZE,
        feature_level=1,
        doc="The image scaled to [height, width], each pixel interpolated between its four neighbours.",
    ),
    OperationSpec(
        "RESIZE_NEAREST_NEIGHBOR",
        (Port("image", ANY_NUMBER, "T"), Port("size", INT32)),
        (Port("resized", ANY_NUMBER, "T"),),
        _resize,
        RESIZE,
        feature_level=3,
        doc="The image scaled to [height, width], each pixel its nearest neighbour.",
    ),
)
