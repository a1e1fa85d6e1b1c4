"""Layers by hand, what they refuse, and what they promise about memory and threads."""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from penstock.drivers.reference import kernel as contract
from penstock.drivers.reference.kernel import KERNELS, Site, Unsupported, build, kernel
from penstock.ir import Attributes, DType, Lifetime, NDArray, Operand, Operation, Quantization
from penstock.ir.operand import OMITTED
from penstock.ir.operations import OPERATIONS

F32, F16, BF16, I8, I16, I32, I64 = (
    DType.FLOAT32,
    DType.FLOAT16,
    DType.BFLOAT16,
    DType.INT8,
    DType.INT16,
    DType.INT32,
    DType.INT64,
)
UNIT: dict[str, Any] = {"stride_h": 1, "stride_w": 1, "padding": "VALID"}


def q(scale: float, zero_point: int = 0) -> Quantization:
    return Quantization((scale,), (zero_point,))


def site(
    kind: str,
    inputs: Sequence[Operand | None],
    output: Operand,
    constants: Mapping[int, NDArray] | None = None,
    **attributes: Any,
) -> Site:
    full = OPERATIONS[kind].complete(attributes)
    operation = Operation(kind, tuple(range(len(inputs))), (99,), full)
    known = constants or {}
    operands = tuple(
        replace(o, lifetime=Lifetime.CONSTANT_COPY) if at in known and o is not None else o
        for at, o in enumerate(inputs)
    )
    return Site(operation, operands, (output,), known.get)


def of(array: NDArray, quantization: Quantization | None = None) -> Operand:
    return Operand(DType(array.dtype.name), array.shape, quantization=quantization)


def run(
    kind: str, arrays: Sequence[NDArray | None], output: DType = F32, **attributes: Any
) -> NDArray:
    """The only output of a float operation whose inputs all come at run time."""
    inputs = [None if a is None else of(a) for a in arrays]
    (result,) = build(site(kind, inputs, Operand(output, None), **attributes))(arrays)
    return result


def floats(*values: float, shape: Sequence[int]) -> NDArray:
    return np.array(values, np.float32).reshape(shape)


def test_conv_2d_equals_a_hand_computed_result() -> None:
    image = floats(1, 2, 3, 4, 5, 6, 7, 8, 9, shape=(1, 3, 3, 1))
    filters = floats(1, 0, 0, -1, 0, 2, 2, 0, shape=(2, 2, 2, 1))
    bias = floats(10, -20, shape=(2,))
    result = run("CONV_2D", [image, filters, bias], **UNIT, fused_activation_function="RELU")
    # 1*a - 1*d + 10 = 6 everywhere; 2*b + 2*c - 20 for each square.
    assert result[0, :, :, 0].tolist() == [[6.0, 6.0], [6.0, 6.0]]
    assert result[0, :, :, 1].tolist() == [[0.0, 0.0], [4.0, 8.0]]


def test_conv_2d_groups_use_only_their_channels() -> None:
    image = floats(1, 2, 3, 4, shape=(1, 1, 1, 4))
    filters = floats(1, 1, 1, -1, shape=(2, 1, 1, 2))
    assert run("CONV_2D", [image, filters, None], **UNIT).tolist() == [[[[3.0, -1.0]]]]


def test_depthwise_conv_2d_equals_a_hand_computed_result() -> None:
    image = floats(1, 10, 2, 20, shape=(1, 1, 2, 2))
    filters = floats(1, 2, 3, 4, 5, 6, 7, 8, shape=(1, 1, 2, 4))
    result = run("DEPTHWISE_CONV_2D", [image, filters, None], **UNIT, depth_multiplier=2)
    assert result.tolist() == [[[[11.0, 14.0, 170.0, 200.0]]]]


def test_transpose_conv_equals_a_hand_computed_result() -> None:
    shape = np.array([1, 1, 5, 1], np.int32)
    filters = floats(1, 2, 3, shape=(1, 1, 3, 1))
    image = floats(1, 10, shape=(1, 1, 2, 1))
    result = run("TRANSPOSE_CONV", [shape, filters, image], stride_h=1, stride_w=2, padding="VALID")
    assert result.ravel().tolist() == [1.0, 2.0, 13.0, 20.0, 30.0]


