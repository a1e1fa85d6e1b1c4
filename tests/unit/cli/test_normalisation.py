"""Values of each scheme, and which scheme an input gets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, strategies as st

from penstock.cli.failures import UsageError
from penstock.cli.feed.normalisation import (
    PM1,
    RAW,
    SCHEMES,
    UNIT,
    Floats,
    choose,
    parse_normalisation,
    store,
)
from penstock.ir import DType, Lifetime, Operand, Quantization, TensorMetadata

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
    assert np.array_equal(parse_normalisation("100,50").apply(floats([0, 200])), floats([-2, 2]))


def test_six_numbers_are_means_and_stds_of_three_channels() -> None:
    found = parse_normalisation("1,2,3,10,20,30").apply(floats([[11, 22, 33]]))
    assert np.array_equal(found, floats([[1, 1, 1]]))


@pytest.mark.parametrize(
    "text", ["", "nonsense", "1", "1,0", "1,2,3", "1,nan", "1,inf", "0,0,0,1,1,0"]
)
def test_what_is_no_normalisation_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError, match="normalise"):
        parse_normalisation(text)


def test_float_input_without_metadata_gets_pm1_and_says_so() -> None:
    scheme, note = choose(FLOAT, None, None)
    assert scheme is PM1
    assert "pm1" in note
    assert "assumed" in note


def test_float_input_takes_the_metadata_without_a_note() -> None:
    scheme, note = choose(FLOAT, TensorMetadata(normalization=((127.0,), (128.0,))), None)
    assert not note
    assert np.array_equal(scheme.apply(floats([127, 255])), floats([0, 1]))


def test_a_requested_scheme_beats_the_metadata() -> None:
    scheme, note = choose(FLOAT, TensorMetadata(normalization=((1.0,), (2.0,))), RAW)
    assert (scheme, note) == (RAW, "")


@pytest.mark.parametrize(
    ("scale", "zero_point", "expected"),
    [
        (0.0078125, 128, "pm1"),
        (0.007843137718737125, 127, "pm1"),
        (0.003921568859368563, 0, "unit"),
        (1.0, 0, "f255"),
    ],
)
def test_uint8_ranges_with_a_usual_meaning_keep_the_bytes(
    scale: float, zero_point: int, expected: str
) -> None:
    image = operand(DType.UINT8, scale, zero_point)
    scheme, note = choose(image, None, None)
    assert (scheme.name, note) == (expected, "")
    stored = store(PIXELS, image, scheme, explicit=False)
    assert stored.dtype == np.uint8
    assert np.array_equal(stored, PIXELS)


@pytest.mark.parametrize(
    ("scale", "zero_point", "expected"),
    [(1 / 255, -128, "unit"), (1.0, -128, "f255"), (1 / 127.5, -1, "pm1")],
)
def test_int8_ranges_with_a_usual_meaning_are_quantised(
    scale: float, zero_point: int, expected: str
) -> None:
    image = operand(DType.INT8, scale, zero_point)
    scheme, note = choose(image, None, None)
    assert (scheme.name, note) == (expected, "")
    stored = store(PIXELS, image, scheme, explicit=False)
    assert stored.dtype == np.int8
    assert np.abs(stored.astype(int) - (PIXELS.astype(int) - 128)).max() <= 1


def test_an_unusual_quantised_range_is_raw_with_a_note() -> None:
    image = operand(DType.UINT8, 0.03, 7)
    scheme, note = choose(image, None, None)
    assert scheme is RAW
    assert "range" in note
    assert np.array_equal(store(PIXELS, image, scheme, explicit=False), PIXELS)


def test_an_unusual_quantised_range_with_metadata_is_normalised_and_quantised() -> None:
    image = operand(DType.UINT8, 0.02, 100)
    scheme, note = choose(image, TensorMetadata(normalization=((127.5,), (127.5,))), None)
    assert not note
    assert store(PIXELS, image, scheme, explicit=False).tolist() == [
        [[50, 70, 150], [150, 100, 50]]
    ]


def test_an_explicit_scheme_is_quantised_even_for_uint8() -> None:
    image = operand(DType.UINT8, 1 / 255, 0)
    stored = store(PIXELS, image, PM1, explicit=True)
    assert stored.tolist() == [[[0, 0, 255], [255, 1, 0]]]


def test_raw_int8_is_shifted_to_the_types_range() -> None:
    stored = store(PIXELS, operand(DType.INT8, 0.5, 3), RAW, explicit=True)
    assert stored.tolist() == [[[-128, -77, 127], [127, 0, -128]]]


def test_8_bit_integers_without_quantisation_take_raw_only() -> None:
    image = operand(DType.UINT8)
    assert choose(image, None, None) == (RAW, "")
    with pytest.raises(UsageError, match="without quantisation"):
        choose(image, None, UNIT)


def test_wide_integers_hold_0_to_255() -> None:
    image = operand(DType.INT32)
    stored = store(PIXELS, image, choose(image, None, None)[0], explicit=False)
    assert stored.dtype == np.int32
    assert np.array_equal(stored, PIXELS)


def test_bgr_turns_the_channels_round() -> None:
    stored = store(PIXELS, FLOAT, SCHEMES["bgr255"], explicit=True)
    assert stored.tolist() == [[[255.0, 51.0, 0.0], [0.0, 128.0, 255.0]]]


def test_a_scheme_for_three_channels_refuses_grey() -> None:
    with pytest.raises(UsageError, match="3 channels"):
        store(PIXELS[..., :1], FLOAT, SCHEMES["imagenet"], explicit=True)


def test_float16_inputs_get_float16() -> None:
    assert store(PIXELS, operand(DType.FLOAT16), UNIT, explicit=True).dtype == np.float16


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
    stored = store(PIXELS, image, SCHEMES[name], explicit=True)
    assert stored.dtype == dtype.numpy
    assert stored.shape == PIXELS.shape
