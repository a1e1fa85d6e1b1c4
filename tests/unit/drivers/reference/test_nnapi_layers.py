"""CHANNEL_SHUFFLE, INSTANCE_NORMALIZATION and GROUPED_CONV_2D against their definitions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from penstock.driverkit import fixed_point
from penstock.drivers.reference.kernel import Unsupported
from penstock.errors import ShapeMismatch
from penstock.ir import DType, NDArray, Quantization
from tests.unit.drivers.reference.alone import alone, q

F32, F16, I32, U8, I8 = DType.FLOAT32, DType.FLOAT16, DType.INT32, DType.UINT8, DType.INT8


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=4),
    st.integers(1, 4),
    st.integers(0, 3),
    st.booleans(),
)
def test_channel_shuffle_distributes_channels_to_groups(
    shape: list[int], groups: int, axis: int, negative: bool
) -> None:
    axis %= len(shape)
    shape[axis] *= groups
    x = np.arange(np.prod(shape), dtype=np.int8).reshape(shape)
    along = axis - len(shape) if negative else axis
    (got,) = alone("CHANNEL_SHUFFLE", [x], [I8], groups=groups, axis=along)
    each = shape[axis] // groups
    for channel in range(shape[axis]):
        group, place = divmod(channel, each) if each else (0, 0)
        np.testing.assert_array_equal(got.take(place * groups + group, axis), x.take(channel, axis))


def test_channel_shuffle_refuses_channels_that_do_not_divide() -> None:
    x = np.zeros((2, 5), np.float32)
    with pytest.raises(ShapeMismatch, match="5 channels are not a multiple of 2"):
        alone("CHANNEL_SHUFFLE", [x], [F32], groups=2, axis=1)
    with pytest.raises(ShapeMismatch, match="axis 2"):
        alone("CHANNEL_SHUFFLE", [x], [F32], groups=5, axis=2)
    with pytest.raises(Unsupported, match="0 groups"):
        alone("CHANNEL_SHUFFLE", [x], [F32], groups=0, axis=1)


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("dtype", [F32, F16])
def test_instance_normalization_normalises_each_channel_of_each_image(
    layout: str, dtype: DType
) -> None:
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(2, 5, 6, 3)) * [1, 10, 0.1] + [100, 0, -3]).astype(dtype.numpy)
    given = x if layout == "NHWC" else np.ascontiguousarray(np.moveaxis(x, 3, 1))
    options: dict[str, Any] = {"gamma": 2.0, "beta": 5.0, "epsilon": 1e-3}
    (got,) = alone("INSTANCE_NORMALIZATION", [given], [dtype], data_layout=layout, **options)
    last = got if layout == "NHWC" else np.moveaxis(got, 1, 3)
    for image in range(2):
        for channel in range(3):
            one = x[image, ..., channel].astype(np.float64)
            expected = (one - one.mean()) / np.sqrt(one.var() + 1e-3) * 2 + 5
            np.testing.assert_allclose(
                last[image, ..., channel], expected, rtol=1e-6 if dtype is F32 else 1e-3, atol=1e-6
            )


def test_instance_normalization_of_no_pixels_is_empty() -> None:
    options: dict[str, Any] = {"gamma": 2.0, "beta": 5.0, "epsilon": 1e-3}
    (got,) = alone("INSTANCE_NORMALIZATION", [np.zeros((2, 0, 3, 1), np.float32)], [F32], **options)
    assert got.shape == (2, 0, 3, 1)
    with pytest.raises(ShapeMismatch, match="rank 4"):
        alone("INSTANCE_NORMALIZATION", [np.zeros((2, 3), np.float32)], [F32], **options)


def sums(
    image: NDArray, filters: NDArray, groups: int, strides: tuple[int, int], pads: tuple[int, ...]
) -> NDArray:
    """Sums of products of a grouped convolution, float64; *pads* are (left, right, top, bottom)."""
    left, right, top, bottom = pads
    padded = np.pad(image.astype(np.float64), [(0, 0), (top, bottom), (left, right), (0, 0)])
    outputs, height, width, depth = filters.shape
    rows = (padded.shape[1] - height) // strides[0] + 1
    columns = (padded.shape[2] - width) // strides[1] + 1
    out = np.zeros((len(image), rows, columns, outputs))
    for channel in range(outputs):
        group = channel // (outputs // groups)
        part = padded[..., group * depth : (group + 1) * depth]
        for y in range(rows):
            for x in range(columns):
                window = part[
                    :,
                    y * strides[0] : y * strides[0] + height,
                    x * strides[1] : x * strides[1] + width,
                ]
                out[:, y, x, channel] = (window * filters[channel]).sum(axis=(1, 2, 3))
    return out


def padding_of(
    padding: str, pads: tuple[int, ...], size: tuple[int, int], strides: tuple[int, int]
) -> tuple[int, ...]:
    """(left, right, top, bottom) for filters of 3 x 2."""
    if padding == "EXPLICIT":
        return pads
    if padding == "VALID":
        return 0, 0, 0, 0
    found: list[int] = []
    for at, extent in ((1, 2), (0, 3)):
        needed = (-(-size[at] // strides[at]) - 1) * strides[at] + extent - size[at]
        found += [max(0, needed) // 2, max(0, needed) - max(0, needed) // 2]
    return tuple(found)


LAYERS = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**32),
        "groups": st.integers(1, 3),
        "each": st.tuples(st.integers(1, 2), st.integers(1, 3)),
        "size": st.tuples(st.integers(3, 7), st.integers(2, 7)),
        "strides": st.tuples(st.integers(1, 3), st.integers(1, 3)),
        "padding": st.sampled_from(["SAME", "VALID", "EXPLICIT"]),
        "pads": st.tuples(*[st.integers(0, 4)] * 4),
        "layout": st.sampled_from(["NHWC", "NCHW"]),
    }
)


def options_of(layer: dict[str, Any], activation: str) -> dict[str, Any]:
    return {
        "padding": layer["padding"],
        "explicit_padding": layer["pads"] if layer["padding"] == "EXPLICIT" else (),
        "stride_h": layer["strides"][0],
        "stride_w": layer["strides"][1],
        "groups": layer["groups"],
        "fused_activation_function": activation,
        "data_layout": layer["layout"],
    }


def convolved(
    image: Any, filters: Any, bias: Any, made: Any, layer: dict[str, Any], activation: str
) -> NDArray:
    """The kernel's result with the channels last."""
    array, quantization = image if isinstance(image, tuple) else (image, None)
    if layer["layout"] == "NCHW":
        array = np.ascontiguousarray(np.moveaxis(array, 3, 1))
    given = array if quantization is None else (array, quantization)
    options = options_of(layer, activation)
    (got,) = alone("GROUPED_CONV_2D", [given, filters, bias], [made], **options)
    return np.moveaxis(got, 1, 3) if layer["layout"] == "NCHW" else got


