"""Transposed convolutions become kernels that give what the reference device gives."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pytest

from penstock.compiler.legalise import judge, legalise
from penstock.compiler.legalise.transposed import phases
from penstock.driverkit.site import Refused, make_sites
from penstock.ir import DType, Quantization
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
FORMS: Final = [
    ("SAME", (1, 1), (3, 2)),
    ("SAME", (2, 2), (3, 3)),
    ("VALID", (2, 3), (2, 5)),
    ("SAME", (3, 2), (2, 2)),
    ("VALID", (2, 2), (2, 2)),
    ("VALID", (1, 2), (4, 1)),
]


def size_of(size: int, extent: int, stride: int, padding: str) -> int:
    return size * stride if padding == "SAME" else (size - 1) * stride + extent


def form_of(
    padding: str, strides: tuple[int, int], extents: tuple[int, int], more: int = 0
) -> tuple[Given, dict[str, Any]]:
    """The output shape of an image of 2 x 4 x 3 and 6 filters, *more* rows than needed; and the
    attributes.
    """
    sides = [
        size_of(size, extent, stride, padding)
        for size, extent, stride in zip((4, 3), extents, strides, strict=True)
    ]
    shape = Given(np.array([2, sides[0] + more, sides[1], 6], np.int32))
    attributes = {"padding": padding, "stride_h": strides[0], "stride_w": strides[1]}
    return shape, attributes


@pytest.mark.parametrize(("padding", "strides", "extents"), FORMS)
@pytest.mark.parametrize("dtype", [F32, F16])
def test_float(
    padding: str, strides: tuple[int, int], extents: tuple[int, int], dtype: DType
) -> None:
    rng = np.random.default_rng(1)
    shape, attributes = form_of(padding, strides, extents)
    image = Given(values(rng, dtype, (2, 4, 3, 5)), fed=True)
    filters = Given(values(rng, dtype, (6, *extents, 5)))
    bias = Given(values(rng, dtype, (6,)))
    for activation in ("NONE", "RELU6"):
        more = {**attributes, "fused_activation_function": activation}
        for given in (bias, None):
            model = layer("TRANSPOSE_CONV", [shape, filters, image, given], (dtype, None), more)
            check(model, [image.array])


@pytest.mark.parametrize(("padding", "strides", "extents"), FORMS)
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize(
    ("data", "weights", "bias"),
    [(I8, I8, I32), (U8, U8, I32), (I16, I8, I64), (I8, I4, None)],
)
def test_quantised(
    padding: str, strides: tuple[int, int], extents: tuple[int, int], per_channel: bool,
    data: DType, weights: DType, bias: DType | None,
) -> None:  # fmt: skip
    rng = np.random.default_rng(2)
    shape, attributes = form_of(padding, strides, extents)
    symmetric, span = data is I16, np.iinfo(data.numpy)
    zeros = [0 if symmetric else int(rng.integers(span.min, span.max + 1)) for _ in range(2)]
    image = Given(values(rng, data, (2, 4, 3, 5)), scales_of(rng, 1, 0.001, 0.1), zeros[0])
    per_channel = per_channel and weights is not U8
    scales = scales_of(rng, 6 if per_channel else 1, 0.0005, 0.05)
    filters = Given(
        values(rng, weights, (6, *extents, 5)), scales, 130 if weights is U8 else 0,
        0 if per_channel else None, weights,
    )  # fmt: skip
    offset = None
    if bias is not None:
        steps = tuple(float(np.float32(image.scales[0] * s)) for s in scales)
        stored = rng.integers(-20000, 20000, 6).astype(bias.numpy)
        offset = Given(stored, steps, 0, 0 if per_channel else None)
    made = Quantization((float(np.float32(image.scales[0] * scales[0] * 300)),), (zeros[1],))
    fed = Given(image.array, image.scales, image.zero_point, fed=True)
    model = layer("TRANSPOSE_CONV", [shape, filters, fed, offset], (data, made), attributes)
    check(model, [image.array])


@pytest.mark.parametrize(("padding", "strides", "extents"), FORMS)
@pytest.mark.parametrize("weights", [I8, I4])
def test_hybrid(
    padding: str, strides: tuple[int, int], extents: tuple[int, int], weights: DType
) -> None:
    rng = np.random.default_rng(3)
    shape, attributes = form_of(padding, strides, extents)
    image = Given(values(rng, F32, (2, 4, 3, 5)), fed=True)
    image.array[1] = np.abs(image.array[1])
    filters = Given(
        values(rng, weights, (6, *extents, 5)), scales_of(rng, 6, 0.001, 0.02), 0, 0, weights
    )
    inputs = [shape, filters, image, Given(values(rng, F32, (6,)))]
    check(layer("TRANSPOSE_CONV", inputs, (F32, None), attributes), [image.array])


def test_outputs_beyond_every_window_have_only_the_bias() -> None:
    rng = np.random.default_rng(4)
    shape, attributes = form_of("VALID", (2, 2), (3, 3), more=1)
    image = Given(values(rng, F32, (2, 4, 3, 5)), fed=True)
    filters, bias = Given(values(rng, F32, (6, 3, 3, 5))), Given(values(rng, F32, (6,)))
    model = layer("TRANSPOSE_CONV", [shape, filters, image, bias], (F32, None), attributes)
    (output,) = check(model, [image.array])
    np.testing.assert_array_equal(output[:, -1], np.broadcast_to(bias.array, (2, 7, 6)))


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_volumes(padding: str) -> None:
    rng = np.random.default_rng(5)
    sides = zip((3, 2, 4), (3, 2, 2), (2, 1, 3), strict=True)
    shape = [2, *(size_of(size, extent, stride, padding) for size, extent, stride in sides), 4]
    attributes: dict[str, Any] = {
        "padding": padding,
        **{f"stride_{a}": s for a, s in zip("dhw", (2, 1, 3), strict=True)},
        **{f"dilation_{a}_factor": 1 for a in "dhw"},
    }
    volume = Given(values(rng, F32, (2, 3, 2, 4, 5)), fed=True)
    filters = Given(values(rng, F32, (3, 2, 2, 4, 5)))
    inputs = [Given(np.array(shape, np.int32)), filters, volume]
    check(layer("CONV_3D_TRANSPOSE", inputs, (F32, None), attributes), [volume.array])


def test_a_filter_of_volumes_with_an_infinite_weight_is_refused() -> None:
    rng = np.random.default_rng(5)
    attributes: dict[str, Any] = {
        "padding": "VALID",
        **{f"stride_{a}": 1 for a in "dhw"},
        **{f"dilation_{a}_factor": 1 for a in "dhw"},
    }
    weights = values(rng, F32, (2, 2, 2, 1, 1))
    weights[0, 0, 0] = np.inf
    volume = Given(values(rng, F32, (1, 2, 2, 2, 1)), fed=True)
    inputs = [Given(np.array([1, 3, 3, 3, 1], np.int32)), Given(weights), volume]
    with pytest.raises(Refused, match="infinite weights"):
        judge(make_sites(layer("CONV_3D_TRANSPOSE", inputs, (F32, None), attributes))[0])


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_every_output_is_in_one_phase(padding: str) -> None:
    for size in range(1, 12):
        for extent in range(1, 6):
            for stride in range(1, 5):
                found = phases(size, extent, stride, padding)
                written = [p.first + p.stride * q for p in found for q in range(p.count)]
                assert sorted(written) == list(range(size))


def test_kernels_are_as_many_as_phases_and_bounded() -> None:
    rng = np.random.default_rng(6)
    shape, attributes = form_of("SAME", (2, 2), (3, 3))
    image = Given(values(rng, F32, (2, 4, 3, 5)), fed=True)
    filters = Given(values(rng, F32, (6, 3, 3, 5)))
    model = layer("TRANSPOSE_CONV", [shape, filters, image], (F32, None), attributes)
    assert len(legalise(model).kernels) == 4
    shape, attributes = form_of("SAME", (9, 9), (3, 3))
    model = layer("TRANSPOSE_CONV", [shape, filters, image], (F32, None), attributes)
    with pytest.raises(Refused, match="81 phases of a transposed convolution"):
        judge(make_sites(model)[0])
