"""Values of each scheme, and what an input stores for them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, strategies as st

from penstock.cli.failures import UsageError
from penstock.cli.feed.normalization import (
    PM1,
    RAW,
    SCHEMES,
    UNIT,
    Floats,
    ends,
    parse_normalization,
    store,
    usual,
)
from penstock.ir import DType, Lifetime, Operand, Quantization

PIXELS = np.array([[[0, 51, 255], [255, 128, 0]]], np.uint8)


def operand(dtype: DType, scale: float | None = None, zero_point: int = 0) -> Operand:
    quantization = None if scale is None else Quantization((scale,), (zero_point,))
    return Operand(dtype, (1, 1, 2, 3), Lifetime.SUBGRAPH_INPUT, "image", quantization)


def floats(values: Sequence[float] | Sequence[Sequence[float]]) -> Floats:
    return np.array(values, np.float32)


FLOAT = operand(DType.FLOAT32)


def test_unit_divides_by_255() -> None:
    assert np.array_equal(UNIT.apply(floats([0, 51, 255])), floats([0, 0.2, 1]))


def test_pm1_maps_0_to_minus_one_and_255_to_one() -> None:
    assert np.array_equal(PM1.apply(floats([0, 127.5, 255])), floats([-1, 0, 1]))


def test_imagenet_uses_the_published_mean_and_std_by_channel() -> None:
    found = SCHEMES["imagenet"].apply(np.full((1, 3), 255, np.float32))
    expected = [(1 - 0.485) / 0.229, (1 - 0.456) / 0.224, (1 - 0.406) / 0.225]
    np.testing.assert_allclose(found[0], expected, rtol=1e-6)


def test_m127d128() -> None:
    assert np.array_equal(SCHEMES["m127d128"].apply(floats([127, 255])), floats([0, 1]))


def test_two_numbers_are_mean_and_std() -> None:
    assert np.array_equal(parse_normalization("100,50").apply(floats([0, 200])), floats([-2, 2]))


def test_six_numbers_are_means_and_stds_of_three_channels() -> None:
    found = parse_normalization("1,2,3,10,20,30").apply(floats([[11, 22, 33]]))
    assert np.array_equal(found, floats([[1, 1, 1]]))


@pytest.mark.parametrize(
    "text", ["", "nonsense", "1", "1,0", "1,2,3", "1,nan", "1,inf", "0,0,0,1,1,0"]
)
def test_malformed_normalization_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError, match="normalize"):
        parse_normalization(text)


def test_caffe_subtracts_the_means_of_blue_green_and_red() -> None:
    stored = store(np.array([[[255, 128, 0]]], np.uint8), FLOAT, SCHEMES["caffe"], as_bytes=False)
    np.testing.assert_allclose(stored[0, 0], [-103.939, 128 - 116.779, 255 - 123.68], rtol=1e-5)


def test_ends_are_the_values_of_black_and_white() -> None:
    low, high = ends(SCHEMES["imagenet"], 3)
    np.testing.assert_allclose(low, [-0.485 / 0.229, -0.456 / 0.224, -0.406 / 0.225], rtol=1e-6)
    np.testing.assert_allclose(high, [0.515 / 0.229, 0.544 / 0.224, 0.594 / 0.225], rtol=1e-6)


def test_schemes_for_colours_are_usual_for_three_channels_alone() -> None:
    assert [s.name for s in usual(3)] == ["unit", "pm1", "f255", "imagenet", "caffe"]
    assert [s.name for s in usual(1)] == ["unit", "pm1", "f255"]


def test_bytes_are_stored_as_they_are() -> None:
    stored = store(PIXELS, operand(DType.UINT8, 1 / 255, 0), UNIT, as_bytes=True)
    assert stored.dtype == np.uint8
    assert np.array_equal(stored, PIXELS)


def test_real_values_are_quantised_with_the_inputs_scale_and_zero_point() -> None:
    image = operand(DType.UINT8, 0.02, 100)
    assert store(PIXELS, image, PM1, as_bytes=False).tolist() == [[[50, 70, 150], [150, 100, 50]]]


def test_an_explicit_scheme_is_quantised_even_for_uint8() -> None:
    image = operand(DType.UINT8, 1 / 255, 0)
    stored = store(PIXELS, image, PM1, as_bytes=False)
    assert stored.tolist() == [[[0, 0, 255], [255, 1, 0]]]


def test_raw_int8_is_shifted_to_the_types_range() -> None:
    stored = store(PIXELS, operand(DType.INT8, 0.5, 3), RAW, as_bytes=False)
    assert stored.tolist() == [[[-128, -77, 127], [127, 0, -128]]]


def test_wide_integers_hold_0_to_255() -> None:
    stored = store(PIXELS, operand(DType.INT32), RAW, as_bytes=False)
    assert stored.dtype == np.int32
    assert np.array_equal(stored, PIXELS)


def test_bgr_turns_the_channels_round() -> None:
    stored = store(PIXELS, FLOAT, SCHEMES["bgr255"], as_bytes=False)
    assert stored.tolist() == [[[255.0, 51.0, 0.0], [0.0, 128.0, 255.0]]]


def test_a_scheme_for_three_channels_refuses_grey() -> None:
    with pytest.raises(UsageError, match="3 channels"):
        store(PIXELS[..., :1], FLOAT, SCHEMES["imagenet"], as_bytes=False)


def test_float16_inputs_get_float16() -> None:
    assert store(PIXELS, operand(DType.FLOAT16), UNIT, as_bytes=False).dtype == np.float16


@given(
    name=st.sampled_from(sorted(SCHEMES)),
    dtype=st.sampled_from([DType.FLOAT32, DType.UINT8, DType.INT8, DType.INT16]),
    scale=st.floats(1e-4, 10),
    zero_point=st.integers(-100, 100),
)
def test_every_scheme_gives_the_inputs_dtype_and_shape(
    name: str, dtype: DType, scale: float, zero_point: int
) -> None:
    image = operand(dtype) if dtype.is_float else operand(dtype, scale, zero_point)
    stored = store(PIXELS, image, SCHEMES[name], as_bytes=False)
    assert stored.dtype == dtype.numpy
    assert stored.shape == PIXELS.shape


@pytest.mark.parametrize("text", ["1e30,1e-30", "0,1e-40", "127,1e-60"])
@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT16, DType.INT8])
def test_numbers_that_make_infinite_values_are_refused_without_a_warning(
    dtype: DType, text: str
) -> None:
    image = operand(dtype, 0.01 if dtype is DType.INT8 else None)
    with pytest.raises(UsageError, match="does not hold"):
        store(PIXELS, image, parse_normalization(text), as_bytes=False)


def test_values_beyond_the_range_of_float16_are_refused() -> None:
    with pytest.raises(UsageError, match="float16 does not hold"):
        store(PIXELS, operand(DType.FLOAT16), parse_normalization("0,0.001"), as_bytes=False)
