"""Where NNAPI's operations are not the IR's: what is written differently computes what NNAPI
says.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from penstock.errors import InvalidAttribute, InvalidQuantization, ModelError, ShapeMismatch
from penstock.ir import NDArray
from penstock.nnapi.description import NnapiOperand
from tests.unit.nnapi.lowering.one import b, channels, constant, f, i, lowered, run, t, unknown_rank
from tests.unit.nnapi.lowering.samples import PADS, SAMPLES

IMAGE = np.arange(32, dtype=np.float32).reshape(1, 4, 4, 2)


def computed(kind: str, inputs: list[NnapiOperand], output: NnapiOperand, *fed: NDArray) -> NDArray:
    return run(lowered(kind, inputs, [output]), fed)[0]


def types(kind: str, inputs: list[NnapiOperand], *outputs: NnapiOperand) -> list[str]:
    """The IR operations of one NNAPI operation."""
    return [o.type for o in lowered(kind, inputs, list(outputs)).operations]


def changed(name: str, place: int, operand: NnapiOperand) -> list[NnapiOperand]:
    inputs = list(SAMPLES[name][0])
    inputs[place] = operand
    return inputs


def test_integers_are_divided_rounding_down_and_never_fail() -> None:
    pair = [t("i32", 4), t("i32", 4), i(0)]
    a = np.array([-5, 5, 7, 7], np.int32)
    found = computed("DIV", pair, t("i32", 4), a, np.array([2, -2, 2, 0], np.int32))
    assert found[:3].tolist() == [-3, -3, 3]
    assert types("DIV", [t("i32", 4), constant("i32", [1, 2, 3, 4]), i(0)], t("i32", 4)) == [
        "FLOOR_DIV"
    ]


def test_integers_take_no_activation() -> None:
    for kind in ("ADD", "SUB", "MUL", "DIV"):
        with pytest.raises(ModelError, match="INT32 tensors take no fused activation"):
            lowered(kind, [t("i32", 4), t("i32", 4), i(1)], [t("i32", 4)])


def test_a_product_has_a_larger_scale_than_its_factors() -> None:
    factors = [t("q8", 2, scale=0.5), t("q8", 2, scale=0.5), i(0)]
    with pytest.raises(ModelError, match=r"scale 0\.25 must be above 0\.25"):
        lowered("MUL", factors, [t("q8", 2, scale=0.25)])


def test_casts_to_unsigned_values_saturate() -> None:
    x = np.array([-3.7, 2.9, 254.9, 300.0], np.float32)
    assert computed("CAST", [t("f32", 4)], t("q8", 4), x).tolist() == [0, 2, 254, 255]
    wide = np.array([-1, 7, 255, 256], np.int32)
    assert computed("CAST", [t("i32", 4)], t("q8", 4), wide).tolist() == [0, 7, 255, 255]


def test_casts_to_the_same_type_are_nothing() -> None:
    stored = np.array([1, -2], np.int8)
    assert computed("CAST", [t("q8s", 2)], t("q8s", 2), stored).tolist() == [1, -2]
    with pytest.raises(ModelError, match="no conversion from TENSOR_BOOL8 to TENSOR_INT32"):
        lowered("CAST", [t("b8", 2)], [t("i32", 2)])


def test_elu_has_any_alpha() -> None:
    x = np.array([-1.0, 0.0, 2.0], np.float32)
    found = computed("ELU", [t("f32", 3), f(0.5)], t("f32", 3), x)
    np.testing.assert_allclose(found, [0.5 * np.expm1(-1.0), 0.0, 2.0], rtol=1e-6)
    assert types("ELU", [t("f32", 3), f(1.0)], t("f32", 3)) == ["ELU"]


def test_equals_are_ordered_by_the_larger_index() -> None:
    x = np.array([[3, 1, 3, 2], [0, 0, 0, 0]], np.int32)
    model = lowered("TOPK_V2", [t("i32", 2, 4), i(3)], [t("i32", 2, 3), t("i32", 2, 3)])
    values, indices = run(model, [x])
    assert values.tolist() == [[3, 3, 2], [0, 0, 0]]
    assert indices.tolist() == [[2, 0, 3], [3, 2, 1]]
    with pytest.raises(ModelError, match=r"k is not in \[1, 4\]"):
        lowered("TOPK_V2", [t("i32", 2, 4), i(5)], [t("i32", 2, 5), t("i32", 2, 5)])


@pytest.mark.parametrize(
    ("kind", "inputs"),
    [
        ("MEAN", [t("f32", 2, 3), constant("i32", [0, 1]), i(0)]),
        ("REDUCE_MAX", [t("f32", 2, 3), constant("i32", [-1, 0]), b(False)]),
        ("SQUEEZE", [t("f32", 1, 1), constant("i32", [0, 1])]),
        ("ARGMAX", [t("f32", 3), i(0)]),
    ],
)
def test_results_keep_one_dimension(kind: str, inputs: list[NnapiOperand]) -> None:
    output = t("i32", 1) if kind == "ARGMAX" else t("f32", 1)
    model = lowered(kind, inputs, [output])
    assert model.outputs[0].shape == (1,)


def test_axes_that_a_run_brings_take_the_declared_shape() -> None:
    axes = t("i32", 2)
    model = lowered("MEAN", [t("f32", 2, 3), axes, i(0)], [t("f32", 1)])
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert run(model, [x, np.array([0, 1], np.int32)])[0].tolist() == [2.5]


@pytest.mark.parametrize("kind", ["AVERAGE_POOL_2D", "L2_POOL_2D", "MAX_POOL_2D"])
@pytest.mark.parametrize("known", [True, False])
def test_explicit_padding_takes_no_part_in_pooling(kind: str, known: bool) -> None:
    """Left and top, a 2x2 window, a stride of 1."""
    data = t("f32", 1, 4, 4, 2) if known else t("f32", 1, None, None, 2)
    output = t("f32", 1, 4, 4, 2)
    x = -1 - IMAGE
    found = computed(kind, [data, *PADS, i(1), i(1), i(2), i(2), i(0)], output, x)
    for row in range(4):
        for column in range(4):
            window = x[0, max(row - 1, 0) : row + 1, max(column - 1, 0) : column + 1]
            flat = window.reshape(-1, 2).astype(np.float64)
            wanted = {
                "AVERAGE_POOL_2D": flat.mean(0),
                "L2_POOL_2D": np.sqrt((flat**2).mean(0)),
                "MAX_POOL_2D": flat.max(0),
            }[kind]
            np.testing.assert_allclose(found[0, row, column], wanted, rtol=1e-5)


def test_explicit_padding_that_equals_a_scheme_becomes_the_scheme() -> None:
    def padding(sides: list[NnapiOperand], stride: int) -> list[object]:
        inputs = [t("f32", 1, 4, 4, 2), *sides, i(stride), i(stride), i(2), i(2), i(0)]
        output = t("f32", 1, None, None, 2)
        operations = lowered("MAX_POOL_2D", inputs, [output]).operations
        return [o.attributes.get("padding", o.type) for o in operations]

    assert padding([i(0), i(1), i(0), i(1)], 1) == ["SAME"]
    assert padding([i(0), i(0), i(0), i(0)], 2) == ["VALID"]
    assert padding(PADS, 1) == ["PADV2", "VALID"]


def test_a_window_within_the_padding_is_refused() -> None:
    inputs = [t("f32", 1, 4, 4, 2), i(2), i(0), i(0), i(0), i(1), i(1), i(2), i(2), i(0)]
    with pytest.raises(ModelError, match="lies in the padding"):
        lowered("MAX_POOL_2D", inputs, [t("f32", 1, 3, 5, 2)])


def test_unsigned_activations_meet_scales_of_channels() -> None:
    x = np.array([[[[130, 128]]]], np.uint8)
    inputs = [
        t("q8", 1, 1, 1, 2, zero=128),
        channels(4, 1, 1, 2),
        t("i32", 4),
        i(2),
        i(1),
        i(1),
        i(0),
    ]
    output = t("q8", 1, 1, 1, 4, zero=128)
    assert types("CONV_2D", inputs, output) == ["QUANTIZE", "CONV_2D", "QUANTIZE"]
    weights = np.arange(8, dtype=np.int8).reshape(4, 1, 1, 2) * 10
    found = computed("CONV_2D", inputs, output, x, weights, np.zeros(4, np.int32))
    # (130 - 128) * 0.5 * weight * 0.25 / 0.5 + 128
    assert found.reshape(-1).tolist() == [128, 138, 148, 158]


@pytest.mark.parametrize(
    ("bias", "match"),
    [
        (t("i32", 4, scale=0.2), "has scale 0.2, input times filter have 0.25"),
        (t("f32", 4), "a bias TENSOR_FLOAT32 beside an input TENSOR_QUANT8_ASYMM"),
    ],
)
def test_a_bias_fits_input_and_filter(bias: NnapiOperand, match: str) -> None:
    with pytest.raises(ModelError, match=match):
        lowered("CONV_2D", changed("CONV_2D", 2, bias), SAMPLES["CONV_2D"][1])


def test_scales_of_channels_run_along_the_output_channels() -> None:
    filters = channels(4, 3, 3, 2, axis=3)
    inputs = changed("CONV_2D", 1, filters)
    inputs[2] = t("i32", 4)
    with pytest.raises(InvalidQuantization, match="scales along dimension 3 of the filter"):
        lowered("CONV_2D", inputs, SAMPLES["CONV_2D"][1])
    inputs[1], inputs[2] = channels(4, 3, 3, 2), t("i32", 4, scale=0.1)
    with pytest.raises(InvalidQuantization, match=r"has scale 0, not 0\.1"):
        lowered("CONV_2D", inputs, SAMPLES["CONV_2D"][1])


def test_old_levels_bound_the_scale_of_an_output() -> None:
    inputs = [t("q8", 1, 4), t("q8", 2, 4), t("i32", 2, scale=0.25), i(0)]
    output = t("q8", 1, 2, scale=0.25)
    lowered("FULLY_CONNECTED", inputs, [output])
    with pytest.raises(ModelError, match="below feature level 3 the output's scale"):
        lowered("FULLY_CONNECTED", inputs, [output], level=2)


@pytest.mark.parametrize("code", [-1, 4, 7])
def test_unknown_fuse_codes_and_schemes_are_refused(code: int) -> None:
    with pytest.raises(InvalidAttribute, match=r"fuse code -?\d of ADD is none of 0 \(NONE\), 1 "):
        lowered("ADD", changed("ADD", 2, i(code)), SAMPLES["ADD"][1])
    with pytest.raises(InvalidAttribute, match="padding scheme"):
        lowered("CONV_2D", changed("CONV_2D", 3, i(code)), SAMPLES["CONV_2D"][1])


def test_layouts_are_moved_to_channels_last_and_back() -> None:
    x = np.arange(8, dtype=np.float32).reshape(1, 2, 2, 2)
    inputs = [t("f32", 1, 2, 2, 2), i(2), b(True)]
    output = t("f32", 1, 8, 1, 1)
    assert types("SPACE_TO_DEPTH", inputs, output) == ["TRANSPOSE", "SPACE_TO_DEPTH", "TRANSPOSE"]
    found = computed("SPACE_TO_DEPTH", inputs, output, x)
    assert found.reshape(-1).tolist() == [0, 4, 1, 5, 2, 6, 3, 7]


def test_parts_take_on_the_scale_of_the_whole() -> None:
    parts = [t("q8", 2, scale=0.5), t("q8", 2, scale=1.0, zero=10), i(0)]
    whole = t("q8", 4, scale=0.5)
    found = computed(
        "CONCATENATION", parts, whole, np.array([1, 2], np.uint8), np.array([11, 12], np.uint8)
    )
    assert found.tolist() == [1, 2, 2, 4]
    with pytest.raises(InvalidQuantization, match="one scale and zero point"):
        lowered("CONCATENATION", [parts[1], parts[1], i(0)], [whole], level=2)


def test_every_part_has_the_scale_of_the_whole() -> None:
    one, other = t("q8", 2), t("q8", 2, scale=1.0)
    with pytest.raises(InvalidQuantization, match=r"parts 0\.5 and 0, parts 1 and 0, y 0\.5 and 0"):
        lowered("PACK", [i(0), one, other], [t("q8", 2, 2)])
    with pytest.raises(InvalidQuantization, match=r"x 0\.5 and 0, parts 0\.5 and 0, parts 1 and 0"):
        lowered("SPLIT", [t("q8", 4), i(0), i(2)], [one, other])


def test_maximum_and_minimum_compare_real_values() -> None:
    pair = [t("q8", 2, scale=0.5), t("q8", 2, scale=1.0)]
    a, c = np.array([3, 200], np.uint8), np.array([1, 100], np.uint8)
    assert computed("MAXIMUM", pair, t("q8", 2, scale=1.0), a, c).tolist() == [2, 100]
    assert computed("MINIMUM", pair, t("q8", 2, scale=0.5), a, c).tolist() == [2, 200]


def test_booleans_are_ordered() -> None:
    pair = [t("b8", 2), t("b8", 2)]
    a, c = np.array([True, True]), np.array([False, True])
    assert computed("GREATER", pair, t("b8", 2), a, c).tolist() == [True, False]
    assert types("EQUAL", pair, t("b8", 2)) == ["EQUAL"]
    assert types("NOT_EQUAL", pair, t("b8", 2)) == ["NOT_EQUAL"]


def test_the_deprecated_sparse_projection_has_no_offsets() -> None:
    table = constant("f32", np.array([[0.5, -1.0], [2.0, 3.0]], np.float32))
    x = np.array([1, 2, 3], np.int32)
    shared = [table, t("i32", 3), replace(t("f32", 3), name="weight")]
    weights = np.ones(3, np.float32)
    new = computed("LSH_PROJECTION", [*shared, i(3)], t("i32", 2), x, weights)
    old = computed("LSH_PROJECTION", [*shared, i(1)], t("i32", 2), x, weights)
    assert (new - old).tolist() == [0, 4]
    with pytest.raises(InvalidAttribute, match="type 4"):
        lowered("LSH_PROJECTION", [*shared, i(4)], [t("i32", 2)])


def test_logits_are_scaled_before_the_logarithm() -> None:
    x = np.array([[1.0, 2.0, 4.0]], np.float32)
    found = computed("LOG_SOFTMAX", [t("f32", 1, 3), f(2.0), i(1)], t("f32", 1, 3), x)
    wanted = 2 * x - np.log(np.exp(2 * x.astype(np.float64)).sum())
    np.testing.assert_allclose(found, wanted, atol=1e-6)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_softmax_runs_along_any_axis(axis: int) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    found = computed("SOFTMAX", [t("f32", 2, 3), f(1.0), i(axis)], t("f32", 2, 3), x)
    wanted = np.exp(x) / np.exp(x).sum(axis, keepdims=True)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_sizes_by_scale_are_rounded_down() -> None:
    inputs = [t("f32", 1, 3, 5, 1), f(1.5), f(0.7), b(False)]
    model = lowered("RESIZE_NEAREST_NEIGHBOR", inputs, [t("f32", 1, None, None, 1)])
    assert model.outputs[0].shape == (1, 2, 7, 1)


def test_sizes_by_scale_wait_for_the_image() -> None:
    inputs = [t("f32", 1, None, None, 1), f(1.5), f(0.7), b(False)]
    model = lowered("RESIZE_NEAREST_NEIGHBOR", inputs, [t("f32", 1, None, None, 1)])
    x = np.arange(15, dtype=np.float32).reshape(1, 3, 5, 1)
    assert run(model, [x])[0].shape == (1, 2, 7, 1)


def test_negative_indices_count_from_an_end_known_in_the_run() -> None:
    x = np.array([[3, 1, 3, 2]], np.int32)
    unknown = t("i32", None, None)
    model = lowered("TOPK_V2", [unknown, i(2)], [unknown, unknown])
    assert [a.tolist() for a in run(model, [x])] == [[[3, 3]], [[2, 0]]]


def test_dropped_dimensions_have_one_element() -> None:
    def slices(begin: list[int], end: list[int], strides: list[int]) -> list[NnapiOperand]:
        vectors = [constant("i32", v) for v in (begin, end, strides)]
        return [t("f32", 2, 3), *vectors, i(0), i(0), i(2)]

    with pytest.raises(ShapeMismatch, match="dimension 1, which STRIDED_SLICE drops, keeps 2"):
        lowered("STRIDED_SLICE", slices([0, 1], [2, 3], [1, 1]), [t("f32", 2)])
    with pytest.raises(InvalidAttribute, match="negative stride"):
        lowered("STRIDED_SLICE", slices([0, 1], [2, 0], [1, -1]), [t("f32", 2)])
    with pytest.raises(InvalidAttribute, match="is 0"):
        lowered("STRIDED_SLICE", slices([0, 1], [2, 2], [1, 0]), [t("f32", 2)])
    with pytest.raises(ShapeMismatch, match="begin of STRIDED_SLICE has 1 numbers"):
        lowered("STRIDED_SLICE", slices([0], [2, 2], [1, 1]), [t("f32", 2)])


@pytest.mark.parametrize(
    ("name", "place", "operand", "match"),
    [
        ("SOFTMAX", 1, f(0.0), "beta of SOFTMAX must be above 0"),
        ("SOFTMAX", 2, i(2), "axis 2 of SOFTMAX"),
        ("PAD", 1, constant("i32", [[0, -1], [1, 0]]), "paddings of PAD are negative"),
        ("PAD", 1, constant("i32", [[0, 1]]), r"paddings of shape \(1, 2\)"),
        ("PAD_V2", 2, i(256), r"value 256 of PAD_V2 is not in \[0, 255\]"),
        ("MIRROR_PAD", 2, i(2), "mode 2 of MIRROR_PAD"),
        ("RESHAPE", 1, constant("i32", [-1, -1]), "more than one -1"),
        ("SPLIT", 2, i(3), "3 parts for 2 outputs"),
        ("REVERSE", 1, constant("i32", [0, 1]), "2 axes, where one is reversed"),
        ("REVERSE", 1, constant("i32", [-1]), "axis -1 of REVERSE"),
        ("PACK", 0, i(-1), "axis -1 of PACK"),
        ("CONCATENATION", 2, i(-1), "axis -1 of CONCATENATION"),
        ("SPACE_TO_BATCH_ND", 1, constant("i32", [2, 0]), "is not two sizes"),
        ("SPACE_TO_DEPTH", 1, i(0), "block of SPACE_TO_DEPTH must be above 0"),
        ("DEPTHWISE_CONV_2D", 9, i(3), "2 channels times 3 are not the filter's 4"),
        ("DEPTHWISE_CONV_2D", 1, t("f32", 2, 3, 3, 4), "does not begin with 1"),
        ("CONV_2D", 6, i(9), "fuse code 9"),
        ("TRANSPOSE_CONV_2D", 7, i(0), "stride_w of TRANSPOSE_CONV_2D must be above 0"),
        ("AVERAGE_POOL_2D", 1, i(-1), "must be at least 0, not -1"),
        ("RESIZE_BILINEAR", 1, i(0), "width of RESIZE_BILINEAR must be above 0"),
        ("RESIZE_BILINEAR", 4, b(True), "exclude each other"),
        ("RESIZE_NEAREST_NEIGHBOR", 1, f(-1.0), "is not above 0"),
        ("RESIZE_NEAREST_NEIGHBOR", 1, f(0.1), "leave no pixel"),
        (
            "LOCAL_RESPONSE_NORMALIZATION",
            1,
            i(-1),
            "radius of LOCAL_RESPONSE_NORMALIZATION must be at least 0",
        ),
        ("SELECT", 0, t("b8", 2), "condition and values have one shape"),
        ("TANH", 0, t("q8", 1, 1, 1, 1, 1), "has rank 5, where 1 to 4 is needed"),
        ("TRANSPOSE", 1, constant("i32", [1, 0, 2]), "order of TRANSPOSE has 3 numbers"),
    ],
)
def test_arguments_out_of_range_are_refused(
    name: str, place: int, operand: NnapiOperand, match: str
) -> None:
    with pytest.raises(ModelError, match=match):
        lowered(name, changed(name, place, operand), SAMPLES[name][1])


@pytest.mark.parametrize(
    ("name", "output"),
    [
        ("TANH", t("q8", 2, 3, scale=1 / 64, zero=128)),
        ("LOGISTIC", t("q8s", 2, 3, scale=1 / 256, zero=0)),
        ("L2_NORMALIZATION", t("q8", 2, 3, scale=1 / 128, zero=0)),
    ],
)
def test_fixed_quantisations_are_held_to(name: str, output: NnapiOperand) -> None:
    with pytest.raises(InvalidQuantization, match=f"of {name} has scale"):
        lowered(name, SAMPLES[name][0], [output])


def test_operations_on_unknown_ranks_are_lowered_where_they_can_be() -> None:
    x = unknown_rank(t("f32"))
    assert types("ADD", [x, x, i(0)], x) == ["ADD"]
    assert types("SOFTMAX", [x, f(1.0), i(-1)], x) == ["SOFTMAX"]
    with pytest.raises(ModelError, match="rank of an input of SOFTMAX is known only when"):
        lowered("SOFTMAX", [x, f(1.0), i(0)], [x])
