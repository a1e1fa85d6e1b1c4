"""Cases of joining operations."""

from __future__ import annotations

from typing import Final

from tests.unit.ir.operations.cases.case import agreed, refused
from tests.unit.ir.operations.single import FLOAT, ints, scalar, x

CASES: Final = (
    agreed("CONCATENATION", [x(2, 3), x(2, 4)], (2, 7), axis=1),
    agreed("CONCATENATION", [x(2, 3), x(2, 4)], (2, 7), axis=-1),
    refused("CONCATENATION", [x(2, 3), x(2, 4)], axis=0),
    refused("CONCATENATION", [x(2, 3), x(2, 4)], axis=2),
    agreed("CONCATENATION", [x(2, 3)], (2, 3), axis=0),
    agreed("PACK", [x(2, 3), x(2, 3)], (2, 3, 2), axis=-1, values_count=2),
    refused("PACK", [x(2, 3), x(2, 4)], axis=1, values_count=2),
    refused("PACK", [x(2, 3), x(2, 3)], axis=3, values_count=2),
    refused("PACK", [x(2, 3), x(2, 3)], axis=0, values_count=3),
    agreed("PACK", [x(), x()], (2,), axis=0, values_count=2),
    agreed("UNPACK", [x(2, 3)], [(2,), (2,), (2,)], outputs=[FLOAT, FLOAT, FLOAT], axis=1, num=3),
    agreed("UNPACK", [x(2, 3)], [(3,), (3,)], outputs=[FLOAT, FLOAT], axis=-2, num=2),
    refused("UNPACK", [x(2, 3)], outputs=[FLOAT, FLOAT], axis=1, num=2),
    refused("UNPACK", [x(2, 3)], outputs=[FLOAT, FLOAT], axis=0, num=3),
    agreed(
        "SPLIT",
        [scalar(1), x(2, 6)],
        [(2, 2), (2, 2), (2, 2)],
        outputs=[FLOAT, FLOAT, FLOAT],
        num_splits=3,
    ),
    agreed("SPLIT", [ints(-1), x(2, 6)], [(2, 3), (2, 3)], outputs=[FLOAT, FLOAT], num_splits=2),
    refused("SPLIT", [scalar(1), x(2, 6)], outputs=[FLOAT, FLOAT, FLOAT, FLOAT], num_splits=4),
    refused("SPLIT", [ints(2), x(2, 6)], outputs=[FLOAT, FLOAT], num_splits=2),
    agreed(
        "SPLIT_V",
        [x(2, 6), ints(1, -1), scalar(1)],
        [(2, 1), (2, 5)],
        outputs=[FLOAT, FLOAT],
        num_splits=2,
    ),
    agreed(
        "SPLIT_V",
        [x(2, 6), ints(2, 4), scalar(-1)],
        [(2, 2), (2, 4)],
        outputs=[FLOAT, FLOAT],
        num_splits=2,
    ),
    agreed(
        "SPLIT_V",
        [x(2, 6), ints(0, 6), scalar(1)],
        [(2, 0), (2, 6)],
        outputs=[FLOAT, FLOAT],
        num_splits=2,
    ),
    refused("SPLIT_V", [x(2, 6), ints(1, 4), scalar(1)], outputs=[FLOAT, FLOAT], num_splits=2),
    refused("SPLIT_V", [x(2, 6), ints(-1, -1), scalar(1)], outputs=[FLOAT, FLOAT], num_splits=2),
    refused("SPLIT_V", [x(2, 6), ints(-1, 7), scalar(1)], outputs=[FLOAT, FLOAT], num_splits=2),
)
