"""Reads samples of WAV files for an input that takes a waveform."""

from __future__ import annotations

import wave
from io import SEEK_END
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from penstock.cli.failures import FileError, reading
from penstock.cli.feed.files import InputFile
from penstock.cli.feed.recognition import amplitude, no_sound
from penstock.execution.inputs import quantize
from penstock.ir import DType, NDArray, Operand
from penstock.ir.model import show_operand

if TYPE_CHECKING:
    import numpy.typing as npt

    from penstock.cli.feed.model_inputs import Slot

MAX_FRAMES: Final = 2**26
"""Most frames that are read if the input's length is unknown (over an hour at 16 kHz)."""

SHORTEST: Final = 0.01
"""The shortest sound in seconds: networks for waveforms take frames of 10 ms or more."""

NO_WAV: Final = "not a PCM WAV file of 8 to 32 bits (a converter makes one)"

WIDTHS: Final = range(1, 5)
"""Permitted sizes of a sample in bytes."""

SPEECH_RATE: Final = 16000
"""The sample rate in Hz of nearly all speech networks, assumed if the model states none."""

OTHER_RATES: Final = (8000, 11025, 22050, 44100, 48000)
"""Other usual rates. An input of whole seconds at one of them was probably made for it."""


class Sound(NamedTuple):
    """An input's *array* for a sound, *notes* on the changes, and a *question*.

    The question is "" unless the model may need another rate.
    """

    array: NDArray
    notes: list[str]
    question: str = ""


def waveform_length(operand: Operand) -> int | None:
    """How many samples an input takes, 0 for an unknown length; None if its shape is not a
    waveform's.

    A waveform has one dimension that is not 1: [n], [1, n], [1, n, 1], ... If only the first of
    several dimensions is unknown, it is a batch; one element of it is supplied.
    """
    shape = operand.shape
    if shape is None or not shape:
        return None
    long = [d for d in _single(shape) if d != 1]
    return long[0] or 0 if len(long) == 1 else None


