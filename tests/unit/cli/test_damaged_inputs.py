"""Damaged pictures, sounds and arrays are read or refused as a bad file; nothing else comes out of
them.
"""

from __future__ import annotations

import io
import random
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from penstock.cli.failures import FileError
from penstock.cli.feed.arrays import read_npy, read_npz
from penstock.cli.feed.pictures import open_picture
from penstock.cli.feed.sound import read_sound
from penstock.ir import DType, Lifetime, Operand
from tests.unit.cli.support_slots import slot

MUTATIONS = 150
EXTREMES = (b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f")

ARRAY = Operand(DType.FLOAT32, (None, None), Lifetime.SUBGRAPH_INPUT, "x")
SOUND = slot(Operand(DType.FLOAT32, (50,), Lifetime.SUBGRAPH_INPUT, "x"))


def picture(kind: str, **options: Any) -> bytes:
    values = np.random.default_rng(0).integers(0, 256, (12, 16, 3), np.uint8)
    exif, stream = Image.Exif(), io.BytesIO()
    exif[0x0112] = 6
    if kind != "BMP":
        options["exif"] = exif
    Image.fromarray(values).save(stream, kind, **options)
    return stream.getvalue()


def sound() -> bytes:
    stream = io.BytesIO()
    with wave.open(stream, "wb") as opened:
        opened.setnchannels(2)
        opened.setsampwidth(2)
        opened.setframerate(8000)
        opened.writeframes(bytes(200))
    return stream.getvalue()


def array(save: Callable[..., None]) -> bytes:
    stream = io.BytesIO()
    save(stream, np.zeros((2, 3), np.float32))
    return stream.getvalue()


def read_first(path: Path) -> Any:
    return read_npz(path, [ARRAY])


SUBJECTS: dict[str, tuple[bytes, Callable[[Path], Any]]] = {
    "png": (picture("PNG"), open_picture),
    "jpeg": (picture("JPEG"), open_picture),
    "progressive jpeg": (picture("JPEG", progressive=True), open_picture),
    "bmp": (picture("BMP"), open_picture),
    "wav": (sound(), lambda path: read_sound(path, SOUND)),
    "npy": (array(np.save), lambda path: read_npy(path, ARRAY)),
    "npz": (array(np.savez), read_first),
    "compressed npz": (array(np.savez_compressed), read_first),
}


def mutated(content: bytes, generator: random.Random) -> bytes:
    data = bytearray(content)
    for _ in range(generator.choice((1, 1, 2, 4, 16))):
        if len(data) < 10:
            break
        kind, place = generator.random(), generator.randrange(len(data))
        if kind < 0.6:
            data[place] = generator.randrange(256)
        elif kind < 0.75:
            data[place : place + 4] = generator.choice(EXTREMES)
        elif kind < 0.85:
            del data[place : place + generator.randrange(1, 9)]
        else:
            del data[place:]
    return bytes(data)


@pytest.mark.parametrize("name", SUBJECTS)
def test_damaged_files_are_read_or_refused(name: str, tmp_path: Path) -> None:
    content, read = SUBJECTS[name]
    path, generator = tmp_path / "damaged", random.Random(name)
    path.write_bytes(content)
    read(path)
    refused = 0
    for _ in range(MUTATIONS):
        path.write_bytes(mutated(content, generator))
        try:
            read(path)
        except FileError:
            refused += 1
    assert refused > MUTATIONS // 10


def test_samples_of_an_odd_width_are_refused(tmp_path: Path) -> None:
    content = bytearray(sound())
    content[34:36] = (40).to_bytes(2, "little")
    (tmp_path / "x.wav").write_bytes(content)
    with pytest.raises(FileError, match="samples of 40 bits"):
        read_sound(tmp_path / "x.wav", SOUND)


def test_a_header_that_declares_more_sound_than_the_file_has_is_refused(tmp_path: Path) -> None:
    content = bytearray(sound())
    for declared in (b"\xff\xff\xff\x7f", (204).to_bytes(4, "little")):
        content[40:44] = declared
        (tmp_path / "x.wav").write_bytes(content)
        with pytest.raises(FileError, match="is cut short"):
            read_sound(tmp_path / "x.wav", SOUND)


def test_a_sound_whose_end_is_missing_is_refused_even_where_it_is_not_needed(
    tmp_path: Path,
) -> None:
    (tmp_path / "x.wav").write_bytes(sound()[:-4])
    with pytest.raises(FileError, match="is cut short: its header declares 50 samples"):
        read_sound(tmp_path / "x.wav", SOUND)
