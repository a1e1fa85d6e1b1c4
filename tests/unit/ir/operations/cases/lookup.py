"""Cases of lookup operations."""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.ir import DType
from tests.unit.ir.operations.cases.case import agreed, refused
from tests.unit.ir.operations.single import FLOAT, INT, ints, scalar, x, zeros

CASES: Final = (
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
