"""Listens to recordings chunk by chunk: python listen.py [--every] MODEL WAV [WAV...]

The network keeps what it heard in variables of its own; every recording gets a fresh one.
"""
# mypy: ignore-errors
# ruff: noqa: T201

import sys
import wave

import ai_edge_litert.interpreter as tflite
import numpy as np

RATE = 16000
WINDOW, HOP, FFT, BANDS = 480, 160, 512, 40


def read(path):
    with wave.open(path) as file:
        if file.getframerate() != RATE or file.getsampwidth() != 2:
            sys.exit(f"{path}: 16-bit sound at {RATE} Hz is wanted")
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2")
        return samples.reshape(-1, file.getnchannels())[:, 0].astype(np.float64)


def mel_filters():
    """Triangles from 125 to 7500 Hz, evenly spaced to the ear: [bands, bins]."""
    low, high = (2595 * np.log10(1 + f / 700) for f in (125, 7500))
    edges = 700 * (10 ** (np.linspace(low, high, BANDS + 2) / 2595) - 1)
    bins = np.fft.rfftfreq(FFT, 1 / RATE)
    rise = (bins - edges[:-2, None]) / np.diff(edges)[:-1, None]
    fall = (edges[2:, None] - bins) / np.diff(edges)[1:, None]
    return np.maximum(np.minimum(rise, fall), 0)


def features(samples):
    """One row of BANDS loudnesses each 10 ms, from 0 to 26, without steady sounds."""
    filters, background = mel_filters(), None
    for start in range(0, len(samples) - WINDOW + 1, HOP):
        spectrum = np.abs(np.fft.rfft(samples[start : start + WINDOW] * np.hanning(WINDOW), FFT))
        energy = np.sqrt(filters @ spectrum**2)
        background = energy if background is None else 0.975 * background + 0.025 * energy
        quiet = np.maximum(energy - background, 0.05 * energy)
        gained = quiet / (background + 80) ** 0.95 * 160
        yield np.clip(2.5 * np.log1p(gained), 0, 26)


class Listener:
    def __init__(self, model):
        self.interpreter = tflite.Interpreter(model_path=model)
        key = next(iter(self.interpreter.get_signature_list()))
        self.runner = self.interpreter.get_signature_runner(key)
        ((self.input_name, self.input),) = self.runner.get_input_details().items()
        ((self.output_name, self.output),) = self.runner.get_output_details().items()
        self.frames = self.input["shape"][1]

    def hear(self, chunk):
        scale, zero_point = self.input["quantization"]
        value = np.clip(np.round(np.array(chunk) / scale + zero_point), -128, 127)
        value = value.astype(self.input["dtype"])[np.newaxis]
        answer = self.runner(**{self.input_name: value})[self.output_name]
        scale, zero_point = self.output["quantization"]
        return scale * (answer.astype(np.int32) - zero_point).item()


def stretches(heard, seconds):
    """From when to when the network was sure, by the mean over the last five chunks."""
    sure = [np.mean(heard[max(0, k - 4) : k + 1]) >= 0.5 for k in range(len(heard))]
    start = None
    for k, now in enumerate([*sure, False]):
        if now and start is None:
            start = k
        elif not now and start is not None:
            yield start * seconds, k * seconds
            start = None


def main():
    every = "--every" in sys.argv
    model, *recordings = (a for a in sys.argv[1:] if a != "--every")
    for path in recordings:
        listener, chunk, heard = Listener(model), [], []
        for frame in features(read(path)):
            chunk.append(frame)
            if len(chunk) == listener.frames:
                heard.append(listener.hear(chunk))
                chunk = []
        print(f"{path.rpartition('/')[2]}: {len(heard)} chunks")
        for begin, end in stretches(heard, listener.frames * HOP / RATE):
            print(f"  heard from {begin:.2f} s to {end:.2f} s")
        if every:
            print(" ".join(f"{p:.3f}" for p in heard))


if __name__ == "__main__":
    main()
