"""NNAPI's operations on regions of interest (boxes on images) and on heat maps.

ROI_ALIGN resamples boxes bilinearly to one size. A result is the mean of the sampling points of its
cell. Sampling is separable, so each axis has its own taps: the pixels that a cell's points read
along it, and the share of each in their mean. ROI_POOLING takes the maximum of each cell instead.
HEATMAP_MAX_KEYPOINT finds where heat maps are greatest, refined below a pixel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from penstock.driverkit.fixed_point import round_half_away_from_zero
from penstock.drivers.reference.detection.boxes import check_batches, check_boxes
from penstock.drivers.reference.kernel import (
    Inputs,
    Kernel,
    Outputs,
    Site,
    kernel,
    require,
    tensor_quantization,
)
from penstock.drivers.reference.layers.convolution import channels_first, from_nhwc, to_nhwc
from penstock.drivers.reference.numerics.one_operand import FLOATING, STORED, Read, reader, writer
from penstock.drivers.reference.numerics.products import tiles
from penstock.drivers.reference.numerics.weights import given
from penstock.drivers.reference.structure.shape import checked
from penstock.errors import InputError, ShapeMismatch
from penstock.ir import DType, NDArray

Fill = Callable[[NDArray, NDArray, NDArray, NDArray], None]
"""Fills results [regions, height, width, channels], its last argument, from images, corners
[regions, 4] in pixels, and batch indices.
"""


@dataclass(frozen=True, slots=True)
class Regions:
    """The attributes and the second input that both operations share."""

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

        def run(inputs: Inputs) -> Outputs:
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
        """The boxes in pixels of the image. Raises `InputError` for a box outside the image."""
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
                f"box {index} is {boxes[index].tolist()}, "
                f"outside an image of {height} x {width} pixels"
            )
        return corners


MOST_POINTS: Final = 4096
"""The most sampling points of a cell along an axis: more hardly change results."""


class Taps(NamedTuple):
    """Along one axis, pixels and their weights, both [regions, cells, taps]."""

    pixels: NDArray
    weights: NDArray


@kernel("ROI_ALIGN")
def roi_align(site: Site) -> Kernel:
    """Points beyond the last pixel take its value. 0 points mean one a pixel, rounded up."""
    source, target = site.input(0), site.output()
    site.require_types(source.dtype is target.dtype and source.dtype in FLOATING | STORED)
    regions = Regions.of(site)
    points = tuple(
        site.attributes.integer(f"sampling_points_{side}") for side in ("height", "width")
    )
    require(min(points) >= 0, f"{points} sampling points")
    require(max(points) <= MOST_POINTS, f"{points} sampling points; {MOST_POINTS} is the limit")
    read, write = reader(source, "an image"), writer(target, "a result")

    def fill(image: NDArray, corners: NDArray, batches: NDArray, out: NDArray) -> None:
        extents = np.maximum(corners[:, 2:] - corners[:, :2], np.float32(1))
        steps = extents[:, ::-1] / np.array(regions.size, np.float32)
        counts = np.where(np.array(points) > 0, np.array(points), np.ceil(steps)).astype(np.int64)
        starts = corners[:, 1::-1]
        for count in np.unique(counts, axis=0):
            alike = np.flatnonzero((counts == count).all(axis=1))
            axes = []
            for at, (cells, points_each) in enumerate(zip(regions.size, count, strict=True)):
                size = image.shape[1 + at]
                axes.append(taps(starts[alike, at], steps[alike, at], cells, points_each, size))
            nbytes = axes[0].pixels[0].size * axes[1].pixels[0].size * image.shape[3] * 4
            for part in tiles(len(alike), nbytes):
                rows, columns = (Taps(t.pixels[part], t.weights[part]) for t in axes)
                chosen = alike[part]
                picked = image[
                    batches[chosen][:, None, None, None, None],
                    rows.pixels[:, :, :, None, None],
                    columns.pixels[:, None, None],
                ]
                out[chosen] = write(_mean(read(picked), rows.weights, columns.weights))

    return regions.kernel(fill)


def taps(starts: NDArray, steps: NDArray, cells: int, points: int, size: int) -> Taps:
    """The taps of regions that begin at *starts* and have cells *steps* long, on *size* pixels.

    Each cell has *points* sampling points, evenly spread; each point reads the two pixels around
    it. If a cell's points share pixels, their weights are added up.
    """
    edges = steps[:, None] * np.arange(cells, dtype=np.float32) + starts[:, None]
    inner = (np.arange(points, dtype=np.float32) + np.float32(0.5)) / np.float32(points)
    places = edges[:, :, None] + steps[:, None, None] * inner
    low = np.floor(places)
    share = np.where(low >= size - 1, np.float32(0), places - low) / np.float32(points)
    rest = np.float32(1 / points) - share
    low = np.minimum(low.astype(np.int64), size - 1)
    width = int((low[:, :, -1] - low[:, :, 0]).max()) + 2
    if 2 * points <= width:
        pixels = np.concatenate([low, np.minimum(low + 1, size - 1)], axis=2)
        return Taps(pixels, np.concatenate([rest, share], axis=2))
    base = low[:, :, :1]
    weights = np.zeros((*low.shape[:2], width), np.float32)
    region, cell = np.ogrid[: low.shape[0], : low.shape[1]]
    for point in range(points):
        place = low[:, :, point] - base[:, :, 0]
        weights[region, cell, place] += rest[:, :, point]
        weights[region, cell, place + 1] += share[:, :, point]
    return Taps(np.minimum(base + np.arange(width), size - 1), weights)


def _mean(picked: NDArray, rows: NDArray, columns: NDArray) -> NDArray:
    """[n, cells, taps, cells, taps, channels] pixels to [n, cells, cells, channels] results."""
    count, height, y_taps, width, x_taps, channels = picked.shape
    flat = picked.reshape(count, height, y_taps, width * x_taps * channels)
    summed = np.matmul(rows[:, :, None], flat).reshape(count, height, width, x_taps, channels)
    result: NDArray = np.matmul(columns[:, None, :, None], summed)
    return result.reshape(count, height, width, channels)


@kernel("ROI_POOLING")
def roi_pooling(site: Site) -> Kernel:
    """Corners are rounded to pixels, both included; a cell beyond the image is zero."""
    source, target = site.input(0), site.output()
    site.require_types(source.dtype is target.dtype and source.dtype in FLOATING | STORED)
    nothing = 0
    if source.dtype in STORED:
        nothing = tensor_quantization(source, "an image").zero_point
        site.require_types(source.quantization == target.quantization)
    regions = Regions.of(site)

    def fill(image: NDArray, corners: NDArray, batches: NDArray, out: NDArray) -> None:
        pixels = round_half_away_from_zero(corners)
        x_starts, x_ends = _cells(pixels[:, 0], pixels[:, 2], regions.size[1], image.shape[2])
        y_starts, y_ends = _cells(pixels[:, 1], pixels[:, 3], regions.size[0], image.shape[1])
        for index, batch in enumerate(batches.tolist()):
            rows = list(zip(y_starts[index], y_ends[index], strict=True))
            columns = list(zip(x_starts[index], x_ends[index], strict=True))
            _pool(image[batch], rows, columns, nothing, out[index])

    return regions.kernel(fill)


def _cells(
    first: NDArray, last: NDArray, count: int, size: int
) -> tuple[list[list[int]], list[list[int]]]:
    """Starts and ends of regions' *count* cells from *first* to *last*, within *size* pixels."""
    step = (np.maximum(last - first + np.float32(1), np.float32(1)) / np.float32(count))[:, None]
    edges = np.arange(count + 1, dtype=np.float32)
    places = step * edges + first[:, None]
    starts = np.minimum(np.floor(places[:, :-1]), size).astype(np.int64)
    ends = np.minimum(np.ceil(places[:, 1:]), size).astype(np.int64)
    return starts.tolist(), ends.tolist()


