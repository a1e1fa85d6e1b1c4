"""Quantisation that the table refuses, and that it does not: as LiteRT prepares it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import pytest
from msgspec.structs import replace

from penstock.errors import ModelError
from penstock.ir import DType, Quantization
from penstock.ir.operation import AttributeValue
from penstock.ir.operations import OPERATIONS
from tests.unit.ir.operations.single import (
    Constant,
    Given,
    Output,
    Wanted,
    ints,
    litert_shapes,
    q,
    q_channels,
    scalar,
    single,
    x,
    zeros,
)

INT8, UINT8, INT16 = DType.INT8, DType.UINT8, DType.INT16
STEP: Final = {"padding": "VALID", "stride_w": 1, "stride_h": 1}


def judge(
    kind: str,
    inputs: Sequence[Given],
    output: Wanted | Sequence[Wanted],
    attributes: dict[str, Any] | None = None,
) -> bool:
    """Whether Penstock takes the operation; LiteRT's verdict must be the same."""
    outputs = [output] if isinstance(output, DType | Output) else list(output)
    pytest.importorskip(
        "ai_edge_litert.interpreter", reason="ai-edge-litert, the judge, is not installed"
    )
    try:
        single(kind, inputs, outputs, attributes)
        taken = True
    except ModelError:
        taken = False
    unchecked = _without_requirement(kind, inputs, outputs, attributes)
    assert isinstance(unchecked, str) != taken, unchecked
    return taken


def _without_requirement(
    kind: str, inputs: Sequence[Given], outputs: Sequence[Wanted], attributes: Any
) -> Any:
    """What LiteRT makes of the operation, its row's requirement lifted so that it can be
    written.
    """
    row = OPERATIONS[kind]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(OPERATIONS._rows, kind, replace(row, require=None))
        return litert_shapes(single(kind, inputs, outputs, attributes))


def layer(
    kind: str,
    dtype: DType,
    *,
    source: Quantization | None,
    weights: Quantization | None,
    bias: Quantization | None,
    output: Quantization | None,
    bias_dtype: Any = np.int32,
) -> bool:
    """A layer of 5 output channels with these scales."""
    kernel = np.uint8 if dtype is UINT8 else np.int8
    b = Constant(zeros(5, dtype=bias_dtype), bias)
    wanted = Output(dtype, None, output)
    if kind == "FULLY_CONNECTED":
        w = Constant(zeros(5, 4, dtype=kernel), weights)
        return judge(kind, [x(2, 4, dtype=dtype, q=source), w, b], wanted)
    if kind == "DEPTHWISE_CONV_2D":
        w = Constant(zeros(1, 2, 2, 5, dtype=kernel), weights)
        image = x(1, 4, 4, 5, dtype=dtype, q=source)
        return judge(kind, [image, w, b], wanted, {**STEP, "depth_multiplier": 1})
    w, image = (
        Constant(zeros(5, 2, 2, 3, dtype=kernel), weights),
        x(1, 4, 4, 3, dtype=dtype, q=source),
    )
    if kind == "TRANSPOSE_CONV":
        return judge(kind, [ints(1, 5, 5, 5), w, image, b], wanted, STEP)
    return judge(kind, [image, w, b], wanted, STEP)


LAYERS: Final = ("CONV_2D", "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV", "FULLY_CONNECTED")


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("dtype", [INT8, UINT8])
def test_bias_scale_is_that_of_input_times_filter_where_it_is_read(kind: str, dtype: DType) -> None:
    zero = 128 if dtype is UINT8 else 0
    scales = {"source": q(0.5, zero), "weights": q(0.5, zero), "output": q(1.0, zero)}
    read = dtype is UINT8 or kind == "FULLY_CONNECTED"
    assert layer(kind, dtype, bias=q(0.25), **scales)
    assert layer(kind, dtype, bias=q(0.2501), **scales)
    assert layer(kind, dtype, bias=q(0.3), **scales) is not read
    assert layer(kind, dtype, bias=None, **scales) is not read


@pytest.mark.parametrize("kind", ["CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED"])
@pytest.mark.parametrize("dtype", [INT8, UINT8])
@pytest.mark.parametrize("missing", ["source", "weights"])
def test_integer_layers_are_quantised(kind: str, dtype: DType, missing: str) -> None:
    scales: dict[str, Any] = {
        "source": q(0.5),
        "weights": q(0.5),
        "output": q(1.0),
        "bias": q(0.25),
    }
    assert not layer(kind, dtype, **{**scales, missing: None})


