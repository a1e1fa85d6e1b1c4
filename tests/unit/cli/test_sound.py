"""WAV files as inputs."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
import pytest

from penstock.cli.failures import FileError
from penstock.cli.feed.sound import read_sound, waveform_length
from penstock.ir import DType, Lifetime, Operand, Quantization, Shape, TensorMetadata
from tests.unit.cli.support_slots import slot


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
        ((None, 16000), 16000),
        ((None, None), 0),
    ],
)
def test_waveform_shapes(shape: Shape, length: int) -> None:
    assert waveform_length(sound_input(shape)) == length


@pytest.mark.parametrize("shape", [None, (), (1, 1), (None, 1), (1, 224, 224, 3), (49, 40)])
def test_shapes_that_are_no_waveform(shape: Shape) -> None:
    assert waveform_length(sound_input(shape)) is None


def test_16_bit_samples_are_divided_by_32768(tmp_path: Path) -> None:
    path = write(tmp_path / "x.wav", np.array([0, 16384, -32768, 32767], "<i2").tobytes())
    samples, notes, _ = read_sound(path, slot(sound_input((1, 4))))
    assert samples.dtype == np.float32
    assert samples.tolist() == [[0.0, 0.5, -1.0, 32767 / 32768]]
    assert notes == [
        (
            "the sound is fed at its own rate, 16000 Hz; the file does not say which the model "
            "takes, "
            "and nothing is resampled"
        )
    ]


def test_8_24_and_32_bit_samples_have_the_same_range(tmp_path: Path) -> None:
    eight = write(tmp_path / "8.wav", bytes([128, 192, 0]), width=1)
    wide = write(tmp_path / "24.wav", b"\0\0\0\0\0\x40\0\0\x80", width=3)
    widest = write(tmp_path / "32.wav", np.array([0, 2**30, -(2**31)], "<i4").tobytes(), width=4)
    for path in (eight, wide, widest):
        assert read_sound(path, slot(sound_input((3,))))[0].tolist() == [0.0, 0.5, -1.0]


def test_channels_are_averaged(tmp_path: Path) -> None:
    path = write(tmp_path / "x.wav", np.array([16384, 0, -16384, 0], "<i2").tobytes(), channels=2)
    samples, notes, _ = read_sound(path, slot(sound_input((2,))))
    assert samples.tolist() == [0.25, -0.25]
    assert "2 channels averaged to one" in notes


def test_a_long_sound_is_cut(tmp_path: Path) -> None:
    path = write(tmp_path / "x.wav", np.arange(320, dtype="<i2").tobytes())
    samples, notes, _ = read_sound(path, slot(sound_input((160,))))
    assert (samples * 32768).tolist() == list(range(160))
    assert "the sound is cut from 320 to 160 samples: its first 0.01 s of 0.02 s" in notes


def test_a_sound_is_not_cut_to_less_than_10_ms(tmp_path: Path) -> None:
    path = write(tmp_path / "x.wav", np.arange(320, dtype="<i2").tobytes())
    with pytest.raises(FileError, match=r"holds 159 values, too few for a sound at 16000 Hz"):
        read_sound(path, slot(sound_input((159,))))
    sure = slot(sound_input((159,)), TensorMetadata(content="audio"))
    assert read_sound(path, sure)[0].shape == (159,)


def test_a_short_sound_is_padded_with_zeros(tmp_path: Path) -> None:
    path = write(tmp_path / "x.wav", np.array([1, 2], "<i2").tobytes())
    samples, notes, _ = read_sound(path, slot(sound_input((4,))))
    assert (samples * 32768).tolist() == [1, 2, 0, 0]
    assert "the sound is padded with zeros from 2 to 4 samples" in notes


def test_an_unknown_length_takes_the_whole_sound(tmp_path: Path) -> None:
    path = write(tmp_path / "x.wav", bytes(20))
    assert read_sound(path, slot(sound_input((1, None))))[0].shape == (1, 10)


def test_quantised_inputs_get_quantised_samples(tmp_path: Path) -> None:
    path = write(tmp_path / "x.wav", np.array([16384, -16384], "<i2").tobytes())
    samples, _, _ = read_sound(
        path, slot(sound_input((2,), DType.INT8, Quantization((1 / 128,), (3,))))
    )
    assert samples.dtype == np.int8
    assert samples.tolist() == [67, -61]


def test_int16_inputs_without_quantisation_get_the_samples(tmp_path: Path) -> None:
    path = write(tmp_path / "x.wav", np.array([-32768, 7, 32767], "<i2").tobytes())
    assert read_sound(path, slot(sound_input((3,), DType.INT16)))[0].tolist() == [-32768, 7, 32767]


@pytest.mark.parametrize("content", [b"", b"RIFF", b"RIFF\x10\0\0\0WAVEfmt ", b"x" * 100])
def test_malformed_wav_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.wav").write_bytes(content)
    with pytest.raises(FileError, match="not a PCM WAV file"):
        read_sound(tmp_path / "x.wav", slot(sound_input((4,))))


def test_every_truncation_is_a_file_error(tmp_path: Path) -> None:
    whole = write(tmp_path / "x.wav", bytes(range(64))).read_bytes()
    for length in range(len(whole)):
        (tmp_path / "cut.wav").write_bytes(whole[:length])
        with pytest.raises(FileError):
            read_sound(tmp_path / "cut.wav", slot(sound_input((8,))))


def test_an_input_that_takes_no_sound_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "x.wav", bytes(4))
    with pytest.raises(FileError, match="not the shape of a sound"):
        read_sound(path, slot(sound_input((1, 8, 8, 3))))
    with pytest.raises(
        FileError, match=r"int32\[2\], which has no scale for samples; an \.npy file gives"
    ):
        read_sound(path, slot(sound_input((2,), DType.INT32)))


def test_a_sound_without_samples_or_without_a_rate_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "x.wav", b"")
    with pytest.raises(FileError, match="has no samples"):
        read_sound(path, slot(sound_input((4,))))
    content = bytearray(write(tmp_path / "x.wav", bytes(8)).read_bytes())
    content[24:28] = bytes(4)
    path.write_bytes(content)
    with pytest.raises(FileError, match="has a rate of 0 samples a second"):
        read_sound(path, slot(sound_input((4,))))


def test_a_sound_at_another_rate_than_that_of_speech_asks_for_the_models(tmp_path: Path) -> None:
    fast = write(tmp_path / "x.wav", bytes(32000), rate=44100)
    question = read_sound(fast, slot(sound_input((16000,)))).question
    assert "has 44100 samples a second" in question
    assert "say --rate 44100 if it takes 44100; otherwise resample the sound" in question
    assert read_sound(fast, slot(sound_input((None,)))).question


@pytest.mark.parametrize(("length", "asks"), [(15600, False), (32000, False), (44100, True)])
def test_a_sound_of_another_length_asks_where_the_input_is_whole_seconds_at_another_rate(
    tmp_path: Path, length: int, asks: bool
) -> None:
    usual = write(tmp_path / "x.wav", bytes(32000))
    assert bool(read_sound(usual, slot(sound_input((length,)))).question) is asks
    whole = write(tmp_path / "whole.wav", bytes(2 * length))
    assert not read_sound(whole, slot(sound_input((length,)))).question


def test_a_rate_that_the_caller_or_the_file_says_asks_nothing(tmp_path: Path) -> None:
    path = write(tmp_path / "x.wav", bytes(32000), rate=44100)
    said = read_sound(path, slot(sound_input((16000,))), 44100)
    assert said.question == ""
    assert not any("rate" in note for note in said.notes)
    metadata = TensorMetadata(content="audio", sample_rate=44100)
    assert read_sound(path, slot(sound_input((16000,)), metadata)).question == ""
    with pytest.raises(FileError, match="resample the sound to 16000 Hz"):
        read_sound(path, slot(sound_input((16000,)), metadata), 16000)