def test_transpose_conv_output_may_exceed_the_reach_of_the_image() -> None:
    shape = np.array([1, 1, 4, 1], np.int32)
    image, filters = floats(1, 10, shape=(1, 1, 2, 1)), floats(3, shape=(1, 1, 1, 1))
    result = run("TRANSPOSE_CONV", [shape, filters, image], stride_h=1, stride_w=2, padding="VALID")
    assert result.ravel().tolist() == [3.0, 0.0, 30.0, 0.0]


@pytest.mark.parametrize("extents", [(2, 1, 2, 1), (1, 1, 2, 3), (1, 2, 1)])
def test_transpose_conv_refuses_an_output_of_another_batch_or_depth(
    extents: tuple[int, ...],
) -> None:
    image, filters = floats(1, shape=(1, 1, 1, 1)), floats(3, shape=(1, 1, 1, 1))
    shape = np.array(extents, np.int32)
    with pytest.raises(ValueError, match="an output of shape"):
        run("TRANSPOSE_CONV", [shape, filters, image], stride_h=1, stride_w=1, padding="VALID")


def test_fully_connected_keeps_dimensions_on_request() -> None:
    source, weights = np.ones((2, 3, 4), np.float32), np.ones((5, 4), np.float32)
    assert run("FULLY_CONNECTED", [source, weights, None]).shape == (6, 5)
    kept = run("FULLY_CONNECTED", [source, weights, None], keep_num_dims=True)
    assert kept.shape == (2, 3, 5)
    assert kept.tolist() == np.full((2, 3, 5), 4.0).tolist()


def test_average_pool_ignores_padding() -> None:
    image = floats(1, 2, 3, shape=(1, 1, 3, 1))
    pool: dict[str, Any] = {
        "filter_width": 3,
        "filter_height": 1,
        "stride_w": 1,
        "stride_h": 1,
        "padding": "SAME",
    }
    assert run("AVERAGE_POOL_2D", [image], **pool).ravel().tolist() == [1.5, 2.0, 2.5]
    assert run("MAX_POOL_2D", [-image], **pool).ravel().tolist() == [-1.0, -1.0, -2.0]
    assert run("L2_POOL_2D", [image], **pool)[0, 0, 0, 0] == pytest.approx(np.sqrt(2.5))


@pytest.mark.parametrize(
    ("values", "mean"), [((1, 2), 2), ((-1, -2), -2), ((3, 4), 4), ((-3, 2), -1)]
)
def test_integer_average_pool_rounds_halves_away_from_zero(
    values: tuple[int, int], mean: int
) -> None:
    image = np.array(values, np.int8).reshape(1, 1, 2, 1)
    operand = of(image, q(1.0))
    pool = build(
        site(
            "AVERAGE_POOL_2D",
            [operand],
            Operand(I8, None, quantization=q(1.0)),
            filter_width=2,
            filter_height=1,
            stride_w=1,
            stride_h=1,
            padding="VALID",
        )
    )
    assert pool([image])[0].tolist() == [[[[mean]]]]


def test_pool_window_larger_than_the_image_has_no_output() -> None:
    image = np.ones((1, 2, 2, 3), np.float32)
    filters = np.ones((4, 3, 3, 3), np.float32)
    depthwise = np.ones((1, 3, 3, 3), np.float32)
    assert run("CONV_2D", [image, filters, None], **UNIT).shape == (1, 0, 0, 4)
    assert run("DEPTHWISE_CONV_2D", [image, depthwise, None], **UNIT).shape == (1, 0, 0, 3)
    pool: dict[str, Any] = {"filter_width": 3, "filter_height": 3}
    assert run("MAX_POOL_2D", [image], **UNIT, **pool).shape == (1, 0, 0, 3)


def test_layers_of_an_empty_batch_are_empty() -> None:
    image, filters = np.ones((0, 4, 4, 3), np.float32), np.ones((2, 3, 3, 3), np.float32)
    assert run("CONV_2D", [image, filters, None], **UNIT).shape == (0, 2, 2, 2)
    assert run("FULLY_CONNECTED", [np.ones((0, 3), np.float32), filters[:, 0, 0], None]).shape == (
        0,
        2,
    )


