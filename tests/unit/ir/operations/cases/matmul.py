"""Cases of matmul operations."""

from __future__ import annotations

from typing import Final

from tests.unit.ir.operations.cases.case import agreed, refused
from tests.unit.ir.operations.single import x, zeros

CASES: Final = (
    agreed("FULLY_CONNECTED", [x(2, 3, 4), zeros(5, 4)], (6, 5)),
    agreed("FULLY_CONNECTED", [x(2, 3, 4), zeros(5, 12)], (2, 5)),
    agreed("FULLY_CONNECTED", [x(2, 3, 4), zeros(5, 4), zeros(5)], (2, 3, 5), keep_num_dims=True),
    refused("FULLY_CONNECTED", [x(2, 3, 4), zeros(5, 12)], keep_num_dims=True),
    agreed("FULLY_CONNECTED", [x(4), zeros(5, 4)], (1, 5)),
    refused("FULLY_CONNECTED", [x(2, 4), zeros(5, 4), zeros(4)]),
    agreed("FULLY_CONNECTED", [x(0, 4), zeros(5, 4), zeros(5)], (0, 5)),
    refused("FULLY_CONNECTED", [x(2, 4), zeros(5, 4, 1)]),
    agreed("BATCH_MATMUL", [x(2, 3, 4), x(4, 5)], (2, 3, 5)),
    agreed("BATCH_MATMUL", [x(2, 1, 3, 4), x(7, 4, 5)], (2, 7, 3, 5)),
    agreed("BATCH_MATMUL", [x(2, 4, 3), x(2, 5, 4)], (2, 3, 5), adj_x=True, adj_y=True),
    refused("BATCH_MATMUL", [x(2, 3, 4), x(2, 3, 4)]),
    agreed("BATCH_MATMUL", [x(3, 4), x(4, 5)], (3, 5)),
    refused("BATCH_MATMUL", [x(4), x(4, 5)]),
    agreed("MATRIX_DIAG", [x(2, 3)], (2, 3, 3)),
    agreed("MATRIX_SET_DIAG", [x(2, 3, 4), x(2, 3)], (2, 3, 4)),
)
