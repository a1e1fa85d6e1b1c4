"""Cases of convolutions and matrix products."""

from __future__ import annotations

from typing import Final

from tests.unit.ir.operations.cases.case import agreed, refused, window
from tests.unit.ir.operations.single import ints, x, zeros

CASES: Final = (
    agreed(
        "CONV_2D",
        [x(1, 5, 6, 3), zeros(4, 3, 3, 3), zeros(4)],
        (1, 2, 2, 4),
        **window("VALID", 2, 2),
    ),
    agreed(
        "CONV_2D",
        [x(1, 5, 6, 3), zeros(4, 3, 3, 3), zeros(4)],
        (1, 3, 3, 4),
        **window("SAME", 2, 2),
    ),
    agreed(
        "CONV_2D",
        [x(1, 9, 9, 3), zeros(4, 3, 3, 3), zeros(4)],
        (1, 3, 5, 4),
        **window("VALID", 1, 1, dilation_w_factor=2, dilation_h_factor=3),
    ),
    agreed(
        "CONV_2D",
        [x(1, 2, 2, 3), zeros(4, 3, 3, 3), zeros(4)],
        (1, 0, 0, 4),
        **window("VALID", 2, 2),
    ),
    agreed(
        "CONV_2D",
        [x(1, 1, 1, 3), zeros(4, 3, 3, 3), zeros(4)],
        (1, 0, 0, 4),
        **window("VALID", 2, 2),
    ),
    refused("CONV_2D", [x(1, 1, 1, 3), zeros(4, 5, 5, 3), zeros(4)], **window("VALID", 2, 2)),
    agreed(
        "CONV_2D",
        [x(1, 8, 8, 6), zeros(4, 3, 3, 3), zeros(4)],
        (1, 3, 3, 4),
        **window("VALID", 2, 2),
    ),
    refused("CONV_2D", [x(1, 8, 8, 6), zeros(4, 3, 3, 4), zeros(4)], **window("VALID", 2, 2)),
    refused("CONV_2D", [x(1, 8, 8, 3), zeros(4, 3, 3, 3), zeros(4)], padding="VALID", stride_h=1),
    refused(
        "CONV_2D",
        [x(1, 8, 8, 3), zeros(4, 3, 3, 3), zeros(4)],
        **window("VALID", 1, 1, dilation_w_factor=0),
    ),
    refused("CONV_2D", [x(1, 8, 8, 3), zeros(4, 3, 3, 3), zeros(5)], **window("VALID", 2, 2)),
    agreed(
        "CONV_2D",
        [x(0, 8, 8, 3), zeros(4, 3, 3, 3), zeros(4)],
        (0, 3, 3, 4),
        **window("VALID", 2, 2),
    ),
    refused("CONV_2D", [x(8, 8, 3), zeros(4, 3, 3, 3), zeros(4)], **window("VALID", 2, 2)),
    agreed(
        "DEPTHWISE_CONV_2D",
        [x(1, 8, 8, 3), zeros(1, 3, 3, 6), zeros(6)],
        (1, 3, 3, 6),
        **window("VALID", 2, 2, depth_multiplier=2),
    ),
    agreed(
        "DEPTHWISE_CONV_2D",
        [x(1, 8, 8, 3), zeros(1, 3, 3, 6), zeros(6)],
        (1, 3, 3, 6),
        **window("VALID", 2, 2, depth_multiplier=1),
    ),
    refused(
        "DEPTHWISE_CONV_2D",
        [x(1, 8, 8, 3), zeros(1, 3, 3, 5), zeros(5)],
        **window("VALID", 2, 2, depth_multiplier=1),
    ),
    refused(
        "DEPTHWISE_CONV_2D",
        [x(1, 8, 8, 3), zeros(2, 3, 3, 6), zeros(6)],
        **window("VALID", 2, 2, depth_multiplier=2),
    ),
    agreed(
        "TRANSPOSE_CONV",
        [ints(1, 8, 8, 4), zeros(4, 3, 3, 3), x(1, 4, 4, 3)],
        (1, 8, 8, 4),
        **window("SAME", 2, 2),
    ),
    agreed(
        "TRANSPOSE_CONV",
        [ints(1, 9, 9, 4), zeros(4, 3, 3, 3), x(1, 4, 4, 3)],
        (1, 9, 9, 4),
        **window("VALID", 2, 2),
    ),
    refused(
        "TRANSPOSE_CONV",
        [ints(1, 9, 9, 4), zeros(4, 3, 3, 3), x(1, 4, 4, 3)],
        **window("SAME", 2, 2),
    ),
    refused(
        "TRANSPOSE_CONV",
        [ints(1, 8, 8, 5), zeros(4, 3, 3, 3), x(1, 4, 4, 3)],
        **window("SAME", 2, 2),
    ),
    refused(
        "TRANSPOSE_CONV",
        [ints(2, 8, 8, 4), zeros(4, 3, 3, 3), x(1, 4, 4, 3)],
        **window("SAME", 2, 2),
    ),
    agreed(
        "CONV_3D",
        [x(1, 4, 5, 6, 2), zeros(2, 2, 2, 2, 3)],
        (1, 3, 4, 5, 3),
        **window("VALID", 1, 1, 1),
    ),
    refused("CONV_3D", [x(1, 4, 5, 6, 2), zeros(2, 2, 2, 3, 3)], **window("VALID", 1, 1, 1)),
    agreed(
        "CONV_3D_TRANSPOSE",
        [ints(1, 5, 6, 7, 3), zeros(2, 2, 2, 3, 2), x(1, 4, 5, 6, 2)],
        (1, 5, 6, 7, 3),
        **window("VALID", 1, 1, 1),
    ),
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
