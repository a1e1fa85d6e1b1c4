"""Random models of sums of float products: matrix products of two inputs, and layers whose sums are
added in order because positions follow.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from penstock.ir import DType
from penstock.ir.operation import AttributeValue

if TYPE_CHECKING:
    from tests.support_layers import Layers

VALID = 2
SIZES = 1, 2, 4, 7, 16, 17, 33


def matrices(d: Layers) -> int:
    """A product of two inputs, in batches."""
    d.dtype = DType.FLOAT32
    batch, rows, taps, columns = d.pick((1, 2, 3)), d.pick(SIZES), d.pick(SIZES), d.pick(SIZES)
    turned = d.chance(0.5)
    x = d.input((batch, rows, taps))
    y = d.input((batch, columns, taps) if turned else (batch, taps, columns))
    return d.add("BATCH_MATMUL", [x, y], (batch, rows, columns), adj_x=False, adj_y=turned)


def positions(d: Layers) -> list[int]:
    """A layer, and a pool that says where its greatest values are."""
    d.dtype = DType.FLOAT32
    x = d.image(d.pick((1, 3, 8, 17, 33, 64)))
    y = d.depthwise(x) if d.chance(0.5) else d.convolution(x)
    images, height, width, channels = d.shape(y)
    if min(height, width) < 2:
        return [y]
    shape = images, height // 2, width // 2, channels
    options = struct.pack("<6i", VALID, 2, 2, 2, 2, 0)
    attributes: dict[str, AttributeValue] = {
        "custom_code": "MaxPoolingWithArgmax2D",
        "custom_options": options,
    }
    pooled = [(DType.FLOAT32, shape)] * 2
    return [y, *d.build.operation("CUSTOM", [y], pooled, attributes)]
