"""Pictures: decode, turn upright, reduce to the channels and size an input wants."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from penstock.cli.failures import FileError, reading
from penstock.ir import NDArray, Operand
from penstock.ir.show import show_operand

FORMATS: Final = ("PNG", "JPEG", "BMP")
MAX_PIXELS: Final = 64 * 2**20
"""A picture of more pixels is refused before it is decoded."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How an input holds a picture: its axes (of N, H, W, C), size in pixels (None: the picture's own)
    and channels.
    """

    axes: Literal["NHWC", "NCHW", "HWC", "CHW", "NHW", "HW"]
    height: int | None
    width: int | None
    channels: int


def layout(operand: Operand) -> Layout | None:
    """The picture layout of an input, or None when its shape is no picture's.

    Channels are 1, 3 or 4 and come last where both places would do; one picture at a time, so N is 1;
    a height or width of 1 makes no picture.
    """
    found = _layout(operand.shape or ())
    return found if found is not None and 1 not in {found.height, found.width} else None


def _layout(shape: tuple[int | None, ...]) -> Layout | None:
    match shape:
        case (1 | None, height, width, (1 | 3 | 4) as channels):
            return Layout("NHWC", height, width, channels)
        case (1 | None, (1 | 3 | 4) as channels, height, width):
            return Layout("NCHW", height, width, channels)
        case (height, width, (1 | 3 | 4) as channels):
            return Layout("HWC", height, width, channels)
        case (1 | None, height, width):
            return Layout("NHW", height, width, 1)
        case ((3 | 4) as channels, height, width):
            return Layout("CHW", height, width, channels)
        case (height, width):
            return Layout("HW", height, width, 1)
        case _:
            return None


def read_picture(path: Path) -> Image.Image:
    """The decoded, upright picture as 8-bit RGB. Raises `FileError`."""
    with reading(path, "the picture cannot be decoded"):
        # Pillow's own limit only warns, up to twice its size.
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            opened = Image.open(path, formats=FORMATS)
        except UnidentifiedImageError:
            raise FileError(path, "not a PNG, JPEG or BMP picture") from None
        except (Image.DecompressionBombError, Image.DecompressionBombWarning):
            raise FileError(path, too_large()) from None
        with opened:
            if opened.width * opened.height > MAX_PIXELS:
                raise FileError(path, too_large(opened.width * opened.height))
            return _to_rgb(ImageOps.exif_transpose(opened))


def too_large(pixels: int | None = None) -> str:
    if pixels is None:
        return f"the picture has more than {MAX_PIXELS:,} pixels, the most that are decoded"
    return f"the picture has {pixels:,} pixels; at most {MAX_PIXELS:,} are decoded"


def _to_rgb(picture: Image.Image) -> Image.Image:
    if picture.mode.startswith("I"):
        # Pillow clips 16-bit grey to 255 instead of scaling it.
        grey = np.clip(np.asarray(picture, np.int64), 0, 65535)
        return Image.fromarray((grey >> 8).astype(np.uint8)).convert("RGB")
    return picture.convert("RGB")


def pixels(picture: Image.Image, shape: Layout) -> npt.NDArray[np.uint8]:
    """uint8 [height, width, 1 or 3]: the whole picture stretched (bilinear) to the layout's size."""
    chosen = picture.convert("L") if shape.channels == 1 else picture
    size = (shape.width or picture.width, shape.height or picture.height)
    if chosen.size != size:
        chosen = chosen.resize(size, Image.Resampling.BILINEAR)
    array = np.asarray(chosen, np.uint8)
    return array[:, :, None] if array.ndim == 2 else array


def arrange(stored: NDArray, shape: Layout) -> NDArray:
    """*stored*, [height, width, channels], in the layout's axes; a fourth channel is zeros."""
    if shape.channels == 4:
        stored = np.concatenate([stored, np.zeros((*stored.shape[:2], 1), stored.dtype)], axis=2)
    if "C" not in shape.axes:
        stored = stored[:, :, 0]
    elif shape.axes.index("C") < shape.axes.index("H"):
        stored = stored.transpose(2, 0, 1)
    return np.ascontiguousarray(stored[None] if "N" in shape.axes else stored)


def not_a_picture(operand: Operand) -> str:
    """Why a picture cannot be fed to this input."""
    return f"input {operand.name!r} is {show_operand(operand)}, which is not the shape of a picture"