@pytest.mark.parametrize("kind", ["CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED"])
def test_filters_with_scales_per_channel_are_checked(kind: str) -> None:
    channels = 3 if kind == "DEPTHWISE_CONV_2D" else 0
    scales: dict[str, Any] = {
        "source": q(0.5),
        "weights": q_channels(0.5, 5, channels),
        "bias": q_channels(0.25, 5, 0),
        "output": q(1.0),
    }
    assert layer(kind, INT8, **scales)
    assert not layer(kind, UINT8, **scales)
    other = q_channels(0.5, 4, 1) if kind == "FULLY_CONNECTED" else q_channels(0.5, 2, 1)
    assert not layer(kind, INT8, **{**scales, "weights": other})


@pytest.mark.parametrize("kind", ["CONV_2D", "FULLY_CONNECTED"])
def test_16_bit_activations_are_symmetric(kind: str) -> None:
    scales: dict[str, Any] = {"weights": q(0.5), "bias": q(0.25), "output": q(1.0)}
    assert layer(kind, INT16, source=q(0.5), bias_dtype=np.int64, **scales)
    assert not layer(kind, INT16, source=q(0.5, 3), bias_dtype=np.int64, **scales)


@pytest.mark.parametrize("kind", ["CONV_2D", "FULLY_CONNECTED"])
def test_a_float_bias_does_not_go_with_integers(kind: str) -> None:
    scales: dict[str, Any] = {"source": q(0.5), "weights": q(0.5), "output": q(1.0)}
    assert not layer(kind, INT8, bias=None, bias_dtype=np.float32, **scales)


def test_hybrid_layers_need_no_quantised_activations() -> None:
    weights = Constant(zeros(5, 4, dtype=np.int8), q(0.5))
    assert judge("FULLY_CONNECTED", [x(2, 4), weights, zeros(5)], DType.FLOAT32)


@pytest.mark.parametrize(
    ("kind", "dtype", "good", "bad"),
    [
        (
            "SOFTMAX",
            INT8,
            [q(1 / 256, -128), q(1.0005 / 256, -128)],
            [q(1 / 256, -127), q(1 / 255, -128)],
        ),
        ("SOFTMAX", UINT8, [q(1 / 256), q(1 / 255, 3)], []),
        ("SOFTMAX", INT16, [q(1 / 32768)], [q(1 / 32768, 1)]),
        ("LOGISTIC", INT8, [q(1 / 256, -128), q(1 / 256, -127)], [q(1 / 255, -128), None]),
        ("LOGISTIC", UINT8, [q(1 / 256)], [q(1 / 255)]),
        ("LOGISTIC", INT16, [q(1 / 32768)], [q(1 / 32768, 1), q(1 / 32767)]),
        ("LOG_SOFTMAX", INT8, [q(1 / 16, 127)], [q(1 / 16, -128), q(1 / 16.1, 127)]),
        ("LOG_SOFTMAX", UINT8, [q(1 / 16, 255)], [q(1 / 16, 0), q(1 / 16.1, 255)]),
        ("L2_NORMALIZATION", INT8, [q(1 / 128)], [q(1 / 128, -128), q(1 / 127)]),
        ("L2_NORMALIZATION", UINT8, [q(1 / 128, 128)], [q(1 / 128), q(1 / 127, 128)]),
    ],
)
def test_outputs_with_fixed_quantisation_are_checked(
    kind: str, dtype: DType, good: list[Quantization | None], bad: list[Quantization | None]
) -> None:
    attributes: dict[str, AttributeValue] = {"beta": 1.0} if kind == "SOFTMAX" else {}
    source = x(2, 4, dtype=dtype, q=q(1 / 4096))
    for quantization in good + bad:
        taken = judge(kind, [source], Output(dtype, None, quantization), attributes)
        assert taken == (quantization in good), quantization


def test_an_8_bit_softmax_may_have_a_16_bit_output() -> None:
    assert judge(
        "SOFTMAX", [x(2, 4, dtype=INT8, q=q(0.1))], Output(INT16, None, q(1e-4, 5)), {"beta": 1.0}
    )


