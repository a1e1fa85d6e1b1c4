"""Answers about positions in a picture: boxes, masks, and seventeen key points of one person.

Key points have COCO's names and order. MoveNet returns [1, 1, 17, 3]: y, x, score, with positions
relative to the picture's size. PoseNet returns heat maps [1, h, w, 17] and offsets [1, h, w, 34],
with y of all key points before x. A key point's position is its heat map's maximum times the output
stride, plus the offset at the maximum. It is in pixels of the model's input (Papandreou et al.,
"PersonLab", 2018, section 3.1, single person).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from penstock.cli.answers.base import COLOURS, Answer, Results, finite, named, squeezed
from penstock.cli.output import percentage
from penstock.errors import counted
from penstock.ir import NDArray

if TYPE_CHECKING:
    import numpy.typing as npt
    from PIL.Image import Image

    from penstock.cli.output import Output


OPERATION = "CUSTOM:TFLite_Detection_PostProcess"


class Detection(Answer):
    """Boxes [ymin, xmin, ymax, xmax] relative to the picture's height and width, best first."""

    task = "detection"

    def __init__(self, results: Results) -> None:
        order = detection_order(results) or (0, 1, 2, 3)
        boxes, classes, scores, count = (results.real(i) for i in order)
        declared = float(np.nan_to_num(count.reshape(-1)[0])) if count.size else 0
        number = max(0, min(int(declared), scores.size))
        classes = np.nan_to_num(classes)
        ranked = finite(scores.reshape(-1)[:number])
        best = [
            i for i in np.argsort(-ranked, kind="stable").tolist() if ranked[i] >= results.minimum
        ]
        self.boxes: list[dict[str, Any]] = [
            {
                "index": (index := int(classes.reshape(-1)[i])),
                "label": results.label(index),
                "score": float(ranked[i]),
                "box": [float(v) for v in boxes.reshape(-1, 4)[i]],
            }
            for i in best[: results.top]
        ]
        self.data = {"boxes": self.boxes}
        hidden = number - len(self.boxes)
        note = (
            f"{counted(hidden, 'more box', 'more boxes')} not shown: under {results.minimum:g} or "
            f"beyond the top {results.top}"
        )
        self.notes = [note] if hidden > 0 else []

    def show(self, output: Output) -> None:
        rows = [
            (*named(b), percentage(b["score"]), ", ".join(f"{v:.3f}" for v in b["box"]))
            for b in self.boxes
        ]
        output.table(("class", "label", "score", "ymin, xmin, ymax, xmax"), rows)

    def draw(self, picture: Image) -> Image | None:
        from penstock.cli.answers.drawing import draw_boxes

        return draw_boxes(picture, self.boxes)


def detection_order(results: Results) -> tuple[int, int, int, int] | None:
    """The positions of boxes, classes, scores and count among the outputs; None if it is no such
    detector.

    The model's `TFLite_Detection_PostProcess` names them. Otherwise four float outputs with the
    shapes [1, n, 4], [1, n], [1, n], [1] are taken in this order.
    """
    for operation in results.model.operations:
        if operation.key == OPERATION and set(operation.outputs[:4]) <= set(results.indexes):
            first, second, third, fourth = (results.indexes.index(i) for i in operation.outputs[:4])
            return first, second, third, fourth
    if len(results.arrays) != 4:
        return None
    boxes, classes, scores, count = (a.shape for a in results.arrays)
    fits = (
        len(boxes) == 3 and boxes[2] == 4 and classes == scores == boxes[:2] and count in {(1,), ()}
    )
    return (0, 1, 2, 3) if fits else None


class Segmentation(Answer):
    """The class of each pixel and each class's share of the picture, largest first."""

    task = "segmentation"

    def __init__(self, results: Results) -> None:
        self.classes = class_map(results)
        height, width = self.classes.shape
        present, counts = np.unique(self.classes, return_counts=True)
        largest_first = np.argsort(-counts, kind="stable")
        rows = [
            {
                "index": (index := int(present[i])),
                "label": results.label(index),
                "fraction": float(counts[i] / self.classes.size),
                "colour": None if index == 0 else COLOURS[index % len(COLOURS)].name,
            }
            for i in largest_first
        ]
        self.data = {"mask": {"shape": [height, width], "classes": rows}}

    def show(self, output: Output) -> None:
        rows = [
            (*named(row), percentage(row["fraction"]), row["colour"] or "")
            for row in self.data["mask"]["classes"]
        ]
        output.table(("class", "label", "share of pixels", "colour when drawn"), rows)

    def draw(self, picture: Image) -> Image | None:
        from penstock.cli.answers.drawing import draw_mask

        return draw_mask(picture, self.classes, self.data["mask"]["classes"])


