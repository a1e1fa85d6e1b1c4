from __future__ import annotations

import numpy as np

from penstock.drivers.xnnpack.segments import make_segments
from penstock.drivers.xnnpack.site import Classes
from penstock.ir import DType, ModelBuilder

F32, SHAPE = DType.FLOAT32, (1, 4)
EITHER = Classes(builtin="exact", xnnpack="exact")
PLAIN = Classes(builtin="exact", xnnpack=None)


def test_a_kernel_set_computes_all_that_it_can_before_the_next_one() -> None:
    b = ModelBuilder()
    x = b.input(F32, SHAPE, "x")
    w = b.constant(np.eye(4, dtype=np.float32), "w")
    (first,) = b.operation("FULLY_CONNECTED", [x, w, None], [(F32, SHAPE)])
    (plain,) = b.operation("SIN", [first], [(F32, SHAPE)])
    (second,) = b.operation("FULLY_CONNECTED", [first, w, None], [(F32, SHAPE)])
    (after,) = b.operation("ADD", [plain, second], [(F32, SHAPE)])
    third = b.operation("FULLY_CONNECTED", [after, w, None], [(F32, SHAPE)])
    segments = make_segments(b.build(third), [EITHER, PLAIN, EITHER, EITHER, EITHER], "faithful")
    assert [(s.kernels, s.operations) for s in segments] == [
        ("xnnpack", (0, 2)),
        ("builtin", (1, 3)),
        ("xnnpack", (4,)),
    ]
