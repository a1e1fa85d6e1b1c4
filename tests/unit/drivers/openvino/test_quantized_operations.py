"""Quantised operations: each by itself near TFLite's, most of them rounded as there, the others
taken only by who asks.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
import pytest

import penstock
from penstock.driverkit.support import FEW_STEPS
from penstock.drivers.openvino import installation
from penstock.drivers.openvino.compiling import build_graph
from penstock.drivers.openvino.engine import core
from penstock.hal import Device, PrepareConfig, PreparedModel
from penstock.ir import DType, Model, ModelBuilder, NDArray, Quantization
from tests.support_openvino import cpu, needs_exact_sums, needs_openvino
from tests.support_operations import F32, OneOperation, run_on
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

pytestmark = needs_openvino


CASES: Final = [
    layer("conv", "CONV_2D", IMAGE, (5, 3, 3, 8), (1, 7, 6, 5), 0, **STEPS),
    layer("conv_relu6", "CONV_2D", IMAGE, (5, 1, 1, 8), (1, 7, 6, 5), 0, **STEPS,
        fused_activation_function="RELU6"),
    layer("depthwise", "DEPTHWISE_CONV_2D", IMAGE, (1, 3, 3, 8), (1, 7, 6, 8), 3, **STEPS,
        depth_multiplier=1),
    layer("depthwise_of_two", "DEPTHWISE_CONV_2D", (1, 3, 3, 2), (1, 2, 2, 4), (1, 3, 3, 4), 3, 5,
        **STEPS, depth_multiplier=2),
    plain("add", "ADD", [IMAGE, IMAGE], IMAGE),
    plain("add_relu", "ADD", [IMAGE, IMAGE], IMAGE,
        attributes={"fused_activation_function": "RELU"}),
    plain("sub", "SUB", [IMAGE, IMAGE], IMAGE),
    plain("mul", "MUL", [IMAGE, IMAGE], IMAGE),
    plain("relu", "RELU", [IMAGE], IMAGE, IN),
    plain("relu6", "RELU6", [IMAGE], IMAGE, IN),
    plain("logistic", "LOGISTIC", [IMAGE], IMAGE, Quantization((1 / 256,), (-128,))),
    plain("tanh", "TANH", [IMAGE], IMAGE, Quantization((1 / 128,), (0,))),
    plain("hard_swish", "HARD_SWISH", [IMAGE], IMAGE, Quantization((0.04,), (0,))),
    plain("softmax", "SOFTMAX", [(3, 12)], (3, 12), Quantization((1 / 256,), (-128,)),
        {"beta": 1.0}),
    plain("average_pool", "AVERAGE_POOL_2D", [IMAGE], IMAGE, IN, POOL),
    plain("max_pool", "MAX_POOL_2D", [IMAGE], IMAGE, IN, POOL),
    plain("max_pool_uint8", "MAX_POOL_2D", [IMAGE], IMAGE, UNSIGNED, POOL, dtype=DType.UINT8,
        given=[UNSIGNED]),
    plain("mean", "MEAN", [IMAGE], (1, 8), OUT, {"keep_dims": False}, constants=[whole(1, 2)]),
    plain("reshape", "RESHAPE", [IMAGE], (6, 56), IN, constants=[whole(6, 56)]),
    plain("pad", "PAD", [IMAGE], (1, 10, 7, 8), IN, constants=[PADS]),
    plain("concatenation", "CONCATENATION", [IMAGE, IMAGE], (1, 7, 6, 16), IN, {"axis": 3},
        given=[IN, IN]),
    plain("resize_nearest", "RESIZE_NEAREST_NEIGHBOR", [IMAGE], (1, 14, 12, 8), IN,
        constants=[whole(14, 12)]),
    plain("depth_to_space", "DEPTH_TO_SPACE", [(1, 3, 4, 8)], (1, 6, 8, 2), IN, {"block_size": 2}),
    plain("space_to_depth", "SPACE_TO_DEPTH", [(1, 6, 8, 2)], (1, 3, 4, 8), IN, {"block_size": 2}),
    plain("requantize", "QUANTIZE", [IMAGE], IMAGE, OUT),
]  # fmt: skip


ROUNDED_OTHERWISE: Final = {
    "conv",
    "conv_relu6",
    "add",
    "add_relu",
    "sub",
    "depthwise",
    "depthwise_of_two",
    "relu6",
    "hard_swish",
    "average_pool",
    "mean",
}


@needs_exact_sums
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_lies_within_one_step_of_the_reference(case: OneOperation) -> None:
    device = cpu()
    (answer,) = device.supported_operations(case.model)
    wanted_class = "stepwise" if case.name in ROUNDED_OTHERWISE else "faithful"
    assert (answer.supported, answer.accuracy) == (True, wanted_class), answer.reason
    given = [case.inputs(seed) for seed in range(3)]
    ours = run_on([device], case.model, given, "relaxed")
    wanted = run_on(["reference"], case.model, given)
    for (got,), (expected,) in zip(ours, wanted, strict=True):
        assert got.dtype == expected.dtype
        assert np.abs(got.astype(int) - expected.astype(int)).max() <= 1


LARGE: Final = (1, 33, 40, 24)
FINER_UNSIGNED: Final = Quantization((0.025,), (128,))
FINER: Final = Quantization((0.025,), (4,))
OFTEN: Final = [
    layer("fully_connected_signed", "FULLY_CONNECTED", (900, 24), (24, 24), (900, 24), 0),
    plain("mul", "MUL", [LARGE, LARGE], LARGE),
    plain("mul_relu6", "MUL", [LARGE, LARGE], LARGE, FINER, {"fused_activation_function": "RELU6"}),
    plain("requantize", "QUANTIZE", [LARGE], LARGE, OUT),
    plain("requantize_coarser", "QUANTIZE", [LARGE], LARGE, Quantization((0.31,), (-128,))),
    plain("relu_coarser", "RELU", [LARGE], LARGE, Quantization((0.153,), (-128,))),
    plain("relu_finer", "RELU", [LARGE], LARGE, Quantization((0.043,), (-128,))),
    layer("conv", "CONV_2D", (1, 33, 40, 8), (24, 1, 1, 8), (1, 33, 40, 24), 0, -128, **STEPS),
    layer("depthwise", "DEPTHWISE_CONV_2D", (1, 33, 40, 24), (1, 3, 3, 24), (1, 33, 40, 24), 3,
        -128, **STEPS, depth_multiplier=1),
    plain("mean", "MEAN", [(1, 4, 4, 8000)], (1, 8000), Quantization((0.03,), (-128,)),
        {"keep_dims": False}, constants=[whole(1, 2)]),
]  # fmt: skip
"""Outputs of thousands of elements, on both sides of zero and on one."""

SELDOM: Final = {"conv", "depthwise"}
"""Layers that are made to round as TFLite's, and do not where a sum lies next to the middle of two
steps.
"""


@needs_exact_sums
@pytest.mark.parametrize("case", OFTEN, ids=lambda case: case.name)
def test_leaves_zero_as_often_as_the_reference(case: OneOperation) -> None:
    """TFLite rounds twice, and one in a hundred values goes on to the next step that one rounding
    would leave.
    """
    given = [case.inputs(0)]
    (answer,) = cpu().supported_operations(case.model)
    assert answer.accuracy == ("stepwise" if case.name in SELDOM else "faithful"), answer.reason
    ((ours,),) = run_on([cpu()], case.model, given, answer.accuracy)
    ((wanted,),) = run_on(["reference"], case.model, given)
    assert len(np.unique(wanted)) >= 20
    assert np.mean(ours != wanted) < 1e-3


EVEN: Final = {**STEPS, "padding": "VALID", "filter_height": 2, "filter_width": 2}
OTHERWISE: Final = [
    plain("requantize_halves", "QUANTIZE", [IMAGE], IMAGE, Quantization((0.1,), (0,))),
    plain("even_mean", "AVERAGE_POOL_2D", [IMAGE], (1, 6, 5, 8), IN, EVEN),
    plain("odd_mean_at_edges", "AVERAGE_POOL_2D", [IMAGE], IMAGE, IN, POOL),
    plain("clamped_maximum", "MAX_POOL_2D", [IMAGE], IMAGE, IN,
        {**POOL, "fused_activation_function": "RELU6"}),
    plain("mean_on_both_sides", "MEAN", [IMAGE], (1, 8), OUT, {"keep_dims": False},
        constants=[whole(1, 2)]),
    plain("joined_grids", "CONCATENATION", [IMAGE, IMAGE], (1, 7, 6, 16), UNSIGNED, {"axis": 3},
        dtype=DType.UINT8, given=[UNSIGNED, FINER_UNSIGNED]),
]  # fmt: skip


@needs_exact_sums
@pytest.mark.parametrize("case", OTHERWISE, ids=lambda case: case.name)
def test_operation_with_other_rounding_is_stepwise(case: OneOperation) -> None:
    (answer,) = cpu().supported_operations(case.model)
    assert (answer.supported, answer.accuracy) == (True, "stepwise")
    assert "steps add up" in answer.distance
    given = [case.inputs(seed) for seed in range(3)]
    ours, wanted = (
        run_on([cpu()], case.model, given, "stepwise"),
        run_on(["reference"], case.model, given),
    )
    for (got,), (expected,) in zip(ours, wanted, strict=True):
        assert np.abs(got.astype(int) - expected.astype(int)).max() <= 1


def test_finer_steps_are_relaxed() -> None:
    """OpenVINO gets to them by way of its own, up to two steps off."""
    finer = plain("requantize_finer", "QUANTIZE", [IMAGE], IMAGE, FINER)
    (answer,) = cpu().supported_operations(finer.model)
    assert (answer.accuracy, answer.distance) == ("relaxed", FEW_STEPS)


@needs_exact_sums
def test_weights_with_a_zero_point_are_stepwise() -> None:
    """OpenVINO adds them up as float32."""
    b, rng = ModelBuilder(), np.random.default_rng(1)
    x = b.input(DType.UINT8, IMAGE, "x", UNSIGNED)
    weights = rng.integers(0, 256, (8, 1, 1, 8)).astype(np.uint8)
    w = b.constant(weights, "w", Quantization((0.01,), (120,)))
    out = (DType.UINT8, IMAGE, Quantization((0.11,), (132,)))
    model = b.build(b.operation("CONV_2D", [x, w, None], [out], STEPS))
    (answer,) = cpu().supported_operations(model)
    assert (answer.supported, answer.accuracy) == (True, "stepwise")


@pytest.mark.parametrize(
    ("features", "limit", "accuracy"),
    [
        ("avx2 fma", "", "relaxed"),
        ("avx2 avx_vnni", "", "faithful"),
        ("avx512f avx512_vnni", "", "faithful"),
        ("avx512f avx512_vnni", "AVX2", "relaxed"),
    ],
)
def test_only_exact_sums_are_faithful(
    features: str, limit: str, accuracy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without VNNI pairs of products are added in 16 bits."""
    monkeypatch.setattr(installation, "processor_features", lambda: features)
    for name in installation.ISA_LIMITS:
        monkeypatch.delenv(name, raising=False)
    if limit:
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
    case = next(case for case in OFTEN if case.name == "fully_connected_signed")
    (answer,) = cpu().supported_operations(case.model)
    assert answer.accuracy == accuracy
    assert ("VNNI" in answer.distance) == (accuracy == "relaxed")


