"""HEATMAP_MAX_KEYPOINT: where heat maps are greatest, refined below a pixel (NNAPI)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.drivers.reference.ops.detection.boxes import check_boxes
from penstock.drivers.reference.ops.kernel import Kernel, Site, kernel
from penstock.drivers.reference.ops.layers.image_layout import channels_first, to_nhwc
from penstock.drivers.reference.ops.numerics.real_values import reader, writer
from penstock.errors import ShapeMismatch
from penstock.ir import DType, NDArray

REACH = np.float32(1.5)
"""A maximum moves by at most this many pixels along each axis."""


@kernel("HEATMAP_MAX_KEYPOINT")
def heatmap_max_keypoint(site: Site) -> Kernel:
    """Scores [n, keypoints], and places (x, y) within the boxes [n, keypoints, 2]."""
    read_maps = reader(site.input(0), "heat maps")
    read_boxes = reader(site.input(1), "boxes")
    write_scores = writer(site.output(0), "scores")
    write_places = writer(site.output(1), "keypoints")
    first = channels_first(site)
    tolerance = np.float32(1e-3 if site.input(0).dtype is DType.FLOAT16 else 1e-5)

    def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
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
