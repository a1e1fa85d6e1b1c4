"""SVDF against LiteRT's kernels, over successive runs."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.ir import DType
from tests.support_litert import kernel_of, refusal
from tests.unit.drivers.reference.support_cells import (
    REAL,
    Filters,
    integer_svdf_case,
    real_svdf_case,
)
from tests.unit.drivers.reference.support_recurrent import compare, shape_of, values


@pytest.mark.parametrize("seed", range(8))
def test_integer_svdf_agrees_with_litert(seed: int) -> None:
    rng = np.random.default_rng(seed)
    case = integer_svdf_case(rng, Filters(rank=1 + seed % 3), bias=bool(seed % 2))
    compare(case, case.feeds(rng, 8))


@pytest.mark.parametrize(
    ("weights", "asymmetric"),
    [(REAL, False), (DType.INT8, False), (DType.INT8, True), (DType.UINT8, False)],
)
@pytest.mark.parametrize(
    "activation", ["NONE", "RELU", "RELU6", "RELU_N1_TO_1", "TANH", "SIGN_BIT"]
)
def test_float_and_hybrid_svdf_agree_with_litert(
    activation: str, weights: DType, asymmetric: bool
) -> None:
    rng = np.random.default_rng(1)
    case = real_svdf_case(
        rng,
        weights,
        Filters(),
        fused_activation_function=activation,
        asymmetric_quantize_inputs=asymmetric,
    )
    compare(case, case.feeds(rng, 8, reach=2.0))


def test_svdf_computes_float16_in_float32() -> None:
    rng = np.random.default_rng(2)
    case = real_svdf_case(rng, REAL, Filters())
    given = [values(rng, DType.FLOAT16, shape_of(o)) for o in case.operands(DType.FLOAT16)]
    results = []
    for dtype in (DType.FLOAT16, REAL):
        inputs = case.operands(dtype)
        run = kernel_of("SVDF", inputs, [inputs[0], inputs[4]], **case.attributes)
        results.append(run([a.astype(dtype.numpy) for a in given]))
    for half, single in zip(*results, strict=True):
        assert half.dtype == np.float16
        np.testing.assert_array_equal(half, single.astype(np.float16))


def test_integer_svdf_supports_only_relu() -> None:
    case = integer_svdf_case(np.random.default_rng(3), Filters(), bias=True)
    inputs = case.quantized_operands()
    attributes = {**case.attributes, "fused_activation_function": "NONE"}
    assert "with the activation NONE" in refusal("SVDF", inputs, inputs[:1], **attributes)
