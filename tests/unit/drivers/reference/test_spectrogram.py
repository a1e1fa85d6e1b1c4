"""Features of sound against LiteRT, and against a slow Fourier sum."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock.drivers.reference import sound
from penstock.errors import InvalidAttribute, LimitExceeded, ShapeMismatch
from penstock.ir import DType, NDArray, Operand
from penstock.ir.operations import OPERATIONS
from tests.support_litert import Given, Wanted, assert_agrees, kernel_of, refusal, run_alone
from tests.support_runs import custom, flexible

F32 = DType.FLOAT32
SOUNDS = [(100, 1, 16, 8), (100, 2, 17, 5), (64, 1, 64, 64), (63, 1, 64, 1), (640, 1, 400, 160)]
SOUNDS += [(10, 3, 2, 1), (4000, 1, 480, 160)]


@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize(("samples", "channels", "window", "stride"), SOUNDS)
def test_spectrogram_agrees_with_litert(
    samples: int, channels: int, window: int, stride: int, squared: bool
) -> None:
    sound = np.random.default_rng(samples).normal(size=(samples, channels)).astype(np.float32)
    options = {"window_size": window, "stride": stride, "magnitude_squared": squared}
    found = run_alone("CUSTOM:AudioSpectrogram", [Given(sound)], [Wanted(F32)], flexible(options))
    assert_agrees(found, 1e-7)


def spectrum(sound: NDArray, **options: Any) -> NDArray:
    inputs, outputs = [Operand(F32, sound.shape)], [Operand(F32, None)]
    row = custom("AudioSpectrogram", flexible(options))
    (result,) = kernel_of("CUSTOM:AudioSpectrogram", inputs, outputs, **row)([sound])
    return result


def test_a_spectrogram_is_a_windowed_fourier_sum() -> None:
    sound = np.random.default_rng(0).normal(size=(20, 1)).astype(np.float32)
    got = spectrum(sound, window_size=6, stride=5, magnitude_squared=True)
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(6) / 6)
    for frame in range(3):
        part = sound[5 * frame : 5 * frame + 6, 0] * window
        for frequency in range(5):
            turns = np.exp(-2j * np.pi * frequency * np.arange(6) / 8)
            wanted = abs((part * turns).sum()) ** 2
            assert got[0, frame, frequency] == pytest.approx(wanted, rel=1e-6, abs=1e-9)


def test_spectrogram_refuses_too_large_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    none = spectrum(np.zeros((1, 1), np.float32), window_size=2**20, stride=1)
    assert none.shape == (1, 0, 2**19 + 1)
    monkeypatch.setattr(sound, "MOST_ELEMENTS", 100)
    with pytest.raises(LimitExceeded, match="100 is the limit"):
        spectrum(np.zeros((99, 1), np.float32), window_size=8, stride=1)
    with pytest.raises(ShapeMismatch):
        spectrum(np.zeros(99, np.float32), window_size=8, stride=1)


FILTERS: dict[str, tuple[tuple[int, ...], int, dict[str, float]]] = {
    "speech": ((1, 4, 257), 16000, {}),
    "every coefficient": (
        (2, 3, 513),
        16000,
        {"upper_frequency_limit": 8000.0, "dct_coefficient_count": 40},
    ),
    "from 0 Hz": ((1, 3, 129), 8000, {"lower_frequency_limit": 0.0}),
    "a fraction is cut off": ((1, 3, 129), 8000, {"upper_frequency_limit": 3999.5}),
    "above the spectrum": ((1, 3, 129), 8000, {"upper_frequency_limit": 5000.0}),
    "few frequencies": ((1, 3, 9), 8000, {}),
    "just inside": ((1, 2, 129), 8000, {"upper_frequency_limit": 4030.0}),
    "just outside": ((1, 2, 129), 8000, {"upper_frequency_limit": 4032.0}),
    "one coefficient": ((1, 3, 129), 8000, {"dct_coefficient_count": 1}),
}


def cepstral(**changes: float) -> dict[str, float]:
    return {
        "upper_frequency_limit": 4000.0,
        "lower_frequency_limit": 20.0,
        "filterbank_channel_count": 40,
        "dct_coefficient_count": 13,
        **changes,
    }


@pytest.mark.parametrize("case", FILTERS)
def test_mfcc_agrees_with_litert(case: str) -> None:
    shape, rate, changes = FILTERS[case]
    power = (np.random.default_rng(1).normal(size=shape) ** 2).astype(np.float32)
    given = [Given(power), Given(np.array([rate], np.int32), constant=True)]
    options = flexible(cepstral(**changes))
    assert_agrees(run_alone("CUSTOM:Mfcc", given, [Wanted(F32)], options), 1e-7)


def coefficients(power: NDArray, rate: int, **changes: float) -> NDArray:
    inputs, outputs = [Operand(F32, None), Operand(DType.INT32, (1,))], [Operand(F32, None)]
    row = custom("Mfcc", flexible(cepstral(**changes)))
    (result,) = kernel_of("CUSTOM:Mfcc", inputs, outputs, **row)(
        [power, np.array([rate], np.int32)]
    )
    return result


@pytest.mark.parametrize(
    ("bins", "rate", "changes"),
    [
        (9, 0, {}),
        (9, -8000, {}),
        (1, 8000, {}),
        (9, 8000, {"lower_frequency_limit": 5000.0}),
        (9, 8000, {"lower_frequency_limit": -20.0}),
    ],
)
def test_mfcc_refuses_impossible_filters(bins: int, rate: int, changes: dict[str, float]) -> None:
    with pytest.raises(ShapeMismatch):
        coefficients(np.ones((1, 1, bins), np.float32), rate, **changes)


def test_mfcc_refuses_more_coefficients_than_channels() -> None:
    inputs, outputs = [Operand(F32, None), Operand(DType.INT32, (1,))], [Operand(F32, None)]
    options = flexible(cepstral(dct_coefficient_count=41))
    row = custom("Mfcc", options)
    assert "41 coefficients of 40" in refusal("CUSTOM:Mfcc", inputs, outputs, **row)


def test_mfcc_refuses_too_large_filters() -> None:
    big = {"filterbank_channel_count": 2**20, "dct_coefficient_count": 2**20}
    with pytest.raises(LimitExceeded, match="cosine transform"):
        coefficients(np.ones((1, 1, 9), np.float32), 8000, **big)


BROKEN = [
    flexible(cepstral(upper_frequency_limit=float("nan"))),
    flexible(cepstral(lower_frequency_limit=1e30)),
    flexible(cepstral(filterbank_channel_count=0)),
    flexible(cepstral(dct_coefficient_count=-1)),
    flexible({}),
    b"",
    b"\xff" * 40,
    bytes(1 << 17),
]


@pytest.mark.parametrize("options", BROKEN)
def test_sound_operators_name_malformed_options(options: bytes) -> None:
    inputs, outputs = [Operand(F32, (1, 1, 9)), Operand(DType.INT32, (1,))], [Operand(F32, None)]
    row = custom("Mfcc", options)
    assert OPERATIONS["CUSTOM:Mfcc"].complete(row)
    with pytest.raises(InvalidAttribute, match="Mfcc"):
        kernel_of("CUSTOM:Mfcc", inputs, outputs, **row)