def chain(kind: str, length: int, value: int) -> OneOperation:
    """One operation with the same constant again and again, all scales 1."""
    b = ModelBuilder()
    x = b.input(I8, (2, 3), "x", UNIT)
    constant = b.constant(np.full((2, 3), value, np.int8), "k", UNIT)
    for _ in range(length):
        (x,) = b.operation(kind, [x, constant], [(I8, (2, 3), UNIT)])
    return OneOperation(f"{kind} x {length}", b.build([x]))


@pytest.mark.parametrize(("kind", "value"), [("ADD", 1), ("SUB", 3), ("MUL", 2)])
def test_equal_operations_in_a_row_all_count(kind: str, value: int) -> None:
    """OpenVINO takes two FakeQuantize nodes in a row for one where they look alike."""
    case = chain(kind, 4, value)
    given = [case.inputs(seed) for seed in range(3)]
    ours = run_on([cpu()], case.model, given, "relaxed")
    wanted = run_on(["reference"], case.model, given)
    assert all(np.array_equal(a[0], b[0]) for a, b in zip(ours, wanted, strict=True))


def of_signed(b: ModelBuilder) -> int:
    """Signed steps, none of them zero itself."""
    return b.input(I8, (1, 16, 16, 8), "x", IN)


def changed_sign(b: ModelBuilder) -> int:
    """The same grid, stored otherwise."""
    x = b.input(DType.UINT8, (1, 16, 16, 8), "x", Quantization((0.05,), (0,)))
    (signed,) = b.operation("QUANTIZE", [x], [(I8, (1, 16, 16, 8), Quantization((0.05,), (-128,)))])
    return signed