@pytest.mark.parametrize("dtype", [F16, BF16])
def test_float16_layers_compute_in_float32(dtype: DType) -> None:
    rng = np.random.default_rng(0)
    image = rng.standard_normal((1, 5, 5, 8)).astype(dtype.numpy)
    filters = rng.standard_normal((4, 3, 3, 8)).astype(dtype.numpy)
    taps = rng.standard_normal((1, 3, 3, 8)).astype(dtype.numpy)
    weights = rng.standard_normal((3, 8)).astype(dtype.numpy)
    pool = {"filter_width": 2, "filter_height": 2, **UNIT}
    shape = np.array([1, 5, 5, 4], np.int32)
    same = {**UNIT, "padding": "SAME", "fused_activation_function": "RELU"}
    cases: list[tuple[str, list[NDArray | None], dict[str, Any]]] = [
        ("CONV_2D", [image, filters, None], same),
        ("DEPTHWISE_CONV_2D", [image, taps, None], same),
        ("TRANSPOSE_CONV", [shape, filters, image, None], same),
        ("FULLY_CONNECTED", [image, weights, None], {"fused_activation_function": "RELU6"}),
        ("BATCH_MATMUL", [image, image], {"adj_y": True}),
        ("MAX_POOL_2D", [image], {**pool, "padding": "SAME"}),
        ("AVERAGE_POOL_2D", [image], pool),
    ]
    for kind, arrays, attributes in cases:
        wide = [a if a is None or a.dtype == np.int32 else a.astype(np.float32) for a in arrays]
        expected = run(kind, wide, F32, **attributes).astype(dtype.numpy)
        got = run(kind, arrays, dtype, **attributes)
        assert got.dtype == dtype.numpy
        np.testing.assert_array_equal(got.astype(np.float32), expected.astype(np.float32), kind)


def test_zero_rows_of_a_hybrid_layer_stay_zero() -> None:
    weights = np.array([[1, 2], [3, 4]], np.int8)
    for asymmetric in (False, True):
        layer = build(
            site(
                "FULLY_CONNECTED",
                [Operand(F32, (2, 2)), of(weights, q(0.5))],
                Operand(F32, None),
                {1: weights},
                asymmetric_quantize_inputs=asymmetric,
            )
        )
        source = floats(0, 0, 1, 1, shape=(2, 2))
        (result,) = layer([source, weights, None])
        np.testing.assert_allclose(result, [[0.0, 0.0], [1.5, 3.5]], rtol=0.01)


def test_old_hybrid_weights_of_type_uint8_hold_signed_bytes() -> None:
    weights = np.array([[-1, 2]], np.int8)
    source = floats(127, 0, shape=(1, 2))
    layer = build(
        site(
            "FULLY_CONNECTED",
            [Operand(F32, (1, 2)), Operand(DType.UINT8, (1, 2), quantization=q(1.0))],
            Operand(F32, None),
            {1: weights.view(np.uint8)},
        )
    )
    assert layer([source, None, None])[0].tolist() == [[-127.0]]


def quantized_site(**changes: Any) -> Site:
    """A small int8 convolution that is computed, with some of its parts replaced."""
    parts: dict[str, Any] = {
        "source": Operand(I8, (1, 2, 2, 2), quantization=q(0.5)),
        "filters": Operand(I8, (2, 1, 1, 2), Lifetime.CONSTANT_COPY, quantization=q(0.25)),
        "target": Operand(I8, None, quantization=q(1.0)),
        "activation": "NONE",
        **changes,
    }
    return site(
        "CONV_2D",
        [parts["source"], parts["filters"]],
        parts["target"],
        {1: np.ones((2, 1, 1, 2), np.int8)},
        **UNIT,
        fused_activation_function=parts["activation"],
    )


