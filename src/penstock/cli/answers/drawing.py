"""Draws answers into pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from penstock.cli.answers.base import COLOURS, RGB

if TYPE_CHECKING:
    import numpy.typing as npt

LIMBS: Final = (
    *((0, 1), (0, 2), (1, 3), (2, 4), (5, 6), (5, 7), (7, 9), (6, 8), (8, 10), (5, 11), (6, 12)),
    *((11, 12), (11, 13), (13, 15), (12, 14), (14, 16)),
)
"""Pairs of COCO key points that a line connects."""

MASK_OPACITY: Final = 0.55
LEGEND_HEIGHT: Final = 16
"""Minimum height of a line of the legend, in pixels."""

Corners: TypeAlias = tuple[float, float, float, float]
"""Left, top, right, bottom in pixels."""


def draw_boxes(picture: Image.Image, boxes: Sequence[Mapping[str, Any]]) -> Image.Image:
    """A copy of *picture* with each box, its label and its score."""
    result = picture.copy()
    pen = ImageDraw.Draw(result)
    stroke = _stroke(result)
    font = ImageFont.load_default(max(12, 6 * stroke))
    captions: list[tuple[Corners, str, RGB]] = []
    for box in reversed(boxes):
        colour = _colour(box["index"])
        ymin, xmin, ymax, xmax = np.clip(np.nan_to_num(box["box"]), 0, 1).tolist()
        left, top = xmin * (result.width - 1), ymin * (result.height - 1)
        right, bottom = max(xmax, xmin) * (result.width - 1), max(ymax, ymin) * (result.height - 1)
        pen.rectangle((left, top, right, bottom), outline=colour, width=stroke)
        text = f"{_name(box)} {100 * box['score']:.0f} %"
        _, _, width, height = pen.textbbox((0, 0), text, font=font)
        captions.append(((left, top, left + width + 6, top + height + 4), text, colour))
    taken: list[Corners] = []
    for corners, text, colour in reversed(captions):
        place = free_place(corners, taken, result.size)
        taken.append(place)
        pen.rectangle(place, fill=colour)
        pen.text((place[0] + 3, place[1] + 1), text, fill=(0, 0, 0), font=font)
    return result


def free_place(wanted: Corners, taken: Sequence[Corners], size: tuple[int, int]) -> Corners:
    """*wanted*, moved into a picture of *size* and down past the positions in *taken*.

    At the bottom it continues from the top. If no position is free, it is not moved.
    """
    left, top, right, bottom = wanted
    width, height = right - left, bottom - top
    left = max(0.0, min(left, size[0] - 1 - width))
    start = max(0.0, min(top, size[1] - 1 - height))
    for low, high in ((start, size[1] - 1), (0.0, start)):
        y = low
        while y + height <= high or y == start:
            place = (left, y, left + width, y + height)
            blocking = [
                bottom
                for x0, y0, x1, bottom in taken
                if place[0] <= x1 and x0 <= place[2] and y <= bottom and y0 <= place[3]
            ]
            if not blocking:
                return place
            y = max(blocking) + 1
    return left, start, left + width, start + height


def draw_mask(
    picture: Image.Image,
    classes: npt.NDArray[np.int64],
    legend: Sequence[Mapping[str, Any]] = (),
) -> Image.Image:
    """A copy of *picture* with every class but 0 tinted, and as many lines of *legend* as fit."""
    palette = np.array([colour.rgb for colour in COLOURS], np.uint8)
    # Class 0 gets a number beyond the colours, so that it differs from the first colour.
    small = np.where(classes == 0, len(COLOURS), classes % len(COLOURS)).astype(np.uint8)
    mask = np.asarray(Image.fromarray(small).resize(picture.size, Image.Resampling.NEAREST))
    base = np.asarray(picture.convert("RGB"), np.float32)
    tinted = (1 - MASK_OPACITY) * base + MASK_OPACITY * palette[mask % len(COLOURS)]
    shown = np.where((mask < len(COLOURS))[..., None], tinted, base)
    result = Image.fromarray(shown.round().astype(np.uint8))
    _draw_legend(result, [row for row in legend if row["index"] != 0])
    return result


def _draw_legend(picture: Image.Image, rows: Sequence[Mapping[str, Any]]) -> None:
    height = max(LEGEND_HEIGHT, max(picture.size) // 40)
    pen, font = ImageDraw.Draw(picture), ImageFont.load_default(height - 4)
    for position, row in enumerate(rows):
        top = position * height
        text = f"{_name(row)} {100 * row['fraction']:.1f} %"
        width = pen.textlength(text, font=font) + 6
        if width > picture.width / 2 or top + height > picture.height / 2:
            break
        pen.rectangle((0, top, width, top + height - 1), fill=_colour(row["index"]))
        pen.text((3, top + 1), text, fill=(0, 0, 0), font=font)


def draw_pose(picture: Image.Image, points: Sequence[Mapping[str, Any] | None]) -> Image.Image:
    """A copy of *picture* with the key points that are not None, and limbs between them."""
    result = picture.copy()
    pen = ImageDraw.Draw(result)
    stroke = _stroke(result)
    places = [
        None if p is None else (p["x"] * result.width, p["y"] * result.height) for p in points
    ]
    for index, (start, end) in enumerate(LIMBS):
        first, second = places[start], places[end]
        if first is not None and second is not None:
            pen.line((*first, *second), fill=_colour(index), width=stroke)
    for place in filter(None, places):
        pen.circle(place, 2 * stroke, fill=(255, 255, 255), outline=(0, 0, 0))
    return result


def _stroke(picture: Image.Image) -> int:
    return max(2, round(max(picture.size) / 250))


def _name(row: Mapping[str, Any]) -> str:
    return row["label"] if row["label"] is not None else f"class {row['index']}"


def _colour(index: int) -> RGB:
    return COLOURS[index % len(COLOURS)].rgb
