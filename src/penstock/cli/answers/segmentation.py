"""Segmentation: a class for each pixel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from penstock.cli.answers.base import Results, squeezed
from penstock.cli.answers.colours import COLOURS

if TYPE_CHECKING:
    from PIL.Image import Image

    from penstock.cli.output import Output


class Segmentation:
    """The class of each pixel and each class's share of the picture, largest first."""

    task = "segmentation"
    mislabelled = ""

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
        self.data: dict[str, Any] = {"mask": {"shape": [height, width], "classes": rows}}
        self.notes: Sequence[str] = []

    def show(self, output: Output) -> None:
        rows = [
            (
                row["index"],
                "" if row["label"] is None else row["label"],
                f"{100 * row['fraction']:.1f} %",
                row["colour"] or "",
            )
            for row in self.data["mask"]["classes"]
        ]
        output.table(("class", "label", "share of pixels", "colour when drawn"), rows)

    def draw(self, picture: Image) -> Image | None:
        from penstock.cli.answers.drawing import draw_mask

        return draw_mask(picture, self.classes, self.data["mask"]["classes"])


def class_map(results: Results) -> npt.NDArray[np.int64]:
    """[height, width] class numbers of the first output: its largest score a pixel, or, for an
    output of one value a pixel, that value as a class (integers) or 1 where it is at least 0.5.
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
    """Whether the one output is per-pixel class scores [1, h, w, c] or class numbers [1, h, w(,
    1)].

    Three channels are taken for a picture's colours unless there are three labels.
    """
    if len(results.arrays) != 1:
        return False
    shape, operand = results.arrays[0].shape, results.operands[0]
    if len(shape) not in {3, 4} or shape[0] != 1 or min(shape[1:3]) < 8:
        return False
    if len(shape) == 4 and shape[3] > 1:
        return shape[3] != 3 or (results.labels is not None and len(results.labels) == 3)
    return operand.dtype.is_integer and operand.quantization is None
