"""Cases of reductions, pooling and resizing."""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.ir import DType, NDArray
from tests.unit.ir.operations.cases.case import agreed, refused, window
from tests.unit.ir.operations.single import INT, ints, scalar, x


def longs(*values: int) -> NDArray:
    return ints(*values, dtype=np.int64)


CASES: Final = (
    agreed("MEAN", [x(2, 3, 4), ints(1)], (2, 4)),
    agreed("MEAN", [x(2, 3, 4), ints(0, -1)], (1, 3, 1), keep_dims=True),
    agreed("SUM", [x(2, 3, 4), scalar(-1)], (2, 3)),
    agreed("SUM", [x(2, 3, 4), ints()], (2, 3, 4)),
    agreed("SUM", [x(2, 3, 4), ints(0, 0)], (3, 4)),
    agreed("SUM", [x(2, 3, 4), ints(0, 1, 2)], ()),
    agreed("SUM", [x(2, 0, 4), ints(1)], (2, 4)),
    refused("SUM", [x(2, 3, 4), ints(3)]),
    agreed("REDUCE_PROD", [x(2, 3, 4), ints(2)], (2, 3)),
    agreed("REDUCE_MAX", [x(2, 3, 4), ints(2)], (2, 3, 1), keep_dims=True),
    agreed("REDUCE_MIN", [x(2, 3, 4), ints(0)], (3, 4)),
    agreed("REDUCE_ANY", [x(2, 3, dtype=DType.BOOL), ints(1)], (2,), outputs=[DType.BOOL]),
    agreed("REDUCE_ALL", [x(2, 3, dtype=DType.BOOL), ints(1)], (2,), outputs=[DType.BOOL]),
    agreed("ARG_MAX", [x(2, 3, 4), scalar(1)], (2, 4), outputs=[INT], output_type="INT32"),
    agreed("ARG_MIN", [x(2, 3, 4), scalar(-1)], (2, 3), outputs=[DType.INT64], output_type="INT64"),
    agreed("ARG_MAX", [x(5), ints(0)], (), outputs=[INT], output_type="INT32"),
    refused("ARG_MAX", [x(2, 3, 4), scalar(3)], outputs=[INT], output_type="INT32"),
    agreed("CUMSUM", [x(2, 3), scalar(1)], (2, 3)),
    refused("CUMSUM", [x(2, 3), scalar(5)]),
    agreed("AVERAGE_POOL_2D", [x(1, 5, 5, 2)], (1, 2, 2, 2), **window("VALID", 2, 2, size=(3, 2))),
    agreed("AVERAGE_POOL_2D", [x(1, 5, 5, 2)], (1, 3, 3, 2), **window("SAME", 2, 2, size=(3, 2))),
    agreed("MAX_POOL_2D", [x(1, 5, 5, 2)], (1, 1, 4, 2), **window("VALID", 1, 1, size=(2, 5))),
    agreed("MAX_POOL_2D", [x(1, 5, 5, 2)], (1, 0, 0, 2), **window("VALID", 2, 2, size=(8, 8))),
    refused("MAX_POOL_2D", [x(5, 5, 2)], **window("VALID", 2, 2, size=(2, 2))),
    agreed("L2_POOL_2D", [x(2, 6, 4, 1)], (2, 3, 2, 1), **window("VALID", 2, 2, size=(2, 2))),
    agreed(
        "REDUCE_WINDOW",
        [x(4, 6), scalar(0, np.float32), longs(2, 2), longs(1, 2), longs(1, 1)],
        (3, 3),
        reduce_function="ADD",
    ),
    agreed(
        "REDUCE_WINDOW",
        [x(4, 6), scalar(0, np.float32), longs(3, 2), longs(1, 2), longs(2, 1)],
        (0, 3),
        reduce_function="ADD",
    ),
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
