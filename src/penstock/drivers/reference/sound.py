"""AudioSpectrogram and Mfcc: TFLite's features of sound, computed in float64."""

from __future__ import annotations

import numpy as np

from penstock.drivers.reference.kernel import Inputs, Kernel, Outputs, Site, kernel, require
from penstock.drivers.reference.numerics.weights import given
from penstock.errors import LimitExceeded, ShapeMismatch
from penstock.ir import DType, NDArray
from penstock.ir.operations.custom_options import Mfcc, audio_spectrogram, mfcc

MOST_ELEMENTS = 1 << 28
MOST_WEIGHTS = 1 << 24
AT_ONCE = 1 << 22
"""Numbers transformed in one step."""

FLOOR = 1e-12
"""The least energy of a channel. Smaller energies are raised to it before the logarithm."""

MEL_BREAK = 700.0
MEL_SCALE = 1127.0


@kernel("CUSTOM:AudioSpectrogram")
def audio_spectrogram_kernel(site: Site) -> Kernel:
    """Magnitudes, or their squares, of the Fourier transforms of periodic Hann windows of each
    channel, padded with zeros to a power of two.
    """
    require(site.input(0).dtype is DType.FLOAT32, "AudioSpectrogram of other than float32")
    options = audio_spectrogram(site.attributes)
    size, stride, length = options.window_size, options.stride, options.fft_length

    def run(inputs: Inputs) -> Outputs:
        samples = given(inputs[0])
        if samples.ndim != 2:
            raise ShapeMismatch(f"AudioSpectrogram of samples of shape {samples.shape}")
        channels = np.ascontiguousarray(samples.T)
        frames = max(channels.shape[1] - size + stride, 0) // stride
        _bound(len(channels) * frames * length, MOST_ELEMENTS, "AudioSpectrogram")
        result = np.empty((len(channels), frames, length // 2 + 1), np.float32)
        if not frames:
            return (result,)
        window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(size) / size)
        windows = np.lib.stride_tricks.sliding_window_view(channels, size, axis=1)[:, ::stride]
        step = max(1, AT_ONCE // (length * max(1, len(channels))))
        for start in range(0, frames, step):
            part = slice(start, min(start + step, frames))
            spectrum = np.fft.rfft(windows[:, part] * window, length, axis=-1)
            result[:, part] = spectrum.real**2 + spectrum.imag**2
        if not options.magnitude_squared:
            np.sqrt(result, out=result)
        return (result,)

    return run


def _bound(elements: int, most: int, what: str) -> None:
    if elements > most:
        raise LimitExceeded(f"{what} takes {elements} numbers; {most} is the limit")


@kernel("CUSTOM:Mfcc")
def mfcc_kernel(site: Site) -> Kernel:
    """Cepstral coefficients of squared spectra: triangular mel filters over the magnitudes,
    logarithms, and a cosine transform.
    """
    require(site.input(0).dtype is DType.FLOAT32, "Mfcc of other than float32")
    options = mfcc(site.attributes)
    channels, count = options.filterbank_channel_count, options.dct_coefficient_count
    require(count <= channels, f"{count} coefficients of {channels} channels")
    _bound(channels * count, MOST_WEIGHTS, "the cosine transform of Mfcc")
    angles = np.outer(np.arange(count), np.arange(channels) + 0.5) * (np.pi / channels)
    cosines = np.sqrt(2.0 / channels) * np.cos(angles)

    def run(inputs: Inputs) -> Outputs:
        spectrogram, rates = given(inputs[0]), given(inputs[1])
        if spectrogram.ndim != 3 or rates.size != 1:
            raise ShapeMismatch(f"Mfcc of a spectrogram of shape {spectrogram.shape}")
        bins = spectrogram.shape[2]
        _bound(bins * channels, MOST_WEIGHTS, "the filters of Mfcc")
        filters = mel_filters(options, bins, float(rates.reshape(-1)[0]))
        if filters is None:
            return (np.zeros((*spectrogram.shape[:2], count), np.float32),)
        energy = np.sqrt(spectrogram.astype(np.float64)) @ filters
        coefficients = np.log(np.maximum(energy, FLOOR)) @ cosines.T
        return (coefficients.astype(np.float32),)

    return run


def _mel(frequency: float | NDArray) -> NDArray:
    return np.asarray(MEL_SCALE * np.log1p(np.asarray(frequency) / MEL_BREAK))


def mel_filters(options: Mfcc, bins: int, rate: float) -> NDArray | None:
    """Weights [bins, channels] of triangles that overlap by half, evenly spaced in mel between the
    two frequency limits.

    *rate* is in samples a second. Bin 0 and bins outside the limits have no weight. None if the
    spectrum ends below the upper limit: then TFLite's coefficients are all 0.
    """
    low, high = options.lower_frequency_limit, options.upper_frequency_limit
    if not (bins > 1 and rate > 0 and 0 <= low < high):
        raise ShapeMismatch(f"Mfcc of {bins} frequencies at {rate} Hz between {low} and {high} Hz")
    width = 0.5 * rate / (bins - 1)
    channels = options.filterbank_channel_count
    low_mel = float(_mel(low))
    spacing = (float(_mel(high)) - low_mel) / (channels + 1)
    centers = low_mel + spacing * np.arange(1, channels + 2)
    first, last = int(1.5 + low / width), int(high / width)
    if last >= bins:
        return None
    weights = np.zeros((bins, channels))
    places = np.arange(bins)
    mels = _mel(places * width)
    above = np.searchsorted(centers, mels, "left")
    inside = (places >= first) & (places <= last) & (above <= channels)
    share = (centers[np.minimum(above, channels)] - mels) / spacing
    rows = np.flatnonzero(inside)
    below = rows[above[rows] > 0]
    weights[below, above[below] - 1] += share[below]
    upper = rows[above[rows] < channels]
    weights[upper, above[upper]] += 1 - share[upper]
    return weights
