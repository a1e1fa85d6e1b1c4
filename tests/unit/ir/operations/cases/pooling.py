"""Cases of pooling operations."""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.ir import NDArray
from tests.unit.ir.operations.cases.case import agreed, refused
from tests.unit.ir.operations.single import ints, scalar, x


def longs(*values: int) -> NDArray:
    return ints(*values, dtype=np.int64)


CASES: Final = (
    agreed(
        "AVERAGE_POOL_2D",
        [x(1, 5, 5, 2)],
        (1, 2, 2, 2),
        padding="VALID",
        stride_w=2,
        stride_h=2,
        filter_width=3,
        filter_height=2,
    ),
    agreed(
        "AVERAGE_POOL_2D",
        [x(1, 5, 5, 2)],
        (1, 3, 3, 2),
        stride_w=2,
        stride_h=2,
        padding="SAME",
        filter_width=3,
        filter_height=2,
    ),
    agreed(
        "MAX_POOL_2D",
        [x(1, 5, 5, 2)],
        (1, 1, 4, 2),
        padding="VALID",
        stride_w=1,
        stride_h=1,
        filter_width=2,
        filter_height=5,
    ),
    agreed(
        "MAX_POOL_2D",
        [x(1, 5, 5, 2)],
        (1, 0, 0, 2),
        padding="VALID",
        stride_w=2,
        stride_h=2,
        filter_width=8,
        filter_height=8,
    ),
    refused(
        "MAX_POOL_2D",
        [x(5, 5, 2)],
        padding="VALID",
        stride_w=2,
        stride_h=2,
        filter_width=2,
        filter_height=2,
    ),
    agreed(
        "L2_POOL_2D",
        [x(2, 6, 4, 1)],
        (2, 3, 2, 1),
        padding="VALID",
        stride_w=2,
        stride_h=2,
        filter_width=2,
        filter_height=2,
    ),
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
)