@given(LAYERS)
def test_grouped_conv_2d_of_floats_equals_single_convolutions(layer: dict[str, Any]) -> None:
    rng = np.random.default_rng(layer["seed"])
    depth, outputs = layer["each"]
    groups, size, strides = layer["groups"], layer["size"], layer["strides"]
    image = rng.normal(size=(2, *size, groups * depth)).astype(np.float32)
    filters = rng.normal(size=(groups * outputs, 3, 2, depth)).astype(np.float32)
    bias = rng.normal(size=groups * outputs).astype(np.float32)
    got = convolved(image, filters, bias, F32, layer, "RELU6")
    pads = padding_of(layer["padding"], layer["pads"], size, strides)
    expected = np.clip(sums(image, filters, groups, strides, pads) + bias, 0, 6)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


@given(LAYERS, st.sampled_from([U8, I8]), st.booleans())
def test_quantised_grouped_conv_2d_equals_single_convolutions(
    layer: dict[str, Any], dtype: DType, per_channel: bool
) -> None:
    rng = np.random.default_rng(layer["seed"])
    depth, outputs = layer["each"]
    groups, size, strides = layer["groups"], layer["size"], layer["strides"]
    low = 0 if dtype is U8 else -128
    image = rng.integers(low, low + 256, (2, *size, groups * depth)).astype(dtype.numpy)
    kind = I8 if per_channel else dtype
    start = -128 if kind is I8 else 0
    filters = rng.integers(start, start + 256, (groups * outputs, 3, 2, depth)).astype(kind.numpy)
    bias = rng.integers(-3000, 3000, groups * outputs).astype(np.int32)
    channels = groups * outputs
    scales = rng.uniform(0.01, 0.2, channels if per_channel else 1).astype(np.float32)
    zero = 0 if per_channel else start + 100
    weights = (
        Quantization(tuple(scales.tolist()), (0,) * channels, 0)
        if per_channel
        else q(float(scales[0]), zero)
    )
    source, target = q(0.25, low + 77), q(4.0, low + 30)
    got = convolved((image, source), (filters, weights), bias, (dtype, target), layer, "RELU")
    pads = padding_of(layer["padding"], layer["pads"], size, strides)
    exact = sums(image.astype(int) - low - 77, filters.astype(int) - zero, groups, strides, pads)
    for channel in range(channels):
        scale = np.float32(scales[channel if per_channel else 0])
        product = np.float32(0.25) * scale if dtype is U8 else 0.25 * float(scale)
        mantissa, shift = fixed_point.quantize_multiplier(float(product) / 4.0)
        total = (exact[..., channel] + bias[channel]).astype(np.int64)
        scaled = fixed_point.rescale(total, mantissa, shift) + low + 30
        np.testing.assert_array_equal(got[..., channel], np.clip(scaled, low + 30, low + 255))


def test_grouped_conv_2d_refuses_channels_that_do_not_divide() -> None:
    image, bias = np.zeros((1, 5, 5, 6), np.float32), np.zeros(4, np.float32)
    options: dict[str, Any] = {"stride_h": 1, "stride_w": 1, "groups": 2}
    filters = np.zeros((4, 3, 3, 2), np.float32)
    with pytest.raises(ShapeMismatch, match="6 channels"):
        alone("GROUPED_CONV_2D", [image, filters, bias], [F32], **options)
    filters = np.zeros((3, 3, 3, 3), np.float32)
    with pytest.raises(ShapeMismatch, match="3, 3, 3"):
        alone("GROUPED_CONV_2D", [image, filters, bias[:3]], [F32], **options)
    filters = np.zeros((4, 3, 3, 3), np.float32)
    with pytest.raises(Unsupported, match="padding"):
        alone("GROUPED_CONV_2D", [image, filters, bias], [F32], padding="EXPLICIT", **options)
    with pytest.raises(Unsupported, match="0 groups"):
        alone("GROUPED_CONV_2D", [image, filters, bias], [F32], **{**options, "groups": 0})


def test_grouped_conv_2d_of_an_empty_batch_is_empty() -> None:
    (got,) = alone(
        "GROUPED_CONV_2D",
        [
            np.zeros((0, 5, 5, 6), np.float32),
            np.zeros((4, 3, 3, 3), np.float32),
            np.zeros(4, np.float32),
        ],
        [F32],
        stride_h=1,
        stride_w=1,
        groups=2,
    )
    assert got.shape == (0, 5, 5, 4)
