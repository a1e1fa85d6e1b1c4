"""Answers drawn into pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

COLOURS: Final = (
    (230, 25, 75),
    (60, 180, 75),
    (0, 130, 200),
    (245, 130, 48),
    (145, 30, 180),
    (70, 240, 240),
    (240, 50, 230),
    (210, 245, 60),
    (250, 190, 212),
    (0, 128, 128),
    (255, 225, 25),
)

LIMBS: Final = (
    (0, 1),
    (0, 2),
    (1, 3),
    (2, 4),
    (5, 6),
    (5, 7),
    (7, 9),
    (6, 8),
    (8, 10),
    (5, 11),
    (6, 12),
    (11, 12),
    (11, 13),
    (13, 15),
    (12, 14),
    (14, 16),
)
"""Pairs of COCO key points that a line joins."""

MASK_OPACITY: Final = 0.55


def draw_boxes(picture: Image.Image, boxes: Sequence[Mapping[str, Any]]) -> Image.Image:
    """A copy of *picture* with each box, its label and its score."""
    result = picture.copy()
    pen = ImageDraw.Draw(result)
    stroke = _stroke(result)
    font = ImageFont.load_default(max(12, 6 * stroke))
    for box in reversed(boxes):
        colour = _colour(box["index"])
        ymin, xmin, ymax, xmax = (float(np.clip(v, 0, 1)) for v in box["box"])
        left, top = xmin * (result.width - 1), ymin * (result.height - 1)
        right, bottom = max(xmax, xmin) * (result.width - 1), max(ymax, ymin) * (result.height - 1)
        pen.rectangle((left, top, right, bottom), outline=colour, width=stroke)
        name = box["label"] if box["label"] is not None else f"class {box['index']}"
        text = f"{name} {100 * box['score']:.0f} %"
        _, _, text_width, text_height = pen.textbbox((0, 0), text, font=font)
        pen.rectangle((left, top, left + text_width + 6, top + text_height + 4), fill=colour)
        pen.text((left + 3, top + 1), text, fill=(0, 0, 0), font=font)
    return result


def draw_mask(picture: Image.Image, classes: npt.NDArray[np.int64]) -> Image.Image:
    """A copy of *picture* with every class but 0 tinted."""
    palette = np.array([COLOURS[i % len(COLOURS)] for i in range(256)], np.uint8)
    small = Image.fromarray((classes % 256).astype(np.uint8))
    mask = np.asarray(small.resize(picture.size, Image.Resampling.NEAREST))
    base = np.asarray(picture.convert("RGB"), np.float32)
    tinted = (1 - MASK_OPACITY) * base + MASK_OPACITY * palette[mask]
    return Image.fromarray(np.where((mask > 0)[..., None], tinted, base).round().astype(np.uint8))


def draw_pose(
    picture: Image.Image, points: Sequence[Mapping[str, Any]], minimum: float
) -> Image.Image:
    """A copy of *picture* with the key points of at least *minimum* score, and the limbs between them."""
    result = picture.copy()
    pen = ImageDraw.Draw(result)
    stroke = _stroke(result)
    places = [
        (p["x"] * result.width, p["y"] * result.height) if p["score"] >= minimum else None
        for p in points
    ]
    for index, (start, end) in enumerate(LIMBS):
        first, second = places[start], places[end]
        if first is not None and second is not None:
            pen.line((*first, *second), fill=COLOURS[index % len(COLOURS)], width=stroke)
    for place in filter(None, places):
        pen.circle(place, 2 * stroke, fill=(255, 255, 255), outline=(0, 0, 0))
    return result


def _stroke(picture: Image.Image) -> int:
    return max(2, round(max(picture.size) / 250))


def _colour(index: int) -> tuple[int, int, int]:
    return COLOURS[index % len(COLOURS)]
