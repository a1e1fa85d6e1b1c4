"""Latency of `penstock.load` for a model of 4 MB, from a file in the page cache."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

import penstock
from benchmarks.measuring import Row, corpus_model, interleaved, medians, seconds
from penstock.export import tflite
from penstock.ir import DType, ModelBuilder

NAME = "load"
NETWORK = "mobilenet_v2_1.0_224_int8_tf2"
LIMIT_MS = 20.0


def rows(*, quick: bool) -> list[Row]:
    """Milliseconds per load: a real network, given a corpus, and one with one large constant."""
    with tempfile.TemporaryDirectory() as directory:
        subjects = {"one constant of 4 MB": loader(one_constant(Path(directory)))}
        if (path := corpus_model(NETWORK)) is not None:
            subjects[f"{NETWORK}, {path.stat().st_size / 1e6:.1f} MB"] = loader(path)
        interleaved(subjects, 2)
        found = medians(interleaved(subjects, 5 if quick else 40))
    return [Row(NAME, name, 1000 * value, "ms", LIMIT_MS) for name, value in found.items()]


def loader(path: Path) -> Callable[[], float]:
    return lambda: seconds(lambda: penstock.load(path))


def one_constant(directory: Path) -> Path:
    """A dense layer of 1000 x 1000 float32 weights."""
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, (1, 1000), "x")
    weights = builder.constant(np.zeros((1000, 1000), np.float32), "weights")
    outputs = builder.operation("FULLY_CONNECTED", [x, weights, None], [(DType.FLOAT32, (1, 1000))])
    path = directory / "dense.tflite"
    path.write_bytes(tflite.write(builder.build(outputs)))
    return path
