"""WAV files as inputs."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
import pytest

from penstock.cli.failures import FileError
from penstock.cli.feed.sound import read_sound, waveform_length
from penstock.ir import DType, Lifetime, Operand, Quantization, Shape


def sound_input(
    shape: Shape, dtype: DType = DType.FLOAT32, quantization: Quantization | None = None
) -> Operand:
    return Operand(dtype, shape, Lifetime.SUBGRAPH_INPUT, "sound", quantization)


def write(path: Path, data: bytes, width: int = 2, channels: int = 1, rate: int = 16000) -> Path:
    with wave.open(str(path), "wb") as opened:
        opened.setsampwidth(width)
        opened.setnchannels(channels)
        opened.setframerate(rate)
        opened.writeframes(data)
    return path


@pytest.mark.parametrize(
    ("shape", "length"),
    [
        ((15600,), 15600),
        ((1, 16000), 16000),
        ((1, 16000, 1), 16000),
        ((None,), 0),
        ((1, None), 0),
        ((1, 1), 1),
    ],
)
def test_waveform_shapes(shape: Shape, length: int) -> None:
    assert waveform_length(sound_input(shape)) == length


@pytest.mark.parametrize("shape", [None, (), (1, 224, 224, 3), (49, 40)])
def test_shapes_that_are_no_waveform(shape: Shape) -> None:
    assert waveform_length(sound_input(shape)) is None


def test_16_bit_samples_are_divided_by_32768(tmp_path: Path) -> None:
    path = write(tmp_path / "x.wav", np.array([0, 16384, -32768, 32767], "<i2").tobytes())
    samples, notes = read_sound(path, sound_input((1, 4)))
    assert samples.dtype == np.float32
    assert samples.tolist() == [[0.0, 0.5, -1.0, 32767 / 32768]]
    assert notes == ["the sound is fed at its own rate, 16000 Hz; nothing is resampled"]


def test_8_24_and_32_bit_samples_have_the_same_range(tmp_path: Path) -> None:
    eight = write(tmp_path / "8.wav", bytes([128, 192, 0]), width=1)
    wide = write(tmp_path / "24.wav", b"\0\0\0\0\0\x40\0\0\x80", width=3)
    widest = write(tmp_path / "32.wav", np.array([0, 2**30, -(2**31)], "<i4").tobytes(), width=4)
    for path in (eight, wide, widest):
        assert read_sound(path, sound_input((3,)))[0].tolist() == [0.0, 0.5, -1.0]


def test_channels_are_averaged(tmp_path: Path) -> None:
    path = write(tmp_path / "x.wav", np.array([16384, 0, -16384, 0], "<i2").tobytes(), channels=2)
    samples, notes = read_sound(path, sound_input((2,)))
    assert samples.tolist() == [0.25, -0.25]
    assert "2 channels averaged to one" in notes


def test_a_long_sound_is_cut(tmp_path: Path) -> None:
    path = write(tmp_path / "x.wav", np.arange(6, dtype="<i2").tobytes())
    samples, notes = read_sound(path, sound_input((4,)))
    assert (samples * 32768).tolist() == [0, 1, 2, 3]
    assert "cut from 6 to 4 samples" in notes


def test_a_short_sound_is_padded_with_zeros(tmp_path: Path) -> None:
    path = write(tmp_path / "x.wav", np.array([1, 2], "<i2").tobytes())
    samples, notes = read_sound(path, sound_input((4,)))
    assert (samples * 32768).tolist() == [1, 2, 0, 0]
    assert "padded with zeros from 2 to 4 samples" in notes


def test_an_unknown_length_takes_the_whole_sound(tmp_path: Path) -> None:
    path = write(tmp_path / "x.wav", bytes(20))
    assert read_sound(path, sound_input((1, None)))[0].shape == (1, 10)


def test_quantised_inputs_get_quantised_samples(tmp_path: Path) -> None:
    path = write(tmp_path / "x.wav", np.array([16384, -16384], "<i2").tobytes())
    samples, _ = read_sound(path, sound_input((2,), DType.INT8, Quantization((1 / 128,), (3,))))
    assert samples.dtype == np.int8
    assert samples.tolist() == [67, -61]


def test_int16_inputs_without_quantisation_get_the_samples(tmp_path: Path) -> None:
    path = write(tmp_path / "x.wav", np.array([-32768, 7, 32767], "<i2").tobytes())
    assert read_sound(path, sound_input((3,), DType.INT16))[0].tolist() == [-32768, 7, 32767]


@pytest.mark.parametrize("content", [b"", b"RIFF", b"RIFF\x10\0\0\0WAVEfmt ", b"x" * 100])
def test_what_is_no_wav_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.wav").write_bytes(content)
    with pytest.raises(FileError, match="not a PCM WAV file"):
        read_sound(tmp_path / "x.wav", sound_input((4,)))


def test_every_truncation_is_a_file_error(tmp_path: Path) -> None:
    whole = write(tmp_path / "x.wav", bytes(range(64))).read_bytes()
    for length in range(len(whole)):
        (tmp_path / "cut.wav").write_bytes(whole[:length])
        with pytest.raises(FileError):
            read_sound(tmp_path / "cut.wav", sound_input((8,)))


def test_an_input_that_takes_no_sound_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "x.wav", bytes(4))
    with pytest.raises(FileError, match="not the shape of a sound"):
        read_sound(path, sound_input((1, 8, 8, 3)))
    with pytest.raises(FileError, match="cannot be fed"):
        read_sound(path, sound_input((2,), DType.INT32))
