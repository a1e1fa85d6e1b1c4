"""Whole numbers, truth values and what is chosen by them: exact on OpenVINO, or left to another
device.
"""

from __future__ import annotations

from itertools import chain
from typing import Final

import numpy as np
import pytest

from penstock.ir import DType, Model, ModelBuilder, NDArray, Quantization
from tests.support_openvino import cpu, needs_openvino
from tests.support_operations import F32, Given, OneOperation, operation, run_on

pytestmark = needs_openvino

BOOL: Final = DType.BOOL
I32: Final = DType.INT32
IMAGE: Final = (1, 4, 6, 5)


def given(dtype: DType, *shape: int) -> Given:
    """An input of another type than float32."""

    def make(builder: ModelBuilder) -> int:
        return builder.input(dtype, shape)

    return make


def whole(*values: int) -> NDArray:
    return np.array(values, np.int32)


def arithmetic() -> list[OneOperation]:
    kinds = ("ADD", "SUB", "MUL", "MAXIMUM", "MINIMUM", "SQUARED_DIFFERENCE")
    pairs = [
        operation(f"{kind.lower()}_int32", kind, [given(I32, 3, 4), given(I32, 4)], [(3, 4)],
            dtypes=[I32])
        for kind in kinds
    ]  # fmt: skip
    alone = [
        operation(f"{kind.lower()}_int32", kind, [given(I32, 9)], [(9,)], dtypes=[I32])
        for kind in ("ABS", "NEG")
    ]
    return [*pairs, *alone]


