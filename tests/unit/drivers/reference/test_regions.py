"""Regions of interest: ROI_ALIGN and ROI_POOLING against loops from their definitions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from penstock.drivers.reference.detection import regions
from penstock.drivers.reference.kernel import Unsupported
from penstock.errors import InputError, ShapeMismatch
from penstock.ir import DType, NDArray
from tests.unit.drivers.reference.alone import BOX, alone, q

F32, F16, U8, I8 = DType.FLOAT32, DType.FLOAT16, DType.UINT8, DType.INT8
SIZE: dict[str, Any] = {
    "output_height": 3,
    "output_width": 2,
    "height_ratio": 2.0,
    "width_ratio": 4.0,
}


def scene(
    seed: int, count: int = 6, size: tuple[int, int] = (9, 11)
) -> tuple[NDArray, NDArray, NDArray]:
    """Images [2, *size, 3], boxes on them and their batch indices."""
    rng = np.random.default_rng(seed)
    limits = np.array([size[1] * SIZE["width_ratio"], size[0] * SIZE["height_ratio"]])
    corners = np.sort(rng.random((count, 2, 2)) * limits, axis=1)
    images = rng.normal(size=(2, *size, 3)).astype(np.float32)
    batches = rng.integers(0, 2, count).astype(np.int32)
    return images, corners.reshape(count, 4).astype(np.float32), batches


def in_pixels(box: NDArray) -> list[float]:
    return [
        float(box[0] / SIZE["width_ratio"]),
        float(box[1] / SIZE["height_ratio"]),
        float(box[2] / SIZE["width_ratio"]),
        float(box[3] / SIZE["height_ratio"]),
    ]


def sample(image: NDArray, y: float, x: float) -> NDArray:
    """The image at a point between pixels; beyond the last ones, as there."""
    height, width, _ = image.shape
    y, x = min(y, height - 1), min(x, width - 1)
    top, left = int(y), int(x)
    below, right = min(top + 1, height - 1), min(left + 1, width - 1)
    dy, dx = y - top, x - left
    upper = image[top, left] * (1 - dx) + image[top, right] * dx
    lower = image[below, left] * (1 - dx) + image[below, right] * dx
    return np.asarray(upper * (1 - dy) + lower * dy)


def aligned(image: NDArray, box: NDArray, points: tuple[int, int]) -> NDArray:
    x1, y1, x2, y2 = in_pixels(box)
    rows, columns = SIZE["output_height"], SIZE["output_width"]
    step_y, step_x = max(y2 - y1, 1.0) / rows, max(x2 - x1, 1.0) / columns
    down, across = points[0] or math.ceil(step_y), points[1] or math.ceil(step_x)
    out = np.zeros((rows, columns, image.shape[2]))
    for i in range(rows):
        for j in range(columns):
            for p in range(down):
                for r in range(across):
                    y = y1 + (i + (p + 0.5) / down) * step_y
                    x = x1 + (j + (r + 0.5) / across) * step_x
                    out[i, j] += sample(image, y, x)
    return out / (down * across)


@pytest.mark.parametrize("points", [(2, 2), (1, 3), (0, 0), (0, 2), (40, 1), (3, 64)])
@pytest.mark.parametrize("seed", range(3))
def test_roi_align_is_the_mean_of_bilinear_samples(points: tuple[int, int], seed: int) -> None:
    images, boxes, batches = scene(seed)
    (got,) = alone(
        "ROI_ALIGN", [images, boxes, batches], [F32],
        sampling_points_height=points[0], sampling_points_width=points[1], **SIZE,
    )  # fmt: skip
    for index, batch in enumerate(batches):
        expected = aligned(images[batch].astype(np.float64), boxes[index], points)
        np.testing.assert_allclose(got[index], expected, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("points", [0, 2])
def test_roi_align_gives_the_same_results_in_parts(
    points: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, boxes, batches = scene(5, 40)
    options = {"sampling_points_height": points, "sampling_points_width": points, **SIZE}
    (whole,) = alone("ROI_ALIGN", [images, boxes, batches], [F32], **options)
    monkeypatch.setattr(regions, "tiles", lambda count, _: [slice(i, i + 1) for i in range(count)])
    (parts,) = alone("ROI_ALIGN", [images, boxes, batches], [F32], **options)
    np.testing.assert_allclose(parts, whole, rtol=1e-6, atol=1e-6)


def test_roi_align_ignores_pixels_that_no_point_reads() -> None:
    images = np.ones((1, 8, 8, 1), np.float32)
    images[0, :, 4:] = np.nan
    for points in (2, 100):
        (got,) = alone(
            "ROI_ALIGN", [images, np.array([[0, 0, 12, 16]], np.float32), np.zeros(1, np.int32)],
            [F32], sampling_points_height=points, sampling_points_width=points, **SIZE,
        )  # fmt: skip
        np.testing.assert_allclose(got, np.ones((1, 3, 2, 1)), rtol=1e-6)


def pooled(image: NDArray, box: NDArray) -> NDArray:
    x1, y1, x2, y2 = (math.floor(v + 0.5) for v in in_pixels(box))
    rows, columns = SIZE["output_height"], SIZE["output_width"]
    step_y, step_x = max(y2 - y1 + 1, 1) / rows, max(x2 - x1 + 1, 1) / columns
    out = np.zeros((rows, columns, image.shape[2]))
    for i in range(rows):
        for j in range(columns):
            cell = image[
                math.floor(y1 + i * step_y) : math.ceil(y1 + (i + 1) * step_y),
                math.floor(x1 + j * step_x) : math.ceil(x1 + (j + 1) * step_x),
            ]
            if cell.size:
                out[i, j] = cell.max(axis=(0, 1))
    return out


@pytest.mark.parametrize("seed", range(8))
def test_roi_pooling_is_the_maximum_of_cells(seed: int) -> None:
    images, boxes, batches = scene(seed, size=(7, 16))
    (got,) = alone("ROI_POOLING", [images, boxes, batches], [F32], **SIZE)
    for index, batch in enumerate(batches):
        np.testing.assert_array_equal(got[index], pooled(images[batch], boxes[index]))


def test_roi_pooling_of_cells_beyond_the_image_is_zero() -> None:
    images = np.full((1, 4, 4, 1), -3, np.float32)
    box = np.array([[16, 8, 16, 8]], np.float32)
    (got,) = alone("ROI_POOLING", [images, box, np.zeros(1, np.int32)], [F32], **SIZE)
    assert not got.any()
    stored = (np.full((1, 4, 4, 1), 7, np.uint8), q(0.5, 100))
    (got,) = alone("ROI_POOLING", [stored, box, np.zeros(1, np.int32)], [(U8, q(0.5, 100))], **SIZE)
    assert (got == 100).all()


@pytest.mark.parametrize("kind", ["ROI_ALIGN", "ROI_POOLING"])
def test_regions_support_other_types_and_layouts(kind: str) -> None:
    images, boxes, batches = scene(2)
    options = dict(SIZE)
    if kind == "ROI_ALIGN":
        options |= {"sampling_points_height": 2, "sampling_points_width": 2}
    (real,) = alone(kind, [images, boxes, batches], [F32], **options)
    first = np.ascontiguousarray(np.moveaxis(images, 3, 1))
    (moved,) = alone(kind, [first, boxes, batches], [F32], data_layout="NCHW", **options)
    np.testing.assert_allclose(np.moveaxis(moved, 1, 3), real, rtol=1e-6, atol=1e-6)
    (half,) = alone(kind, [images.astype(np.float16), boxes, batches], [F16], **options)
    if kind == "ROI_ALIGN":
        np.testing.assert_allclose(half, real, atol=4e-3)
    corners = (np.round(boxes * 8).astype(np.uint16), BOX)
    for dtype, zero in ((U8, 128), (I8, 0)):
        scale = q(1 / 32, zero)
        stored = np.clip(np.round(images * 32), -128, 127) + zero
        (got,) = alone(
            kind,
            [(stored.astype(dtype.numpy), scale), corners, batches],
            [(dtype, scale)],
            **options,
        )
        again = (stored - zero).astype(np.float32) / 32
        on_grid = corners[0].astype(np.float32) / 8
        (wanted,) = alone(kind, [again, on_grid, batches], [F32], **options)
        assert np.abs(got.astype(np.float64) - zero - wanted * 32).max() <= 0.51


@pytest.mark.parametrize("kind", ["ROI_ALIGN", "ROI_POOLING"])
class TestMalformed:
    """Malformed regions are refused with a sentence that names them."""

    def run(self, kind: str, boxes: Any, batches: Any, **changed: Any) -> NDArray:
        options: dict[str, Any] = dict(SIZE) | changed
        if kind == "ROI_ALIGN":
            options = {"sampling_points_height": 0, "sampling_points_width": 0} | options
        inputs = [np.zeros((2, 9, 11, 3), np.float32), np.array(boxes, np.float32)]
        (got,) = alone(kind, [*inputs, np.array(batches, np.int32)], [F32], **options)
        return got

    @pytest.mark.parametrize("batch", [-1, 2, 2**31 - 1, -(2**31)])
    def test_regions_refuse_a_wrong_batch_index(self, kind: str, batch: int) -> None:
        with pytest.raises(InputError, match=f"batch index {batch} of a batch of 2"):
            self.run(kind, [[0, 0, 4, 4], [0, 0, 4, 4]], [0, batch])

    @pytest.mark.parametrize(
        "box",
        [
            [4, 0, 3, 4],
            [0, 4, 4, 3],
            [math.nan, 0, 4, 4],
            [0, 0, 4, math.nan],
            [-1, 0, 4, 4],
            [0, 0, 45, 4],
            [0, 0, 4, 19],
            [0, 0, math.inf, 4],
            [-math.inf, 0, 4, 4],
        ],
    )
    def test_regions_refuse_a_box_outside_the_image(self, kind: str, box: list[float]) -> None:
        with pytest.raises(InputError, match="box 1"):
            self.run(kind, [[0, 0, 4, 4], box], [0, 1])

    def test_regions_accept_boxes_without_area(self, kind: str) -> None:
        assert self.run(kind, [[4, 4, 4, 4], [44, 18, 44, 18]], [0, 1]).shape == (2, 3, 2, 3)

    def test_regions_of_no_boxes_are_empty(self, kind: str) -> None:
        assert self.run(kind, np.empty((0, 4)), []).shape == (0, 3, 2, 3)

    def test_regions_refuse_wrong_shapes(self, kind: str) -> None:
        with pytest.raises(ShapeMismatch, match=r"boxes \(1, 4\) and batch indices \(2,\)"):
            self.run(kind, [[0, 0, 4, 4]], [0, 1])
        with pytest.raises(ShapeMismatch, match=r"boxes \(1, 5\)"):
            self.run(kind, [[0, 0, 4, 4, 5]], [0])

    def test_regions_refuse_wrong_sizes(self, kind: str) -> None:
        with pytest.raises(ShapeMismatch, match="regions resampled to the shape"):
            self.run(kind, [[0, 0, 4, 4]], [0], output_height=2**31 - 1, output_width=2**20)
        with pytest.raises(Unsupported, match="regions resampled"):
            self.run(kind, [[0, 0, 4, 4]], [0], output_height=0)
        with pytest.raises(Unsupported, match="ratios"):
            self.run(kind, [[0, 0, 4, 4]], [0], width_ratio=0.0)


def test_roi_align_limits_the_number_of_sampling_points() -> None:
    images, boxes, batches = scene(0)
    for points in (-1, 2**31 - 1):
        with pytest.raises(Unsupported, match="sampling points"):
            alone(
                "ROI_ALIGN", [images, boxes, batches], [F32],
                sampling_points_height=points, sampling_points_width=1, **SIZE,
            )  # fmt: skip


def test_regions_refuse_an_image_without_pixels() -> None:
    with pytest.raises(ShapeMismatch, match="0 x 5 pixels"):
        alone(
            "ROI_POOLING",
            [
                np.zeros((1, 0, 5, 1), np.float32),
                np.zeros((1, 4), np.float32),
                np.zeros(1, np.int32),
            ],
            [F32],
            **SIZE,
        )
