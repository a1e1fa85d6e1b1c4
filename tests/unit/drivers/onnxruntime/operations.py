"""One case of every operation that the driver takes in float32: what the tests of the driver
run.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from tests.support_float_operations import COMMON, IMAGE, numbers, pools, reductions, scalar, whole
from tests.support_operations import Given, OneOperation, operation


def elements() -> list[OneOperation]:
    return [
        operation("zeros_like", "ZEROS_LIKE", [(3, 17)], [(3, 17)]),
        operation("gelu_tanh_of_an_image", "GELU", [IMAGE], [IMAGE], {"approximate": True}),
        operation("add_n", "ADD_N", [IMAGE, IMAGE, numbers(*IMAGE)], [IMAGE]),
        operation("log_softmax", "LOG_SOFTMAX", [(3, 11)], [(3, 11)]),
    ]


def batches() -> list[OneOperation]:
    cut = [whole(2, 3), np.array([[1, 0], [0, 2]], np.int32)]
    one, many = (2, 3, 4, 3), (12, 2, 2, 3)
    return [
        operation("space_to_batch", "SPACE_TO_BATCH_ND", [one, *cut], [many]),
        operation("batch_to_space", "BATCH_TO_SPACE_ND", [many, *cut], [one]),
    ]


def sums() -> list[OneOperation]:
    products = [c for c in reductions("REDUCE_PROD") if "0_1_2_3" not in c.name]
    return products + [
        operation(f"cumsum_{axis}", "CUMSUM", [(3, 4), scalar(axis)], [(3, 4)], named)
        for axis, named in ((1, {}), (-1, {"exclusive": True}), (0, {"reverse": True}))
    ]


def moves() -> list[OneOperation]:
    return [
        operation("transpose_of_ones", "TRANSPOSE", [(1, 7, 1, 5), whole(2, 1, 0, 3)],
            [(1, 7, 1, 5)]),
        operation("gather_of_one", "GATHER", [(3, 1, 5), scalar(0)], [(3, 5)], {"axis": 1}),
        operation("strided_slice_backwards", "STRIDED_SLICE",
            [(4, 6), whole(3, 5), whole(-9, 1), whole(-2, -1)], [(2, 4)]),
        operation("tile", "TILE", [(2, 3), whole(2, 3)], [(4, 9)]),
        operation("broadcast_to", "BROADCAST_TO", [(3, 1), whole(2, 3, 4)], [(2, 3, 4)]),
        operation("reverse", "REVERSE_V2", [IMAGE, whole(1, -1)], [IMAGE]),
        operation("gather_nd", "GATHER_ND", [(3, 4, 2), np.array([[0, 1], [2, 3]], np.int32)],
            [(2, 2)]),
    ]  # fmt: skip


def volumes() -> OneOperation:
    steps = {"stride_d": 1, "stride_h": 2, "stride_w": 1, "padding": "SAME"}
    given: list[Given] = [(1, 4, 5, 6, 3), numbers(3, 3, 2, 3, 4), numbers(4)]
    return operation("conv_3d", "CONV_3D", given, [(1, 4, 3, 6, 4)], steps)


def lstm(name: str, steps: int, batch: int, *, major: bool) -> OneOperation:
    hidden, size = 4, 6
    gates = [numbers(hidden, size, seed=k) for k in range(4)]
    recurrent = [numbers(hidden, hidden, seed=k) for k in range(4, 8)]
    biases = [numbers(hidden, seed=k) for k in range(8, 12)]
    state = (batch, hidden)
    parameters = [*gates, *recurrent, None, None, None, *biases, None, None]
    first = (steps, batch) if major else (batch, steps)
    given: list[Given] = [(*first, size), *parameters, state, state, None, None, None, None]
    shapes = [(*first, hidden), state, state]
    attributes = {"fused_activation_function": "TANH", "time_major": major}
    return operation(name, "UNIDIRECTIONAL_SEQUENCE_LSTM", given, shapes, attributes)


def recurrent() -> list[OneOperation]:
    return [
        lstm("lstm_steps_first", 5, 3, major=True),
        lstm("lstm_batch_first", 5, 3, major=False),
        lstm("lstm_one_sequence", 5, 1, major=False),
        lstm("lstm_one_step", 1, 2, major=True),
    ]


FLOAT: Final = [
    *COMMON,
    *recurrent(),
    *elements(),
    *pools("L2_POOL_2D"),
    *batches(),
    *sums(),
    *moves(),
    volumes(),
]
