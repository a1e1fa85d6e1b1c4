"""Cases of operations that select or write elements by index or key."""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.ir import DType
from tests.unit.ir.operations.cases.case import agreed, refused
from tests.unit.ir.operations.single import FLOAT, INT, ints, scalar, x, zeros

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
    agreed("RANDOM_UNIFORM", [ints(2, 3)], (2, 3)),
    agreed("RANDOM_STANDARD_NORMAL", [ints(2, 3)], (2, 3)),
    refused("RANDOM_UNIFORM", [ints(2, -3)]),
    agreed("MULTINOMIAL", [x(2, 3), scalar(4)], (2, 4), outputs=[DType.INT64]),
    refused("MULTINOMIAL", [x(2), scalar(4)], outputs=[DType.INT64]),
    refused("MULTINOMIAL", [x(2, 3), ints(4)], outputs=[DType.INT64]),
    agreed("EMBEDDING_LOOKUP", [x(3, dtype=INT), zeros(5, 2, 4)], (3, 2, 4)),
    refused("EMBEDDING_LOOKUP", [x(3, dtype=INT), zeros(5)]),
    refused("EMBEDDING_LOOKUP", [x(3, 1, dtype=INT), zeros(5, 2)]),
    agreed(
        "EMBEDDING_LOOKUP_SPARSE",
        [ints(0, 1, 2), ints([0, 0], [1, 0], [1, 1]), ints(2, 2), zeros(3), zeros(5, 3)],
        (2, 3),
    ),
    refused(
        "EMBEDDING_LOOKUP_SPARSE",
        [ints(0, 1, 2), ints([0, 0], [1, 0]), ints(2, 2), zeros(3), zeros(5, 3)],
    ),
    agreed(
        "HASHTABLE_LOOKUP",
        [x(3, dtype=INT), ints(1, 2, 3, 4), zeros(4, 2)],
        [(3, 2), (3,)],
        outputs=[FLOAT, DType.UINT8],
    ),
    refused(
        "HASHTABLE_LOOKUP",
        [x(3, dtype=INT), ints(1, 2, 3), zeros(4, 2)],
        outputs=[FLOAT, DType.UINT8],
    ),
    agreed("LSH_PROJECTION", [zeros(3, 2), x(5, 4), zeros(5)], (6,), outputs=[INT], type="DENSE"),
    agreed("LSH_PROJECTION", [zeros(3, 2), x(5, 4)], (3,), outputs=[INT], type="SPARSE"),
    refused("LSH_PROJECTION", [zeros(3, 2), x(5, 4), zeros(4)], outputs=[INT], type="SPARSE"),
    refused("LSH_PROJECTION", [zeros(3, 33), x(5, 4)], outputs=[INT], type="SPARSE"),
    refused("LSH_PROJECTION", [zeros(3, 2), x(5, 4)], outputs=[INT], type="UNKNOWN"),
    agreed(
        "NON_MAX_SUPPRESSION_V4",
        [x(7, 4), x(7), scalar(3), scalar(0.5, np.float32), scalar(0.1, np.float32)],
        [(3,), ()],
        outputs=[INT, INT],
    ),
    agreed(
        "NON_MAX_SUPPRESSION_V4",
        [x(7, 4), x(7), scalar(30), scalar(0.5, np.float32), scalar(0.1, np.float32)],
        [(30,), ()],
        outputs=[INT, INT],
    ),
    refused(
        "NON_MAX_SUPPRESSION_V4",
        [x(7, 4), x(6), scalar(3), scalar(0.5, np.float32), scalar(0.1, np.float32)],
        outputs=[INT, INT],
    ),
    refused(
        "NON_MAX_SUPPRESSION_V4",
        [x(7, 5), x(7), scalar(3), scalar(0.5, np.float32), scalar(0.1, np.float32)],
        outputs=[INT, INT],
    ),
    refused(
        "NON_MAX_SUPPRESSION_V4",
        [x(7, 4), x(7), ints(3), scalar(0.5, np.float32), scalar(0.1, np.float32)],
        outputs=[INT, INT],
    ),
    refused(
        "NON_MAX_SUPPRESSION_V4",
        [x(7, 4), x(7), scalar(-3), scalar(0.5, np.float32), scalar(0.1, np.float32)],
        outputs=[INT, INT],
    ),
    agreed(
        "NON_MAX_SUPPRESSION_V5",
        [
            x(7, 4),
            x(7),
            scalar(3),
            scalar(0.5, np.float32),
            scalar(0.1, np.float32),
            scalar(0.5, np.float32),
        ],
        [(3,), (3,), ()],
        outputs=[INT, FLOAT, INT],
    ),
)
