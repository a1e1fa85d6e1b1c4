"""Quantised operations: ONNX Runtime's own arithmetic, each by itself within one step of
TFLite's.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pytest

import penstock
from penstock.drivers.onnxruntime import OnnxRuntimeDevice
from penstock.drivers.onnxruntime.installation import Installation, Provider
from penstock.hal import Device, DeviceType
from penstock.ir import DType, ModelBuilder, Quantization
from tests.support_onnxruntime import cpu, needs_onnxruntime
from tests.support_operations import OneOperation, run_on
from tests.support_quantized_operations import (
    I8,
    IMAGE,
    IN,
    OUT,
    PADS,
    POOL,
    STEPS,
    UNIT,
    UNSIGNED,
    layer,
    plain,
    whole,
)

pytestmark = needs_onnxruntime

U8: Final = DType.UINT8


def unsigned(name: str, kind: str, filters: tuple[int, ...], out: tuple[int, ...], zero: int,
    **attributes: object) -> OneOperation:  # fmt: skip
    """A layer of uint8 weights, all of one scale and zero point."""
    rng = np.random.default_rng(4)
    b = ModelBuilder()
    x = b.input(U8, IMAGE, "x", UNSIGNED)
    w = b.constant(
        rng.integers(0, 256, filters).astype(np.uint8), "w", Quantization((0.02,), (zero,))
    )
    k = b.constant(
        rng.integers(-900, 900, out[-1]).astype(np.int32), "b", Quantization((0.001,), (0,))
    )
    spread = Quantization((0.3,), (120,))
    return OneOperation(
        name, b.build(b.operation(kind, [x, w, k], [(U8, out, spread)], attributes))  # type: ignore[arg-type]  # any attributes
    )  # fmt: skip


TWO: Final[dict[str, Any]] = {"stride_h": 2, "stride_w": 2, "padding": "SAME"}
SMALL: Final = Quantization((1 / 256,), (-128,))

STEPWISE: Final = [
    layer("conv", "CONV_2D", IMAGE, (5, 3, 3, 8), (1, 7, 6, 5), 0, **STEPS),
    layer("conv_relu6", "CONV_2D", IMAGE, (5, 1, 1, 8), (1, 7, 6, 5), 0, **STEPS,
        fused_activation_function="RELU6"),
    layer("conv_stride_2", "CONV_2D", IMAGE, (16, 3, 3, 8), (1, 4, 3, 16), 0, **TWO),
    layer("conv_in_groups", "CONV_2D", IMAGE, (6, 3, 3, 4), (1, 7, 6, 6), 0, **STEPS),
    layer("depthwise", "DEPTHWISE_CONV_2D", IMAGE, (1, 3, 3, 8), (1, 7, 6, 8), 3, **STEPS,
        depth_multiplier=1),
    layer("depthwise_multiplied", "DEPTHWISE_CONV_2D", IMAGE, (1, 3, 3, 16), (1, 7, 6, 16), 3,
        **STEPS, depth_multiplier=2),
    layer("fully_connected", "FULLY_CONNECTED", (3, 40), (7, 40), (3, 7), 0),
    layer("fully_connected_of_rank_4", "FULLY_CONNECTED", IMAGE, (7, 336), (1, 7), 0,
        fused_activation_function="RELU"),
    unsigned("conv_uint8", "CONV_2D", (5, 3, 3, 8), (1, 7, 6, 5), 101, **STEPS),
    unsigned("depthwise_uint8", "DEPTHWISE_CONV_2D", (1, 3, 3, 8), (1, 7, 6, 8), 140, **STEPS,
        depth_multiplier=1),
    unsigned("fully_connected_uint8", "FULLY_CONNECTED", (7, 336), (1, 7), 131),
    plain("add", "ADD", [IMAGE, IMAGE], IMAGE),
    plain("add_uint8", "ADD", [IMAGE, IMAGE], IMAGE, UNSIGNED, dtype=U8,
        given=[UNSIGNED, Quantization((0.1,), (7,))]),
    plain("add_relu", "ADD", [IMAGE, IMAGE], IMAGE,
        attributes={"fused_activation_function": "RELU"}),
    plain("sub", "SUB", [IMAGE, IMAGE], IMAGE),
    plain("mul", "MUL", [IMAGE, IMAGE], IMAGE),
    plain("mul_broadcast", "MUL", [IMAGE, (1, 1, 1, 8)], IMAGE),
    plain("batch_matmul", "BATCH_MATMUL", [(2, 3, 4), (2, 4, 5)], (2, 3, 5),
        Quantization((0.2,), (0,))),
    plain("resize_bilinear", "RESIZE_BILINEAR", [IMAGE], (1, 14, 12, 8), IN,
        constants=[whole(14, 12)]),
    plain("mean", "MEAN", [IMAGE], (1, 8), OUT, {"keep_dims": False}, constants=[whole(1, 2)]),
    plain("sum", "SUM", [IMAGE], (1, 1, 6, 8), Quantization((0.3,), (4,)), {"keep_dims": True},
        constants=[whole(1)]),
    plain("requantize", "QUANTIZE", [IMAGE], IMAGE, OUT),
    plain("concatenation_of_scales", "CONCATENATION", [IMAGE, IMAGE], (1, 7, 6, 16), UNSIGNED,
        {"axis": 3}, dtype=U8, given=[IN, OUT]),
]  # fmt: skip

FAITHFUL: Final = [
    plain("relu", "RELU", [IMAGE], IMAGE, IN),
    plain("relu6", "RELU6", [IMAGE], IMAGE, IN),
    plain("logistic", "LOGISTIC", [IMAGE], IMAGE, SMALL),
    plain("tanh", "TANH", [IMAGE], IMAGE, Quantization((1 / 128,), (0,))),
    plain("hard_swish", "HARD_SWISH", [IMAGE], IMAGE, Quantization((0.04,), (0,))),
    plain("leaky_relu", "LEAKY_RELU", [IMAGE], IMAGE, OUT, {"alpha": 0.3}),
    plain("softmax", "SOFTMAX", [(3, 12)], (3, 12), SMALL, {"beta": 1.0}),
    plain("maximum", "MAXIMUM", [IMAGE, IMAGE], IMAGE, IN, given=[IN, IN]),
    plain("average_pool", "AVERAGE_POOL_2D", [IMAGE], IMAGE, IN, POOL),
    plain("average_pool_uint8", "AVERAGE_POOL_2D", [IMAGE], IMAGE, UNSIGNED, POOL, dtype=U8,
        given=[UNSIGNED]),
    plain("max_pool", "MAX_POOL_2D", [IMAGE], IMAGE, IN, POOL),
    plain("max_pool_uint8", "MAX_POOL_2D", [IMAGE], IMAGE, UNSIGNED, POOL, dtype=U8,
        given=[UNSIGNED]),
]  # fmt: skip

EXACT: Final = [
    plain("reshape", "RESHAPE", [IMAGE], (6, 56), IN, constants=[whole(6, 56)]),
    plain("transpose", "TRANSPOSE", [IMAGE], (8, 1, 7, 6), IN, constants=[whole(3, 0, 1, 2)]),
    plain("pad", "PAD", [IMAGE], (1, 10, 7, 8), IN, constants=[PADS]),
    plain("pad_uint8", "PAD", [IMAGE], (1, 10, 7, 8), UNSIGNED, constants=[PADS], dtype=U8,
        given=[UNSIGNED]),
    plain("concatenation", "CONCATENATION", [IMAGE, IMAGE], (1, 7, 6, 16), IN, {"axis": 3},
        given=[IN, IN]),
    plain("resize_nearest", "RESIZE_NEAREST_NEIGHBOR", [IMAGE], (1, 14, 12, 8), IN,
        constants=[whole(14, 12)]),
    plain("depth_to_space", "DEPTH_TO_SPACE", [IMAGE], (1, 14, 12, 2), IN, {"block_size": 2}),
    plain("space_to_depth", "SPACE_TO_DEPTH", [(1, 4, 6, 3)], (1, 2, 3, 12), IN, {"block_size": 2}),
    plain("reduce_max", "REDUCE_MAX", [IMAGE], (1, 8), IN, {"keep_dims": False},
        constants=[whole(1, 2)]),
    plain("slice", "SLICE", [IMAGE], (1, 3, 5, 8), IN,
        constants=[whole(0, 2, 1, 0), whole(1, 3, -1, -1)]),
]  # fmt: skip


def distances(device: Device, case: OneOperation) -> list[int]:
    """Of *device* from the reference, in steps, for three draws."""
    given = [case.inputs(seed) for seed in range(3)]
    ours = run_on([device], case.model, given, "relaxed")
    wanted = run_on(["reference"], case.model, given)
    assert all(got.dtype == want.dtype for (got,), (want,) in zip(ours, wanted, strict=True))
    return [
        int(np.abs(got.astype(int) - want.astype(int)).max())
        for (got,), (want,) in zip(ours, wanted, strict=True)
    ]


@pytest.mark.parametrize(
    ("case", "accuracy"),
    [
        pytest.param(case, accuracy, id=case.name)
        for accuracy, cases in (("stepwise", STEPWISE), ("faithful", FAITHFUL), ("exact", EXACT))
        for case in cases
    ],
)
def test_lies_within_one_step_of_the_reference(case: OneOperation, accuracy: str) -> None:
    (answer,) = cpu().supported_operations(case.model)
    assert (answer.supported, answer.accuracy) == (True, accuracy), answer.reason
    assert max(distances(cpu(), case)) <= (0 if accuracy == "exact" else 1)


def portable() -> OnnxRuntimeDevice:
    """A device that is given what providers other than the CPU's are, and computes it on the
    CPU.
    """
    provider = Provider("CPUExecutionProvider", "double", DeviceType.GPU, ("cuda",))
    return OnnxRuntimeDevice(provider, Installation("1", (provider,)))


@pytest.mark.parametrize("case", [*STEPWISE, *FAITHFUL, *EXACT], ids=lambda case: case.name)
def test_other_providers_get_a_graph_that_computes_the_same(case: OneOperation) -> None:
    device = portable()
    (answer,) = device.supported_operations(case.model)
    assert (answer.supported, answer.accuracy) == (True, "relaxed")
    assert max(distances(device, case)) <= 1


@pytest.mark.parametrize("case", STEPWISE[:11], ids=lambda case: case.name)
def test_processors_whose_products_saturate_get_unsigned_weights(
    case: OneOperation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.drivers.onnxruntime.preparation.saturates", lambda: True)
    assert max(distances(cpu(), case)) <= 1


def test_halves_are_rounded_away_from_zero() -> None:
    b = ModelBuilder()
    values = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5], np.float32)
    (y,) = b.operation("QUANTIZE", [b.input(DType.FLOAT32, (6,), "x")], [(I8, (6,), UNIT)])
    ((got,),) = run_on([cpu()], b.build([y]), [[values]])
    assert got.tolist() == [-3, -2, -1, 1, 2, 3]


def test_quantized_input_and_output_of_a_float_layer() -> None:
    b = ModelBuilder()
    x = b.input(DType.FLOAT32, (4, 16), "x")
    (q,) = b.operation("QUANTIZE", [x], [(I8, (4, 16), IN)])
    (y,) = b.operation("DEQUANTIZE", [q], [(DType.FLOAT32, (4, 16))])
    model = b.build([y])
    given = [[np.linspace(-8, 8, 64, dtype=np.float32).reshape(4, 16)]]
    ((ours,),), ((wanted,),) = (run_on([d], model, given) for d in (cpu(), "reference"))
    assert np.array_equal(ours, wanted)


def test_weights_that_tflite_would_quantise_beside_are_dequantised() -> None:
    rng = np.random.default_rng(8)
    b = ModelBuilder()
    x = b.input(DType.FLOAT32, (3, 40), "x")
    scales = tuple(float(v) for v in rng.uniform(0.01, 0.02, 7).astype(np.float32))
    stored = rng.integers(-127, 128, (7, 40)).astype(np.int8)
    w = b.constant(stored, "w", Quantization(scales, (0,) * 7, 0))
    model = b.build(b.operation("FULLY_CONNECTED", [x, w, None], [(DType.FLOAT32, (3, 7))]))
    (answer,) = cpu().supported_operations(model)
    assert (answer.supported, answer.accuracy) == (True, "relaxed")
    given = rng.standard_normal((3, 40)).astype(np.float32)
    ((got,),) = run_on([cpu()], model, [[given]], "relaxed")
    assert np.allclose(got, given @ (stored * np.array(scales)[:, None]).T, atol=1e-4)


def test_the_default_policy_leaves_layers_to_the_reference_and_says_why() -> None:
    case = STEPWISE[0]
    devices: list[str | Device] = [cpu(), "reference"]
    with penstock.compile(case.model, devices=devices, cache=False) as compiled:
        (placement,) = compiled.plan.operations
        assert placement.device == "reference"
        assert "stepwise" in placement.reasons["onnxruntime-cpu"]
    policy = penstock.Policy(accuracy="stepwise", require={"CONV_2D": ("onnxruntime-cpu",)})
    with penstock.compile(case.model, devices=devices, cache=False, policy=policy) as compiled:
        assert compiled.plan.operations[0].device == "onnxruntime-cpu"


@pytest.mark.parametrize(("zero", "most"), [(-128, 0.006), (-3, 0.02)])
def test_a_convolution_is_rounded_nearly_as_often_up_as_by_the_reference(
    zero: int, most: float
) -> None:
    """Where no result is below zero one is added to the sums, without which one in fifty would be a
    step lower here.
    """
    steps = {"stride_h": 1, "stride_w": 1, "padding": "SAME"}
    large, out = (1, 33, 40, 8), (1, 33, 40, 24)
    case = layer("conv", "CONV_2D", large, (24, 1, 1, 8), out, 0, zero, **steps)
    ((ours,),) = run_on([cpu()], case.model, [case.inputs(0)], "stepwise")
    ((plain,),) = run_on([cpu()], case.model, [case.inputs(0)], "relaxed")
    ((wanted,),) = run_on(["reference"], case.model, [case.inputs(0)])
    assert len(np.unique(wanted)) >= 20
    off, before = ours.astype(int) - wanted, plain.astype(int) - wanted
    assert np.mean(off != 0) < most
    if zero == -128:
        assert (off.min(), before.max()) == (0, 0)
        assert np.mean(off != 0) < np.mean(before != 0) / 2
    else:
        assert np.array_equal(ours, plain)


def test_the_largest_bias_stays_what_it_is() -> None:
    b = ModelBuilder()
    x = b.input(I8, (1, 2, 2, 4), "x", Quantization((0.5,), (0,)))
    w = b.constant(np.ones((1, 1, 1, 4), np.int8), "w", Quantization((0.01,), (0,)))
    largest = np.array([np.iinfo(np.int32).max], np.int32)
    bias = b.constant(largest, "bias", Quantization((0.005,), (0,)))
    steps: dict[str, Any] = {"stride_h": 1, "stride_w": 1, "padding": "SAME"}
    out = (I8, (1, 2, 2, 1), Quantization((0.1,), (-128,)))
    model = b.build(b.operation("CONV_2D", [x, w, bias], [out], steps))
    ((ours,),) = run_on([cpu()], model, [[np.zeros((1, 2, 2, 4), np.int8)]], "stepwise")
    assert ours.tolist() == np.full((1, 2, 2, 1), 127).tolist()