CHANNELS = Operand(
    I8, (2, 1, 1, 2), Lifetime.CONSTANT_COPY, quantization=Quantization((1.0, 2.0), (0, 0), 0)
)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"source": Operand(I8, (1, 2, 2, 2))}, "an input of type int8 without one scale"),
        ({"target": Operand(I8, None, quantization=q(0.0))}, "an output of type int8 without one"),
        ({"filters": Operand(I8, (2, 1, 1, 2))}, "weights of type int8 without a scale"),
        (
            {
                "filters": Operand(
                    I8, (2, 1, 1, 2), quantization=Quantization((1.0, 1.0), (0, 3), 0)
                )
            },
            "per-channel weights with zero points",
        ),
        (
            {
                "filters": Operand(
                    I8, (2, 1, 1, 2), quantization=Quantization((1.0, 1.0), (0, 0), 3)
                )
            },
            "2 scales along dimension 3",
        ),
        (
            {"target": Operand(I16, None, quantization=q(1.0))},
            r"CONV_2D of \(int8, int8\) -> \(int16\)",
        ),
        ({"activation": "GELU"}, "GELU is not an activation that can be fused"),
    ],
)
def test_layers_refuse_unsupported_forms_with_a_reason(
    changes: dict[str, Any], reason: str
) -> None:
    build(quantized_site())
    with pytest.raises(Unsupported, match=reason):
        build(quantized_site(**changes))


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("Nonesuch", "CUSTOM:Nonesuch: a custom operation needs a driver that has it$"),
        (
            "FlexErf",
            "CUSTOM:FlexErf, one of TensorFlow's own operations: convert the model without",
        ),
    ],
)
def test_operations_without_a_builder_are_refused_by_name(code: str, reason: str) -> None:
    operation = Operation("CUSTOM", (), (), Attributes(custom_code=code, custom_options=b""))
    with pytest.raises(Unsupported, match=reason):
        build(Site(operation, (), (), lambda _: None))


def test_an_operation_has_one_builder() -> None:
    with pytest.raises(ValueError, match="CONV_2D has a builder already"):
        kernel("CONV_2D")(KERNELS["CONV_2D"])


def test_a_site_knows_which_inputs_are_given() -> None:
    given = Operand(F32, (1,))
    found = site("CONV_2D", [given, OMITTED, None], given, {0: np.ones(1)}, **UNIT)
    assert [found.has(i) for i in range(5)] == [True, False, False, False, False]
    assert found.constant(0) is not None
    assert found.constant(1) is None
    with pytest.raises(Unsupported, match="without input 1"):
        found.input(1)
    with pytest.raises(Unsupported, match="without output 1"):
        found.output(1)
    assert contract.tensor_quantization(Operand(I8, (), quantization=q(2.0)), "x").scale == 2.0


def test_patches_are_made_a_tile_at_a_time() -> None:
    image, filters = np.ones((1, 160, 160, 64), np.float32), np.ones((2, 5, 5, 64), np.float32)
    patches = 160 * 160 * 25 * 64 * 4
    tracemalloc.start()
    run("CONV_2D", [image, filters, None], stride_h=1, stride_w=1, padding="SAME")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < patches / 8


def test_a_kernel_runs_in_many_threads_at_once() -> None:
    rng = np.random.default_rng(0)
    layer = build(quantized_site())
    images = [rng.integers(-128, 128, (1, 2, 2, 2)).astype(np.int8) for _ in range(8)]
    expected = [layer([image, None])[0] for image in images]
    found: list[NDArray | None] = [None] * len(images)

    def work(index: int) -> None:
        for _ in range(20):
            found[index] = layer([images[index], None])[0]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(images))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for got, want in zip(found, expected, strict=True):
        assert got is not None
        np.testing.assert_array_equal(got, want)


def test_values_beyond_the_range_saturate_without_a_warning() -> None:
    values = floats(1e30, -1e30, np.inf, -np.inf, np.nan, shape=(5,))
    quantize = build(site("QUANTIZE", [of(values)], Operand(I8, None, quantization=q(0.5, 3))))
    assert quantize([values])[0].tolist() == [127, -128, 127, -128, 3]


def test_a_layer_without_channels_has_no_results() -> None:
    filters = np.ones((0, 1, 1, 2), np.int8)
    layer = build(
        site(
            "CONV_2D",
            [Operand(I8, (1, 2, 2, 2), quantization=q(0.5)), of(filters, q(0.25))],
            Operand(I8, None, quantization=q(1.0)),
            {1: filters},
            **UNIT,
        )
    )
    assert layer([np.ones((1, 2, 2, 2), np.int8), filters])[0].shape == (1, 2, 2, 0)


def test_fake_quantisation_rounds_to_the_values_of_a_range_with_zero() -> None:
    values = floats(-2, -0.9, 0, 0.1, 0.26, 5, shape=(6,))
    kernel = build(
        site("FAKE_QUANT", [of(values)], Operand(F32, None), min=-1.0, max=0.5, num_bits=2)
    )
    np.testing.assert_array_equal(kernel([values])[0], floats(-1, -1, 0, 0, 0.5, 0.5, shape=(6,)))