@needs_exact_sums
@pytest.mark.parametrize("before", [of_signed, changed_sign])
def test_a_layer_stays_in_8_bits(before: Callable[[ModelBuilder], int]) -> None:
    b, rng = ModelBuilder(), np.random.default_rng(1)
    x = before(b)
    w = b.constant(
        rng.integers(-127, 128, (8, 3, 3, 8)).astype(np.int8), "w", Quantization((0.01,), (0,))
    )
    (y,) = b.operation("CONV_2D", [x, w, None], [(I8, (1, 16, 16, 8), OUT)], STEPS)
    model = b.build([y])
    compiled = core().compile_model(build_graph(model).finish("x"), "CPU", {})
    nodes = [node.get_rt_info() for node in compiled.get_runtime_model().get_ordered_ops()]
    kernels = {
        n["primitiveType"].astype(str) for n in nodes if n["layerType"].astype(str) == "Convolution"
    }
    assert all(kernel.endswith("_I8") for kernel in kernels), kernels
    apart = {n["layerType"].astype(str) for n in nodes} & {"Eltwise", "FakeQuantize", "Subgraph"}
    assert not apart - {"Subgraph"}, "rounding takes kernels of its own"
    dtype, shape = model.inputs[0].dtype.numpy, tuple(d or 0 for d in model.inputs[0].shape or ())
    limits = np.iinfo(dtype)
    values = [[rng.integers(limits.min, limits.max + 1, shape).astype(dtype)]]
    ((ours,),), ((wanted,),) = (
        run_on([cpu()], model, values, "relaxed"),
        run_on(["reference"], model, values),
    )
    assert np.abs(ours.astype(int) - wanted.astype(int)).max() <= 1


