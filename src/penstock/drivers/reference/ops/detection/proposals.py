"""GENERATE_PROPOSALS: region proposals from anchors at every place of a score map (NNAPI)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from penstock.drivers.reference.ops.detection.boxes import (
    best_first,
    check_boxes,
    suppress,
    transform,
)
from penstock.drivers.reference.ops.kernel import Kernel, Site, kernel
from penstock.drivers.reference.ops.layers.image_layout import channels_first, to_nhwc
from penstock.drivers.reference.ops.numerics.real_values import reader, writer
from penstock.errors import ShapeMismatch
from penstock.ir import Attributes, NDArray


@kernel("GENERATE_PROPOSALS")
def generate_proposals(site: Site) -> Kernel:
    """Scores, boxes and batch indices of the proposals, image by image, best first."""
    readers = [
        reader(site.input(i), role)
        for i, role in enumerate(("scores", "deltas", "anchors", "image sizes"))
    ]
    writers = [writer(site.output(0), "scores"), writer(site.output(1), "boxes")]
    proposer, first = Proposer.of(site.attributes), channels_first(site)

    def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
        scores, deltas, anchors, sizes = (
            read(value) for read, value in zip(readers, inputs, strict=True)
        )
        scores, deltas = to_nhwc(scores, first), to_nhwc(deltas, first)
        images, height, width, count = scores.shape
        if (
            deltas.shape != (images, height, width, 4 * count)
            or anchors.shape != (count, 4)
            or sizes.shape != (images, 2)
        ):
            raise ShapeMismatch(
                f"scores {scores.shape}, deltas {deltas.shape}, anchors {anchors.shape} and image "
                f"sizes {sizes.shape}"
            )
        check_boxes(anchors, "anchor")
        placed = proposer.place(anchors, height, width)
        kept, boxes = [scores[:0, 0, 0, 0]], [anchors[:0]]
        batches = [np.empty(0, np.int32)]
        for image in range(images):
            score, box = proposer.propose(
                placed, scores[image].reshape(-1), deltas[image].reshape(-1, 4), sizes[image]
            )
            kept.append(score)
            boxes.append(box)
            batches.append(np.full(len(score), image, np.int32))
        real = np.concatenate(kept), np.concatenate(boxes)
        stored = (write(values) for write, values in zip(writers, real, strict=True))
        return (*stored, np.concatenate(batches))

    return run


@dataclass(frozen=True, slots=True)
class Proposer:
    """The parameters of the operation; limits that are not positive are none."""

    strides: tuple[float, float]
    limit_before: int
    limit_after: int
    iou: float
    least_side: float

    @classmethod
    def of(cls, attributes: Attributes) -> Proposer:
        return cls(
            (attributes.number("width_stride"), attributes.number("height_stride")),
            attributes.integer("pre_nms_max"),
            attributes.integer("post_nms_max"),
            attributes.number("iou_threshold"),
            attributes.number("min_size"),
        )

    def place(self, anchors: NDArray, height: int, width: int) -> NDArray:
        """*anchors* [n, 4] moved to each place of a map: [height * width * n, 4]."""
        across = np.arange(width, dtype=np.float32) * np.float32(self.strides[0])
        down = np.arange(height, dtype=np.float32) * np.float32(self.strides[1])
        x, y = np.meshgrid(across, down)
        shifts = np.stack([x, y, x, y], axis=-1)
        result: NDArray = shifts[:, :, None] + anchors
        return result.reshape(-1, 4)

    def propose(
        self, anchors: NDArray, scores: NDArray, deltas: NDArray, size: NDArray
    ) -> tuple[NDArray, NDArray]:
        """Scores and boxes that one image keeps."""
        order = best_first(scores)
        if self.limit_before > 0:
            order = order[: self.limit_before]
        sizes = np.broadcast_to(size, (len(order), 2))
        boxes = transform(anchors[order], deltas[order][:, None], sizes)[:, 0]
        sides = boxes[:, 2:] - boxes[:, :2]
        centres = boxes[:, :2] + sides / np.float32(2)
        stay = (sides > np.float32(self.least_side)) & (centres < size[::-1])
        order, boxes = order[stay.all(axis=1)], boxes[stay.all(axis=1)]
        limit = self.limit_after if self.limit_after > 0 else -1
        chosen = suppress(boxes, limit, self.iou)
        return scores[order[chosen]], boxes[chosen]
