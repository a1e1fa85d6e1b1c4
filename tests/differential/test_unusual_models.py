"""Small models that LiteRT runs though something about them is unusual: Penstock runs them too, and
agrees.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

pytest.importorskip("ai_edge_litert.interpreter", reason="ai-edge-litert is not installed")

from penstock.ir import DType, NDArray, Quantization
from tests.differential.draw import Draw, Value
from tests.differential.judge import Judge
from tests.differential.trial import Outcome, examine
from tests.support_litert import q

F32, F16, I8, U8, I16, I32, I64, BOOL = (
    DType.FLOAT32,
    DType.FLOAT16,
    DType.INT8,
    DType.UINT8,
    DType.INT16,
    DType.INT32,
    DType.INT64,
    DType.BOOL,
)
STRIDES = {"stride_w": 1, "stride_h": 1}
NAN, INF = np.nan, np.inf


@pytest.fixture
def draw() -> Draw:
    return Draw(np.random.default_rng(0), zeros=False)


def check(draw: Draw, judge: Judge) -> None:
    """Asserts that both run the model and agree."""
    drawn = draw.finish()
    verdict = examine(drawn, judge)
    assert verdict.outcome is Outcome.AGREE, f"{verdict.outcome}: {drawn.listing}\n{verdict.reason}"


def floats(draw: Draw, *values: float) -> Value:
    array = np.array(values, np.float32)
    return draw.value(F32, array.shape, array=array, constant=False)


def layer(draw: Draw, kind: str, dtype: DType, bias: Value, output: float = 0.5) -> None:
    """A layer of 4 input and 3 output channels, scales 0.1 where it is quantised."""
    scale = None if dtype is F32 else q(0.1)
    made = draw.output(dtype, None if dtype is F32 else q(output))
    if kind == "FULLY_CONNECTED":
        x = draw.value(dtype, (2, 4), scale, constant=False)
        w = draw.value(dtype, (3, 4), scale, constant=True)
        draw.operation(kind, [x, w, bias], [made])
        return
    x = draw.value(dtype, (1, 3, 3, 4), scale, constant=False)
    w = draw.value(dtype, (3, 1, 1, 4), scale, constant=True)
    if kind == "TRANSPOSE_CONV":
        draw.operation(kind, [draw.integers(1, 3, 3, 3), w, x, bias], [made], **STRIDES)
    else:
        draw.operation(kind, [x, w, bias], [made], **STRIDES)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dimension", [0, 1])
def test_product_of_floats_and_weights_with_a_scale_a_channel(
    draw: Draw, judge: Judge, dimension: int, *, transposed: bool
) -> None:
    shape = (3, 4) if transposed else (4, 3)
    scales = tuple(float(np.float32(0.01 * (i + 1))) for i in range(shape[dimension]))
    quantization = Quantization(scales, (0,) * len(scales), dimension)
    a = draw.value(F32, (2, 4), constant=False)
    b = draw.value(I8, shape, quantization, constant=True)
    draw.operation("BATCH_MATMUL", [a, b], [draw.output(F32)], adj_y=transposed)
    check(draw, judge)


@pytest.mark.parametrize("dtype", [F32, I8])
@pytest.mark.parametrize("shape", [(1, 3), (3, 1), (1, 1, 1, 3)])
@pytest.mark.parametrize("kind", ["FULLY_CONNECTED", "CONV_2D", "TRANSPOSE_CONV"])
def test_bias_of_more_than_one_dimension(
    draw: Draw, judge: Judge, kind: str, shape: tuple[int, ...], dtype: DType
) -> None:
    given = draw.value(F32 if dtype is F32 else I32, shape, None if dtype is F32 else q(0.01))
    layer(draw, kind, dtype, given)
    check(draw, judge)


@pytest.mark.parametrize(("kind", "dtype"), [("FULLY_CONNECTED", I8), ("CONV_2D", U8)])
def test_bias_without_a_scale_where_the_products_are_small(
    draw: Draw, judge: Judge, kind: str, dtype: DType
) -> None:
    layer(draw, kind, dtype, draw.value(I32, (3,), constant=True), output=0.8)
    check(draw, judge)


@pytest.mark.parametrize("rows", [1, 4])
def test_weights_in_the_shuffled_format(draw: Draw, judge: Judge, rows: int) -> None:
    x = draw.value(U8, (rows, 32), q(0.05, 128), constant=False)
    w = draw.value(U8, (8, 32), q(0.02, 128), constant=True)
    b = draw.value(I32, (8,), q(0.05 * 0.02), constant=True)
    made = [draw.output(I16, q(0.01)), draw.output(U8, None, (rows, 32))]
    draw.operation("FULLY_CONNECTED", [x, w, b], made, weights_format="SHUFFLED4x16INT8")
    check(draw, judge)


@pytest.mark.parametrize("shape", [(0, 2, 2, 4), (1, 0, 2, 4), (1, 2, 2, 0)])
@pytest.mark.parametrize("kind", ["SPACE_TO_DEPTH", "DEPTH_TO_SPACE"])
def test_blocks_of_an_image_without_elements(
    draw: Draw, judge: Judge, kind: str, shape: tuple[int, ...]
) -> None:
    draw.operation(kind, [draw.value(F32, shape, constant=False)], [draw.output(F32)], block_size=2)
    check(draw, judge)


def _unary(kind: str) -> Callable[[Draw], list[Value]]:
    return lambda draw: [floats(draw, 0.5, -1.5, 2.25)]


def _pair(draw: Draw) -> list[Value]:
    return [floats(draw, 0.5, -1.5), floats(draw, 1.0, -2.0)]


@pytest.mark.parametrize("wrong", [I32, I64, I8, BOOL])
@pytest.mark.parametrize(
    ("kind", "given"),
    [
        ("MINIMUM", _pair),
        ("EQUAL", _pair),
        ("NEG", _unary("NEG")),
        ("EXP", _unary("EXP")),
        ("GATHER", lambda draw: [floats(draw, 0.5, -1.5), draw.integers(1, 0)]),
        ("SHAPE", _unary("SHAPE")),
    ],
)
def test_declared_output_type_that_is_overwritten(
    draw: Draw, judge: Judge, kind: str, given: Callable[[Draw], list[Value]], wrong: DType
) -> None:
    more = {"out_type": "INT32"} if kind == "SHAPE" else {}
    if kind == "GATHER":
        more = {"axis": 0, "batch_dims": 0}  # type: ignore[dict-item]  # attributes of any kind
    draw.operation(kind, given(draw), [draw.output(wrong)], **more)
    check(draw, judge)


@pytest.mark.parametrize("kind", ["RESHAPE", "SUM", "SOFTMAX"])
def test_declared_output_type_under_which_the_bytes_are_kept(
    draw: Draw, judge: Judge, kind: str
) -> None:
    x = floats(draw, 0.5, -1.5, 2.25)
    made = [draw.output(I32)]
    if kind == "RESHAPE":
        draw.operation(kind, [x, draw.integers(3, 1)], made, new_shape=(3, 1))
    elif kind == "SUM":
        draw.operation(kind, [x, draw.integers(0)], made, keep_dims=True)
    else:
        draw.operation(kind, [x], made, beta=1.0)
    check(draw, judge)


def test_softmax_of_int16_writes_int16_under_a_declared_float16(draw: Draw, judge: Judge) -> None:
    x = draw.value(I16, (1, 4), q(2.0**-12), array=np.array([[0, 4096, -9000, 300]], np.int16))
    draw.operation("SOFTMAX", [x], [draw.output(DType.FLOAT16, q(2.0**-15))], beta=1.0)
    check(draw, judge)


@pytest.mark.parametrize("constant", [False, True])
def test_scales_a_channel_of_a_value_without_declared_dimensions(
    draw: Draw, judge: Judge, constant: bool
) -> None:
    scales = Quantization((0.5, 0.25), (0, 0), 0)
    made = replace(draw.output(I16, scales, (2, 1)), shape_declared=False)
    x = draw.value(I16, (2, 3), None, constant=constant)
    draw.operation("REDUCE_MAX", [x, draw.integers(1)], [made], keep_dims=True)
    check(draw, judge)


def test_declared_output_type_of_a_branch(draw: Draw, judge: Judge) -> None:
    graph = draw.builder.subgraph("branch")
    x = graph.input(F32, (2,))
    index = draw.builder.add_subgraph(graph.finish(graph.operation("NEG", [x], [(I32, (2,))])))
    truth = draw.value(BOOL, (), constant=False)
    draw.operation(
        "IF",
        [truth, floats(draw, 1.0, -2.0)],
        [draw.output(I64, None, (2,))],
        then_subgraph_index=index,
        else_subgraph_index=index,
    )
    check(draw, judge)


@pytest.mark.parametrize("kind", ["IF", "WHILE", "STABLEHLO_CASE", "STABLEHLO_COMPOSITE"])
@pytest.mark.parametrize(("given", "declared"), [(F32, I32), (I32, F32), (F32, DType.UINT32)])
def test_declared_input_type_of_a_branch(
    draw: Draw, judge: Judge, kind: str, given: DType, declared: DType
) -> None:
    x = draw.value(given, (2,), array=np.array([1, -2], given.numpy), constant=False)
    body = draw.builder.subgraph("body")
    made = body.operation("NEG", [body.input(declared, (2,))], [(declared, (2,))])
    index = draw.builder.add_subgraph(body.finish(made))
    inputs, more = [x], dict[str, Any]()
    if kind == "IF":
        inputs.insert(0, draw.value(BOOL, (), constant=False))
        more = {"then_subgraph_index": index, "else_subgraph_index": index}
    elif kind == "STABLEHLO_CASE":
        inputs.insert(0, draw.value(I32, (), array=np.zeros((), np.int32), constant=False))
        more = {"branch_subgraph_indices": (index, index)}
    elif kind == "STABLEHLO_COMPOSITE":
        more = {"decomposition_subgraph_index": index, "name": "opposite"}
    else:
        cond = draw.builder.subgraph("cond")
        # Once: of the opposite the first element is below zero.
        first = cond.operation(
            "SLICE",
            [cond.input(declared, (2,)), *(cond.constant(np.array([n], np.int32)) for n in (0, 1))],
            [(given, (1,))],
        )
        zero = cond.constant(np.zeros(1, given.numpy))
        answer = cond.operation("GREATER", [*first, zero], [(BOOL, (1,))])
        entered = draw.builder.add_subgraph(cond.finish(answer))
        more = {"cond_subgraph_index": entered, "body_subgraph_index": index}
    draw.operation(kind, inputs, [draw.output(given, None, (2,))], **more)
    check(draw, judge)


@pytest.mark.parametrize(
    ("low", "high", "bits"),
    [(-1, 1, 1), (0, 0, 8), (1, 1, 8), (1, 2, 8), (-2, -1, 8), (1, -1, 8), (-1, 1, 17)],
)
def test_fake_quantisation_over_an_odd_range(
    draw: Draw, judge: Judge, low: float, high: float, bits: int
) -> None:
    x = floats(draw, -2, -1, -0.3, 0, 0.4, 1.2)
    draw.operation("FAKE_QUANT", [x], [draw.output(F32)], min=low, max=high, num_bits=bits)
    check(draw, judge)


@pytest.mark.parametrize("kind", ["SPLIT", "SPLIT_V"])
def test_axis_of_64_bits(draw: Draw, judge: Judge, kind: str) -> None:
    x, axis = draw.value(F32, (4, 2), constant=False), draw.scalar(-1, I64)
    given = [axis, x] if kind == "SPLIT" else [x, draw.integers(1, 1), axis]
    draw.operation(kind, given, [draw.output(F32), draw.output(F32)], num_splits=2)
    check(draw, judge)


@pytest.mark.parametrize("power", [29, 30, 31, 34, 64, 90])
@pytest.mark.parametrize("dtype", [I8, U8])
def test_product_with_a_great_multiplier(
    draw: Draw, judge: Judge, dtype: DType, power: int
) -> None:
    scales = q(2.0 ** (power - power // 2)), q(2.0 ** (power // 2))
    a, b = (draw.value(dtype, (40,), s, constant=False) for s in scales)
    draw.operation("MUL", [a, b], [draw.output(dtype, q(1.0))])
    check(draw, judge)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("PAD", d) for d in (F32, F16, I32, I64, BOOL, I8, I16)]
    + [("SPACE_TO_BATCH_ND", d) for d in (F32, I32, I64, I8)],
)
def test_padding_beside_quantisation_parameters(
    draw: Draw, judge: Judge, kind: str, dtype: DType
) -> None:
    x = draw.value(dtype, (1, 2, 2, 1), q(0.5, 3), constant=False)
    if kind == "PAD":
        pads = draw.constant(np.array([[0, 0], [1, 0], [0, 2], [0, 0]], np.int32))
        draw.operation(kind, [x, pads], [draw.output(dtype, q(0.5, 3))])
    else:
        pads = draw.constant(np.array([[1, 0], [0, 0]], np.int32))
        draw.operation(kind, [x, draw.integers(1, 1), pads], [draw.output(dtype, q(0.5, 3))])
    check(draw, judge)


@pytest.mark.parametrize("dtype", [I8, U8])
def test_sums_of_a_layer_wrap_at_32_bits(draw: Draw, judge: Judge, dtype: DType) -> None:
    values = np.array([2**31 - 1, -(2**31), 2**31 - 5000], np.int32)
    x = draw.value(dtype, (2, 4), q(0.1), array=_filled(dtype, (2, 4), 100), constant=False)
    w = draw.value(dtype, (3, 4), q(0.1), array=_filled(dtype, (3, 4), 100), constant=True)
    b = draw.value(I32, (3,), q(0.01), array=values, constant=True)
    draw.operation("FULLY_CONNECTED", [x, w, b], [draw.output(dtype, q(0.9))])
    check(draw, judge)


def _filled(dtype: DType, shape: tuple[int, ...], value: int) -> NDArray:
    return np.full(shape, value, dtype.numpy)


@pytest.mark.parametrize("kind", ["MAX_POOL_2D", "AVERAGE_POOL_2D", "L2_POOL_2D"])
def test_windows_with_values_that_are_no_numbers(draw: Draw, judge: Judge, kind: str) -> None:
    values = [NAN, 1, -INF, -INF, 2, NAN, NAN, NAN, INF, 3, 1, 0]
    x = draw.value(
        F32, (1, 2, 6, 1), array=np.array(values, np.float32).reshape(1, 2, 6, 1), constant=False
    )
    size = {"filter_width": 2, "filter_height": 1, "stride_w": 2, "stride_h": 1}
    draw.operation(kind, [x], [draw.output(F32)], padding="VALID", **size)
    check(draw, judge)


def test_mean_of_the_least_64_bit_integers(draw: Draw, judge: Judge) -> None:
    array = np.array([-(2**63), 0, 0], np.int64)
    x = draw.value(I64, (3,), array=array, constant=False)
    draw.operation("MEAN", [x, draw.integers(0)], [draw.output(I64)])
    check(draw, judge)


def test_sums_of_halves_end_with_the_greatest_half(draw: Draw, judge: Judge) -> None:
    array = np.array([60000, -60000, INF], np.float16)
    a, b = (draw.value(F16, (3,), array=array, constant=False) for _ in range(2))
    draw.operation("ADD", [a, b], [draw.output(F16)])
    check(draw, judge)


@pytest.mark.parametrize("shape", [(), (6,)])
def test_powers_beyond_32_bits(draw: Draw, judge: Judge, shape: tuple[int, ...]) -> None:
    base = np.array([-(2**31), 2**31 - 1, 3, -3, 10, 0], np.int32)
    exponent = np.full(shape, 21, np.int32)
    a = draw.value(I32, (6,), array=base, constant=False)
    b = draw.value(I32, shape, array=exponent, constant=False)
    draw.operation("POW", [a, b], [draw.output(I32)])
    check(draw, judge)


def test_quotient_that_no_integer_holds(draw: Draw, judge: Judge) -> None:
    a, b = (
        draw.value(I32, (2,), array=np.array(v, np.int32), constant=False)
        for v in ([-(2**31), 7], [-1, -2])
    )
    draw.operation("DIV", [a, b], [draw.output(I32)])
    check(draw, judge)


def test_greatest_of_values_that_are_no_numbers(draw: Draw, judge: Judge) -> None:
    x = floats(draw, NAN, 1, 3, NAN, 2)
    draw.operation("TOPK_V2", [x, draw.scalar(4)], [draw.output(F32), draw.output(I32)])
    check(draw, judge)


@pytest.mark.parametrize("kind", ["ARG_MAX", "ARG_MIN"])
def test_place_of_the_greatest_number(draw: Draw, judge: Judge, kind: str) -> None:
    array = np.array([[NAN, INF], [NAN, -INF], [NAN, 1], [1, NAN], [NAN, NAN]], np.float32)
    x = draw.value(F32, (5, 2), array=array, constant=False)
    draw.operation(kind, [x, draw.scalar(1)], [draw.output(I32)], output_type="INT32")
    check(draw, judge)


@pytest.mark.parametrize("dtype", [I8, U8, I16])
def test_padding_of_integers_whose_input_has_no_scale(
    draw: Draw, judge: Judge, dtype: DType
) -> None:
    x = draw.value(dtype, (2, 2), constant=False)
    pads = draw.constant(np.array([[1, 0], [0, 1]], np.int32))
    draw.operation("PAD", [x, pads], [draw.output(dtype, q(0.5, 3))])
    check(draw, judge)


def test_mirror_pad_ignores_scales_per_channel_of_its_output(draw: Draw, judge: Judge) -> None:
    x = draw.value(I16, (1, 3), array=np.array([[1, 2, 3]], np.int16))
    made = draw.output(I16, Quantization((0.1,) * 5, (0,) * 5, 1), (1, 5))
    draw.operation("MIRROR_PAD", [x, draw.integers([0, 0], [1, 1])], [made], mode="REFLECT")
    check(draw, judge)
