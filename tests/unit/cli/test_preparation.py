"""How pictures are prepared: what the file says, in which order, and what is left where it says
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, strategies as st

from penstock.cli.failures import UsageError
from penstock.cli.feed.normalization import PM1, RAW, SCHEMES, UNIT, parse_normalization
from penstock.cli.feed.preparation import Preparation, prepare
from penstock.ir import DType, Lifetime, ModelBuilder, Operand, Quantization, TensorMetadata
from tests.unit.cli.support_slots import Body, slot

SHAPE = (1, 8, 8, 3)
FLOAT = DType.FLOAT32
IMAGENET_MEAN = np.array([0.485, 0.456, 0.406], np.float32)
IMAGENET_STD = np.array([0.229, 0.224, 0.225], np.float32)
CAFFE_MEAN = np.array([103.939, 116.779, 123.68], np.float32)
USUAL = ["unit", "pm1", "f255", "imagenet", "caffe"]


def operand(
    dtype: DType = FLOAT, scale: float | None = None, zero_point: int = 0, channels: int = 3
) -> Operand:
    quantization = None if scale is None else Quantization((scale,), (zero_point,))
    shape = (1, 8, 8, channels)
    return Operand(dtype, shape, Lifetime.SUBGRAPH_INPUT, "image", quantization)


def prepared(
    image: Operand,
    metadata: TensorMetadata | None = None,
    body: Body | None = None,
    requested: str | None = None,
    channel_axis: int = 3,
) -> Preparation:
    here = slot(image, metadata, body)
    first = here.first_operations(channel_axis)
    assert image.shape is not None
    channels = image.shape[channel_axis] or 0
    scheme = None if requested is None else parse_normalization(requested)
    return prepare(image, channels, metadata, first, here.model, scheme)


def names(preparation: Preparation) -> list[str]:
    return [scheme.name for scheme in preparation.schemes]


def chain(*steps: tuple[str, object], name: str = "", shape: tuple[int, ...] = SHAPE) -> Body:
    """Operations with constants, one after the other, and a convolution."""

    def body(builder: ModelBuilder, x: int) -> int:
        for kind, value in steps:
            constant = builder.constant(np.asarray(value, np.float32), "c")
            (x,) = builder.operation(kind, [x, constant], [(FLOAT, shape)])
        return convolution(builder, x)

    return body


def convolution(
    builder: ModelBuilder,
    x: int,
    weights: np.ndarray | None = None,
    bias: np.ndarray | None = None,
    names_: tuple[str, str] = ("", ""),
) -> int:
    kernel = np.ones((4, 3, 3, 3), np.float32) if weights is None else weights
    offset = np.zeros(len(kernel), np.float32) if bias is None else bias
    w = builder.constant(kernel.astype(np.float32), names_[0])
    b = builder.constant(offset.astype(np.float32), "bias")
    (y,) = builder.operation(
        "CONV_2D",
        [x, w, b],
        [(FLOAT, (1, 8, 8, len(kernel)))],
        {"padding": "SAME", "stride_h": 1, "stride_w": 1},
    )
    return y


def quantized(dtype: DType, scale: float, zero_point: int) -> Body:
    def body(builder: ModelBuilder, x: int) -> int:
        to = Quantization((scale,), (zero_point,))
        (q,) = builder.operation("QUANTIZE", [x], [(dtype, SHAPE, to)])
        (y,) = builder.operation("DEQUANTIZE", [q], [(FLOAT, SHAPE)])
        return y

    return body


def said(mean: Sequence[float], std: Sequence[float]) -> TensorMetadata:
    return TensorMetadata(normalization=(tuple(mean), tuple(std)))


def test_a_float_input_of_which_nothing_is_said_may_mean_each_usual_scheme() -> None:
    found = prepared(operand(), body=chain())
    assert names(found) == USUAL
    assert not found.is_stated
    assert found.because == "the file does not say how pictures are normalized"


def test_a_grey_input_of_which_nothing_is_said_may_mean_the_schemes_for_any_channels() -> None:
    assert names(prepared(operand(channels=1))) == ["unit", "pm1", "f255"]


def test_the_metadata_says_it_in_the_options_words() -> None:
    found = prepared(operand(), said([127], [128]))
    assert (names(found), found.source) == (["127,128"], "metadata")
    image = np.array([127, 255], np.float32)
    assert np.array_equal(found.schemes[0].apply(image), [0, 1])
    assert np.array_equal(parse_normalization(names(found)[0]).apply(image), [0, 1])


@pytest.mark.parametrize(
    ("mean", "std"),
    [([], []), ([1, 2], [3, 4]), ([0], [0]), ([float("nan")], [1]), ([0], [float("inf")])],
)
def test_metadata_that_cannot_be_computed_says_nothing(mean: list[float], std: list[float]) -> None:
    assert names(prepared(operand(), said(mean, std))) == USUAL


def test_the_callers_scheme_comes_before_all_others() -> None:
    found = prepared(operand(), said([1], [2]), requested="raw")
    assert (found.schemes, found.source) == ((RAW,), "option")


@pytest.mark.parametrize(
    ("dtype", "scale", "zero_point", "expected"),
    [
        (DType.UINT8, 0.0078125, 128, "pm1"),
        (DType.UINT8, 0.007843137718737125, 127, "pm1"),
        (DType.UINT8, 0.003921568859368563, 0, "unit"),
        (DType.UINT8, 1.0, 0, "f255"),
        (DType.INT8, 1 / 255, -128, "unit"),
        (DType.INT8, 1.0, -128, "f255"),
        (DType.INT8, 1 / 127.5, -1, "pm1"),
        (DType.UINT8, 4.758 / 255, 114, "imagenet"),
        (DType.UINT8, 1 / 255, 128, "127.5,255"),
        (DType.UINT8, 1.0, 128, "128,1"),
    ],
)
def test_a_quantised_range_says_what_its_values_mean(
    dtype: DType, scale: float, zero_point: int, expected: str
) -> None:
    found = prepared(operand(dtype, scale, zero_point))
    assert (names(found), found.source) == ([expected], "quantization")
    assert found.as_bytes == (dtype is DType.UINT8)


def test_a_quantised_range_comes_before_the_metadata() -> None:
    found = prepared(operand(DType.UINT8, 1 / 255, 0), said([127.5], [127.5]))
    assert names(found) == ["unit"]


def test_an_unusual_quantised_range_takes_what_the_metadata_says() -> None:
    found = prepared(operand(DType.UINT8, 0.02, 100), said([127.5], [127.5]))
    assert (names(found), found.source, found.as_bytes) == (["127.5,127.5"], "metadata", False)


def test_an_unusual_quantised_range_leaves_the_schemes_that_it_can_hold() -> None:
    found = prepared(operand(DType.UINT8, 5.5 / 255, 120))
    assert names(found) == ["raw", "pm1", "imagenet"]
    assert set(found.excluded) == {"unit", "f255", "caffe"}


@pytest.mark.parametrize("dtype", [DType.INT8, DType.INT16])
def test_a_signed_range_around_zero_point_0_does_not_say_whether_values_below_zero_occur(
    dtype: DType,
) -> None:
    greatest = 127 if dtype is DType.INT8 else 32767
    found = prepared(operand(dtype, 1 / greatest, 0))
    assert {"unit", "pm1"} <= set(names(found))
    assert "f255" not in names(found)
    assert not found.is_stated


def test_integers_without_quantisation_take_the_bytes() -> None:
    found = prepared(operand(DType.UINT8))
    assert (found.schemes, found.source) == ((RAW,), "type")
    with pytest.raises(UsageError, match="without quantisation"):
        prepared(operand(DType.UINT8), requested="unit")


@pytest.mark.parametrize(
    ("dtype", "scale", "zero_point", "expected"),
    [
        (DType.INT8, 1 / 127.5, -1, "pm1"),
        (DType.INT8, 1 / 255, -128, "unit"),
        (DType.UINT8, 1.0, 0, "f255"),
    ],
)
def test_a_float_input_that_is_quantised_first_takes_what_that_range_means(
    dtype: DType, scale: float, zero_point: int, expected: str
) -> None:
    found = prepared(operand(), body=quantized(dtype, scale, zero_point))
    assert (names(found), found.source) == ([expected], "quantization")


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([("MUL", 1 / 255)], "f255"),
        ([("DIV", 255)], "f255"),
        ([("DIV", 127.5), ("SUB", 1)], "f255"),
        ([("SUB", 127.5), ("MUL", 1 / 127.5)], "f255"),
        ([("SUB", 127), ("DIV", 128)], "f255"),
        ([("ADD", -128)], "f255"),
        ([("MUL", 2), ("SUB", 1)], "unit"),
        ([("SUB", 0.5)], "unit"),
        ([("MUL", 255)], "unit"),
        ([("SUB", IMAGENET_MEAN), ("DIV", IMAGENET_STD)], "unit"),
        ([("MUL", 1 / 255), ("SUB", IMAGENET_MEAN), ("DIV", IMAGENET_STD)], "f255"),
        ([("SUB", [125.3, 123.0, 113.9]), ("DIV", [63.0, 62.1, 66.7])], "f255"),
        ([("SUB", [123.68, 116.779, 103.939])], "f255"),
        ([("SUB", CAFFE_MEAN)], "bgr255"),
        ([("ADD", 1), ("MUL", 0.5)], "pm1"),
        ([("MUL", 127.5), ("ADD", 127.5)], "pm1"),
    ],
)
def test_arithmetic_that_the_graph_begins_with_says_what_it_takes(
    steps: list[tuple[str, object]], expected: str
) -> None:
    found = prepared(operand(), body=chain(*steps))
    assert (names(found), found.source) == ([expected], "arithmetic")


@pytest.mark.parametrize(
    "steps",
    [
        [("MUL", 1.0), ("ADD", 0.001)],
        [("MUL", 3)],
        [("DIV", 128)],
        [("MUL", -1)],
        [("MUL", 0)],
        [("SUB", 0.1307), ("DIV", 0.3081)],
        [("MUL", np.ones((8, 3)) / 255)],
    ],
)
def test_arithmetic_that_fits_no_scheme_or_several_says_nothing(
    steps: list[tuple[str, object]],
) -> None:
    assert names(prepared(operand(), body=chain(*steps))) == USUAL


def test_arithmetic_and_quantisation_are_read_together() -> None:
    def body(builder: ModelBuilder, x: int) -> int:
        two, one = (builder.constant(np.array(v, np.float32), "c") for v in (2, 1))
        (doubled,) = builder.operation("MUL", [x, two], [(FLOAT, SHAPE)])
        (moved,) = builder.operation("SUB", [doubled, one], [(FLOAT, SHAPE)])
        return quantized(DType.INT8, 1 / 127.5, -1)(builder, moved)

    assert names(prepared(operand(), body=body)) == ["unit"]


def test_a_file_that_contradicts_itself_leaves_what_each_part_says() -> None:
    found = prepared(operand(), said([127.5], [127.5]), chain(("MUL", 2), ("SUB", 1)))
    assert names(found) == ["127.5,127.5", "unit"]
    assert not found.is_stated
    assert "contradicts itself" in found.because
    assert "metadata" in found.because


def test_parts_of_a_file_that_mean_the_same_are_one_statement() -> None:
    found = prepared(operand(), said([127], [128]), quantized(DType.INT8, 1 / 127.5, -1))
    assert (names(found), found.source) == (["127,128"], "metadata")


def test_channels_may_come_first() -> None:
    image = Operand(FLOAT, (1, 3, 8, 8), Lifetime.SUBGRAPH_INPUT, "image")

    def body(builder: ModelBuilder, x: int) -> int:
        mean, std = (
            builder.constant(v.reshape(1, 3, 1, 1), "c") for v in (IMAGENET_MEAN, IMAGENET_STD)
        )
        (less,) = builder.operation("SUB", [x, mean], [(FLOAT, (1, 3, 8, 8))])
        (ratio,) = builder.operation("DIV", [less, std], [(FLOAT, (1, 3, 8, 8))])
        order = builder.constant(np.array([0, 2, 3, 1], np.int32), "order")
        (last,) = builder.operation("TRANSPOSE", [ratio, order], [(FLOAT, SHAPE)])
        return convolution(builder, last)

    assert names(prepared(image, body=body, channel_axis=1)) == ["unit"]


def test_values_that_several_operations_read_are_followed_no_further() -> None:
    def body(builder: ModelBuilder, x: int) -> int:
        number = builder.constant(np.array(1 / 255, np.float32), "c")
        (one,) = builder.operation("MUL", [x, number], [(FLOAT, SHAPE)])
        (other,) = builder.operation("ADD", [x, number], [(FLOAT, SHAPE)])
        (both,) = builder.operation("ADD", [one, other], [(FLOAT, SHAPE)])
        return both

    assert names(prepared(operand(), body=body)) == USUAL


@pytest.mark.parametrize("scope", ["MobilenetV1/Conv2d_0", "InceptionV3/Conv2d_1a_3x3"])
def test_names_of_tf_slim_leave_its_own_preparation_but_state_nothing(scope: str) -> None:
    def body(builder: ModelBuilder, x: int) -> int:
        return convolution(builder, x, names_=(f"{scope}/weights", ""))

    found = prepared(operand(), body=body)
    assert (names(found), found.source) == (["pm1"], "indications")
    assert not found.is_stated


def test_names_of_tf_slim_object_to_a_first_quantisation_of_another_range() -> None:
    def body(builder: ModelBuilder, x: int) -> int:
        to = Quantization((1.0,), (-128,))
        (q,) = builder.operation("QUANTIZE", [x], [(DType.INT8, SHAPE, to)])
        (y,) = builder.operation("DEQUANTIZE", [q], [(FLOAT, SHAPE)])
        return convolution(builder, y, names_=("MobilenetV1/Conv2d_0/weights", ""))

    found = prepared(operand(), body=body)
    assert names(found) == ["f255", "pm1"]
    assert not found.is_stated


def batch_norm(scale: float, offset: float) -> Callable[[str], Body]:
    """A convolution into which a batch normalization was folded: weights of this size, and a
    bias.
    """
    rng = np.random.default_rng(0)
    weights = rng.normal(0, 0.2, (8, 3, 3, 3)) * scale
    bias = rng.normal(0, 0.5, 8) + offset

    def make(name: str) -> Body:
        return lambda builder, x: convolution(builder, x, weights, bias, (name, ""))

    return make


@pytest.mark.parametrize(
    ("scale", "left"), [(1.0, ["unit", "pm1", "imagenet"]), (1 / 255, ["f255", "caffe"])]
)
def test_a_folded_batch_normalization_excludes_schemes_of_another_magnitude(
    scale: float, left: list[str]
) -> None:
    named = "model/batch_normalization/FusedBatchNormV3;model/conv2d/Conv2D"
    found = prepared(operand(), body=batch_norm(scale, 0.3)(named))
    assert names(found) == left
    assert not found.is_stated


@pytest.mark.parametrize("scale", [1.0, 1 / 255])
def test_a_convolution_without_batch_normalization_excludes_nothing(scale: float) -> None:
    assert names(prepared(operand(), body=batch_norm(scale, 0.3)("model/conv2d"))) == USUAL


@given(
    scheme=st.sampled_from([UNIT, PM1, SCHEMES["f255"]]),
    low=st.floats(-300, 300),
    width=st.floats(0.1, 600),
)
def test_a_range_is_a_schemes_own_or_says_nothing(scheme: object, low: float, width: float) -> None:
    """Whatever range a quantised input has: a statement means that the scheme fills it, within 2 %
    of its width.
    """
    scale = width / 255
    zero_point = min(max(round(-low / scale), 0), 255)
    image = operand(DType.UINT8, scale, zero_point)
    found = prepared(image)
    low, high = -scale * zero_point, scale * (255 - zero_point)
    for chosen in found.schemes if found.is_stated else ():
        first, last = (chosen.apply(np.full(3, v, np.float32)) for v in (0, 255))
        assert abs(first.min() - low) <= 0.021 * (last.max() - first.min())
        assert abs(last.max() - high) <= 0.021 * (last.max() - first.min())
