"""One case of every operation that the driver takes over whole numbers and truth values: exact, all
of them.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.ir import DType, ModelBuilder
from tests.support_float_operations import numbers, scalar, whole
from tests.support_operations import F32, Given, OneOperation, operation

BOOL: Final = DType.BOOL
I32: Final = DType.INT32
I64: Final = DType.INT64


def given(dtype: DType, *shape: int) -> Given:
    """An input of another type than float32."""

    def make(builder: ModelBuilder) -> int:
        return builder.input(dtype, shape)

    return make


def arithmetic() -> list[OneOperation]:
    """TFLite computes not all of them over int64."""
    made = []
    for dtype, left_out in (
        (I32, ()),
        (I64, ("SQUARED_DIFFERENCE", "DIV", "FLOOR_DIV", "ABS", "SIGN")),
    ):
        name = dtype.value
        made += [
            operation(f"{kind.lower()}_{name}", kind, [given(dtype, 3, 4), given(dtype, 4)],
                [(3, 4)], dtypes=[dtype])
            for kind in ("ADD", "SUB", "MUL", "MAXIMUM", "MINIMUM", "SQUARED_DIFFERENCE")
            if kind not in left_out
        ]  # fmt: skip
        divisors = np.array([3, -7, 2, 5], dtype.numpy)
        made += [
            operation(f"{kind.lower()}_{name}", kind, [given(dtype, 3, 4), divisors], [(3, 4)],
                dtypes=[dtype])
            for kind in ("DIV", "FLOOR_DIV", "FLOOR_MOD")
            if kind not in left_out
        ]  # fmt: skip
        made += [
            operation(f"{kind.lower()}_{name}", kind, [given(dtype, 9)], [(9,)], dtypes=[dtype])
            for kind in ("ABS", "NEG", "SIGN")
            if kind not in left_out
        ]
    return made


def truth() -> list[OneOperation]:
    kinds = ("EQUAL", "NOT_EQUAL", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL")
    few = np.array([1, 2, 3], np.int32)
    made = [
        operation(f"{kind.lower()}_float", kind, [(4, 3), numbers(3)], [(4, 3)], dtypes=[BOOL])
        for kind in kinds
    ]
    made += [
        operation(f"{kind.lower()}_int32", kind, [np.array([[2], [3]], np.int32), few], [(2, 3)],
            dtypes=[BOOL])
        for kind in kinds
    ]  # fmt: skip
    both: list[Given] = [given(BOOL, 2, 3), given(BOOL, 3)]
    made += [
        operation("and", "LOGICAL_AND", both, [(2, 3)], dtypes=[BOOL]),
        operation("or", "LOGICAL_OR", both, [(2, 3)], dtypes=[BOOL]),
        operation("not", "LOGICAL_NOT", [given(BOOL, 7)], [(7,)], dtypes=[BOOL]),
        operation("select", "SELECT", [given(BOOL, 2, 3), (2, 3), (2, 3)], [(2, 3)]),
        operation("select_rows", "SELECT", [given(BOOL, 2), (2, 3), (2, 3)], [(2, 3)]),
        operation("select_v2", "SELECT_V2", [given(BOOL, 2, 1), (3,), (2, 3)], [(2, 3)]),
        operation("select_v2_int32", "SELECT_V2", [given(BOOL, 3), given(I32, 3), given(I32, 1)],
            [(3,)], dtypes=[I32]),
    ]  # fmt: skip
    for kind in ("REDUCE_ANY", "REDUCE_ALL"):
        for keep, shape in ((False, (2,)), (True, (2, 1))):
            made.append(
                operation(f"{kind.lower()}_{keep}", kind, [given(BOOL, 2, 3), whole(1)], [shape],
                          {"keep_dims": keep}, [BOOL])
            )  # fmt: skip
    return made


def moves() -> list[OneOperation]:
    made = []
    for dtype in (I32, I64, BOOL):
        name = dtype.value
        pads = np.array([[1, 0], [0, 2]], np.int32)
        made += [
            operation(f"reshape_{name}", "RESHAPE", [given(dtype, 2, 6), whole(3, 4)], [(3, 4)],
                dtypes=[dtype]),
            operation(f"transpose_{name}", "TRANSPOSE", [given(dtype, 2, 6), whole(1, 0)], [(6, 2)],
                dtypes=[dtype]),
            operation(f"pad_{name}", "PAD", [given(dtype, 2, 3), pads], [(3, 5)], dtypes=[dtype]),
            operation(f"gather_{name}", "GATHER", [given(dtype, 4, 3), whole(3, 0)], [(2, 3)],
                {"axis": 0}, [dtype]),
            operation(f"pack_{name}", "PACK", [given(dtype, 3), given(dtype, 3)], [(2, 3)],
                      {"axis": 0, "values_count": 2}, [dtype]),
        ]  # fmt: skip
    return made


def positions() -> list[OneOperation]:
    made = []
    for kind in ("ARG_MAX", "ARG_MIN"):
        for dtype in (I32, I64):
            name = f"{kind.lower()}_to_{dtype.value}"
            wanted = {"output_type": dtype.name}
            made.append(operation(name, kind, [(4, 5, 6), scalar(1)], [(4, 6)], wanted, [dtype]))
    top = operation("top_k", "TOPK_V2", [(3, 8), scalar(3)], [(3, 3), (3, 3)], None, [F32, I32])
    one, zero = np.array(2.5, np.float32), np.array(-1.0, np.float32)
    spots = np.array([[0, 3], [-1, 7]], np.int32)
    hot = [
        operation(
            f"one_hot_{axis}", "ONE_HOT", [spots, scalar(4), one, zero], [shape], {"axis": axis}
        )
        for axis, shape in ((-1, (2, 2, 4)), (0, (4, 2, 2)), (1, (2, 4, 2)))
    ]
    shape = operation("shape", "SHAPE", [(3, 4)], [(2,)], {"out_type": "INT32"}, [I32])
    chosen = operation(
        "gather_computed", "GATHER", [(9, 2), np.array([4, 8, 0], np.int64)], [(3, 2)], {"axis": 0}
    )
    return [*made, top, *hot, shape, chosen]


def casts() -> list[OneOperation]:
    pairs = [(I32, F32), (I64, I32), (I32, I64), (BOOL, F32), (BOOL, I32), (I32, BOOL), (F32, BOOL)]
    return [
        operation(
            f"cast_{source.value}_to_{target.value}", "CAST", [given(source, 6)], [(6,)],
            {"in_data_type": source.name, "out_data_type": target.name}, [target],
        )
        for source, target in pairs
    ]  # fmt: skip


def unscaled() -> list[OneOperation]:
    """8-bit numbers without a scale, and what only they and their like are given to."""
    made = []
    for dtype in (DType.INT8, DType.UINT8):
        name = dtype.value
        x, part = given(dtype, 3, 4), given(dtype, 1, 4)
        made += [
            operation(f"cast_{source.value}_to_{target.value}", "CAST", [given(source, 3, 40)],
                [(3, 40)],
                      {"in_data_type": source.name, "out_data_type": target.name}, [target])
            for source, target in ((dtype, F32), (dtype, I32), (dtype, I64), (F32, dtype))
        ]  # fmt: skip
        made += [
            operation(f"transpose_{name}", "TRANSPOSE", [x, whole(1, 0)], [(4, 3)], dtypes=[dtype]),
            operation(f"reshape_{name}", "RESHAPE", [x, whole(2, 6)], [(2, 6)], dtypes=[dtype]),
            operation(f"join_{name}", "CONCATENATION", [x, part], [(4, 4)], {"axis": 0}, [dtype]),
            operation(f"split_{name}", "SPLIT", [scalar(1), x], [(3, 2)] * 2, {"num_splits": 2},
                [dtype] * 2),
            operation(f"slice_{name}", "SLICE", [x, whole(1, 0), whole(2, 3)], [(2, 3)],
                dtypes=[dtype]),
            operation(f"gather_{name}", "GATHER", [x, whole(2, 0)], [(2, 4)], {"axis": 0}, [dtype]),
            operation(f"update_{name}", "DYNAMIC_UPDATE_SLICE", [x, part, whole(1, 0)], [(3, 4)],
                dtypes=[dtype]),
            operation(f"fill_{name}", "FILL", [whole(2, 3), given(dtype)], [(2, 3)],
                dtypes=[dtype]),
        ]  # fmt: skip
    return made


def blocks() -> list[OneOperation]:
    made = []
    for at in (-7, 0, 2, 3, 9):
        place, block, x = whole(0, at), given(I32, 2, 2), given(I32, 2, 5)
        made.append(
            operation(
                f"update_at_{at}", "DYNAMIC_UPDATE_SLICE", [x, block, place], [(2, 5)], dtypes=[I32]
            )
        )
    whole_block = operation(
        "update_all", "DYNAMIC_UPDATE_SLICE", [(2, 5), (2, 5), whole(1, 1)], [(2, 5)]
    )
    return [*made, whole_block]  # fmt: skip


WHOLE: Final = [*arithmetic(), *truth(), *moves(), *positions(), *casts(), *unscaled(), *blocks()]
