"""Windows over images: output sizes, implicit padding, and views of the patches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.lib.stride_tricks import as_strided

from penstock.drivers.reference.kernel import Unsupported
from penstock.ir import Attributes, NDArray

MAX_PADDED_BYTES: Final = 1 << 28
MAX_GROWTH: Final = 64
"""Greatest size of a padded image. Larger windows occur only in hostile files, and are refused."""


@dataclass(frozen=True, slots=True)
class Axis:
    """A window along one dimension: *outputs* positions, *before* and *after* elements of
    padding.
    """

    size: int
    extent: int
    stride: int
    dilation: int
    outputs: int
    before: int
    after: int

    @property
    def padded(self) -> int:
        """Elements from the first window's start to the last one's end."""
        return self.before + self.size + self.after

    @property
    def reach(self) -> int:
        """Elements that one window spans."""
        return (self.extent - 1) * self.dilation + 1

    def trimmed(self) -> Axis:
        """The same window without elements that are padding in every position. Only for windows
        without dilation.
        """
        front = max(0, self.before - (self.outputs - 1) * self.stride)
        back = max(0, self.extent - self.before - self.size)
        return replace(
            self,
            extent=self.extent - front - back,
            before=self.before - front,
            after=self.after - back,
        )


def slide(size: int, extent: int, stride: int, dilation: int, padding: str) -> Axis:
    """The window along a dimension of *size* elements, padded as *padding* says (NNAPI section
    8.1).

    SAME has ceil(size / stride) positions, with the odd element of padding at the end. VALID has as
    many positions as fit. A negative *after* is the number of last elements that no window reaches.
    """
    reach = (extent - 1) * dilation + 1
    if padding == "SAME":
        outputs = -(-size // stride)
    elif padding == "VALID":
        outputs = max(0, size - reach + stride) // stride
    else:
        raise Unsupported(f"padding {padding}")
    needed = (outputs - 1) * stride + reach if outputs else 0
    before = max(0, needed - size) // 2 if padding == "SAME" else 0
    return Axis(size, extent, stride, dilation, outputs, before, needed - size - before)


@dataclass(frozen=True, slots=True)
class Steps:
    """The window attributes of an operation, before any size is known."""

    stride: tuple[int, int]
    dilation: tuple[int, int]
    padding: str

    @classmethod
    def of(cls, attributes: Attributes) -> Steps:
        """(height, width) strides and dilations; a dilation is 1 if the operation has none."""
        stride = attributes.integer("stride_h"), attributes.integer("stride_w")
        dilation = (1, 1)
        if "dilation_h_factor" in attributes:
            dilation = (
                attributes.integer("dilation_h_factor"),
                attributes.integer("dilation_w_factor"),
            )
        if min(*stride, *dilation) < 1:
            raise Unsupported(f"strides {stride} and dilations {dilation}")
        return cls(stride, dilation, attributes.text("padding"))

    def over(self, image: tuple[int, ...], extents: tuple[int, int]) -> tuple[Axis, Axis]:
        """The windows of *extents* over the height and width of an NHWC shape."""
        rows, columns = (
            slide(image[1 + i], extents[i], self.stride[i], self.dilation[i], self.padding)
            for i in (0, 1)
        )
        return rows, columns


def pad(image: NDArray, rows: Axis, columns: Axis, value: float) -> NDArray:
    """*image* (NHWC) with padding of *value*, cropped to the elements that windows read. A view if
    nothing is padded.
    """
    image = image[:, : rows.size + min(rows.after, 0), : columns.size + min(columns.after, 0)]
    top, bottom = rows.before, max(rows.after, 0)
    left, right = columns.before, max(columns.after, 0)
    if not (top or bottom or left or right):
        return image
    batch, height, width, depth = image.shape
    nbytes = batch * (top + height + bottom) * (left + width + right) * depth * image.itemsize
    if nbytes > max(MAX_PADDED_BYTES, MAX_GROWTH * image.nbytes):
        raise MemoryError(f"padding would make an image of {image.nbytes} bytes one of {nbytes}")
    padded = np.empty((batch, top + height + bottom, left + width + right, depth), image.dtype)
    padded[:, :top] = value
    padded[:, top + height :] = value
    padded[:, top : top + height, :left] = value
    padded[:, top : top + height, left + width :] = value
    padded[:, top : top + height, left : left + width] = image
    return padded


def patches(image: NDArray, rows: Axis, columns: Axis) -> NDArray:
    """The windows of a padded NHWC *image*: a view [batch, out height, out width, height, width,
    depth].
    """
    batch, _, _, depth = image.shape
    b, h, w, d = image.strides
    return as_strided(
        image,
        (batch, rows.outputs, columns.outputs, rows.extent, columns.extent, depth),
        (b, h * rows.stride, w * columns.stride, h * rows.dilation, w * columns.dilation, d),
        writeable=False,
    )
