"""The colours that answers are drawn in, a class after another, and what a legend calls them."""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

RGB: TypeAlias = tuple[int, int, int]


class Colour(NamedTuple):
    name: str
    rgb: RGB


COLOURS: Final = (
    Colour("red", (230, 25, 75)),
    Colour("green", (60, 180, 75)),
    Colour("blue", (0, 130, 200)),
    Colour("orange", (245, 130, 48)),
    Colour("purple", (145, 30, 180)),
    Colour("cyan", (70, 240, 240)),
    Colour("magenta", (240, 50, 230)),
    Colour("lime", (210, 245, 60)),
    Colour("pink", (250, 190, 212)),
    Colour("teal", (0, 128, 128)),
    Colour("yellow", (255, 225, 25)),
)
