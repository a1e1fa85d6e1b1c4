"""SVDF against LiteRT's kernels, over successive runs."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.ir import DType
from tests.support_litert import kernel_of, q, refusal
from tests.unit.drivers.reference.support_recurrent import (
    Case,
    Constant,
    State,
    Tensor,
    compare,
    shape_of,
    values,
)

REAL = DType.FLOAT32
BATCH, SIZE, UNITS, MEMORY = 2, 5, 4, 6


def integer_case(rng: np.random.Generator, rank: int, *, bias: bool) -> Case:
    def scale(low: float, high: float) -> float:
        return float(np.exp(rng.uniform(np.log(low), np.log(high))))

    def anywhere() -> int:
        return int(rng.integers(-128, 128))

    filters = UNITS * rank
    feature = rng.integers(-127, 128, (filters, SIZE)).astype(np.int8)
    time = rng.integers(-3000, 3000, (filters, MEMORY)).astype(np.int16)
    biases = rng.integers(-3000, 3000, UNITS).astype(np.int32)
    return Case(
        "SVDF",
        [
            Tensor(DType.INT8, (BATCH, SIZE), q(scale(0.005, 0.05), anywhere())),
            Constant(feature, q(scale(0.002, 0.02))),
            Constant(time, q(scale(1e-4, 1e-3))),
            Constant(biases, q(1e-6)) if bias else None,
            State(DType.INT16, (BATCH, filters * MEMORY), q(scale(1e-4, 1e-3))),
        ],
        [Tensor(DType.INT8, (BATCH, UNITS), q(scale(0.01, 0.2), anywhere()))],
        {"rank": rank, "fused_activation_function": "RELU"},
    )


def real_case(
    rng: np.random.Generator, weights: DType, activation: str, *, asymmetric: bool = False
) -> Case:
    rank = 2
    filters = UNITS * rank

    def matrix(*shape: int) -> Constant:
        if weights.is_float:
            return Constant(rng.uniform(-1, 1, shape).astype(np.float32))
        return Constant(rng.integers(-127, 128, shape).astype(np.int8).view(weights.numpy), q(0.01))

    return Case(
        "SVDF",
        [
            Tensor(REAL, (BATCH, SIZE)),
            matrix(filters, SIZE),
            matrix(filters, MEMORY),
            Constant(rng.uniform(-1, 1, UNITS).astype(np.float32)),
            State(REAL, (BATCH, filters * MEMORY)),
        ],
        [Tensor(REAL, (BATCH, UNITS))],
        {
            "rank": rank,
            "fused_activation_function": activation,
            "asymmetric_quantize_inputs": asymmetric,
        },
    )


@pytest.mark.parametrize("seed", range(8))
def test_integers(seed: int) -> None:
    rng = np.random.default_rng(seed)
    case = integer_case(rng, 1 + seed % 3, bias=bool(seed % 2))
    compare(case, case.feeds(rng, 8))


@pytest.mark.parametrize(
    ("weights", "asymmetric"),
    [(REAL, False), (DType.INT8, False), (DType.INT8, True), (DType.UINT8, False)],
)
@pytest.mark.parametrize(
    "activation", ["NONE", "RELU", "RELU6", "RELU_N1_TO_1", "TANH", "SIGN_BIT"]
)
def test_reals(activation: str, weights: DType, asymmetric: bool) -> None:
    rng = np.random.default_rng(1)
    case = real_case(rng, weights, activation, asymmetric=asymmetric)
    compare(case, case.feeds(rng, 8, reach=2.0))


def test_half_precision_is_computed_in_single() -> None:
    rng = np.random.default_rng(2)
    case = real_case(rng, REAL, "NONE")
    given = [values(rng, DType.FLOAT16, shape_of(o)) for o in case.operands(DType.FLOAT16)]
    results = []
    for dtype in (DType.FLOAT16, REAL):
        inputs = case.operands(dtype)
        run = kernel_of("SVDF", inputs, [inputs[0], inputs[4]], **case.attributes)
        results.append(run([a.astype(dtype.numpy) for a in given]))
    for half, single in zip(*results, strict=True):
        assert half.dtype == np.float16
        np.testing.assert_array_equal(half, single.astype(np.float16))


def test_integers_know_relu_alone() -> None:
    case = integer_case(np.random.default_rng(3), 1, bias=True)
    inputs = case.quantized_operands()
    attributes = {**case.attributes, "fused_activation_function": "NONE"}
    assert "with the activation NONE" in refusal("SVDF", inputs, inputs[:1], **attributes)
