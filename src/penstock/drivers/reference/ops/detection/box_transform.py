"""AXIS_ALIGNED_BBOX_TRANSFORM: boxes moved and scaled by deltas for each class (NNAPI)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.drivers.reference.ops.detection.boxes import check_batches, check_boxes, transform
from penstock.drivers.reference.ops.kernel import Kernel, Site, kernel
from penstock.drivers.reference.ops.numerics.real_values import reader, writer
from penstock.errors import ShapeMismatch
from penstock.ir import NDArray


@kernel("AXIS_ALIGNED_BBOX_TRANSFORM")
def axis_aligned_bbox_transform(site: Site) -> Kernel:
    """Each box by the deltas of each class, clipped to the image that its batch index names."""
    read_boxes = reader(site.input(0), "boxes")
    read_deltas = reader(site.input(1), "deltas")
    read_sizes = reader(site.input(3), "image sizes")
    write = writer(site.output(), "boxes")

    def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
        boxes, deltas, sizes = read_boxes(inputs[0]), read_deltas(inputs[1]), read_sizes(inputs[3])
        batches = np.asarray(inputs[2])
        count, columns = deltas.shape
        if boxes.shape != (count, 4) or batches.shape != (count,) or columns % 4:
            raise ShapeMismatch(
                f"boxes {boxes.shape}, deltas {deltas.shape} and batch indices {batches.shape}"
            )
        if sizes.shape[1:] != (2,):
            raise ShapeMismatch(f"image sizes of shape {sizes.shape}")
        check_batches(batches, len(sizes))
        check_boxes(boxes, "box")
        moved = transform(boxes, deltas.reshape(count, columns // 4, 4), sizes[batches])
        return (write(moved.reshape(count, columns)),)

    return run
