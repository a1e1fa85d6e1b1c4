"""Cases of stablehlo operations."""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.ir import DType
from tests.unit.ir.operations.cases.case import agreed
from tests.unit.ir.operations.single import FLOAT, INT, Output, scalar, x

CASES: Final = (
    agreed("STABLEHLO_ADD", [x(2, 3), x(2, 3)], (2, 3), outputs=[Output(FLOAT, (2, 3))]),
    agreed("STABLEHLO_MULTIPLY", [x(2, 3), x(2, 3)], (2, 3), outputs=[Output(FLOAT, (2, 3))]),
    agreed("STABLEHLO_MAXIMUM", [x(2, 3), x(2, 3)], (2, 3), outputs=[Output(FLOAT, (2, 3))]),
    agreed("STABLEHLO_MINIMUM", [x(2, 3), x(2, 3)], (2, 3), outputs=[Output(FLOAT, (2, 3))]),
    agreed(
        "STABLEHLO_SHIFT_LEFT",
        [x(2, 3, dtype=INT), x(2, 3, dtype=INT)],
        (2, 3),
        outputs=[Output(INT, (2, 3))],
    ),
    agreed(
        "STABLEHLO_PAD",
        [x(3, 4), scalar(0, np.float32)],
        (8, 5),
        outputs=[Output(FLOAT, (8, 5))],
        edge_padding_low=(1, -1),
        edge_padding_high=(0, 2),
        interior_padding=(2, 0),
    ),
    agreed(
        "STABLEHLO_GATHER",
        [x(3, 4, 2), x(2, 3, 2, dtype=DType.INT64)],
        (2, 3, 2, 2),
        outputs=[Output(FLOAT, (2, 3, 2, 2))],
        offset_dims=(2, 3),
        collapsed_slice_dims=(0,),
        start_index_map=(1, 0),
        index_vector_dim=2,
        slice_sizes=(1, 2, 2),
    ),
    agreed(
        "STABLEHLO_RNG_BIT_GENERATOR",
        [x(2, dtype=DType.UINT64)],
        [(2,), (2, 3)],
        outputs=[Output(DType.UINT64, (2,)), Output(DType.UINT32, (2, 3))],
        algorithm="PHILOX",
    ),
)
