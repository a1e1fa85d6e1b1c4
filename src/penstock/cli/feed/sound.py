"""Sound: 16-bit mono samples of a WAV file, as long as an input wants them."""

from __future__ import annotations

import wave
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.cli.failures import FileError, reading
from penstock.execution.inputs import quantize
from penstock.ir import DType, NDArray, Operand
from penstock.ir.show import show_operand

MAX_FRAMES: Final = 2**26
"""Most frames read where the input's length is unknown (over an hour at 16 kHz)."""

WIDTHS: Final = range(1, 5)
"""Bytes a sample may have."""


def waveform_length(operand: Operand) -> int | None:
    """How many samples an input takes, 0 where its length is unknown; None when it is no waveform.

    A waveform has one dimension that is not 1: [n], [1, n], [1, n, 1], ...
    """
    shape = operand.shape
    if shape is None or not shape:
        return None
    long = [d for d in shape if d != 1]
    if len(long) > 1:
        return None
    return (long[0] or 0) if long else 1


def read_sound(path: Path, operand: Operand) -> tuple[NDArray, list[str]]:
    """The file's samples as the input stores them, and what was done to them.

    PCM of 8 to 32 bits becomes real values in [-1, 1); channels are averaged; the sound is cut or padded
    with zeros to the input's length and never resampled. A float input gets the real values, a
    quantised one what stands for them, an int16 one without quantisation 16-bit samples. Raises
    `FileError`.
    """
    wanted = waveform_length(operand)
    if wanted is None:
        raise FileError(
            path,
            f"input {operand.name!r} is {show_operand(operand)}, which is not the shape of a sound",
        )
    with reading(path, "not a PCM WAV file"), wave.open(str(path), "rb") as opened:
        rate, channels, width = opened.getframerate(), opened.getnchannels(), opened.getsampwidth()
        if width not in WIDTHS:
            raise FileError(path, f"has samples of {8 * width} bits; 8, 16, 24 and 32 are read")
        frames = opened.getnframes()
        present = path.stat().st_size // (channels * width)
        if frames > present or not _has_frame(opened, frames - 1):
            raise FileError(path, f"is cut short: its header declares {frames:,} samples")
        data = opened.readframes(min(wanted or frames, frames, MAX_FRAMES))
    mono = _real(data, width).reshape(-1, channels).mean(axis=1, dtype=np.float64)
    shape = tuple(d if d is not None else len(mono) for d in operand.shape or ())
    samples = np.zeros(wanted or len(mono), np.float32)
    samples[: len(mono)] = mono
    return _store(path, samples, operand).reshape(shape), _notes(
        rate, channels, frames, len(samples)
    )


def _has_frame(opened: wave.Wave_read, frame: int) -> bool:
    """Whether the file reaches to the end of *frame*; leaves it at its beginning."""
    if frame < 0:
        return True
    opened.setpos(frame)
    size = len(opened.readframes(1))
    opened.rewind()
    return size == opened.getnchannels() * opened.getsampwidth()


def _real(data: bytes, width: int) -> npt.NDArray[np.floating[Any]]:
    if width == 1:
        return (np.frombuffer(data, np.uint8).astype(np.float32) - 128) / np.float32(128)
    if width == 3:
        padded = np.zeros((len(data) // 3, 4), np.uint8)
        padded[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)
        return padded.reshape(-1).view("<i4").astype(np.float64) / 2**31
    if width == 2:
        return np.frombuffer(data, "<i2").astype(np.float32) / np.float32(2**15)
    return np.frombuffer(data, "<i4").astype(np.float64) / 2**31


def _store(path: Path, samples: NDArray, operand: Operand) -> NDArray:
    if operand.dtype.is_float:
        return samples.astype(operand.dtype.numpy)
    if operand.quantization is not None:
        return quantize(samples, operand.quantization, operand.dtype)
    if operand.dtype is DType.INT16:
        whole: NDArray = np.clip(np.rint(samples * 32768), -32768, 32767).astype(np.int16)
        return whole
    raise FileError(
        path, f"a sound cannot be fed to input {operand.name!r}, {show_operand(operand)}"
    )


def _notes(rate: int, channels: int, frames: int, length: int) -> list[str]:
    notes = [f"the sound is fed at its own rate, {rate} Hz; nothing is resampled"]
    if channels > 1:
        notes.append(f"{channels} channels averaged to one")
    if frames > length:
        notes.append(f"cut from {frames} to {length} samples")
    elif frames < length:
        notes.append(f"padded with zeros from {frames} to {length} samples")
    return notes
