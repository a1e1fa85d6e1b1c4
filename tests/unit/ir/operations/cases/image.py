"""Cases of image operations."""

from __future__ import annotations

from typing import Final

from tests.unit.ir.operations.cases.case import agreed, refused
from tests.unit.ir.operations.single import ints, x

CASES: Final = (
    agreed("RESIZE_BILINEAR", [x(1, 4, 5, 2), ints(7, 9)], (1, 7, 9, 2)),
    refused("RESIZE_BILINEAR", [x(1, 4, 5, 2), ints(7, 0)]),
    refused(
        "RESIZE_BILINEAR", [x(1, 4, 5, 2), ints(7, 9)], align_corners=True, half_pixel_centers=True
    ),
    refused("RESIZE_BILINEAR", [x(1, 4, 5, 2), ints(7, 9, 1)]),
    refused("RESIZE_BILINEAR", [x(1, 4, 5), ints(7, 9)]),
    agreed(
        "RESIZE_NEAREST_NEIGHBOR",
        [x(1, 4, 5, 2), ints(7, 9)],
        (1, 7, 9, 2),
        align_corners=True,
        half_pixel_centers=True,
    ),
    agreed("RESIZE_NEAREST_NEIGHBOR", [x(1, 4, 5, 2), ints(7, 0)], (1, 7, 0, 2)),
    refused("RESIZE_NEAREST_NEIGHBOR", [x(1, 4, 5, 2), ints(-7, 9)]),
)
