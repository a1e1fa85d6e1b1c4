"""Convolutions become kernels that give what the reference device gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pytest

from penstock.compiler.legalise import judge
from penstock.driverkit.site import Refused, make_sites
from penstock.ir import DType, NDArray, Quantization
from tests.unit.compiler.legalise.legal_models import Given, check, layer, scales_of, values

F32, F16, U8, I8, I16, I32, I64, I4 = (
    DType.FLOAT32,
    DType.FLOAT16,
    DType.UINT8,
    DType.INT8,
    DType.INT16,
    DType.INT32,
    DType.INT64,
    DType.INT4,
)
WINDOWS: Final = [
    ("SAME", (1, 1), (1, 1)),
    ("SAME", (2, 3), (1, 1)),
    ("VALID", (1, 2), (1, 1)),
    ("SAME", (1, 1), (2, 3)),
    ("VALID", (1, 1), (2, 1)),
]


def steps(padding: str, strides: Sequence[int], dilations: Sequence[int]) -> dict[str, Any]:
    sides = dict(zip(("h", "w"), zip(strides, dilations, strict=True), strict=True))
    return {
        "padding": padding,
        **{f"stride_{side}": stride for side, (stride, _) in sides.items()},
        **{f"dilation_{side}_factor": dilation for side, (_, dilation) in sides.items()},
    }


def extremes(rng: np.random.Generator, dtype: DType, shape: Sequence[int]) -> NDArray:
    """Values over the whole range of a type, both ends among them."""
    made = values(rng, dtype, shape)
    if dtype.is_integer:
        info = np.iinfo(made.dtype)
        made.reshape(-1)[:2] = info.min, info.max
    return made


def quantised(
    rng: np.random.Generator, kind: str, data: DType, weights: DType, filters: Sequence[int],
    image: Sequence[int], attributes: dict[str, Any], *, per_channel: bool, bias: DType | None,
    ratio: float = 0.004,
) -> None:  # fmt: skip
    """Checks a quantised convolution with random scales and zero points. *ratio* is about that of
    the output's to the sums' range.
    """
    axis = 3 if kind == "DEPTHWISE_CONV_2D" else 0
    channels = filters[axis]
    symmetric = data is I16
    span = np.iinfo(data.numpy)
    source = Given(
        extremes(rng, data, image),
        scales_of(rng, 1, 0.001, 0.1),
        0 if symmetric else int(rng.integers(span.min, span.max + 1)),
        fed=True,
    )
    scales = scales_of(rng, channels if per_channel else 1, 0.0005, 0.05)
    zero = int(rng.integers(0, 256)) if weights is U8 else 0
    matrix = Given(
        values(rng, weights, filters), scales, zero, axis if per_channel else None, weights
    )
    offset = None
    if bias is not None:
        steps_of = tuple(float(np.float32(source.scales[0] * s)) for s in scales)
        stored = rng.integers(-20000, 20000, channels).astype(bias.numpy)
        offset = Given(stored, steps_of, 0, 0 if per_channel else None)
    made = source.scales[0] * float(np.mean(scales)) / ratio
    zero_point = 0 if symmetric else int(rng.integers(span.min, span.max + 1))
    output = data, Quantization((float(np.float32(made)),), (zero_point,))
    model = layer(kind, [source, matrix, offset], output, attributes)
    check(model, [source.array])


@pytest.mark.parametrize(("padding", "strides", "dilations"), WINDOWS)
@pytest.mark.parametrize("dtype", [F32, F16])
def test_float_convolutions(
    padding: str, strides: tuple[int, int], dilations: tuple[int, int], dtype: DType
) -> None:
    rng = np.random.default_rng(1)
    attributes = steps(padding, strides, dilations)
    for activation in ("NONE", "RELU", "RELU6", "RELU_N1_TO_1"):
        more = {**attributes, "fused_activation_function": activation}
        image = Given(values(rng, dtype, (2, 7, 6, 4)), fed=True)
        bias = Given(values(rng, dtype, (6,)))
        for depth in (4, 2):
            filters = Given(values(rng, dtype, (6, 3, 2, depth)))
            inputs = [image, filters, bias]
            check(layer("CONV_2D", inputs, (dtype, None), more), [image.array])
        across = Given(values(rng, dtype, (1, 3, 2, 8)))
        more["depth_multiplier"] = 2
        inputs = [image, across, Given(values(rng, dtype, (8,)))]
        check(layer("DEPTHWISE_CONV_2D", inputs, (dtype, None), more), [image.array])


@pytest.mark.parametrize(("padding", "strides", "dilations"), WINDOWS)
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize(
    ("data", "weights", "bias"),
    [
        (I8, I8, I32),
        (I8, I8, None),
        (U8, U8, I32),
        (I8, I4, I32),
        (I16, I8, I64),
        (I16, I8, I32),
        (I16, I8, None),
    ],
)
def test_quantised_convolutions(
    padding: str, strides: tuple[int, int], dilations: tuple[int, int], per_channel: bool,
    data: DType, weights: DType, bias: DType | None,
) -> None:  # fmt: skip
    per_channel = per_channel and weights is not U8
    attributes = steps(padding, strides, dilations)
    for seed, activation in enumerate(("NONE", "RELU", "RELU6")):
        rng = np.random.default_rng(seed)
        more = {**attributes, "fused_activation_function": activation}
        for depth in (5, 1):
            quantised(
                rng,
                "CONV_2D",
                data,
                weights,
                (10, 3, 3, depth),
                (2, 5, 7, 5),
                more,
                per_channel=per_channel,
                bias=bias,
            )
        more["depth_multiplier"] = 1
        quantised(
            rng,
            "DEPTHWISE_CONV_2D",
            data,
            weights,
            (1, 3, 3, 5),
            (1, 5, 7, 5),
            more,
            per_channel=per_channel,
            bias=bias,
        )


@pytest.mark.parametrize("ratio", [1e-6, 0.5, 3.0, 40.0])
@pytest.mark.parametrize(("data", "weights"), [(I8, I8), (U8, U8), (I16, I8)])
def test_scales_far_apart(data: DType, weights: DType, ratio: float) -> None:
    rng = np.random.default_rng(int(ratio * 10))
    quantised(
        rng, "CONV_2D", data, weights, (4, 1, 1, 3), (1, 4, 4, 3), steps("VALID", (1, 1), (1, 1)),
        per_channel=False, bias=I32, ratio=ratio,
    )  # fmt: skip


@pytest.mark.parametrize(("padding", "strides", "dilations"), WINDOWS)
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("weights", [I8, U8, I4])
def test_hybrid_convolutions(
    padding: str, strides: tuple[int, int], dilations: tuple[int, int], per_channel: bool,
    weights: DType,
) -> None:  # fmt: skip
    attributes = steps(padding, strides, dilations)
    rng = np.random.default_rng(3)
    for activation in ("NONE", "RELU6"):
        more = {**attributes, "fused_activation_function": activation}
        image = Given(values(rng, F32, (3, 5, 7, 4)), fed=True)
        image.array[2] = np.abs(image.array[2])
        image.array[1] = 0
        scales = scales_of(rng, 6 if per_channel else 1, 0.001, 0.02)
        dimension = 0 if per_channel else None
        filters = Given(values(rng, weights, (6, 3, 2, 4)), scales, 0, dimension, weights)
        bias = Given(values(rng, F32, (6,)))
        check(layer("CONV_2D", [image, filters, bias], (F32, None), more), [image.array])
        scales = scales_of(rng, 4 if per_channel else 1, 0.001, 0.02)
        dimension = 3 if per_channel else None
        filters = Given(values(rng, weights, (1, 3, 2, 4)), scales, 0, dimension, weights)
        inputs = [image, filters, Given(values(rng, F32, (4,)))]
        more["depth_multiplier"] = 1
        check(layer("DEPTHWISE_CONV_2D", inputs, (F32, None), more), [image.array])


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_volumes(padding: str) -> None:
    rng = np.random.default_rng(4)
    attributes: dict[str, Any] = {
        "padding": padding,
        **{f"stride_{a}": s for a, s in zip("dhw", (2, 1, 2), strict=True)},
        **{f"dilation_{a}_factor": d for a, d in zip("dhw", (1, 2, 1), strict=True)},
        "fused_activation_function": "RELU",
    }
    volume = Given(values(rng, F32, (2, 6, 7, 5, 3)), fed=True)
    filters = Given(values(rng, F32, (2, 3, 3, 3, 4)))
    inputs = [volume, filters, Given(values(rng, F32, (4,)))]
    check(layer("CONV_3D", inputs, (F32, None), attributes), [volume.array])


@pytest.mark.parametrize("activation", ["NONE", "RELU"])
def test_infinite_sums_become_the_greatest_floats(activation: str) -> None:
    rng = np.random.default_rng(7)
    image = Given(values(rng, F32, (1, 3, 3, 2)), fed=True)
    image.array[0, 1, 1] = np.inf
    signs = np.reshape([1, -1, 2], (3, 1, 1, 1))
    filters = Given((np.abs(values(rng, F32, (3, 1, 1, 2))) * signs).astype(np.float32))
    attributes = steps("VALID", (1, 1), (1, 1)) | {"fused_activation_function": activation}
    (found,) = check(layer("CONV_2D", [image, filters], (F32, None), attributes), [image.array])
    assert np.isfinite(found).all()
    assert found.max() == np.finfo(np.float32).max


def test_filters_that_are_computed() -> None:
    rng = np.random.default_rng(5)
    image = Given(values(rng, F32, (1, 5, 5, 3)), fed=True)
    filters = Given(values(rng, F32, (4, 3, 3, 3)), fed=True)
    bias = Given(values(rng, F32, (4,)), fed=True)
    model = layer("CONV_2D", [image, filters, bias], (F32, None), steps("SAME", (1, 1), (1, 1)))
    check(model, [image.array, filters.array, bias.array])


def test_refusals_say_why() -> None:
    rng = np.random.default_rng(6)
    image = Given(values(rng, DType.BFLOAT16, (1, 5, 5, 3)), dtype=DType.BFLOAT16, fed=True)
    filters = Given(values(rng, DType.BFLOAT16, (4, 3, 3, 3)), dtype=DType.BFLOAT16)
    output = DType.BFLOAT16, None
    model = layer("CONV_2D", [image, filters], output, steps("SAME", (1, 1), (1, 1)))
    with pytest.raises(Refused, match="bfloat16, bfloat16 to bfloat16 is not computed here"):
        judge(make_sites(model)[0])


@pytest.mark.parametrize("data_layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("dtype", [F32, F16])
@pytest.mark.parametrize("padding", ["SAME", "VALID", "EXPLICIT"])
def test_groups_of_nnapi(data_layout: str, dtype: DType, padding: str) -> None:
    rng = np.random.default_rng(7)
    attributes: dict[str, Any] = {
        "padding": padding,
        "explicit_padding": (1, 0, 2, 1) if padding == "EXPLICIT" else (),
        "stride_h": 2,
        "stride_w": 1,
        "groups": 3,
        "data_layout": data_layout,
        "fused_activation_function": "RELU",
    }
    shape = (2, 5, 7, 6) if data_layout == "NHWC" else (2, 6, 5, 7)
    image = Given(values(rng, dtype, shape), fed=True)
    filters, bias = Given(values(rng, dtype, (9, 3, 2, 2))), Given(values(rng, dtype, (9,)))
    model = layer("GROUPED_CONV_2D", [image, filters, bias], (dtype, None), attributes)
    check(model, [image.array])