def test_a_layer_of_signed_results_is_rounded_by_its_kernel_alone() -> None:
    b = ModelBuilder()
    w = b.constant(np.ones((8, 3, 3, 8), np.int8), "w", Quantization((0.01,), (0,)))
    x = b.input(I8, (1, 16, 16, 8), "x", IN)
    model = b.build(b.operation("CONV_2D", [x, w, None], [(I8, (1, 16, 16, 8), OUT)], STEPS))

    nodes = build_graph(model).finish("x").get_ordered_ops()
    assert "PRelu" not in {node.get_type_name() for node in nodes}


@needs_exact_sums
@pytest.mark.parametrize("after", ["", "ADD", "CONV_2D", "RELU6", "MAX_POOL_2D"])
@pytest.mark.parametrize("kind", ["DEPTH_TO_SPACE", "SPACE_TO_DEPTH"])
@pytest.mark.parametrize("dtype", [I8, DType.UINT8])
def test_blocks_behind_a_layer_keep_what_is_below_zero(kind: str, dtype: DType, after: str) -> None:
    b, rng = ModelBuilder(), np.random.default_rng(1)
    out = OUT if dtype is I8 else Quantization((0.11,), (132,))
    x = b.input(dtype, (1, 4, 4, 8), "x", IN if dtype is I8 else UNSIGNED)

    def filtered(x: int, shape: tuple[int, ...]) -> int:
        channels = shape[3]
        weights = rng.integers(-127, 128, (channels, 1, 1, channels)).astype(np.int8)
        w = b.constant(weights, quantization=Quantization((0.01,), (0,)))
        (y,) = b.operation("CONV_2D", [x, w, None], [(dtype, shape, out)], STEPS)
        return y

    y = filtered(x, (1, 4, 4, 8))
    shape = (1, 8, 8, 2) if kind == "DEPTH_TO_SPACE" else (1, 2, 2, 32)
    (y,) = b.operation(kind, [y], [(dtype, shape, out)], {"block_size": 2})
    if after == "CONV_2D":
        y = filtered(y, shape)
    elif after == "ADD":
        other = b.input(dtype, shape, "other", out)
        (y,) = b.operation("ADD", [y, other], [(dtype, shape, out)])
    elif after:
        (y,) = b.operation(after, [y], [(dtype, shape, out)], POOL if "POOL" in after else {})
    model = b.build([y])
    limits = np.iinfo(dtype.numpy)
    values = [
        rng.integers(limits.min, limits.max + 1, tuple(d or 0 for d in o.shape or ())).astype(
            dtype.numpy
        )
        for o in model.inputs
    ]
    ((ours,),), ((wanted,),) = (
        run_on([cpu()], model, [values], "relaxed"),
        run_on(["reference"], model, [values]),
    )
    assert np.abs(ours.astype(int) - wanted.astype(int)).max() <= 2


