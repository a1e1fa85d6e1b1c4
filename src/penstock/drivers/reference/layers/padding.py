"""Windows over images and volumes: output sizes, implicit padding, and views of the patches.

Images are [batch, spatial ..., depth].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import as_strided

from penstock.drivers.reference.kernel import Unsupported, require
from penstock.errors import ShapeMismatch
from penstock.ir import Attributes, NDArray

MOST_PADDED: Final = 2**26
PADDED_SHARE: Final = 8
"""Padding may create `MOST_PADDED` elements, or this many times the number of elements. Larger
windows occur only in hostile files.
"""

MAX_PADDED_BYTES: Final = 1 << 28
MAX_GROWTH: Final = 64
"""The same for 2D images: bytes, or this many times the size of the image."""


@dataclass(frozen=True, slots=True)
class Axis:
    """A window along one dimension, *outputs* positions; *before* and *after* are padding."""

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
        """The same window without elements that are always padding. Without dilation only."""
        front = max(0, self.before - (self.outputs - 1) * self.stride)
        back = max(0, self.extent - self.before - self.size)
        extent = self.extent - front - back
        return replace(self, extent=extent, before=self.before - front, after=self.after - back)


Window: TypeAlias = Sequence[Axis]
"""One axis for each spatial dimension."""


@lru_cache(maxsize=256)
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
    """The window attributes, one number for each spatial dimension, before any size is known."""

    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: str

    @classmethod
    def of(cls, attributes: Attributes, axes: str = "hw") -> Steps:
        """Strides and dilations along *axes*; a dilation is 1 if the operation has none."""
        stride = tuple(attributes.integer(f"stride_{axis}") for axis in axes)
        names = [f"dilation_{axis}_factor" for axis in axes]
        dilation = tuple(attributes.integer(n) if n in attributes else 1 for n in names)
        require(min(*stride, *dilation) > 0, f"strides {stride} and dilations {dilation}")
        return cls(stride, dilation, attributes.text("padding"))

    def over(self, shape: Sequence[int], extents: Sequence[int]) -> list[Axis]:
        """The windows of *extents* over the spatial dimensions of *shape*."""
        sizes = shape[1 : 1 + len(extents)]
        numbers = zip(sizes, extents, self.stride, self.dilation, strict=True)
        return [slide(*each, self.padding) for each in numbers]


def check_padded(elements: int, before: int) -> None:
    """Raises `ShapeMismatch` if padding enlarges *before* elements to far more *elements*."""
    if elements > max(MOST_PADDED, PADDED_SHARE * before):
        raise ShapeMismatch(f"an operand of {before} elements padded to {elements}")


def pad(image: NDArray, window: Window, value: float) -> NDArray:
    """*image* padded with *value*, cropped to what windows read. A view if nothing is padded."""
    image = image[(slice(None), *[slice(axis.size + min(axis.after, 0)) for axis in window])]
    shape, edges = [len(image)], []
    for axis, size in zip(window, image.shape[1:-1], strict=True):
        end = axis.before + size
        edges.append((axis.before, end))
        shape.append(end if axis.after < 0 else end + axis.after)
    shape.append(image.shape[-1])
    if tuple(shape) == image.shape:
        return image
    if len(window) == 2:
        nbytes = math.prod(shape) * image.itemsize
        if nbytes > max(MAX_PADDED_BYTES, MAX_GROWTH * image.nbytes):
            raise MemoryError(
                f"padding would make an image of {image.nbytes} bytes one of {nbytes}"
            )
    else:
        check_padded(math.prod(shape), image.size)
    padded = np.empty(shape, image.dtype)
    inside: tuple[slice, ...] = (slice(None),)
    for start, end in edges:
        padded[(*inside, slice(start))] = value
        padded[(*inside, slice(end, None))] = value
        inside = *inside, slice(start, end)
    padded[inside] = image
    return padded


def patches(image: NDArray, window: Window) -> NDArray:
    """The windows of a padded *image*: a view [batch, outputs ..., extents ..., depth]."""
    batch, *steps, depth = image.strides
    shape, strides, extents, holes = [len(image)], [batch], [], []
    for step, axis in zip(steps, window, strict=True):
        shape.append(axis.outputs)
        strides.append(step * axis.stride)
        extents.append(axis.extent)
        holes.append(step * axis.dilation)
    shape += *extents, image.shape[-1]
    return as_strided(image, shape, (*strides, *holes, depth), writeable=False)
