"""Windows over images: sizes, padding and patches, against counting."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from penstock.drivers.reference.kernel import Unsupported
from penstock.drivers.reference.layers.padding import Axis, Steps, pad, patches, slide
from penstock.ir import Attributes, NDArray

SIZES = st.integers(1, 12)
EXTENTS = st.integers(1, 5)
STEPS = st.integers(1, 4)


@pytest.mark.parametrize(
    ("size", "extent", "stride", "dilation", "outputs", "before", "after"),
    [
        (224, 3, 2, 1, 112, 0, 1),
        (5, 3, 1, 1, 5, 1, 1),
        (5, 2, 1, 1, 5, 0, 1),
        (5, 3, 1, 2, 5, 2, 2),
        (4, 1, 3, 1, 2, 0, 0),
        (5, 1, 3, 1, 2, 0, -1),
    ],
)
def test_same_padding_puts_the_odd_element_behind(
    size: int, extent: int, stride: int, dilation: int, outputs: int, before: int, after: int
) -> None:
    axis = slide(size, extent, stride, dilation, "SAME")
    assert (axis.outputs, axis.before, axis.after) == (outputs, before, after)


@given(SIZES, EXTENTS, STEPS, STEPS)
def test_valid_windows_are_those_that_fit(
    size: int, extent: int, stride: int, dilation: int
) -> None:
    axis = slide(size, extent, stride, dilation, "VALID")
    fitting = [s for s in range(0, size, stride) if s + (extent - 1) * dilation < size]
    assert axis.outputs == len(fitting)
    assert axis.before == 0
    assert axis.after <= 0


def test_window_refuses_unknown_padding() -> None:
    with pytest.raises(Unsupported, match="EXPLICIT"):
        slide(4, 1, 1, 1, "EXPLICIT")


def test_window_strides_and_dilations_come_from_the_attributes() -> None:
    attributes = Attributes(stride_h=2, stride_w=3, padding="SAME")
    assert Steps.of(attributes) == Steps((2, 3), (1, 1), "SAME")
    dilated = Attributes({**attributes, "dilation_h_factor": 4, "dilation_w_factor": 5})
    assert Steps.of(dilated).dilation == (4, 5)


@pytest.mark.parametrize("name", ["stride_h", "stride_w", "dilation_h_factor", "dilation_w_factor"])
def test_window_refuses_strides_of_zero(name: str) -> None:
    values = {"stride_h": 1, "stride_w": 1, "dilation_h_factor": 1, "dilation_w_factor": 1}
    with pytest.raises(Unsupported, match="strides"):
        Steps.of(Attributes({**values, name: 0, "padding": "SAME"}))


@given(
    st.tuples(SIZES, SIZES),
    st.tuples(EXTENTS, EXTENTS),
    st.tuples(STEPS, STEPS),
    st.tuples(STEPS, STEPS),
    st.sampled_from(["SAME", "VALID"]),
)
def test_patches_are_what_the_windows_see(
    size: tuple[int, int],
    extents: tuple[int, int],
    stride: tuple[int, int],
    dilation: tuple[int, int],
    padding: str,
) -> None:
    image: NDArray = np.arange(1, 2 * size[0] * size[1] * 3 + 1).reshape(2, *size, 3)
    steps = Steps(stride, dilation, padding)
    rows, columns = window = steps.over(image.shape, extents)
    found = patches(pad(image, window, -7), window)
    assert found.shape == (2, rows.outputs, columns.outputs, *extents, 3)
    for (n, oy, ox, ky, kx, c), value in np.ndenumerate(found):
        y = oy * stride[0] + ky * dilation[0] - rows.before
        x = ox * stride[1] + kx * dilation[1] - columns.before
        inside = 0 <= y < size[0] and 0 <= x < size[1]
        assert value == (image[n, y, x, c] if inside else -7)


def test_an_image_that_needs_no_padding_is_not_copied() -> None:
    image = np.zeros((1, 4, 4, 2), np.int8)
    window = Steps((1, 1), (1, 1), "VALID").over(image.shape, (3, 3))
    assert np.shares_memory(pad(image, window, 0), image)


def test_2d_images_are_padded_up_to_256_mib() -> None:
    """To more elements than `MOST_PADDED`, but not out of all proportion."""
    image = np.ones((1, 1, 1, 1), np.int8)
    wide = Axis(1, 8193, 1, 1, 1, 4096, 4096)
    assert pad(image, [wide, wide], 0).size == 8193**2
    far = Axis(1, 16385, 1, 1, 1, 8192, 8192)
    with pytest.raises(MemoryError, match="padding would make an image of"):
        pad(image, [far, far], 0)