def _pool(
    image: NDArray,
    rows: list[tuple[int, int]],
    columns: list[tuple[int, int]],
    nothing: float,
    out: NDArray,
) -> None:
    left, right = columns[0][0], columns[-1][1]
    for y, (top, bottom) in enumerate(rows):
        if top >= bottom or left >= right:
            out[y] = nothing
            continue
        row = image[top:bottom, left:right].max(axis=0)
        for x, (start, end) in enumerate(columns):
            out[y, x] = row[start - left : end - left].max(axis=0) if start < end else nothing


REACH = np.float32(1.5)
"""A maximum is moved by at most this many pixels along each axis."""


@kernel("HEATMAP_MAX_KEYPOINT")
def heatmap_max_keypoint(site: Site) -> Kernel:
    """Scores [n, keypoints], and positions (x, y) within the boxes [n, keypoints, 2]."""
    read_maps = reader(site.input(0), "heat maps")
    read_boxes = reader(site.input(1), "boxes")
    write_scores = writer(site.output(0), "scores")
    write_places = writer(site.output(1), "keypoints")
    first = channels_first(site)
    tolerance = np.float32(1e-3 if site.input(0).dtype is DType.FLOAT16 else 1e-5)

    def run(inputs: Inputs) -> Outputs:
        maps, boxes = to_nhwc(read_maps(inputs[0]), first), read_boxes(inputs[1])
        count, height, width, points = maps.shape
        if height != width or height < 2 or boxes.shape != (count, 4):
            raise ShapeMismatch(f"heat maps {maps.shape} and boxes {boxes.shape}")
        check_boxes(boxes, "box")
        if not (count and points):
            empty = np.empty((count, points), np.float32)
            return write_scores(empty), write_places(np.stack([empty, empty], axis=-1))
        y, x, grid = _peaks(maps)
        shift, scores = refine(grid, tolerance)
        centre = np.stack([x, y], axis=-1).astype(np.float32) + shift + np.float32(0.5)
        corner, extent = boxes[:, None, :2], (boxes[:, 2:] - boxes[:, :2])[:, None]
        return write_scores(scores), write_places(centre / np.float32(height) * extent + corner)

    return run


