"""ROI_POOLING: boxes of images reduced to one size by maxima over their cells (NNAPI)."""

from __future__ import annotations

import numpy as np

from penstock.drivers.reference.ops.detection.regions import Regions
from penstock.drivers.reference.ops.kernel import Kernel, Site, kernel, tensor_quantization
from penstock.drivers.reference.ops.numerics.fixed_point import round_half_away_from_zero
from penstock.drivers.reference.ops.numerics.real_values import FLOATING, STORED
from penstock.ir import NDArray


@kernel("ROI_POOLING")
def roi_pooling(site: Site) -> Kernel:
    """Corners are rounded to pixels, both included; a cell beyond the image is zero."""
    source, target = site.input(0), site.output()
    if source.dtype is not target.dtype or source.dtype not in FLOATING | STORED:
        raise site.unsupported_types()
    nothing = 0
    if source.dtype in STORED:
        nothing = tensor_quantization(source, "an image").zero_point
        if source.quantization != target.quantization:
            raise site.unsupported_types()
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
    """Starts and ends of *count* cells of each region from pixel *first* to *last*, within *size*
    pixels.
    """
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
