"""Axis-aligned boxes: checks, transforms by deltas, greedy suppression, and NNAPI's
AXIS_ALIGNED_BBOX_TRANSFORM and GENERATE_PROPOSALS.

A box is two opposite corners, each of two coordinates: (x1, y1, x2, y2) in NNAPI's regions of
interest. All arithmetic is float32.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct

from penstock.drivers.reference.kernel import Inputs, Kernel, Outputs, Site, kernel, options_of
from penstock.drivers.reference.layers.convolution import channels_first, to_nhwc
from penstock.drivers.reference.numerics.one_operand import reader, writer
from penstock.errors import InputError, ShapeMismatch
from penstock.interrupts import watched
from penstock.ir import NDArray

BLOCK: Final = 128
"""Number of candidates compared at a time with each other and with the boxes chosen before."""

PART: Final = 2048
"""Number of chosen boxes compared at a time: their overlaps stay in the cache."""


def check_boxes(boxes: NDArray, what: str) -> None:
    """Raises `InputError` unless x1 <= x2 and y1 <= y2 in each of *boxes* [..., 4], without NaN."""
    good = (boxes[..., :2] <= boxes[..., 2:]).all(axis=-1)
    if not good.all():
        place = tuple(int(i) for i in np.argwhere(~good)[0])
        raise InputError(
            f"{what} {', '.join(map(str, place))} is {boxes[place].tolist()}: "
            "its second corner must not be less than its first"
        )


def check_batches(indexes: NDArray, count: int) -> None:
    """Raises `InputError` unless each of *indexes* names one of *count* images."""
    wrong = (indexes < 0) | (indexes >= count)
    if wrong.any():
        raise InputError(f"batch index {int(indexes[wrong][0])} of a batch of {count}")


def overlaps(a: NDArray, b: NDArray) -> NDArray:
    """Intersection over union of each of *a* [n, 4] with each of *b* [m, 4]: [n, m].

    It is 0 if the union has no area.
    """
    shared = _shared(a, b, 0)
    shared *= _shared(a, b, 1)
    union = (_areas(a)[:, None] + _areas(b)) - shared
    np.divide(shared, union, out=shared, where=union != 0)
    return shared


def _shared(a: NDArray, b: NDArray, axis: int) -> NDArray:
    """The length that each of *a* shares with each of *b* along an axis."""
    low = np.maximum(a[:, axis, None], b[:, axis])
    high = np.minimum(a[:, 2 + axis, None], b[:, 2 + axis])
    high -= low
    return np.maximum(high, np.float32(0), out=high)


def _areas(boxes: NDArray) -> NDArray:
    sides = boxes[:, 2:] - boxes[:, :2]
    return np.asarray(sides[:, 0] * sides[:, 1])


def transform(boxes: NDArray, deltas: NDArray, sizes: NDArray) -> NDArray:
    """*boxes* [n, 4] moved and scaled by *deltas* [n, classes, 4] and clipped to images of *sizes*
    [n, 2].

    Deltas are (dx, dy) in units of a box's sides and the logarithms of its sides' factors; sizes
    are (height, width). Returns [n, classes, 4] (Ren et al., "Faster R-CNN", 2015, with corners).
    """
    two = np.float32(2)
    extent = (boxes[:, 2:] - boxes[:, :2])[:, None]
    centre = ((boxes[:, :2] + boxes[:, 2:]) / two)[:, None] + deltas[..., :2] * extent
    half = np.exp(deltas[..., 2:].astype(np.float64)).astype(np.float32) * extent / two
    corners = np.concatenate([centre - half, centre + half], axis=-1)
    np.maximum(corners, np.float32(0), out=corners)
    limits = np.tile(sizes[:, None, ::-1], (1, 1, 2))
    return np.asarray(np.minimum(corners, limits, out=corners))


def best_first(scores: NDArray) -> NDArray:
    """Indexes of *scores* in descending order; equal scores keep their order, NaN is last."""
    return np.argsort(-scores, kind="stable")


def suppress(boxes: NDArray, limit: int, iou: float) -> NDArray:
    """Greedy suppression: indexes of the *boxes* [n, 4] that are kept. The boxes are sorted, best
    first.

    A box is dropped if it overlaps a kept earlier box by *iou* or more. *limit* is the greatest
    number of kept boxes; a negative *limit* means no limit.
    """
    room = len(boxes) if limit < 0 else min(limit, len(boxes))
    threshold = np.float32(iou)
    chosen = np.empty(0, np.int64)
    for start in watched(range(0, len(boxes), BLOCK)):
        if len(chosen) >= room:
            break
        block = np.arange(start, min(start + BLOCK, len(boxes)))
        for part in range(0, len(chosen), PART):
            rivals = boxes[chosen[part : part + PART]]
            block = block[~(overlaps(rivals, boxes[block]) >= threshold).any(axis=0)]
        shared = overlaps(boxes[block], boxes[block]) >= threshold
        alive = np.ones(len(block), bool)
        for at in range(len(block)):
            if alive[at]:
                alive[at + 1 :] &= ~shared[at, at + 1 :]
        chosen = np.concatenate([chosen, block[alive]])
    return chosen[:room]


@kernel("AXIS_ALIGNED_BBOX_TRANSFORM")
def axis_aligned_bbox_transform(site: Site) -> Kernel:
    """Moves each box by the deltas of each class, and clips it to the image of its batch index."""
    read_boxes = reader(site.input(0), "boxes")
    read_deltas = reader(site.input(1), "deltas")
    read_sizes = reader(site.input(3), "image sizes")
    write = writer(site.output(), "boxes")

    def run(inputs: Inputs) -> Outputs:
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


@kernel("GENERATE_PROPOSALS")
def generate_proposals(site: Site) -> Kernel:
    """Scores, boxes and batch indices of the proposals, image by image, best first."""
    roles = ("scores", "deltas", "anchors", "image sizes")
    readers = [reader(site.input(i), role) for i, role in enumerate(roles)]
    writers = [writer(site.output(0), "scores"), writer(site.output(1), "boxes")]
    proposer, first = options_of(site, Proposer), channels_first(site)

    def run(inputs: Inputs) -> Outputs:
        scores, deltas, anchors, sizes = (
            read(value) for read, value in zip(readers, inputs, strict=True)
        )
        scores, deltas = to_nhwc(scores, first), to_nhwc(deltas, first)
        images, height, width, count = scores.shape
        wanted = (images, height, width, 4 * count), (count, 4), (images, 2)
        if (deltas.shape, anchors.shape, sizes.shape) != wanted:
            raise ShapeMismatch(
                f"scores {scores.shape}, deltas {deltas.shape}, anchors {anchors.shape} and image "
                f"sizes {sizes.shape}"
            )
        check_boxes(anchors, "anchor")
        placed = proposer.place(anchors, height, width)
        found = [(scores[:0, 0, 0, 0], anchors[:0])]
        for score, delta, size in zip(scores, deltas, sizes, strict=True):
            found.append(proposer.propose(placed, score.reshape(-1), delta.reshape(-1, 4), size))
        counts = [len(kept) for kept, _ in found]
        batches = np.repeat(np.arange(-1, images, dtype=np.int32), counts)
        real = [np.concatenate(parts) for parts in zip(*found, strict=True)]
        stored = (write(values) for write, values in zip(writers, real, strict=True))
        return (*stored, batches)

    return run


class Proposer(Struct, frozen=True):
    """The parameters of the operation. A limit of 0 or less means no limit."""

    width_stride: float
    height_stride: float
    pre_nms_max: int
    post_nms_max: int
    iou_threshold: float
    min_size: float

    def place(self, anchors: NDArray, height: int, width: int) -> NDArray:
        """*anchors* [n, 4] moved to each position of a map: [height * width * n, 4]."""
        across = np.arange(width, dtype=np.float32) * np.float32(self.width_stride)
        down = np.arange(height, dtype=np.float32) * np.float32(self.height_stride)
        x, y = np.meshgrid(across, down)
        shifts = np.stack([x, y, x, y], axis=-1)
        result: NDArray = shifts[:, :, None] + anchors
        return result.reshape(-1, 4)

    def propose(
        self, anchors: NDArray, scores: NDArray, deltas: NDArray, size: NDArray
    ) -> tuple[NDArray, NDArray]:
        """Scores and boxes of one image after suppression."""
        order = best_first(scores)
        if self.pre_nms_max > 0:
            order = order[: self.pre_nms_max]
        sizes = np.broadcast_to(size, (len(order), 2))
        boxes = transform(anchors[order], deltas[order][:, None], sizes)[:, 0]
        sides = boxes[:, 2:] - boxes[:, :2]
        centres = boxes[:, :2] + sides / np.float32(2)
        stay = (sides > np.float32(self.min_size)) & (centres < size[::-1])
        order, boxes = order[stay.all(axis=1)], boxes[stay.all(axis=1)]
        limit = self.post_nms_max if self.post_nms_max > 0 else -1
        chosen = suppress(boxes, limit, self.iou_threshold)
        return scores[order[chosen]], boxes[chosen]