@needs_exact_sums
def test_depth_to_space_of_signed_values_is_requantised_to_unsigned() -> None:
    b = ModelBuilder()
    signed, unsigned = Quantization((1.0,), (-128,)), Quantization((1.0,), (0,))
    x = b.input(I8, (1, 4, 4, 8), "x", signed)
    (y,) = b.operation("DEPTH_TO_SPACE", [x], [(I8, (1, 8, 8, 2), signed)], {"block_size": 2})
    model = b.build(b.operation("QUANTIZE", [y], [(DType.UINT8, (1, 8, 8, 2), unsigned)]))
    given = [[np.arange(-128, 0, dtype=np.int8).reshape(1, 4, 4, 8)]]
    (ours,), (wanted,) = (run_on([d], model, given) for d in (cpu(), "reference"))
    assert np.array_equal(ours[0], wanted[0])


def test_quantized_input_and_output_of_a_float_layer() -> None:
    b = ModelBuilder()
    x = b.input(DType.FLOAT32, (4, 16), "x")
    (q,) = b.operation("QUANTIZE", [x], [(I8, (4, 16), IN)])
    (y,) = b.operation("DEQUANTIZE", [q], [(DType.FLOAT32, (4, 16))])
    model = b.build([y])
    given = [[np.linspace(-8, 8, 64, dtype=np.float32).reshape(4, 16)]]
    (ours,), (wanted,) = (
        run_on([cpu()], model, given, "relaxed"),
        run_on(["reference"], model, given),
    )
    assert np.abs(ours[0] - wanted[0]).max() <= IN.scale * 1.001


@needs_exact_sums
def test_the_default_policy_leaves_them_to_the_reference_and_says_why() -> None:
    case = next(case for case in CASES if case.name == "hard_swish")
    devices: list[str | Device] = [cpu(), "reference"]
    with penstock.compile(case.model, devices=devices, cache=False) as compiled:
        (placement,) = compiled.plan.operations
        assert placement.device == "reference"
        assert "stepwise" in placement.reasons["openvino-cpu"]
    # By NNAPI's rule, which leaves out what a run costs: more than so small an operation.
    policy = penstock.Policy(accuracy="stepwise", placement="nnapi")
    with penstock.compile(case.model, devices=devices, cache=False, policy=policy) as compiled:
        assert compiled.plan.operations[0].device == "openvino-cpu"


def test_tuning_measures_no_plan_below_the_accuracy_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = next(case for case in CASES if case.name == "hard_swish")
    device = cpu()
    asked_for = []
    prepare = device.prepare_model

    def noted(model: Model, config: PrepareConfig) -> PreparedModel:
        asked_for.append(config.accuracy)
        return prepare(model, config)

    monkeypatch.setattr(device, "prepare_model", noted)
    devices: list[str | Device] = [device, "reference"]
    for tune in (True, False):
        # The second compile uses what the first one has kept.
        with penstock.compile(case.model, devices=devices, cache=tmp_path, tune=tune) as compiled:
            assert [p.device for p in compiled.plan.operations] == ["reference"]
            assert compiled.plan.accuracy == "faithful"
    assert asked_for == []


def near(model: Model, values: list[NDArray]) -> int:
    """The most steps by which the device departs from the reference."""
    ((ours,),), ((wanted,),) = (
        run_on([cpu()], model, [values], "relaxed"),
        run_on(["reference"], model, [values]),
    )
    assert len(np.unique(wanted)) > 2
    return int(np.abs(ours.astype(int) - wanted.astype(int)).max())


@pytest.mark.parametrize("dtype", [I8, DType.UINT8])
def test_values_of_other_scales_are_joined_within_their_limits(dtype: DType) -> None:
    b, limits = ModelBuilder(), np.iinfo(dtype.numpy)
    out = Quantization((1 / 128,), (limits.min + 127,))
    joined, values = [], []
    for scale, zero in ((0.084, 127), (0.029, 0)):
        x = b.input(dtype, (2, 1, 9), f"x{zero}", Quantization((scale,), (limits.min + zero,)))
        joined += b.operation("QUANTIZE", [x], [(dtype, (2, 1, 9), out)])
        values.append(np.linspace(limits.min, limits.max, 18).astype(dtype.numpy).reshape(2, 1, 9))
    (y,) = b.operation("CONCATENATION", joined, [(dtype, (2, 1, 18), out)], {"axis": 2})
    assert near(b.build([y]), values) <= 1


