"""Cases of gather and scatter operations."""

from __future__ import annotations

from typing import Final

import numpy as np

from tests.unit.ir.operations.cases.case import agreed, refused
from tests.unit.ir.operations.single import FLOAT, INT, ints, scalar, x

CASES: Final = (
    agreed("GATHER", [x(4, 5), x(3, dtype=INT)], (3, 5)),
    agreed("GATHER", [x(4, 5), x(2, 3, dtype=INT)], (4, 2, 3), axis=1),
    agreed("GATHER", [x(4, 5), x(dtype=INT)], (5,)),
    agreed("GATHER", [x(4, 5, 6), x(4, 2, dtype=INT)], (4, 2, 6), axis=1, batch_dims=1),
    agreed("GATHER", [x(4, 5, 6), x(4, 2, dtype=INT)], (4, 5, 2), axis=2, batch_dims=1),
    agreed("GATHER", [x(4, 5, 6), x(4, 2, dtype=INT)], (4, 5, 2), axis=-1, batch_dims=-1),
    refused("GATHER", [x(4, 5, 6), x(3, 2, dtype=INT)], axis=1, batch_dims=1),
    refused("GATHER", [x(4, 5, 6), x(4, 2, dtype=INT)], axis=3),
    refused("GATHER", [x(4, 5, 6), x(4, 2, dtype=INT)], axis=0, batch_dims=1),
    agreed("GATHER_ND", [x(4, 5, 6), x(2, 2, dtype=INT)], (2, 6)),
    agreed("GATHER_ND", [x(4, 5, 6), x(7, 3, dtype=INT)], (7,)),
    refused("GATHER_ND", [x(4, 5, 6), x(7, 4, dtype=INT)]),
    agreed("GATHER_ND", [x(4, 5, 6), x(2, dtype=INT)], (6,)),
    agreed("SCATTER_ND", [x(3, 1, dtype=INT), x(3), ints(8)], (8,)),
    agreed("SCATTER_ND", [x(3, 1, dtype=INT), x(3, 4), ints(8, 4)], (8, 4)),
    agreed("SCATTER_ND", [x(2, 3, 2, dtype=INT), x(2, 3), ints(8, 5)], (8, 5)),
    refused("SCATTER_ND", [x(3, 1, dtype=INT), x(3, 4), ints(8, 5)]),
    refused("SCATTER_ND", [x(3, 3, dtype=INT), x(3), ints(8, 5)]),
    refused("SCATTER_ND", [x(3, 1, dtype=INT), x(4), ints(8)]),
    agreed("SPARSE_TO_DENSE", [x(3, dtype=INT), ints(8), x(3), scalar(0, np.float32)], (8,)),
    agreed(
        "SPARSE_TO_DENSE", [x(3, 2, dtype=INT), ints(8, 4), x(3), scalar(0, np.float32)], (8, 4)
    ),
    agreed("SPARSE_TO_DENSE", [x(dtype=INT), ints(8), x(), scalar(0, np.float32)], (8,)),
    refused("SPARSE_TO_DENSE", [x(3, 2, dtype=INT), ints(8), x(3), scalar(0, np.float32)]),
    refused("SPARSE_TO_DENSE", [x(3, dtype=INT), ints(8), x(4), scalar(0, np.float32)]),
    agreed(
        "ONE_HOT",
        [x(2, 3, dtype=INT), scalar(5), scalar(1, np.float32), scalar(0, np.float32)],
        (2, 3, 5),
        axis=-1,
    ),
    agreed(
        "ONE_HOT",
        [x(2, 3, dtype=INT), scalar(5), scalar(1, np.float32), scalar(0, np.float32)],
        (5, 2, 3),
        axis=0,
    ),
    refused(
        "ONE_HOT",
        [x(2, 3, dtype=INT), scalar(5), scalar(1, np.float32), scalar(0, np.float32)],
        axis=3,
    ),
    refused(
        "ONE_HOT",
        [x(2, 3, dtype=INT), scalar(5), scalar(1, np.float32), scalar(0, np.float32)],
        axis=-2,
    ),
    refused(
        "ONE_HOT",
        [x(2, 3, dtype=INT), scalar(-5), scalar(1, np.float32), scalar(0, np.float32)],
        axis=2,
    ),
    agreed("SEGMENT_SUM", [x(4, 3), ints(0, 0, 1, 2)], (3, 3)),
    refused("SEGMENT_SUM", [x(4, 3), ints(0, 0, 2)]),
    agreed("UNSORTED_SEGMENT_SUM", [x(4, 3), ints(0, 0, 2, 2), scalar(5)], (5, 3)),
    agreed("UNSORTED_SEGMENT_PROD", [x(2, 2, 3), ints([0, 0], [2, 2]), scalar(5)], (5, 3)),
    refused("UNSORTED_SEGMENT_MAX", [x(4, 3), ints(0, 0, 2), scalar(5)]),
    refused("UNSORTED_SEGMENT_MIN", [x(4, 3), ints(0, 0, 2, 7), scalar(5)]),
    agreed("TOPK_V2", [x(2, 6), scalar(3)], [(2, 3), (2, 3)], outputs=[FLOAT, INT]),
    agreed("TOPK_V2", [x(2, 6), ints(3)], [(2, 3), (2, 3)], outputs=[FLOAT, INT]),
    refused("TOPK_V2", [x(2, 6), scalar(7)], outputs=[FLOAT, INT]),
    agreed("TOPK_V2", [x(2, 6), scalar(0)], [(2, 0), (2, 0)], outputs=[FLOAT, INT]),
    agreed("BUCKETIZE", [x(2, 3)], (2, 3), outputs=[INT], boundaries=(0.0, 1.0)),
)
