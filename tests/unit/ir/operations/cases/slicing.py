"""Cases of slicing operations."""

from __future__ import annotations

from typing import Final

from tests.unit.ir.operations.cases.case import agreed, refused
from tests.unit.ir.operations.single import ints, x

CASES: Final = (
    agreed("SLICE", [x(4, 5), ints(1, 2), ints(2, -1)], (2, 3)),
    refused("SLICE", [x(4, 5), ints(1, 2), ints(4, -1)]),
    refused("SLICE", [x(4, 5), ints(-1, 2), ints(1, -1)]),
    agreed("SLICE", [x(4, 5), ints(4, 5), ints(-1, -1)], (0, 0)),
    agreed("SLICE", [x(4, 5), ints(0, 0), ints(0, 5)], (0, 5)),
    refused("SLICE", [x(4, 5), ints(5, 0), ints(-1, 5)]),
    agreed("STRIDED_SLICE", [x(5, 6), ints(1, 2), ints(4, 6), ints(2, 1)], (2, 4)),
    agreed("STRIDED_SLICE", [x(5, 6), ints(4, 2), ints(0, 6), ints(-2, 1)], (2, 4)),
    agreed("STRIDED_SLICE", [x(5, 6), ints(-2, -3), ints(100, 100), ints(1, 1)], (2, 3)),
    agreed("STRIDED_SLICE", [x(5, 6), ints(0, 0), ints(0, 0), ints(1, 1)], (0, 0)),
    refused("STRIDED_SLICE", [x(5, 6), ints(1, 2), ints(4, 6), ints(1, 0)]),
    agreed(
        "STRIDED_SLICE",
        [x(5, 6), ints(1, 2), ints(4, 6), ints(1, 1)],
        (4, 4),
        begin_mask=1,
        end_mask=2,
    ),
    agreed(
        "STRIDED_SLICE", [x(5, 6), ints(1, 2), ints(2, 3), ints(1, 1)], (1,), shrink_axis_mask=1
    ),
    agreed(
        "STRIDED_SLICE", [x(5, 6), ints(-1, 2), ints(0, 3), ints(1, 1)], (1,), shrink_axis_mask=1
    ),
    agreed(
        "STRIDED_SLICE",
        [x(5, 6), ints(7, 2), ints(8, 3), ints(1, 1)],
        (1,),
        shrink_axis_mask=1,
        begin_mask=1,
    ),
    agreed("STRIDED_SLICE", [x(5, 6), ints(1), ints(3), ints(1)], (2, 6)),
    agreed("STRIDED_SLICE", [x(5, 6), ints(3, 2), ints(1, 6), ints(-1, 1)], (4, 4), end_mask=1),
    agreed("STRIDED_SLICE", [x(5, 6), ints(3, 2), ints(1, 6), ints(-1, 1)], (3, 4), begin_mask=1),
    agreed("STRIDED_SLICE", [x(5, 6), ints(3, 2), ints(-100, 6), ints(-1, 1)], (4, 4)),
    agreed(
        "STRIDED_SLICE",
        [x(5, 6, 7), ints(1, 0, 2), ints(2, 0, 6), ints(1, 1, 1)],
        (1, 6, 4),
        ellipsis_mask=2,
    ),
    agreed(
        "STRIDED_SLICE",
        [x(5, 6, 7), ints(0, 2), ints(0, 6), ints(1, 1)],
        (5, 6, 4),
        ellipsis_mask=1,
    ),
    agreed(
        "STRIDED_SLICE",
        [x(5, 6), ints(0, 0, 0), ints(5, 0, 6), ints(1, 1, 1)],
        (5, 1, 6),
        new_axis_mask=2,
    ),
    agreed(
        "STRIDED_SLICE",
        [x(5, 6, 7, 8), ints(0, 1, 0), ints(0, 3, 0), ints(1, 1, 1)],
        (5, 6, 7, 2, 1),
        ellipsis_mask=1,
        new_axis_mask=4,
    ),
    agreed("STRIDED_SLICE", [x(5, 6), ints(1, 2), ints(2, 3), ints(1, 1)], (2, 3), offset=True),
    agreed("STRIDED_SLICE", [x(5, 6), ints(-3, 2), ints(2, 3), ints(1, 1)], (2, 3), offset=True),
    agreed("STRIDED_SLICE", [x(5, 6), ints(2, 2), ints(1, 3), ints(2, 1)], (), shrink_axis_mask=3),
    agreed("STRIDED_SLICE", [x(0, 6), ints(0, 2), ints(1, 3), ints(1, 1)], (0, 1)),
    agreed("DYNAMIC_UPDATE_SLICE", [x(4, 5), x(2, 2), ints(3, 3)], (4, 5)),
    refused("DYNAMIC_UPDATE_SLICE", [x(4, 5), x(5, 2), ints(3, 3)]),
    refused("DYNAMIC_UPDATE_SLICE", [x(4, 5), x(2), ints(3, 3)]),
    agreed("REVERSE_V2", [x(4, 5), ints(1)], (4, 5)),
    agreed("REVERSE_SEQUENCE", [x(4, 5), ints(1, 2, 3, 4)], (4, 5), seq_dim=1, batch_dim=0),
    refused("REVERSE_SEQUENCE", [x(4, 5), ints(1, 2, 3)], seq_dim=1, batch_dim=0),
    refused("REVERSE_SEQUENCE", [x(4, 5), ints(1, 2, 3, 4)], seq_dim=0, batch_dim=0),
)
