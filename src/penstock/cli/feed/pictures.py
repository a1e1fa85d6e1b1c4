"""Decodes pictures, rotates them upright, and converts them to an input's channels and size."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, BinaryIO, Final, Literal

import numpy as np
from msgspec import Struct
from PIL import ExifTags, Image, UnidentifiedImageError

from penstock.cli.failures import FileError, reading
from penstock.cli.feed.files import File, InputFile
from penstock.ir import NDArray, Operand

if TYPE_CHECKING:
    import numpy.typing as npt

FORMATS: Final = {"PNG": b"\x89PNG\r\n\x1a\n", "JPEG": b"\xff\xd8\xff", "BMP": b"BM"}
"""Formats that are decoded, with the bytes that a file of the format begins with."""

ENDINGS: Final = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".bmp": "BMP"}

DEEPEST: Final = 65535
"""White in a picture of 16 bits per channel."""

FLAT: Final = 0.01
"""A picture is reported as nearly flat if its range is a smaller share of black to white."""

MAX_PIXELS: Final = 64 * 2**20
"""A picture with more pixels is rejected before it is decoded."""

ENLARGED: Final = 8
DISTORTED: Final = 3
"""A picture is reported as stretched beyond these factors: of a side, and between the sides."""


class Layout(Struct, frozen=True):
    """The picture layout of an input: axes (of N, H, W, C), pixels (None: any) and channels."""

    axes: Literal["NHWC", "NCHW", "HWC", "CHW", "NHW", "HW"]
    height: int | None
    width: int | None
    channels: int


def layout(operand: Operand) -> Layout | None:
    """The picture layout of an input; None if its shape is not a picture's.

    It has 1, 3 or 4 channels, which are the last axis if both positions are possible. N is 1. A
    shape with a height or width of 1 is not a picture. If only the first of three dimensions is
    unknown, it is a batch of sequences, not a height.
    """
    found = _layout(operand.shape or ())
    return found if found is not None and 1 not in {found.height, found.width} else None


def _layout(shape: tuple[int | None, ...]) -> Layout | None:
    match shape:
        case (1 | None, height, width, (1 | 3 | 4) as channels):
            return Layout("NHWC", height, width, channels)
        case (1 | None, (1 | 3 | 4) as channels, height, width):
            return Layout("NCHW", height, width, channels)
        case (None, int(), 1 | 3 | 4):
            return None
        case (height, width, (1 | 3 | 4) as channels):
            return Layout("HWC", height, width, channels)
        case (1 | None, height, width) if (height is None) == (width is None):
            return Layout("NHW", height, width, 1)
        case ((3 | 4) as channels, height, width):
            return Layout("CHW", height, width, channels)
        case (int(height), int(width)):
            return Layout("HW", height, width, 1)
        case _:
            return None


def open_picture(path: InputFile) -> tuple[Image.Image, list[str]]:
    """The upright picture as 8-bit RGB, and notes on lost information. Raises `FileError`."""
    with reading(path, "the picture cannot be decoded"), path.open("rb") as stream:
        # Above its limit Pillow only warns, up to twice the limit.
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            source, formats = _narrowed(path, stream)
            opened = Image.open(source, formats=formats)
        except UnidentifiedImageError:
            raise FileError(
                path,
                "not a PNG, JPEG or BMP picture; convert it to PNG (sounds are .wav files, arrays "
                ".npy or .npz)",
            ) from None
        except (Image.DecompressionBombError, Image.DecompressionBombWarning):
            most = f"more than {MAX_PIXELS:,} pixels, the most that are decoded"
            raise FileError(path, f"the picture has {most}") from None
        with opened:
            if opened.width * opened.height > MAX_PIXELS:
                most = (
                    f"{opened.width * opened.height:,} pixels; at most {MAX_PIXELS:,} are decoded"
                )
                raise FileError(path, f"the picture has {most}")
            return _to_rgb(_upright(opened)), _left_out(opened)


def _narrowed(path: InputFile, stream: BinaryIO) -> tuple[str | BinaryIO, list[str]]:
    """What Pillow opens, and as which formats.

    For the name of a file Pillow imports the format of its ending; for a stream, several others.
    """
    beginning = stream.read(max(map(len, FORMATS.values())))
    stream.seek(0)
    kind = ENDINGS.get(path.suffix.lower())
    by_name = isinstance(path, File) and not path.is_piped
    if by_name and kind is not None and beginning.startswith(FORMATS[kind]):
        return str(path), [kind]
    return stream, [*FORMATS]


def _upright(picture: Image.Image) -> Image.Image:
    """*picture* as its metadata turns it."""
    if picture.getexif().get(ExifTags.Base.Orientation, 1) == 1:
        return picture
    from PIL import ImageOps

    return ImageOps.exif_transpose(picture)


def _left_out(picture: Image.Image) -> list[str]:
    notes = []
    # Phones store a preview or a brightness map with a photograph.
    if picture.format == "PNG" and (number := getattr(picture, "n_frames", 1)) > 1:
        notes.append(f"the file is an animation of {number} pictures; the first is fed")
    if (
        picture.has_transparency_data
        and np.asarray(picture.convert("RGBA").getchannel("A")).min() < 255
    ):
        notes.append("the picture has transparent parts; they are fed in the colours beneath")
    if (
        picture.mode.startswith("I")
        and (greatest := int(np.asarray(picture).max())) < FLAT * DEEPEST
    ):
        notes.append(
            f"the picture has 16 bits a channel, in which white is {DEEPEST}, and its greatest "
            f"value is {greatest}; scale it to the full range"
        )
    return notes


def stretched(picture: Image.Image, shape: Layout) -> list[str]:
    """A note if the picture is enlarged or distorted so much that the answer may mean little."""
    width, height = shape.width or picture.width, shape.height or picture.height
    across, down = width / picture.width, height / picture.height
    if max(across, down) <= ENLARGED and max(across, down) <= DISTORTED * min(across, down):
        return []
    return [f"the picture of {picture.width} x {picture.height} is stretched to {width} x {height}"]


def flat(pixels: npt.NDArray[np.uint8]) -> list[str]:
    """A note if all *pixels* are nearly equal."""
    span = int((pixels.max((0, 1)) - pixels.min((0, 1))).max())
    if span >= FLAT * 255:
        return []
    return [
        f"the picture is nearly of one colour: it spans {span} of the 255 steps from black to white"
    ]


def _to_rgb(picture: Image.Image) -> Image.Image:
    if picture.mode.startswith("I"):
        # Pillow clips 16-bit grey to 255 instead of scaling it.
        grey = np.clip(np.asarray(picture, np.int64), 0, DEEPEST)
        return Image.fromarray((grey >> 8).astype(np.uint8)).convert("RGB")
    return picture.convert("RGB")


def pixels(picture: Image.Image, shape: Layout) -> npt.NDArray[np.uint8]:
    """uint8 [height, width, 1 or 3]: the picture stretched (bilinear) to the layout's size."""
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