def test_blocks_of_sums_with_a_constant_keep_their_values() -> None:
    b, grid = ModelBuilder(), Quantization((0.1,), (0,))
    x = b.input(DType.UINT8, (1, 1, 1, 8), "x", grid)
    zero = b.constant(np.zeros(1, np.uint8), "zero", grid)
    (y,) = b.operation("ADD", [x, zero], [(DType.UINT8, (1, 1, 1, 8), grid)])
    (y,) = b.operation(
        "DEPTH_TO_SPACE", [y], [(DType.UINT8, (1, 2, 2, 2), grid)], {"block_size": 2}
    )
    values = np.arange(14, 94, 10).astype(np.uint8).reshape(1, 1, 1, 8)
    assert near(b.build([y]), [values]) <= 1


@pytest.mark.parametrize("dtype", [I8, DType.UINT8])
def test_quotients_by_several_constants_are_rounded_within_their_limits(dtype: DType) -> None:
    b, least = ModelBuilder(), np.iinfo(dtype.numpy).min
    grid, shape = Quantization((0.5,), (least,)), (2, 5, 6, 3)
    x = b.input(dtype, shape, "x", grid)
    (y,) = b.operation("DEQUANTIZE", [x], [(F32, shape)])
    (y,) = b.operation("AVERAGE_POOL_2D", [y], [(F32, shape)], POOL)
    shares = b.constant(np.linspace(0.02, 1, 30, dtype=np.float32).reshape(1, 5, 6, 1), "shares")
    (y,) = b.operation("DIV", [y, shares], [(F32, shape)])
    model = b.build(b.operation("QUANTIZE", [y], [(dtype, shape, grid)]))
    values = least + np.arange(180).reshape(shape) % 5
    assert near(model, [values.astype(dtype.numpy)]) <= 1


@pytest.mark.parametrize(
    ("dtype", "zero", "value"), [(I8, -124, 9), (I8, 3, 100), (DType.UINT8, 131, 0)]
)
@pytest.mark.parametrize("kind", ["PAD", "PADV2"])
def test_a_row_is_padded_with_a_real_value(kind: str, dtype: DType, zero: int, value: int) -> None:
    b, grid = ModelBuilder(), Quantization((0.1,), (zero,))
    x = b.input(dtype, (3,), "x", grid)
    given = [x, b.constant(np.array([[1, 3]], np.int32), "pads")]
    if kind == "PADV2":
        given.append(b.constant(np.array(value, dtype.numpy), "value", grid))
    model = b.build(b.operation(kind, given, [(dtype, (7,), grid)]))
    assert near(model, [np.array([1, 50, 120], dtype.numpy)]) == 0


@needs_exact_sums
@pytest.mark.parametrize("dtype", [I8, DType.UINT8])
def test_final_rearrangement_gives_whole_quantisation_steps(dtype: DType) -> None:
    """Rounding by arithmetic behind it, of larger values, took a tenth of a network's time."""
    b, signed = ModelBuilder(), Quantization((0.5,), (-128,))
    x = b.input(I8, (1, 4, 4, 8), "x", signed)
    (y,) = b.operation("RELU", [x], [(I8, (1, 4, 4, 8), Quantization((0.7,), (-128,)))])
    (y,) = b.operation(
        "DEPTH_TO_SPACE",
        [y],
        [(I8, (1, 8, 8, 2), Quantization((0.7,), (-128,)))],
        {"block_size": 2},
    )
    if dtype is not I8:
        grid = Quantization((0.7,), (0,))
        (y,) = b.operation("QUANTIZE", [y], [(dtype, (1, 8, 8, 2), grid)])
    model = b.build([y])
    graph = build_graph(model)
    kinds = [node.get_type_name() for node in graph.finish("x").get_ordered_ops()]
    assert "Round" not in kinds
    assert kinds.index("Convert", kinds.index("FakeQuantize")) < kinds.index("DepthToSpace", 1)
    given = [[np.arange(-128, 128).astype(np.int8)[:128].reshape(1, 4, 4, 8)]]
    ((ours,),), ((wanted,),) = (run_on([d], model, given) for d in (cpu(), "reference"))
    assert ours.dtype == dtype.numpy
    assert np.array_equal(ours, wanted)