def _single(shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
    """The shape of one batch element: an unknown first of several dimensions becomes 1."""
    return (1, *shape[1:]) if shape[0] is None and len(shape) > 1 else shape


def read_sound(path: InputFile, slot: Slot, rate_taken: int | None = None) -> Sound:
    """The file's samples as the input stores them.

    PCM of 8 to 32 bits becomes real values in [-1, 1), or 32768 times as much if the input's
    quantised range is that of 16-bit samples. Channels are averaged. The sound is cut or padded
    with zeros to the input's length and never resampled. A float input gets the real values, a
    quantised input their stored values, and an int16 input without quantisation 16-bit samples.
    *rate_taken* is the model's rate if the user states it; otherwise the metadata's is used. Raises
    `FileError`, also if the input takes no waveform, or has another rate.
    """
    operand = slot.operand
    wanted, first = waveform_length(operand), slot.first_operations()
    if reason := no_sound(slot, wanted, first):
        raise FileError(path, f"is a sound, but {reason}; an .npy file gives the input as it is")
    with reading(path, NO_WAV), path.open("rb") as stream:
        nbytes = stream.seek(0, SEEK_END)
        stream.seek(0)
        with wave.open(stream, "rb") as opened:
            rate, channels = opened.getframerate(), opened.getnchannels()
            frames, width = opened.getnframes(), opened.getsampwidth()
            if width not in WIDTHS:
                raise FileError(path, f"has samples of {8 * width} bits; 8, 16, 24 and 32 are read")
            if frames > nbytes // (channels * width) or not _has_frame(opened, frames - 1):
                raise FileError(path, f"is cut short: its header declares {frames:,} samples")
            data = opened.readframes(min(wanted or frames, frames, MAX_FRAMES))
    if not frames or not rate:
        raise FileError(path, "has no samples" if rate else "has a rate of 0 samples a second")
    if wanted and wanted < min(frames, rate * SHORTEST) and slot.content != "audio":
        raise FileError(
            path,
            f"has {frames} samples, and input {operand.name!r} holds {wanted} values, too few for "
            f"a sound at {rate} Hz; they look like features; an .npy file gives the input as it is",
        )
    stated = rate_taken or (slot.metadata.sample_rate if slot.metadata is not None else 0)
    if stated and stated != rate:
        raise FileError(
            path,
            f"has {rate} samples a second, and the model takes {stated}: resample the sound to "
            f"{stated} Hz",
        )
    doubt = "" if stated else _doubt_of_rate(rate, frames, wanted or 0)
    mono = _real(data, width).reshape(-1, channels).mean(axis=1, dtype=np.float64)
    shape = tuple(d if d is not None else len(mono) for d in _single(operand.shape or (None,)))
    samples = np.zeros(wanted or len(mono), np.float32)
    samples[: len(mono)] = mono * (amplitude(first.bounds) or 1.0)
    return Sound(
        _store(path, samples, operand).reshape(shape),
        _notes(rate, channels, frames, len(samples), stated=bool(stated)),
        f"{path}: {doubt}" if doubt else "",
    )


def _doubt_of_rate(rate: int, frames: int, wanted: int) -> str:
    """Why this rate may not fit a model without a stated rate, with the remedy, or ""."""
    whole = [other for other in OTHER_RATES if wanted and not wanted % other]
    if rate != SPEECH_RATE:
        why = f"networks of speech mostly take {SPEECH_RATE}"
    elif whole and frames != wanted and wanted % SPEECH_RATE:
        why = f"its input of {wanted} samples is {wanted // whole[-1]} s at {whole[-1]} Hz"
    else:
        return ""
    return (
        f"has {rate} samples a second, and the model's file does not say which rate it takes "
        f"({why}): say --rate {rate} if it takes {rate}; otherwise resample the sound to the "
        "model's rate and say that with --rate"
    )


def _has_frame(opened: wave.Wave_read, frame: int) -> bool:
    """Whether the file contains the complete *frame*. Rewinds the file."""
    if frame < 0:
        return True
    opened.setpos(frame)
    size = len(opened.readframes(1))
    opened.rewind()
    return size == opened.getnchannels() * opened.getsampwidth()


def _real(data: bytes, width: int) -> npt.NDArray[np.floating[Any]]:
    if width == 1:
        return (np.frombuffer(data, np.uint8).astype(np.float32) - 128) / np.float32(128)
    if width == 2:
        return np.frombuffer(data, "<i2").astype(np.float32) / np.float32(2**15)
    if width == 3:
        padded = np.zeros((len(data) // 3, 4), np.uint8)
        padded[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)
        data = padded.tobytes()
    return np.frombuffer(data, "<i4").astype(np.float64) / 2**31


def _store(path: InputFile, samples: NDArray, operand: Operand) -> NDArray:
    if operand.dtype.is_float:
        return samples.astype(operand.dtype.numpy)
    if operand.quantization is not None:
        return quantize(samples, operand.quantization, operand.dtype)
    if operand.dtype is DType.INT16:
        return np.asarray(np.clip(np.rint(samples * 32768), -32768, 32767), np.int16)
    raise FileError(
        path,
        f"is a sound, but input {operand.name!r} is {show_operand(operand)}, which has no scale "
        "for samples; an .npy file gives the input as it is",
    )


def _notes(rate: int, channels: int, frames: int, length: int, *, stated: bool) -> list[str]:
    notes = []
    if not stated:
        notes.append(
            f"the sound is fed at its own rate, {rate} Hz; the file does not say which the model "
            "takes, and nothing is resampled"
        )
    if channels > 1:
        notes.append(f"{channels} channels averaged to one")
    if frames > length:
        notes.append(
            f"the sound is cut from {frames} to {length} samples: its first {length / rate:.3g} s "
            f"of {frames / rate:.3g} s"
        )
    elif frames < length:
        notes.append(f"the sound is padded with zeros from {frames} to {length} samples")
    return notes
