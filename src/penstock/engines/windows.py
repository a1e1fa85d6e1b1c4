"""Windows that slide over an image: explicit padding for TFLite's SAME and VALID."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.engines.site import Site, require
from penstock.ir.operations.custom_options import transpose_conv_bias


class Windows(msgspec.Struct, frozen=True):
    """Strides, dilations and padding over height and width."""

    strides: list[int]
    dilations: list[int]
    before: list[int]
    after: list[int]


def windows(site: Site, sizes: Sequence[int], extents: Sequence[int], axes: str = "hw") -> Windows:
    """The windows of *extents* over an image of *sizes* (height, width), as the attributes of
    *site* say.

    SAME pads so that there are ceil(size / stride) positions, the odd element behind; VALID not at
    all (NNAPI section 8.1).
    """
    attributes = site.operation.attributes
    require(
        len(sizes) == len(extents) == len(axes),
        "an image or a window whose shape lacks an axis that the window slides along",
    )
    strides = [attributes.integer(f"stride_{a}") for a in axes]
    dilations = [int(str(attributes.get(f"dilation_{a}_factor", 1))) for a in axes]
    require(
        min(*strides, *dilations, *extents) >= 1, "a window of no size, or one that stands still"
    )
    same = attributes.text("padding") == "SAME"
    before, after = [], []
    for size, extent, stride, dilation in zip(sizes, extents, strides, dilations, strict=True):
        reach = (extent - 1) * dilation + 1
        total = max(0, (-(-size // stride) - 1) * stride + reach - size) if same else 0
        before.append(total // 2)
        after.append(total - total // 2)
        require(size + total >= reach, "a window larger than the image")
    return Windows(strides, dilations, before, after)


def pool_extents(site: Site) -> tuple[int, int]:
    """Height and width of a pool's window."""
    attributes = site.operation.attributes
    return attributes.integer("filter_height"), attributes.integer("filter_width")


def transposed_windows(site: Site) -> tuple[Windows, list[int]]:
    """The windows of a TRANSPOSE_CONV, of an image at input 2 and a filter [out, height, width, in]
    at input 1, whose end padding is what the output's size leaves; and how much the output goes
    beyond what they reach.
    """
    image, filters, output = site.shape(2), site.shape(1), site.output_shape()
    w = windows(site, output[1:3], filters[1:3])
    after, beyond = [], []
    for axis in (0, 1):
        spread = (image[axis + 1] - 1) * w.strides[axis] + filters[axis + 1]
        behind = spread - w.before[axis] - output[axis + 1]
        after.append(max(0, behind))
        beyond.append(max(0, -behind))
    return Windows(w.strides, [1, 1], w.before, after), beyond


def cut_windows(site: Site) -> Windows:
    """The windows of MediaPipe's Convolution2DTransposeBias: what goes beyond its output is cut off
    both sides.
    """
    image, filters, output = site.shape(), site.shape(1), site.output_shape()
    options = transpose_conv_bias(site.operation.attributes)
    strides, before, after = [options.stride_h, options.stride_w], [], []
    for axis in (0, 1):
        cut = (image[axis + 1] - 1) * strides[axis] + filters[axis + 1] - output[axis + 1]
        before.append(cut // 2)
        after.append(cut - cut // 2)
    return Windows(strides, [1, 1], before, after)
