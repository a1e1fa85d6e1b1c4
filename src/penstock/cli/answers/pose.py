"""Pose: seventeen key points of one person (COCO's names and order).

MoveNet gives them as [1, 1, 17, 3]: y, x, score, positions as shares of the picture. PoseNet gives
heat maps [1, h, w, 17] and offsets [1, h, w, 34], y of all key points before x: each key point lies
at its heat map's maximum times the output stride, plus the offset there, in pixels of the model's
input (Papandreou et al., "PersonLab", 2018, section 3.1, single person).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from penstock.cli.answers.base import Results, finite
from penstock.ir import NDArray

if TYPE_CHECKING:
    from PIL.Image import Image

    from penstock.cli.output import Output

KEY_POINTS: Final = (
    "nose",
    "left eye",
    "right eye",
    "left ear",
    "right ear",
    "left shoulder",
    "right shoulder",
    "left elbow",
    "right elbow",
    "left wrist",
    "right wrist",
    "left hip",
    "right hip",
    "left knee",
    "right knee",
    "left ankle",
    "right ankle",
)
COUNT: Final = len(KEY_POINTS)


class Pose:
    """The key points, each with its position as shares of the picture's height and width."""

    task = "pose"
    mislabelled = ""

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
        self.data: dict[str, Any] = {"keypoints": self.points}
        low = [p["name"] for p in self.points if p["score"] < self.minimum]
        lost = [p["name"] for p in self.points if not is_somewhere(p) and p["name"] not in low]
        reasons = ((low, f"a score of {self.minimum:g} (--min-score)"), (lost, "a position"))
        self.notes: Sequence[str] = [
            f"not drawn, for want of {wanted}: {', '.join(names)}"
            for names, wanted in reasons
            if names
        ]

    def show(self, output: Output) -> None:
        rows = [
            (p["name"], f"{p['x']:.3f}", f"{p['y']:.3f}", f"{100 * p['score']:.1f} %")
            for p in self.points
        ]
        output.table(("key point", "x", "y", "score"), rows)

    def draw(self, picture: Image) -> Image | None:
        from penstock.cli.answers.drawing import draw_pose

        return draw_pose(
            picture,
            [p if p["score"] >= self.minimum and is_somewhere(p) else None for p in self.points],
        )


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
    """[17, 3]: y, x as shares of the model's input, and score, of the best place of each heat map."""
    heat, offsets = results.real(heat_position)[0], results.real(offset_position)[0]
    height, width = (int(d) for d in heat.shape[:2])
    image_height, image_width = _input_size(results)
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


def _input_size(results: Results) -> tuple[int, int]:
    shape = results.model.inputs[0].shape or ()
    height, width = (shape[1], shape[2]) if len(shape) == 4 else (None, None)
    return height or 1, width or 1
