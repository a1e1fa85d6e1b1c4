"""Decoding, turning, resizing, and the axes of picture inputs."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from penstock.cli.failures import FileError
from penstock.cli.feed import pictures
from penstock.cli.feed.pictures import Layout, arrange, layout, open_picture, pixels
from penstock.ir import DType, Lifetime, Operand, Shape


def image_input(shape: Shape) -> Operand:
    return Operand(DType.FLOAT32, shape, Lifetime.SUBGRAPH_INPUT, "image")


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((1, 224, 200, 3), Layout("NHWC", 224, 200, 3)),
        ((None, 224, 200, 3), Layout("NHWC", 224, 200, 3)),
        ((1, None, None, 3), Layout("NHWC", None, None, 3)),
        ((1, 8, 8, 1), Layout("NHWC", 8, 8, 1)),
        ((1, 512, 512, 4), Layout("NHWC", 512, 512, 4)),
        ((1, 3, 224, 200), Layout("NCHW", 224, 200, 3)),
        ((1, 28, 28), Layout("NHW", 28, 28, 1)),
        ((224, 200, 3), Layout("HWC", 224, 200, 3)),
        ((3, 224, 200), Layout("CHW", 224, 200, 3)),
        ((28, 30), Layout("HW", 28, 30, 1)),
    ],
)
def test_layout_of_picture_shapes(shape: Shape, expected: Layout) -> None:
    assert layout(image_input(shape)) == expected


@pytest.mark.parametrize(
    "shape",
    [
        None,
        (),
        (10,),
        (1, 640),
        (1, 1, 40),
        (2, 224, 224, 3),
        (1, 224, 224, 5),
        (1, 2, 3, 4, 5),
        (None, 43844, 1),
        (None, 50, 3),
    ],
)
def test_layout_of_other_shapes(shape: Shape) -> None:
    assert layout(image_input(shape)) is None


@pytest.mark.parametrize(
    ("axes", "channels", "expected"),
    [
        ("NHWC", 3, (1, 2, 4, 3)),
        ("NCHW", 3, (1, 3, 2, 4)),
        ("HWC", 3, (2, 4, 3)),
        ("CHW", 3, (3, 2, 4)),
        ("NHW", 1, (1, 2, 4)),
        ("HW", 1, (2, 4)),
        ("NHWC", 4, (1, 2, 4, 4)),
    ],
)
def test_arrange_puts_axes_in_order(axes: str, channels: int, expected: tuple[int, ...]) -> None:
    given = np.arange(2 * 4 * 3).reshape(2, 4, 3)[:, :, : 1 if channels == 1 else 3]
    # A parameter is a str.
    found = arrange(given, Layout(axes, 2, 4, channels))  # type: ignore[arg-type]
    assert found.shape == expected
    assert found.flags.c_contiguous
    flat = found.reshape(-1) if channels != 4 else found[..., :3].reshape(-1)
    assert sorted(flat.tolist()) == sorted(given.reshape(-1).tolist())


def test_arrange_keeps_channels_apart_when_they_come_first() -> None:
    given = np.stack([np.full((2, 2), c) for c in range(3)], axis=2)
    found = arrange(given, Layout("NCHW", 2, 2, 3))
    assert [found[0, c].tolist() for c in range(3)] == [[[c, c], [c, c]] for c in range(3)]


def test_a_fourth_channel_is_zeros() -> None:
    found = arrange(np.ones((2, 2, 3), np.float32), Layout("NHWC", 2, 2, 4))
    assert found[0, :, :, 3].tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize("suffix", ["png", "bmp"])
def test_lossless_pictures_are_read_exactly(tmp_path: Path, suffix: str) -> None:
    values = np.arange(5 * 7 * 3, dtype=np.uint8).reshape(5, 7, 3)
    Image.fromarray(values).save(tmp_path / f"x.{suffix}")
    assert np.array_equal(np.asarray(open_picture(tmp_path / f"x.{suffix}")[0]), values)


def test_jpegs_are_read(tmp_path: Path) -> None:
    Image.new("RGB", (16, 16), (200, 40, 40)).save(tmp_path / "x.jpg", quality=95)
    assert (
        np.abs(np.asarray(open_picture(tmp_path / "x.jpg")[0]).astype(int) - [200, 40, 40]).max()
        < 6
    )


def test_the_orientation_tag_turns_the_picture(tmp_path: Path) -> None:
    values = np.zeros((2, 4, 3), np.uint8)
    values[0, 0] = 255
    picture = Image.fromarray(values)
    exif = Image.Exif()
    exif[0x0112] = 6
    picture.save(tmp_path / "x.png", exif=exif)
    turned = np.asarray(open_picture(tmp_path / "x.png")[0])
    assert turned.shape == (4, 2, 3)
    assert turned[0, 1].tolist() == [255, 255, 255]


def test_16_bit_grey_is_scaled_not_clipped(tmp_path: Path) -> None:
    Image.fromarray(np.array([[0, 256], [32768, 65535]], np.uint16)).save(tmp_path / "x.png")
    assert np.asarray(open_picture(tmp_path / "x.png")[0])[..., 0].tolist() == [[0, 1], [128, 255]]


def test_palette_and_grey_become_rgb(tmp_path: Path) -> None:
    for mode in ("P", "L", "LA", "RGBA", "1"):
        Image.new(mode, (3, 3)).save(tmp_path / f"{mode}.png")
        assert open_picture(tmp_path / f"{mode}.png")[0].mode == "RGB"


def test_one_channel_is_luma() -> None:
    picture = Image.new("RGB", (2, 2), (255, 0, 0))
    assert pixels(picture, Layout("NHWC", 2, 2, 1)).tolist() == [[[76], [76]], [[76], [76]]]


def test_resizing_is_pillows_bilinear() -> None:
    generator = np.random.default_rng(0)
    picture = Image.fromarray(generator.integers(0, 256, (40, 60, 3), np.uint8))
    found = pixels(picture, Layout("NHWC", 10, 15, 3))
    expected = np.asarray(picture.resize((15, 10), Image.Resampling.BILINEAR))
    assert np.array_equal(found, expected)


def test_unknown_sizes_take_the_pictures_own() -> None:
    assert pixels(Image.new("RGB", (6, 5)), Layout("NHWC", None, None, 3)).shape == (5, 6, 3)


def one_pixel_png(width: int, height: int) -> bytes:
    """A PNG header that declares a size its data do not have."""
    import struct
    import zlib

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b"\0" * 4))
        + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("size", [(2**20, 2**20), (10_000, 10_000), (8193, 8192)])
def test_a_huge_picture_is_refused_before_it_is_decoded(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    (tmp_path / "bomb.png").write_bytes(one_pixel_png(*size))
    with pytest.raises(FileError, match="67,108,864"):
        open_picture(tmp_path / "bomb.png")


def test_the_limit_itself_is_allowed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pictures, "MAX_PIXELS", 4)
    Image.new("RGB", (2, 2)).save(tmp_path / "x.png")
    assert open_picture(tmp_path / "x.png")[0].size == (2, 2)
    Image.new("RGB", (5, 1)).save(tmp_path / "y.png")
    with pytest.raises(FileError, match="5 pixels"):
        open_picture(tmp_path / "y.png")


def test_malformed_picture_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.png").write_bytes(b"not a picture at all")
    with pytest.raises(FileError, match="not a PNG, JPEG or BMP"):
        open_picture(tmp_path / "x.png")


def test_other_formats_are_refused(tmp_path: Path) -> None:
    Image.new("RGB", (2, 2)).save(tmp_path / "x.gif")
    with pytest.raises(FileError, match="not a PNG, JPEG or BMP"):
        open_picture(tmp_path / "x.gif")


def test_a_picture_of_another_format_is_named_with_the_remedy(tmp_path: Path) -> None:
    Image.new("RGB", (2, 2)).save(tmp_path / "cat.gif")
    with pytest.raises(
        FileError, match=r"cat\.gif: not a PNG, JPEG or BMP picture; convert it to PNG"
    ):
        open_picture(tmp_path / "cat.gif")


@pytest.mark.parametrize(("greatest", "noted"), [(255, True), (655, True), (656, False)])
def test_16_bit_grey_that_is_almost_black_is_noted(
    tmp_path: Path, greatest: int, noted: bool
) -> None:
    Image.fromarray(np.array([[0, greatest]], np.uint16)).save(tmp_path / "x.png")
    assert bool(pictures.open_picture(tmp_path / "x.png")[1]) == noted


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "BMP"])
def test_every_truncation_is_a_file_error_or_a_picture(tmp_path: Path, kind: str) -> None:
    stream = io.BytesIO()
    generator = np.random.default_rng(1)
    Image.fromarray(generator.integers(0, 256, (9, 9, 3), np.uint8)).save(stream, kind)
    whole, path = stream.getvalue(), tmp_path / "cut"
    refused = 0
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        try:
            open_picture(path)
        except FileError:
            refused += 1
    assert refused > 10


def test_a_missing_picture_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="No such file"):
        open_picture(tmp_path / "missing.png")


def test_transparent_parts_are_named(tmp_path: Path) -> None:
    clear, solid = (Image.new("RGBA", (4, 4), (9, 9, 9, alpha)) for alpha in (0, 255))
    clear.save(tmp_path / "clear.png")
    solid.save(tmp_path / "solid.png")
    assert pictures.open_picture(tmp_path / "clear.png")[1] == [
        "the picture has transparent parts; they are fed in the colours beneath"
    ]
    assert pictures.open_picture(tmp_path / "solid.png")[1] == []


def test_animation_feeds_its_first_picture_with_a_note(tmp_path: Path) -> None:
    first, second = (Image.new("RGB", (4, 4), (v, v, v)) for v in (10, 200))
    first.save(tmp_path / "x.png", save_all=True, append_images=[second])
    picture, notes = pictures.open_picture(tmp_path / "x.png")
    assert picture.getpixel((0, 0)) == (10, 10, 10)
    assert notes == ["the file is an animation of 2 pictures; the first is fed"]


@pytest.mark.parametrize(
    ("size", "named"), [((1, 1), True), ((8, 300), True), ((100, 60), False), ((2000, 1000), False)]
)
def test_a_picture_that_is_stretched_far_is_named(size: tuple[int, int], named: bool) -> None:
    notes = pictures.stretched(Image.new("RGB", size), Layout("NHWC", 224, 224, 3))
    assert notes == ([f"the picture of {size[0]} x {size[1]} is stretched to 224 x 224"] * named)