def truth() -> list[OneOperation]:
    kinds = ("EQUAL", "NOT_EQUAL", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL")
    both: list[Given] = [given(BOOL, 2, 3), given(BOOL, 3)]
    ties = np.round(np.random.default_rng(2).standard_normal(5), 0).astype(np.float32)
    return [
        *(operation(f"{kind.lower()}_float", kind, [IMAGE, ties], [IMAGE],
            dtypes=[BOOL]) for kind in kinds),
        *(
            operation(f"{kind.lower()}_int32", kind, [whole(2**30, -7, 2**30 + 1, 0), whole(2**30)],
                [(4,)], dtypes=[BOOL])
            for kind in ("EQUAL", "NOT_EQUAL")
        ),
        operation("equal_drawn", "EQUAL", [given(I32, 3, 40), given(I32, 40)], [(3, 40)],
            dtypes=[BOOL]),
        operation("and", "LOGICAL_AND", both, [(2, 3)], dtypes=[BOOL]),
        operation("or", "LOGICAL_OR", both, [(2, 3)], dtypes=[BOOL]),
        operation("not", "LOGICAL_NOT", [given(BOOL, 7)], [(7,)], dtypes=[BOOL]),
        operation("select", "SELECT", [given(BOOL, 2, 3), (2, 3), (2, 3)], [(2, 3)]),
        operation("select_rows", "SELECT", [given(BOOL, 2), (2, 3), (2, 3)], [(2, 3)]),
        operation("select_v2", "SELECT_V2", [given(BOOL, 2, 1), (3,), (2, 3)], [(2, 3)]),
        operation("select_v2_int32", "SELECT_V2", [given(BOOL, 3), given(I32, 3), given(I32, 1)],
            [(3,)], dtypes=[I32]),
        operation("select_v2_constants", "SELECT_V2",
            [given(BOOL, 3), np.array(1.5, np.float32), np.array(-2, np.float32)], [(3,)]),
    ]  # fmt: skip


def moves() -> list[OneOperation]:
    return [
        operation("reshape_bool", "RESHAPE", [given(BOOL, 2, 6), whole(3, 4)], [(3, 4)],
            dtypes=[BOOL]),
        operation("concatenation_bool", "CONCATENATION", [given(BOOL, 2, 3), given(BOOL, 1, 3)],
            [(3, 3)], {"axis": 0}, [BOOL]),
    ]  # fmt: skip


def casts() -> list[OneOperation]:
    pairs = [(I32, F32), (BOOL, F32), (BOOL, I32), (I32, BOOL), (DType.UINT8, F32),
        (DType.INT8, I32)]  # fmt: skip
    return [
        operation(
            f"cast_{source.value}_to_{target.value}", "CAST", [given(source, 6)], [(6,)],
            {"in_data_type": source.name, "out_data_type": target.name}, [target],
        )
        for source, target in pairs
    ]  # fmt: skip


def positions() -> list[OneOperation]:
    wanted = {"output_type": "INT32"}
    drawn = np.random.default_rng(5).integers(0, 4, IMAGE).astype(np.float32)
    made = []
    for kind in ("ARG_MAX", "ARG_MIN"):
        for axis in range(4):
            out = tuple(d for k, d in enumerate(IMAGE) if k != axis)
            name = f"{kind.lower()}_of_equals_{axis}"
            made.append(operation(name, kind, [drawn, whole(axis - 4)], [out], wanted, [I32]))
    return [
        *made,
        operation("arg_max_drawn", "ARG_MAX", [(3, 700), whole(1)], [(3,)], wanted, [I32]),
    ]


@pytest.mark.parametrize(
    "case", [*arithmetic(), *truth(), *moves(), *casts(), *positions()], ids=lambda case: case.name
)
def test_is_exact(case: OneOperation) -> None:
    (answer,) = cpu().supported_operations(case.model)
    assert (answer.supported, answer.accuracy) == (True, "exact"), answer.reason
    inputs = [case.inputs(seed) for seed in range(2)]
    ours = run_on([cpu()], case.model, inputs, "exact")
    reference = run_on(["reference"], case.model, inputs)
    for got, wanted in zip(chain(*ours), chain(*reference), strict=True):
        assert got.dtype == wanted.dtype
        assert np.array_equal(got, wanted)


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (
            operation("less", "LESS", [given(I32, 3), given(I32, 3)], [(3,)], dtypes=[BOOL]),
            "whole numbers are put in order as float32, which does not tell large ones apart",
        ),
        (
            operation("div", "DIV", [given(I32, 3), whole(2, 3, 4)], [(3,)], dtypes=[I32]),
            "whole numbers are divided as float32",
        ),
        (
            operation("cast", "CAST", [(3,)], [(3,)], {"out_data_type": "INT32"}, [I32]),
            "a float32 cut to a whole number",
        ),
        (
            operation("arg", "ARG_MAX", [(3,), whole(0)], [()], None, [DType.INT64]),
            "positions of another type",
        ),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_openvino_refuses_operations_with_a_reason(case: OneOperation, reason: str) -> None:
    (answer,) = cpu().supported_operations(case.model)
    assert (answer.supported, answer.reason) == (False, reason)


def images_compared() -> Model:
    """Pictures that stay channels first: where the larger of two is above a threshold by channel,
    else zero.
    """
    b = ModelBuilder()
    x, y = b.input(F32, IMAGE, "x"), b.input(F32, IMAGE, "y")
    pool: dict[str, int | str] = {
        "stride_h": 1,
        "stride_w": 1,
        "filter_height": 3,
        "filter_width": 3,
        "padding": "SAME",
    }
    (one,) = b.operation("MAX_POOL_2D", [x], [(F32, IMAGE)], pool)
    (other,) = b.operation("MAX_POOL_2D", [y], [(F32, IMAGE)], pool)
    least = b.constant(np.linspace(0, 4, 5, dtype=np.float32), "least")
    (larger,) = b.operation("MAXIMUM", [one, other], [(F32, IMAGE)])
    (above,) = b.operation("GREATER", [larger, least], [(BOOL, IMAGE)])
    (beside,) = b.operation("LESS_EQUAL", [one, other], [(BOOL, IMAGE)])
    (both,) = b.operation("LOGICAL_AND", [above, beside], [(BOOL, IMAGE)])
    zero = b.constant(np.array(0.0, np.float32), "zero")
    (chosen,) = b.operation("SELECT_V2", [both, larger, zero], [(F32, IMAGE)])
    (marks,) = b.operation(
        "CAST", [both], [(F32, IMAGE)], {"in_data_type": "BOOL", "out_data_type": "FLOAT32"}
    )
    axis = b.constant(np.array(3, np.int32), "axis")
    (best,) = b.operation("ARG_MAX", [chosen, axis], [(I32, IMAGE[:3])], {"output_type": "INT32"})
    return b.build([chosen, marks, both, best])


def test_chooses_between_pictures_in_the_layout_they_have() -> None:
    model = images_compared()
    assert all(answer.supported for answer in cpu().supported_operations(model))
    rng = np.random.default_rng(4)
    inputs = [[rng.standard_normal(IMAGE).astype(np.float32) * 3 for _ in range(2)]]
    (ours,), (reference,) = (
        run_on([cpu()], model, inputs, "faithful"),
        run_on(["reference"], model, inputs),
    )
    for got, wanted in zip(ours, reference, strict=True):
        assert got.dtype == wanted.dtype
        assert np.array_equal(got, wanted)


def test_arg_max_of_quantised_values_is_relaxed() -> None:
    scale = Quantization((0.05,), (3,))
    b = ModelBuilder()
    x = b.input(DType.UINT8, IMAGE, "x", scale)
    axis = b.constant(np.array(3, np.int32), "axis")
    model = b.build(b.operation("ARG_MAX", [x, axis], [(I32, IMAGE[:3])], {"output_type": "INT32"}))
    (answer,) = cpu().supported_operations(model)
    assert (answer.supported, answer.accuracy) == (True, "relaxed")
    inputs = [[np.random.default_rng(1).integers(0, 5, IMAGE).astype(np.uint8)]]
    (ours,), (reference,) = (
        run_on([cpu()], model, inputs, "relaxed"),
        run_on(["reference"], model, inputs),
    )
    assert np.array_equal(ours[0], reference[0])
