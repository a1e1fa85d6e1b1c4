"""Cases of shape operations."""

from __future__ import annotations

from typing import Final

import numpy as np

from tests.unit.ir.operations.cases.case import agreed, refused
from tests.unit.ir.operations.single import INT, ints, scalar, x, zeros

CASES: Final = (
    agreed("RESHAPE", [x(2, 3, 4), ints(-1, 6)], (4, 6)),
    refused("RESHAPE", [x(2, 3, 4), ints(5, 6)]),
    refused("RESHAPE", [x(2, 3, 4), ints(-1, -1)]),
    refused("RESHAPE", [x(2, 3, 4), ints(-1, 7)]),
    refused("RESHAPE", [x(2, 3, 4), ints(-2, 12)]),
    agreed("RESHAPE", [x(2, 3, 4)], (4, 6), new_shape=(4, -1)),
    agreed("RESHAPE", [x(2, 3), ints(6)], (6,), new_shape=(3, 2)),
    agreed("RESHAPE", [x(1)], (), new_shape=(0,)),
    agreed("RESHAPE", [x(1)], (), new_shape=()),
    agreed("RESHAPE", [x(1), ints()], ()),
    agreed("RESHAPE", [x(0, 3), ints(-1, 3)], (0, 3)),
    agreed("RESHAPE", [x(0, 3), ints(-1, 0)], (3, 0)),
    agreed("RESHAPE", [x(0, 6, 5), ints(-1, 0, 2)], (15, 0, 2)),
    agreed("RESHAPE", [x(0, 3), ints(0, -1)], (0, 3)),
    agreed("RESHAPE", [x(0, 3), ints(3, -1)], (3, 0)),
    agreed("RESHAPE", [x(0, 3), ints(0, 7)], (0, 7)),
    refused("RESHAPE", [x(2, 3), ints(0, -1)]),
    refused("RESHAPE", [x(2, 3), scalar(6)]),
    agreed("RESHAPE", [x(2, 3), ints([6])], (3, 2), new_shape=(3, 2)),
    agreed("SQUEEZE", [x(1, 2, 1, 3)], (2, 3)),
    agreed("SQUEEZE", [x(1, 2, 1, 3)], (1, 2, 3), squeeze_dims=(-2,)),
    refused("SQUEEZE", [x(1, 2, 1, 3)], squeeze_dims=(1,)),
    refused("SQUEEZE", [x(1, 2, 1, 3)], squeeze_dims=(4,)),
    agreed("SQUEEZE", [x(1, 1)], ()),
    agreed("EXPAND_DIMS", [x(2, 3), scalar(-1)], (2, 3, 1)),
    agreed("EXPAND_DIMS", [x(2, 3), ints(1)], (2, 1, 3)),
    refused("EXPAND_DIMS", [x(2, 3), scalar(4)]),
    agreed("SHAPE", [x(2, 3)], (2,), outputs=[INT], out_type="INT32"),
    agreed("RANK", [x(2, 3)], (), outputs=[INT]),
    agreed("BROADCAST_TO", [x(3, 1), ints(2, 3, 4)], (2, 3, 4)),
    refused("BROADCAST_TO", [x(3, 1), ints(2, 4, 4)]),
    refused("BROADCAST_TO", [x(3, 1), ints(3)]),
    refused("BROADCAST_TO", [x(3, 4), ints(3, 1)]),
    agreed("BROADCAST_ARGS", [ints(3, 1), ints(2, 3, 4)], (3,), outputs=[INT]),
    agreed("FILL", [ints(2, 3), scalar(1, np.float32)], (2, 3)),
    refused("FILL", [ints(2, -3), scalar(1, np.float32)]),
    refused("FILL", [ints(2, 3), zeros(1)]),
    agreed("RANGE", [scalar(0), scalar(10), scalar(3)], (4,), outputs=[INT]),
    agreed("RANGE", [scalar(10), scalar(0), scalar(-3)], (4,), outputs=[INT]),
    refused("RANGE", [scalar(0), scalar(10), scalar(-3)], outputs=[INT]),
    refused("RANGE", [scalar(0), scalar(10), scalar(0)], outputs=[INT]),
    agreed("RANGE", [scalar(5), scalar(5), scalar(1)], (0,), outputs=[INT]),
    agreed("RANGE", [scalar(5), scalar(5), scalar(-1)], (0,), outputs=[INT]),
    agreed("RANGE", [scalar(0, np.float32), scalar(1, np.float32), scalar(0.3, np.float32)], (4,)),
)
