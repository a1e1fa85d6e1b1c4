"""LiteRT runs these operators in XNNPACK alone: here they are held against their definitions."""

import struct

import numpy as np
import pytest

from penstock.drivers.reference.kernel import Kernel
from penstock.ir import DType, NDArray, Operand
from tests.support_litert import kernel_of

REAL = Operand(DType.FLOAT32, None)
SAME, VALID = 1, 2


def _pool(kind: str, padding: int, stride: int, size: int) -> Kernel:
    options = struct.pack("<6i", padding, stride, stride, size, size, 0)
    outputs = [REAL, REAL] if kind == "MaxPoolingWithArgmax2D" else [REAL]
    inputs = [REAL] if kind == "MaxPoolingWithArgmax2D" else [REAL, REAL]
    return kernel_of(f"CUSTOM:{kind}", inputs, outputs, custom_code=kind, custom_options=options)


@pytest.mark.parametrize("size", [2, 3])
def test_pooling_remembers_the_place_of_the_greatest_by_column(size: int) -> None:
    image = np.random.default_rng(0).normal(0, 1, (2, 2 * size, 3 * size, 4)).astype(np.float32)
    values, places = _pool("MaxPoolingWithArgmax2D", VALID, size, size)([image])
    indexes = places.view(np.uint32)
    for at in np.ndindex(values.shape):
        n, y, x, c = at
        window = image[n, y * size : (y + 1) * size, x * size : (x + 1) * size, c]
        assert values[at] == window.max()
        assert window.T.reshape(-1)[indexes[at]] == window.max()


@pytest.mark.parametrize("size", [2, 3])
def test_unpooling_puts_values_back_and_zero_elsewhere(size: int) -> None:
    image = np.random.default_rng(1).normal(0, 1, (1, 2 * size, 2 * size, 3)).astype(np.float32)
    values, places = _pool("MaxPoolingWithArgmax2D", VALID, size, size)([image])
    (back,) = _pool("MaxUnpooling2D", VALID, size, size)([values, places])
    assert back.shape == image.shape
    np.testing.assert_array_equal(back[back != 0], image[back != 0])
    assert np.count_nonzero(back) == values.size


def test_unpooling_refuses_an_index_outside_its_window() -> None:
    kernel = _pool("MaxUnpooling2D", SAME, 2, 2)
    values = np.ones((1, 1, 1, 1), np.float32)
    with pytest.raises(ValueError, match="windows"):
        kernel([values, np.full((1, 1, 1, 1), 4, np.uint32).view(np.float32)])


@pytest.mark.parametrize(("padding", "stride"), [(SAME, 2), (VALID, 2), (SAME, 1)])
def test_a_transposed_convolution_spreads_filters_and_cuts_the_padding(
    padding: int, stride: int
) -> None:
    rng = np.random.default_rng(2)
    image = rng.normal(0, 1, (1, 4, 5, 3)).astype(np.float32)
    filters = rng.normal(0, 1, (2, 3, 3, 3)).astype(np.float32)
    bias = rng.normal(0, 1, 2).astype(np.float32)
    kind = "Convolution2DTransposeBias"
    options = struct.pack("<3i", padding, stride, stride)
    kernel = kernel_of(
        f"CUSTOM:{kind}", [REAL] * 3, [REAL], custom_code=kind, custom_options=options
    )
    (got,) = kernel([image, filters, bias])
    np.testing.assert_allclose(got, _spread(image, filters, bias, padding, stride), 1e-4, 1e-5)


def _spread(image: NDArray, filters: NDArray, bias: NDArray, padding: int, stride: int) -> NDArray:
    _, height, width, _ = image.shape
    channels, tall, wide, _ = filters.shape
    whole = np.zeros((1, stride * (height - 1) + tall, stride * (width - 1) + wide, channels))
    for y, x in np.ndindex(height, width):
        block = np.einsum("i,ohwi->hwo", image[0, y, x], filters)
        whole[0, y * stride : y * stride + tall, x * stride : x * stride + wide] += block
    if padding == SAME:
        rows = max(tall - (height - 1) % stride - 1, 0)
        columns = max(wide - (width - 1) % stride - 1, 0)
        top, left = rows // 2, columns // 2
        whole = whole[:, top : whole.shape[1] - (rows - top)]
        whole = whole[:, :, left : whole.shape[2] - (columns - left)]
    result: NDArray = whole + bias
    return result
