"""Cases of layout operations."""

from __future__ import annotations

from typing import Final

import numpy as np

from tests.unit.ir.operations.cases.case import agreed, refused
from tests.unit.ir.operations.single import ints, scalar, x

CASES: Final = (
    agreed("TRANSPOSE", [x(2, 3, 4), ints(2, 0, 1)], (4, 2, 3)),
    agreed("TRANSPOSE", [x(2, 3, 4), ints(-1, 0, 1)], (4, 2, 3)),
    refused("TRANSPOSE", [x(2, 3, 4), ints(2, 0)]),
    refused("TRANSPOSE", [x(2, 3, 4), ints(0, 3, 1)]),
    agreed("PAD", [x(2, 3), ints([1, 2], [0, 3])], (5, 6)),
    agreed("PAD", [x(0, 3), ints([1, 2], [0, 3])], (3, 6)),
    refused("PAD", [x(2, 3), ints([1, 2])]),
    refused("PAD", [x(2, 3), ints([-1, 0], [0, 0])]),
    agreed("PADV2", [x(2, 3), ints([1, 2], [0, 3]), scalar(1, np.float32)], (5, 6)),
    agreed("MIRROR_PAD", [x(3, 4), ints([1, 2], [0, 3])], (6, 7), mode="REFLECT"),
    refused("MIRROR_PAD", [x(3, 4), ints([3, 0], [0, 0])], mode="REFLECT"),
    agreed("MIRROR_PAD", [x(3, 4), ints([3, 0], [0, 4])], (6, 8), mode="SYMMETRIC"),
    refused("MIRROR_PAD", [x(3, 4), ints([4, 0], [0, 0])], mode="SYMMETRIC"),
    refused("MIRROR_PAD", [x(3, 4), ints([-1, 0], [0, 0])], mode="SYMMETRIC"),
    agreed("TILE", [x(2, 3), ints(2, 3)], (4, 9)),
    agreed("TILE", [x(2, 3), ints(2, 0)], (4, 0)),
    refused("TILE", [x(2, 3), ints(2)]),
    refused("TILE", [x(2, 3), ints(2, -1)]),
    agreed("DILATE", [x(2, 3), ints(2, 3), scalar(0, np.float32)], (3, 7)),
    refused("DILATE", [x(2, 3), ints(0, 3), scalar(0, np.float32)]),
    agreed("SPACE_TO_BATCH_ND", [x(1, 4, 6, 2), ints(2, 3), ints([0, 0], [0, 0])], (6, 2, 2, 2)),
    agreed("SPACE_TO_BATCH_ND", [x(1, 3, 6, 2), ints(2, 3), ints([0, 1], [1, 2])], (6, 2, 3, 2)),
    refused("SPACE_TO_BATCH_ND", [x(1, 4, 6, 2), ints(2, 3), ints([0, 1], [0, 0])]),
    agreed("SPACE_TO_BATCH_ND", [x(1, 4, 6), ints(2), ints([0, 0])], (2, 2, 6)),
    refused("SPACE_TO_BATCH_ND", [x(1, 4, 6, 2), ints(2), ints([0, 0])]),
    refused("SPACE_TO_BATCH_ND", [x(1, 4, 6, 2), ints(0, 3), ints([0, 0], [0, 0])]),
    agreed("BATCH_TO_SPACE_ND", [x(6, 2, 2, 2), ints(2, 3), ints([0, 0], [0, 0])], (1, 4, 6, 2)),
    agreed("BATCH_TO_SPACE_ND", [x(6, 2, 2, 2), ints(2, 3), ints([0, 1], [1, 0])], (1, 3, 5, 2)),
    refused("BATCH_TO_SPACE_ND", [x(5, 2, 2, 2), ints(2, 3), ints([0, 0], [0, 0])]),
    refused("BATCH_TO_SPACE_ND", [x(6, 2, 2, 2), ints(2, 3), ints([3, 2], [0, 0])]),
    agreed("SPACE_TO_DEPTH", [x(1, 4, 6, 2)], (1, 2, 3, 8), block_size=2),
    refused("SPACE_TO_DEPTH", [x(1, 4, 5, 2)], block_size=2),
    agreed("DEPTH_TO_SPACE", [x(1, 4, 6, 8)], (1, 8, 12, 2), block_size=2),
    refused("DEPTH_TO_SPACE", [x(1, 4, 6, 6)], block_size=2),
    refused("DEPTH_TO_SPACE", [x(1, 4, 6, 6)], block_size=0),
)
