"""A streaming noise suppressor through Penstock's interpreter and through LiteRT's.

Each block of 128 samples is transformed, a small recurrent network masks it, and another the
result, as in DTLN. The corpus has DTLN's first network, which is used for both.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.measuring import Row, corpus_model, interleaved, medians, worked

NAME: Final = "suppressor"
LIMIT: Final = 1.1
NETWORKS: Final = {"float": "dtln_1_float", "dynamic range": "dtln_1_dynamic_range"}
FRAME: Final = 512
HOP: Final = 128


class Suppressor:
    """Two interpreters that *make* returns, and the values that they hand from block to block."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._parts = [make() for _ in range(2)]
        for part in self._parts:
            part.allocate_tensors()
        self._given = [[d["index"] for d in part.get_input_details()] for part in self._parts]
        self._got = [[d["index"] for d in part.get_output_details()] for part in self._parts]
        state = self._parts[0].get_input_details()[1]["shape"]
        self._states = [np.zeros(state, np.float32) for _ in self._parts]
        self._heard = np.zeros(FRAME, np.float32)
        self._said = np.zeros(FRAME, np.float32)

    def block(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """The next block, which *samples* complete."""
        self._heard[:-HOP] = self._heard[HOP:]
        self._heard[-HOP:] = samples
        spectrum = np.fft.rfft(self._heard)
        magnitude = np.abs(spectrum).astype(np.float32).reshape(1, 1, -1)
        for at, part in enumerate(self._parts):
            given, got = self._given[at], self._got[at]
            part.set_tensor(given[0], magnitude)
            part.set_tensor(given[1], self._states[at])
            part.invoke()
            magnitude = magnitude * part.get_tensor(got[0])
            self._states[at] = part.get_tensor(got[1])
        phase = np.exp(1j * np.angle(spectrum))
        self._said[:-HOP] = self._said[HOP:]
        self._said[-HOP:] = 0
        self._said += np.fft.irfft(magnitude.ravel() * phase).astype(np.float32)
        return self._said[:HOP].copy()


def rows(*, quick: bool) -> list[Row]:
    """Processor microseconds of a block, and Penstock's over LiteRT's."""
    if find_spec("ai_edge_litert") is None:
        return []
    rounds, blocks = (5, 200) if quick else (25, 400)
    samples = np.random.default_rng(7).standard_normal((blocks, HOP), np.float32)
    found: list[Row] = []
    for name, stem in NETWORKS.items():
        if (path := corpus_model(stem)) is None:
            continue
        subjects = {key: Suppressor(make) for key, make in makers(str(path)).items()}
        times = medians(interleaved({k: timed(s, samples) for k, s in subjects.items()}, rounds))
        found += [Row(NAME, f"{name}: {k}, a block", v, "us") for k, v in times.items()]
        ratio = times["Penstock"] / times["LiteRT"]
        found.append(Row(NAME, f"{name}: Penstock over LiteRT", ratio, "x", LIMIT))
    return found


def makers(path: str) -> dict[str, Callable[[], Any]]:
    """Makes each interpreter, with one thread."""
    from ai_edge_litert.interpreter import Interpreter as LiteRT

    from penstock.tflite import Interpreter

    return {
        "LiteRT": lambda: LiteRT(path, num_threads=1),
        "Penstock": lambda: Interpreter(path, num_threads=1),
    }


def timed(suppressor: Suppressor, samples: NDArray[np.float32]) -> Callable[[], float]:
    def stream() -> None:
        for each in samples:
            suppressor.block(each)

    return lambda: worked(stream) / len(samples) * 1e6