def class_map(results: Results) -> npt.NDArray[np.int64]:
    """[height, width] class numbers of the first output: the largest score of each pixel.

    An output with one value per pixel contains the class itself (integers), or 1 for values of at
    least 0.5.
    """
    array = results.arrays[0]
    if array.ndim == 4 and array.shape[-1] > 1:
        classes: npt.NDArray[np.int64] = np.argmax(squeezed(array), axis=-1)
        return classes
    flat = array.reshape(array.shape[1:3] if array.ndim >= 3 else array.shape)
    operand = results.operands[0]
    if operand.dtype.is_integer and operand.quantization is None:
        return np.maximum(flat.astype(np.int64), 0)
    return (results.real(0).reshape(flat.shape) >= 0.5).astype(np.int64)


def is_class_map(results: Results) -> bool:
    """Whether the one output has class scores [1, h, w, c] or class numbers [1, h, w(, 1)] of
    pixels.

    Three channels count as colours unless there are three labels.
    """
    if len(results.arrays) != 1:
        return False
    shape, operand = results.arrays[0].shape, results.operands[0]
    if len(shape) not in {3, 4} or shape[0] != 1 or min(shape[1:3]) < 8:
        return False
    if len(shape) == 4 and shape[3] > 1:
        return shape[3] != 3 or (results.labels is not None and len(results.labels) == 3)
    return operand.dtype.is_integer and operand.quantization is None


_PAIRS: Final = ("eye", "ear", "shoulder", "elbow", "wrist", "hip", "knee", "ankle")
KEY_POINTS: Final = ("nose", *(f"{side} {part}" for part in _PAIRS for side in ("left", "right")))
COUNT: Final = len(KEY_POINTS)


class Pose(Answer):
    """The key points, each with its position relative to the picture's height and width."""

    task = "pose"

    def __init__(self, results: Results) -> None:
        maps = heat_maps(results)
        rows = finite(
            results.real(0).reshape(-1, 3)[:COUNT] if maps is None else decode(results, *maps)
        )
        self.points: list[dict[str, Any]] = [
            {"index": i, "name": name, "y": float(y), "x": float(x), "score": float(score)}
            for i, (name, (y, x, score)) in enumerate(zip(KEY_POINTS, rows, strict=True))
        ]
        self.minimum = results.minimum
        self.data = {"keypoints": self.points}
        low = [p["name"] for p in self.points if p["score"] < self.minimum]
        lost = [p["name"] for p in self.points if not is_somewhere(p) and p["name"] not in low]
        reasons = ((low, f"a score of {self.minimum:g} (--min-score)"), (lost, "a position"))
        self.notes = [
            f"not drawn, for want of {wanted}: {', '.join(names)}"
            for names, wanted in reasons
            if names
        ]

    def show(self, output: Output) -> None:
        rows = [
            (p["name"], f"{p['x']:.3f}", f"{p['y']:.3f}", percentage(p["score"]))
            for p in self.points
        ]
        output.table(("key point", "x", "y", "score"), rows)

    def draw(self, picture: Image) -> Image | None:
        from penstock.cli.answers.drawing import draw_pose

        sure = [p["score"] >= self.minimum and is_somewhere(p) for p in self.points]
        points = [p if drawn else None for p, drawn in zip(self.points, sure, strict=True)]
        return draw_pose(picture, points)


def is_somewhere(point: Mapping[str, Any]) -> bool:
    """Whether both coordinates of a key point are numbers."""
    return math.isfinite(point["x"]) and math.isfinite(point["y"])


def is_pose(results: Results) -> bool:
    """Whether the outputs are MoveNet's or PoseNet's."""
    if len(results.arrays) == 1:
        return results.arrays[0].shape in {(1, 1, COUNT, 3), (1, COUNT, 3)}
    return heat_maps(results) is not None


def heat_maps(results: Results) -> tuple[int, int] | None:
    """The positions of PoseNet's heat maps and offsets among the outputs, or None."""
    shapes = [a.shape for a in results.arrays]
    for i, heat in enumerate(shapes):
        for j, offsets in enumerate(shapes):
            same_grid = len(heat) == len(offsets) == 4 and heat[:3] == offsets[:3] and heat[0] == 1
            if same_grid and min(heat[1:3]) > 1 and heat[3] == COUNT and offsets[3] == 2 * COUNT:
                return i, j
    return None


def decode(results: Results, heat_position: int, offset_position: int) -> NDArray:
    """[17, 3]: y and x relative to the model's input, and score, at each heat map's maximum."""
    heat, offsets = results.real(heat_position)[0], results.real(offset_position)[0]
    height, width = (int(d) for d in heat.shape[:2])
    shape = results.model.inputs[0].shape or ()
    sides = shape[1:3] if len(shape) == 4 else (None, None)
    image_height, image_width = (side or 1 for side in sides)
    flat = heat.reshape(-1, COUNT)
    best = flat.argmax(axis=0)
    rows, columns = np.divmod(best, width)
    points = np.arange(COUNT)
    y = rows * (image_height - 1) / (height - 1) + offsets[rows, columns, points]
    x = columns * (image_width - 1) / (width - 1) + offsets[rows, columns, points + COUNT]
    scores = flat[best, points].astype(np.float64)
    if scores.min() < 0 or scores.max() > 1:
        scores = 1 / (1 + np.exp(-scores))
    return np.stack([y / image_height, x / image_width, scores], axis=1)
