"""Regions of interest: boxes on images that ROI_ALIGN and ROI_POOLING read (NNAPI)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from penstock.drivers.reference.ops.detection.boxes import check_batches, check_boxes
from penstock.drivers.reference.ops.kernel import Kernel, Site, require
from penstock.drivers.reference.ops.layers.image_layout import channels_first, from_nhwc, to_nhwc
from penstock.drivers.reference.ops.numerics.real_values import Read, reader
from penstock.drivers.reference.ops.numerics.weights import given
from penstock.drivers.reference.ops.structure.shape import checked
from penstock.errors import InputError, ShapeMismatch
from penstock.ir import NDArray

Fill = Callable[[NDArray, NDArray, NDArray, NDArray], None]
"""Fills results [regions, height, width, channels], its last argument, from images, corners on them
[regions, 4] in pixels, and batch indices."""


@dataclass(frozen=True, slots=True)
class Regions:
    """What both operations read of their attributes and of their second input."""

    size: tuple[int, int]
    ratios: NDArray
    first: bool
    read: Read

    @classmethod
    def of(cls, site: Site) -> Regions:
        attributes = site.attributes
        size = attributes.integer("output_height"), attributes.integer("output_width")
        ratios = attributes.number("width_ratio"), attributes.number("height_ratio")
        require(min(size) > 0, f"regions resampled to {size}")
        require(min(ratios) > 0, f"ratios of {ratios[::-1]} between boxes and image")
        scales = np.float32(1) / np.array(ratios * 2, np.float32)
        return cls(size, scales, channels_first(site), reader(site.input(1), "boxes"))

    def kernel(self, fill: Fill) -> Kernel:
        """The kernel that computes each region by *fill*, in the type of the image."""

        def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
            image = to_nhwc(given(inputs[0]), self.first)
            boxes, batches = self.read(inputs[1]), given(inputs[2])
            corners = self._corners(image, boxes, batches)
            shape = checked((len(boxes), *self.size, image.shape[3]), "regions resampled")
            out = np.empty(shape, image.dtype)
            if out.size:
                fill(image, corners, batches, out)
            return (from_nhwc(out, self.first),)

        return run

    def _corners(self, image: NDArray, boxes: NDArray, batches: NDArray) -> NDArray:
        """The boxes in pixels of the image; `InputError` for those that are not on it."""
        if boxes.ndim != 2 or boxes.shape[1] != 4 or batches.shape != boxes.shape[:1]:
            raise ShapeMismatch(f"boxes {boxes.shape} and batch indices {batches.shape}")
        check_batches(batches, len(image))
        check_boxes(boxes, "box")
        corners: NDArray = boxes * self.ratios
        height, width = image.shape[1:3]
        if len(boxes) and not (height and width):
            raise ShapeMismatch(f"regions of an image of {height} x {width} pixels")
        limits = np.array([width, height, width, height], np.float32)
        outside = ((boxes < 0) | (corners > limits)).any(axis=1)
        if outside.any():
            index = int(np.flatnonzero(outside)[0])
            raise InputError(
                f"box {index} is {boxes[index].tolist()}, outside an image of {height} x {width} pixels"
            )
        return corners
