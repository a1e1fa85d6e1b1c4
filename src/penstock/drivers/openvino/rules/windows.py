"""Windows that slide over an image: explicit padding for TFLite's SAME and VALID."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.engines.site import Site, require


class Windows(msgspec.Struct, frozen=True):
    """Strides, dilations and padding over height and width."""

    strides: list[int]
    dilations: list[int]
    before: list[int]
    after: list[int]


def windows(site: Site, sizes: Sequence[int], extents: Sequence[int]) -> Windows:
    """The windows of *extents* over an image of *sizes* (height, width), as the attributes of *site* say.

    SAME pads so that there are ceil(size / stride) positions, the odd element behind; VALID not at all
    (NNAPI section 8.1).
    """
    attributes = site.operation.attributes
    strides = [attributes.integer("stride_h"), attributes.integer("stride_w")]
    dilations = [int(str(attributes.get(f"dilation_{a}_factor", 1))) for a in "hw"]
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
