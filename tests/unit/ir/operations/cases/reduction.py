"""Cases of reduction operations."""

from __future__ import annotations

from typing import Final

from penstock.ir import DType
from tests.unit.ir.operations.cases.case import agreed, refused
from tests.unit.ir.operations.single import INT, ints, scalar, x

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
)
