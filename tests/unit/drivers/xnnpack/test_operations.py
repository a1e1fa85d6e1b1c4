"""Operations by type and element type, on random values, against the reference driver by the rule
of each class.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pytest

from penstock.drivers.xnnpack.rules.classes import Classes
from penstock.drivers.xnnpack.support import classify
from penstock.hal import ACCURACY_RANK, AccuracyClass
from penstock.ir import DType, Model
from penstock.runtime.distance import distance_of
from tests.support_xnnpack import F32, device, drawn, needs_litert, one, q, run_on

pytestmark = needs_litert

I8, U8, I16, I32, I64 = DType.INT8, DType.UINT8, DType.INT16, DType.INT32, DType.INT64
BOOL: Final = DType.BOOL
QUANTIZED: Final = (I8, U8)
CLASSES: Final[tuple[AccuracyClass, ...]] = ("relaxed", "faithful", "exact")
RNG: Final = np.random.default_rng(7)


def zero(dtype: DType) -> int:
    return {I8: -3, U8: 130}.get(dtype, 0)


def scale(dtype: DType, value: float = 0.05) -> Any:
    return q(value, zero(dtype)) if dtype.is_integer else None


def unary() -> Iterator[tuple[str, Model]]:
    floats = (
        "ABS NEG EXP SQUARE SIN COS FLOOR CEIL ROUND SIGN RELU RELU6 RELU_N1_TO_1 TANH "
        "LOGISTIC ELU HARD_SWISH GELU"
    )
    for kind in floats.split():
        yield f"{kind} float32", one(kind, [(F32, (2, 5, 7))], [(F32, (2, 5, 7))])
    for kind in ["RELU", "RELU6", "TANH", "LOGISTIC", "HARD_SWISH", "LEAKY_RELU"]:
        attributes = {"alpha": 0.2} if kind == "LEAKY_RELU" else None
        for dtype in QUANTIZED:
            made = {
                "TANH": q(1 / 128, 0 if dtype is I8 else 128),
                "LOGISTIC": q(1 / 256, -128 if dtype is I8 else 0),
            }
            yield (
                f"{kind} {dtype.value}",
                one(kind, [(dtype, (3, 41))], [(dtype, (3, 41))], attributes, {0: scale(dtype)},
                    made.get(kind, scale(dtype, 0.04))),
            )  # fmt: skip


def pairs() -> Iterator[tuple[str, Model]]:
    for kind in ("ADD", "SUB", "MUL", "MAXIMUM", "MINIMUM"):
        for dtype in (F32, I8, U8, I16, I32):
            scaled = dtype not in {F32, I32}
            same = kind in {"MAXIMUM", "MINIMUM"}
            scales = {0: scale(dtype), 1: scale(dtype, 0.05 if same else 0.03)} if scaled else {}
            attributes = {"pot_scale_int16": False} if kind in {"ADD", "SUB"} else None
            yield (
                f"{kind} {dtype.value}",
                one(kind, [(dtype, (2, 4, 3)), (dtype, (4, 1))], [(dtype, (2, 4, 3))], attributes,
                    scales,
                    scale(dtype, 0.05 if same else 0.07) if scaled else None),
            )  # fmt: skip
    yield "DIV float32", one("DIV", [(F32, (2, 3)), (F32, (3,))], [(F32, (2, 3))])
    yield "LESS float32", one("LESS", [(F32, (2, 3)), (F32, (2, 3))], [(BOOL, (2, 3))])
    yield "FLOOR_MOD int32", one("FLOOR_MOD", [(I32, (5,)), np.array([7], np.int32)], [(I32, (5,))])


WINDOW: Final[dict[str, Any]] = {"padding": "SAME", "stride_h": 2, "stride_w": 1}


def layers() -> Iterator[tuple[str, Model]]:
    weights = RNG.standard_normal((6, 3, 3, 4)).astype(np.float32)
    deep = RNG.standard_normal((1, 3, 3, 4)).astype(np.float32)
    full = RNG.standard_normal((6, 20)).astype(np.float32)
    bias = RNG.standard_normal(6).astype(np.float32)
    image = (F32, (1, 6, 5, 4))
    yield "CONV_2D float32", one("CONV_2D", [image, weights, bias], [(F32, (1, 3, 5, 6))], WINDOW)
    yield "CONV_2D, no bias", one("CONV_2D", [image, weights], [(F32, (1, 3, 5, 6))], WINDOW)
    yield (
        "CONV_2D, bias omitted",
        one("CONV_2D", [image, weights, None], [(F32, (1, 3, 5, 6))], WINDOW),
    )
    yield (
        "DEPTHWISE_CONV_2D float32",
        one(
            "DEPTHWISE_CONV_2D",
            [image, deep, bias[:4]],
            [(F32, (1, 3, 5, 4))],
            {**WINDOW, "depth_multiplier": 1},
        ),
    )
    yield (
        "DEPTHWISE_CONV_2D, no bias",
        one(
            "DEPTHWISE_CONV_2D",
            [image, deep],
            [(F32, (1, 3, 5, 4))],
            {**WINDOW, "depth_multiplier": 1},
        ),
    )
    yield (
        "FULLY_CONNECTED float32",
        one("FULLY_CONNECTED", [(F32, (3, 20)), full, bias], [(F32, (3, 6))]),
    )
    yield (
        "BATCH_MATMUL float32",
        one("BATCH_MATMUL", [(F32, (2, 3, 5)), (F32, (2, 5, 4))], [(F32, (2, 3, 4))]),
    )
    for dtype in QUANTIZED:
        low, high = (-127, 128) if dtype is I8 else (0, 256)
        matrix = q(0.01, 0, 6) if dtype is I8 else q(0.01, 120)
        ints = RNG.integers(low, high, (6, 3, 3, 4)).astype(dtype.numpy)
        flat = RNG.integers(low, high, (6, 20)).astype(dtype.numpy)
        whole = RNG.integers(-500, 500, 6).astype(np.int32)
        total = q(0.05 * 0.01, 0, 6 if dtype is I8 else 1)
        scales, out = {0: scale(dtype), 1: matrix, 2: total}, scale(dtype, 0.8)
        yield (
            f"CONV_2D {dtype.value}",
            one(
                "CONV_2D",
                [(dtype, (1, 6, 5, 4)), ints, whole],
                [(dtype, (1, 3, 5, 6))],
                WINDOW,
                scales,
                out,
            ),
        )
        yield (
            f"CONV_2D {dtype.value}, no bias",
            one(
                "CONV_2D",
                [(dtype, (1, 6, 5, 4)), ints],
                [(dtype, (1, 3, 5, 6))],
                WINDOW,
                scales,
                out,
            ),
        )
        yield (
            f"FULLY_CONNECTED {dtype.value}",
            one(
                "FULLY_CONNECTED",
                [(dtype, (3, 20)), flat, whole],
                [(dtype, (3, 6))],
                None,
                scales,
                out,
            ),
        )
    few = RNG.integers(-127, 128, (6, 20)).astype(np.int8)
    yield (
        "FULLY_CONNECTED hybrid",
        one("FULLY_CONNECTED", [(F32, (3, 20)), few, bias], [(F32, (3, 6))], None, {1: q(0.02)}),
    )
    filters = RNG.integers(-127, 128, (6, 3, 3, 4)).astype(np.int8)
    yield (
        "CONV_2D hybrid",
        one("CONV_2D", [image, filters, bias], [(F32, (1, 3, 5, 6))], WINDOW, {1: q(0.02, 0, 6)}),
    )


def others() -> Iterator[tuple[str, Model]]:
    pool = {**WINDOW, "filter_height": 3, "filter_width": 2}
    for dtype in (F32, *QUANTIZED):
        scales, out = {0: scale(dtype)} if dtype is not F32 else {}, scale(dtype)
        name = dtype.value
        for kind in ("AVERAGE_POOL_2D", "MAX_POOL_2D"):
            yield (
                f"{kind} {name}",
                one(kind, [(dtype, (1, 6, 5, 4))], [(dtype, (1, 3, 5, 4))], pool, scales, out),
            )
        yield (
            f"MEAN {name}",
            one(
                "MEAN",
                [(dtype, (2, 6, 5)), np.array([1, 2], np.int32)],
                [(dtype, (2,))],
                {"keep_dims": False},
                scales,
                out,
            ),
        )
        yield (
            f"RESIZE_BILINEAR {name}",
            one(
                "RESIZE_BILINEAR",
                [(dtype, (1, 4, 5, 3)), np.array([7, 8], np.int32)],
                [(dtype, (1, 7, 8, 3))],
                None,
                scales,
                out,
            ),
        )
        yield (
            f"PAD {name}",
            one(
                "PAD",
                [(dtype, (2, 3)), np.array([[1, 0], [2, 1]], np.int32)],
                [(dtype, (3, 6))],
                None,
                scales,
                out,
            ),
        )
        yield (
            f"TRANSPOSE {name}",
            one(
                "TRANSPOSE",
                [(dtype, (2, 3, 4)), np.array([2, 0, 1], np.int32)],
                [(dtype, (4, 2, 3))],
                None,
                scales,
                out,
            ),
        )
        yield (
            f"CONCATENATION {name}",
            one(
                "CONCATENATION",
                [(dtype, (2, 3)), (dtype, (2, 4))],
                [(dtype, (2, 7))],
                {"axis": 1},
                {0: scale(dtype), 1: scale(dtype)} if dtype is not F32 else {},
                out,
            ),
        )
    shares = {I8: q(1 / 256, -128), U8: q(1 / 256), F32: None}
    for dtype, made in shares.items():
        scales = {0: scale(dtype)} if dtype is not F32 else {}
        yield (
            f"SOFTMAX {dtype.value}",
            one("SOFTMAX", [(dtype, (3, 9))], [(dtype, (3, 9))], {"beta": 1.0}, scales, made),
        )
    yield "QUANTIZE", one("QUANTIZE", [(F32, (5, 9))], [(I8, (5, 9))], out_scale=q(0.04, 3))
    yield (
        "QUANTIZE again",
        one("QUANTIZE", [(I8, (5, 9))], [(U8, (5, 9))], None, {0: q(0.04, 3)}, q(0.03, 120)),
    )
    yield "DEQUANTIZE", one("DEQUANTIZE", [(I8, (5, 9))], [(F32, (5, 9))], None, {0: q(0.04, 3)})
    yield (
        "CONCATENATION of two scales",
        one(
            "CONCATENATION",
            [(U8, (2, 3)), (U8, (2, 4))],
            [(U8, (2, 7))],
            {"axis": 1},
            {0: q(0.05, 3), 1: q(0.02, 9)},
            q(0.05, 3),
        ),
    )
    yield (
        "GATHER",
        one("GATHER", [(F32, (4, 3)), np.array([2, 0], np.int32)], [(F32, (2, 3))], {"axis": 0}),
    )
    yield (
        "SELECT_V2",
        one("SELECT_V2", [(BOOL, (3, 1)), (F32, (3, 2)), (F32, (3, 2))], [(F32, (3, 2))]),
    )
    yield "CAST", one("CAST", [(I32, (3, 2))], [(F32, (3, 2))])
    yield (
        "REDUCE_MAX int64",
        one(
            "REDUCE_MAX",
            [(I64, (3, 4)), np.array([1], np.int32)],
            [(I64, (3,))],
            {"keep_dims": False},
        ),
    )


CASES: Final = dict([*unary(), *pairs(), *layers(), *others()])


@pytest.mark.parametrize("name", CASES)
def test_every_class_that_is_claimed_is_met(name: str) -> None:
    model = CASES[name]
    (answer,) = device().supported_operations(model)
    assert answer.supported, answer.reason
    for seed in range(2):
        inputs = drawn(model, seed)
        wanted = run_on(["reference"], model, inputs, "exact")
        for accuracy in CLASSES:
            if ACCURACY_RANK[answer.accuracy] < ACCURACY_RANK[accuracy]:
                continue
            found = run_on([device()], model, inputs, accuracy)
            far = distance_of(model, inputs, found, wanted, accuracy)
            assert not far.departs, f"{accuracy}: {far.show()}"


@pytest.mark.parametrize(
    ("name", "accuracy"),
    [
        ("ABS float32", "faithful"),
        ("ADD int32", "exact"),
        ("ADD int8", "exact"),
        ("CONV_2D int8", "faithful"),
        ("CONV_2D float32", "faithful"),
        ("CONV_2D hybrid", "faithful"),
        ("MAX_POOL_2D int8", "exact"),
        ("CONCATENATION of two scales", "exact"),
    ],
)
def test_claimed_classes_are_those_expected(name: str, accuracy: AccuracyClass) -> None:
    (answer,) = device().supported_operations(CASES[name])
    assert answer.accuracy == accuracy


def test_uint8_concatenation_of_several_scales_runs_between_xnnpack_layers() -> None:
    """Nothing is cut: XNNPACK leaves the operation to the kernels that the claim is of."""
    model = CASES["CONCATENATION of two scales"]
    (known,) = classify(model)
    assert isinstance(known, Classes)
    assert (known.xnnpack, known.builtin) == ("exact", "exact")
    inputs = drawn(model)
    (wanted,) = run_on(["reference"], model, inputs)
    (found,) = run_on([device()], model, inputs, "exact")
    np.testing.assert_array_equal(found, wanted)