A: Final = q(0.5, 1)
SAME: Final[dict[str, Callable[[DType], tuple[list[Given], dict[str, Any]]]]] = {
    "PACK": lambda t: ([x(2, 4, dtype=t, q=A)] * 2, {"axis": 1, "values_count": 2}),
    "UNPACK": lambda t: ([x(1, 4, dtype=t, q=A)], {"num": 1}),
    "EXPAND_DIMS": lambda t: ([x(2, 4, dtype=t, q=A), scalar(0)], {}),
    "REDUCE_MAX": lambda t: ([x(2, 4, dtype=t, q=A), ints(1)], {}),
    "REDUCE_MIN": lambda t: ([x(2, 4, dtype=t, q=A), ints(1)], {}),
    "MIRROR_PAD": lambda t: ([x(2, 4, dtype=t, q=A), ints([1, 1], [1, 1])], {}),
    "BATCH_TO_SPACE_ND": lambda t: (
        [x(4, 2, 2, 3, dtype=t, q=A), ints(2, 2), ints([0, 0], [0, 0])],
        {},
    ),
    "SPACE_TO_BATCH_ND": lambda t: (
        [x(1, 2, 2, 3, dtype=t, q=A), ints(2, 2), ints([0, 0], [0, 0])],
        {},
    ),
}


@pytest.mark.parametrize("kind", SAME)
@pytest.mark.parametrize("dtype", [INT8, UINT8])
def test_operations_that_do_not_requantise_need_equal_quantisation(kind: str, dtype: DType) -> None:
    inputs, attributes = SAME[kind](dtype)
    assert judge(kind, inputs, Output(dtype, None, A), attributes)
    assert not judge(kind, inputs, Output(dtype, None, q(0.25, 2)), attributes)


@pytest.mark.parametrize("kind", ["MAX_POOL_2D", "RESHAPE", "TRANSPOSE", "SLICE", "TILE"])
def test_operations_that_kernels_prepare_with_any_quantisation(kind: str) -> None:
    cases: dict[str, tuple[list[Given], dict[str, Any]]] = {
        "MAX_POOL_2D": (
            [x(1, 4, 4, 3, dtype=INT8, q=A)],
            {**STEP, "filter_width": 2, "filter_height": 2},
        ),
        "RESHAPE": ([x(2, 4, dtype=INT8, q=A), ints(8)], {}),
        "TRANSPOSE": ([x(2, 4, dtype=INT8, q=A), ints(1, 0)], {}),
        "SLICE": ([x(2, 4, dtype=INT8, q=A), ints(1, 0), ints(1, 1)], {}),
        "TILE": ([x(2, 4, dtype=INT8, q=A), ints(1, 2)], {}),
    }
    inputs, attributes = cases[kind]
    assert judge(kind, inputs, Output(INT8, None, q(0.25, 2)), attributes)


def test_concatenation_requires_equal_int8_quantisation() -> None:
    a, b = x(2, 4, dtype=INT8, q=q(0.5)), x(2, 4, dtype=INT8, q=q(0.25))
    assert judge("CONCATENATION", [a, a], Output(INT8, None, q(0.5)))
    assert not judge("CONCATENATION", [a, b], Output(INT8, None, q(0.5)))
    c, d = x(2, 4, dtype=UINT8, q=q(0.5)), x(2, 4, dtype=UINT8, q=q(0.25))
    assert judge("CONCATENATION", [c, d], Output(UINT8, None, q(0.5)))
    e = x(2, 4, dtype=INT16, q=q(0.5, 1))
    assert not judge("CONCATENATION", [e, e], Output(INT16, None, q(0.5, 1)))


@pytest.mark.parametrize("kind", ["ADD", "SUB"])
def test_16_bit_sums_are_symmetric(kind: str) -> None:
    good, bad = x(2, 4, dtype=INT16, q=q(0.5)), x(2, 4, dtype=INT16, q=q(0.5, 1))
    attributes = {"pot_scale_int16": False}
    assert judge(kind, [good, good], Output(INT16, None, q(1.0)), attributes)
    assert not judge(kind, [good, bad], Output(INT16, None, q(1.0)), attributes)


def test_quantize_needs_a_quantised_output() -> None:
    assert judge("QUANTIZE", [x(2, 3)], Output(INT8, None, q(0.5)))
    assert not judge("QUANTIZE", [x(2, 3)], Output(INT8))
