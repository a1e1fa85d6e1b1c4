"""Detection: the boxes of `TFLite_Detection_PostProcess`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.cli.answers.base import Results, finite
from penstock.errors import counted

if TYPE_CHECKING:
    from PIL.Image import Image

    from penstock.cli.output import Output

OPERATION = "CUSTOM:TFLite_Detection_PostProcess"


class Detection:
    """Boxes, best first. A box is [ymin, xmin, ymax, xmax] as shares of the picture's height and
    width.
    """

    task = "detection"
    mislabelled = ""

    def __init__(self, results: Results) -> None:
        order = detection_order(results)
        if order is None:
            order = (0, 1, 2, 3)
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
        self.data: dict[str, Any] = {"boxes": self.boxes}
        hidden = number - len(self.boxes)
        self.notes: Sequence[str] = (
            [
                f"{counted(hidden, 'more box', 'more boxes')} not shown: under {results.minimum:g} or beyond the top {results.top}"
            ]
            if hidden > 0
            else []
        )

    def show(self, output: Output) -> None:
        rows = [
            (
                box["index"],
                "" if box["label"] is None else box["label"],
                f"{100 * box['score']:.1f} %",
                ", ".join(f"{v:.3f}" for v in box["box"]),
            )
            for box in self.boxes
        ]
        output.table(("class", "label", "score", "ymin, xmin, ymax, xmax"), rows)

    def draw(self, picture: Image) -> Image | None:
        from penstock.cli.answers.drawing import draw_boxes

        return draw_boxes(picture, self.boxes)


def detection_order(results: Results) -> tuple[int, int, int, int] | None:
    """Which outputs are boxes, classes, scores and count; None when the model is no such detector.

    The operation says so where the model has it; otherwise four float outputs of the shapes [1, n,
    4], [1, n], [1, n], [1] in this order.
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
