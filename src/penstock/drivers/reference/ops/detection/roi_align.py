"""ROI_ALIGN: boxes of images resampled bilinearly to one size (NNAPI).

A result is the mean of the sampling points of its cell. Sampling is separable, so each axis has its
own taps: the pixels that a cell's points read along it, and the share each has in their mean.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from penstock.drivers.reference.ops.detection.regions import Regions
from penstock.drivers.reference.ops.kernel import Kernel, Site, Unsupported, kernel, require
from penstock.drivers.reference.ops.numerics.products import tiles
from penstock.drivers.reference.ops.numerics.real_values import FLOATING, STORED, reader, writer
from penstock.ir import NDArray

MOST_POINTS: Final = 4096
"""Sampling points of a cell along one axis; work grows with them, and results hardly change."""


class Taps(NamedTuple):
    """Along one axis, for each region and cell: pixels and their weights, both [regions, cells,
    taps].
    """

    pixels: NDArray
    weights: NDArray


@kernel("ROI_ALIGN")
def roi_align(site: Site) -> Kernel:
    """Points beyond the last pixel take its value; 0 sampling points means one a pixel, rounded up."""
    source, target = site.input(0), site.output()
    if source.dtype is not target.dtype or source.dtype not in FLOATING | STORED:
        raise site.unsupported_types()
    regions = Regions.of(site)
    points = tuple(
        site.attributes.integer(f"sampling_points_{side}") for side in ("height", "width")
    )
    require(min(points) >= 0, f"{points} sampling points")
    if max(points) > MOST_POINTS:
        raise Unsupported(f"{points} sampling points, of which {MOST_POINTS} are the most")
    read, write = reader(source, "an image"), writer(target, "a result")

    def fill(image: NDArray, corners: NDArray, batches: NDArray, out: NDArray) -> None:
        extents = np.maximum(corners[:, 2:] - corners[:, :2], np.float32(1))
        steps = extents[:, ::-1] / np.array(regions.size, np.float32)
        counts = np.where(np.array(points) > 0, np.array(points), np.ceil(steps)).astype(np.int64)
        starts = corners[:, 1::-1]
        for count in np.unique(counts, axis=0):
            alike = np.flatnonzero((counts == count).all(axis=1))
            axes = [
                taps(
                    starts[alike, axis],
                    steps[alike, axis],
                    regions.size[axis],
                    int(count[axis]),
                    image.shape[1 + axis],
                )
                for axis in (0, 1)
            ]
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
    it. Where a cell's points share pixels, their weights are added up.
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
