"""dot_general and convolution beside their definitions, written as loops, and beside TFLite's
layers.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pytest

from penstock.drivers.reference.kernel import Unsupported
from penstock.errors import PenstockError
from penstock.ir import DType, NDArray, Operand, Quantization
from tests.support_litert import kernel_of
from tests.unit.drivers.reference.single_models import computed, single, values

TYPES: Final = [
    DType.FLOAT32,
    DType.FLOAT64,
    DType.FLOAT16,
    DType.BFLOAT16,
    DType.COMPLEX64,
    DType.INT8,
    DType.INT64,
    DType.UINT8,
]


def close(got: NDArray, wanted: NDArray, dtype: DType) -> None:
    assert got.dtype == dtype.numpy
    if not dtype.is_float and dtype is not DType.COMPLEX64:
        np.testing.assert_array_equal(got, wanted.astype(dtype.numpy))
        return
    largest = float(np.abs(wanted).max(initial=1e-30))
    step = {DType.FLOAT16: 2.0**-10, DType.BFLOAT16: 2.0**-7}.get(dtype, 1e-6)
    wide = np.complex128 if dtype is DType.COMPLEX64 else np.float64
    np.testing.assert_allclose(got.astype(wide), wanted, 0, step * largest)


def wide(x: NDArray) -> NDArray:
    kind = "iub".find(x.dtype.kind)
    return x.astype(np.int64 if kind >= 0 else np.complex128 if x.dtype.kind == "c" else np.float64)


def run(kind: str, inputs: Sequence[NDArray], made: DType, **attributes: Any) -> NDArray:
    model = single(kind, inputs, [(made, None)], attributes)
    return computed(model, inputs)[0]


@pytest.mark.parametrize("dtype", TYPES, ids=lambda d: d.value)
def test_dot_general_agrees_with_numpy_over_any_dimensions(dtype: DType) -> None:
    rng = np.random.default_rng(1)
    a, b = values(rng, dtype, (2, 3, 4, 5)), values(rng, dtype, (5, 6, 3, 2))
    got = run(
        "STABLEHLO_DOT_GENERAL",
        [a, b],
        dtype,
        lhs_batching_dimensions=(1,),
        rhs_batching_dimensions=(2,),
        lhs_contracting_dimensions=(3, 0),
        rhs_contracting_dimensions=(0, 3),
    )
    close(got, np.einsum("xbfk,kgbx->bfg", wide(a), wide(b)), dtype)


def test_dot_general_supports_vectors_scalars_and_empty_operands() -> None:
    a, b = np.array([1, 2, 3], np.int32), np.array([4, 5, 6], np.int32)
    axes = {"lhs_contracting_dimensions": (0,), "rhs_contracting_dimensions": (0,)}
    assert run("STABLEHLO_DOT_GENERAL", [a, b], DType.INT32, **axes) == 32
    outer = run("STABLEHLO_DOT_GENERAL", [a, b], DType.INT32)
    np.testing.assert_array_equal(outer, np.outer(a, b))
    empty = np.zeros((0, 2), np.float32)
    got = run("STABLEHLO_DOT_GENERAL", [empty, empty], DType.FLOAT32, **axes)
    np.testing.assert_array_equal(got, np.zeros((2, 2)))


def test_dot_general_accumulates_in_a_wider_type() -> None:
    a = np.full((1, 300), 127, np.int8)
    axes = {"lhs_contracting_dimensions": (1,), "rhs_contracting_dimensions": (1,)}
    got = run("STABLEHLO_DOT_GENERAL", [a, a], DType.INT32, **axes)
    np.testing.assert_array_equal(got, [[300 * 127 * 127]])
    b = np.full((1, 3), 2**62 + 1, np.int64)
    got = run("STABLEHLO_DOT_GENERAL", [b, b], DType.INT64, **axes)
    np.testing.assert_array_equal(got, [[(3 * (2**62 + 1) ** 2 + 2**63) % 2**64 - 2**63]])


@pytest.mark.parametrize(
    "wrong",
    [
        {"lhs_contracting_dimensions": (0,)},
        {"lhs_contracting_dimensions": (2,), "rhs_contracting_dimensions": (0,)},
        {"lhs_contracting_dimensions": (-1,), "rhs_contracting_dimensions": (0,)},
        {"lhs_contracting_dimensions": (1, 1), "rhs_contracting_dimensions": (0, 1)},
        {"lhs_contracting_dimensions": (0,), "rhs_contracting_dimensions": (0,)},
        {
            "lhs_batching_dimensions": (1,),
            "rhs_batching_dimensions": (0,),
            "lhs_contracting_dimensions": (1,),
            "rhs_contracting_dimensions": (0,),
        },
    ],
    ids=str,
)
def test_dot_general_refuses_invalid_arguments(wrong: dict[str, Any]) -> None:
    a, b = np.ones((2, 3), np.float32), np.ones((3, 3), np.float32)
    with pytest.raises(PenstockError):
        run("STABLEHLO_DOT_GENERAL", [a, b], DType.FLOAT32, **wrong)


def test_dot_general_refuses_quantised_operands() -> None:
    quantized = Operand(DType.INT8, (2, 2), quantization=Quantization((0.5,), (0,)))
    with pytest.raises(Unsupported):
        kernel_of("STABLEHLO_DOT_GENERAL", [quantized, quantized], [quantized])


NHWC: Final[dict[str, Any]] = {
    "input_batch_dimension": 0,
    "input_feature_dimension": 3,
    "input_spatial_dimensions": (1, 2),
    "kernel_input_feature_dimension": 2,
    "kernel_output_feature_dimension": 3,
    "kernel_spatial_dimensions": (0, 1),
    "output_batch_dimension": 0,
    "output_feature_dimension": 3,
    "output_spatial_dimensions": (1, 2),
    "feature_group_count": 1,
    "batch_group_count": 1,
}
NCW: Final[dict[str, Any]] = {
    "input_batch_dimension": 0,
    "input_feature_dimension": 1,
    "input_spatial_dimensions": (2,),
    "kernel_input_feature_dimension": 1,
    "kernel_output_feature_dimension": 0,
    "kernel_spatial_dimensions": (2,),
    "output_batch_dimension": 1,
    "output_feature_dimension": 2,
    "output_spatial_dimensions": (0,),
    "feature_group_count": 1,
    "batch_group_count": 1,
}
CONVOLUTIONS: Final[list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]]] = [
    ((2, 5, 6, 3), (2, 3, 3, 4), NHWC),
    ((1, 5, 6, 4), (3, 2, 2, 6), {**NHWC, "feature_group_count": 2, "window_strides": (2, 1)}),
    ((4, 5, 6, 3), (2, 2, 3, 6), {**NHWC, "batch_group_count": 2, "padding": (1, 0, -1, 2)}),
    (
        (1, 4, 5, 2),
        (2, 3, 2, 3),
        {
            **NHWC,
            "window_strides": (2, 3),
            "padding": (1, 2, 3, -1),
            "lhs_dilation": (3, 2),
            "rhs_dilation": (2, 1),
            "window_reversal": (1, 0),
        },
    ),
    ((2, 3, 9), (5, 3, 4), {**NCW, "window_reversal": (1,), "padding": (3, 3)}),
    ((2, 4, 9), (4, 1, 1), {**NCW, "feature_group_count": 4}),
    ((3, 2), (2, 5), {**NHWC, "input_feature_dimension": 1, "input_spatial_dimensions": (),
                      "kernel_spatial_dimensions": (), "output_spatial_dimensions": (),
                      "kernel_input_feature_dimension": 0, "kernel_output_feature_dimension": 1,
                      "output_feature_dimension": 1}),
    ((0, 5, 6, 3), (2, 3, 3, 4), NHWC),
    ((1, 2, 2, 3), (4, 1, 3, 4), NHWC),
]  # fmt: skip


@pytest.mark.parametrize(
    "dtype", [DType.FLOAT32, DType.INT32, DType.COMPLEX64], ids=lambda d: d.value
)
@pytest.mark.parametrize("number", range(len(CONVOLUTIONS)))
def test_stablehlo_convolution_equals_its_definition(number: int, dtype: DType) -> None:
    image_shape, filter_shape, attributes = CONVOLUTIONS[number]
    rng = np.random.default_rng(number)
    image, filters = values(rng, dtype, image_shape), values(rng, dtype, filter_shape)
    got = run("STABLEHLO_CONVOLUTION", [image, filters], dtype, **attributes)
    with np.errstate(over="ignore"):
        wanted = convolved(wide(image), wide(filters), attributes)
    assert got.shape == wanted.shape
    close(got, wanted, dtype)


def convolved(image: NDArray, filters: NDArray, attributes: dict[str, Any]) -> NDArray:
    """One product at a time, in the terms of the specification."""

    def ordered(x: NDArray, name: str, first: str, second: str) -> NDArray:
        numbers = (attributes[f"{name}_{part}_dimension"] for part in (first, second))
        return x.transpose(*numbers, *attributes[f"{name}_spatial_dimensions"])

    image = ordered(image, "input", "batch", "feature")
    filters = ordered(filters, "kernel", "output_feature", "input_feature")
    rank = image.ndim - 2
    strides, base, holes = (
        attributes.get(name, (1,) * rank)
        for name in ("window_strides", "lhs_dilation", "rhs_dilation")
    )
    pads = attributes.get("padding", (0,) * (2 * rank))
    flips = attributes.get("window_reversal", (0,) * rank)
    sizes = [
        (max(n - 1, -1) * b + 1 if n else 0) + low + high
        for n, b, low, high in zip(image.shape[2:], base, pads[::2], pads[1::2], strict=True)
    ]
    outputs = [
        max(0, (size - (extent - 1) * hole - 1) // stride + 1)
        for size, extent, hole, stride in zip(sizes, filters.shape[2:], holes, strides, strict=True)
    ]
    batches, groups = attributes["batch_group_count"], attributes["feature_group_count"]
    batch, channels, depth = len(image) // batches, len(filters), filters.shape[1]
    result = np.zeros((batch, channels, *outputs), image.dtype)
    for n, channel in itertools.product(range(batch), range(channels)):
        source = image[n + batch * (channel // (channels // batches))]
        first = depth * (channel // (channels // groups)) if groups > 1 else 0
        for place in np.ndindex(*outputs):
            for tap in np.ndindex(*filters.shape[2:]):
                at = [
                    p * s + t * h - low
                    for p, s, t, h, low in zip(place, strides, tap, holes, pads[::2], strict=True)
                ]
                inside = all(
                    0 <= a <= (n - 1) * b and a % b == 0
                    for a, b, n in zip(at, base, source.shape[1:], strict=True)
                )
                if inside:
                    where = tuple(a // b for a, b in zip(at, base, strict=True))
                    turned = tuple(
                        extent - 1 - t if flip else t
                        for t, flip, extent in zip(tap, flips, filters.shape[2:], strict=True)
                    )
                    pixel = source[(slice(first, first + depth), *where)]
                    result[(n, channel, *place)] += (
                        pixel * filters[(channel, slice(None), *turned)]
                    ).sum()
    order = (
        attributes["output_batch_dimension"],
        attributes["output_feature_dimension"],
        *attributes["output_spatial_dimensions"],
    )
    return result.transpose(np.argsort(order))


@pytest.mark.parametrize(
    "wrong",
    [
        {"input_feature_dimension": 2},
        {"input_spatial_dimensions": (1,)},
        {"input_spatial_dimensions": (1, 7)},
        {"kernel_spatial_dimensions": (0, 0)},
        {"output_feature_dimension": 9},
        {"feature_group_count": 2},
        {"feature_group_count": -1},
        {"batch_group_count": 3},
        {"batch_group_count": -2},
        {"window_strides": (0, 1)},
        {"window_strides": (1,)},
        {"lhs_dilation": (2**31, 1)},
        {"rhs_dilation": (0, 1)},
        {"padding": (1, 1)},
        {"padding": (2**40, 0, 0, 0)},
        {"padding": (2**30, 2**30, 2**30, 2**30), "window_strides": (2**30, 2**30)},
        {"window_reversal": (1,)},
    ],
    ids=str,
)
def test_stablehlo_convolution_refuses_invalid_arguments(wrong: dict[str, Any]) -> None:
    image, filters = np.ones((2, 5, 6, 3), np.float32), np.ones((2, 3, 3, 4), np.float32)
    with pytest.raises(PenstockError):
        run("STABLEHLO_CONVOLUTION", [image, filters], DType.FLOAT32, **{**NHWC, **wrong})
