"""Rows of image resizing (NHWC)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.errors import InvalidAttribute, ShapeMismatch
from penstock.ir.operations.attributes import flag
from penstock.ir.operations.rules import agree, constant_integers, dimension, ranked
from penstock.ir.operations.spec import OperationSpec, Port, ShapeContext
from penstock.ir.operations.types import ACTIVATION, INT32
from penstock.ir.types import Shape


def _resize(context: ShapeContext) -> Sequence[Shape]:
    """The second input is [height, width]; half-pixel centres and aligned corners exclude each other."""
    image = ranked(context, 0, 4)
    agree(dimension(ranked(context, 1, 1), 0), 2, "length of the size vector")
    if context.attributes.flag("half_pixel_centers") and context.attributes.flag("align_corners"):
        raise InvalidAttribute("half_pixel_centers and align_corners cannot both be set")
    size = constant_integers(context, 1)
    if size is not None and min(size) < 1:
        raise ShapeMismatch(f"an image cannot be resized to {size}")
    height, width = size or (None, None)
    return ((dimension(image, 0), height, width, dimension(image, 3)),)


RESIZE: Final = (flag("align_corners"), flag("half_pixel_centers"))

ROWS: Final = (
    OperationSpec(
        "RESIZE_BILINEAR",
        (Port("image", ACTIVATION, "T"), Port("size", INT32)),
        (Port("resized", ACTIVATION, "T"),),
        _resize,
        RESIZE,
        feature_level=1,
        doc="The image scaled to [height, width], each pixel interpolated between its four neighbours.",
    ),
    OperationSpec(
        "RESIZE_NEAREST_NEIGHBOR",
        (Port("image", ACTIVATION, "T"), Port("size", INT32)),
        (Port("resized", ACTIVATION, "T"),),
        _resize,
        RESIZE,
        feature_level=3,
        doc="The image scaled to [height, width], each pixel its nearest neighbour.",
    ),
)