def _peaks(maps: NDArray) -> tuple[NDArray, NDArray, NDArray]:
    """Row and column of each map's first maximum, and the 3 x 3 pixels around it: [n, points, 3,
    3].

    Beyond the edges the map is mirrored, its edge pixels not repeated.
    """
    count, size, _, points = maps.shape
    flat = maps.reshape(count, size * size, points)
    place = np.where(np.isnan(flat), np.float32(-np.inf), flat).argmax(axis=1)
    y, x = np.divmod(place, size)
    around = np.arange(-1, 2)
    rows, columns = (_mirrored(at[..., None] + around, size) for at in (y, x))
    grid = maps[
        np.arange(count)[:, None, None, None],
        rows[..., :, None],
        columns[..., None, :],
        np.arange(points)[:, None, None],
    ]
    return y, x, grid


def _mirrored(indexes: NDArray, size: int) -> NDArray:
    within = np.abs(indexes)
    return np.asarray(np.where(within >= size, size - 2, within))


def refine(grid: NDArray, tolerance: np.float32) -> tuple[NDArray, NDArray]:
    """Shift (x, y) of the maximum in the middle of *grid* [..., 3, 3], and the value there.

    The maximum of the quadratic Taylor polynomial around the middle; where its Hessian is singular
    within *tolerance*, the middle itself. Shifts beyond `REACH` are shortened to it.
    """
    middle = grid[..., 1, 1]
    slope_x = (grid[..., 1, 2] - grid[..., 1, 0]) / np.float32(2)
    slope_y = (grid[..., 2, 1] - grid[..., 0, 1]) / np.float32(2)
    xx = grid[..., 1, 0] - 2 * middle + grid[..., 1, 2]
    yy = grid[..., 0, 1] - 2 * middle + grid[..., 2, 1]
    xy = (grid[..., 2, 2] - grid[..., 2, 0] - grid[..., 0, 2] + grid[..., 0, 0]) / np.float32(4)
    determinant = xx * yy - xy * xy
    regular = ~(np.abs(determinant) < tolerance + tolerance * (xx * yy))
    divisor = np.where(regular, determinant, np.float32(1))
    x = np.where(regular, (xy * slope_y - yy * slope_x) / divisor, np.float32(0))
    y = np.where(regular, (xy * slope_x - xx * slope_y) / divisor, np.float32(0))
    farthest = np.maximum(np.abs(x), np.abs(y))
    shorten = np.where(farthest > REACH, REACH / farthest, np.float32(1))
    x, y = x * shorten, y * shorten
    bend = (xx * x + xy * y) * x + (xy * x + yy * y) * y
    value = np.where(regular, middle + slope_x * x + slope_y * y + bend / np.float32(2), middle)
    return np.stack([x, y], axis=-1), value
