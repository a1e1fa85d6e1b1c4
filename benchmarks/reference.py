"""The reference driver against LiteRT's reference kernels: MobileNetV2 1.0 224, int8, one core."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import penstock
from benchmarks.measuring import Row, corpus_model, interleaved, medians, seconds

NAME = "reference"
NETWORK = "mobilenet_v2_1.0_224_int8_tf2"
LIMIT_SECONDS = 0.5


def rows(*, quick: bool) -> list[Row]:
    """Seconds per run of each, and their ratio. Empty without the corpus."""
    path = corpus_model(NETWORK)
    if path is None:
        return []
    image = np.random.default_rng(0).integers(0, 256, (1, 224, 224, 3)).astype(np.uint8)
    with penstock.compile(path, devices=["reference"], num_threads=1) as compiled:
        subjects: dict[str, Callable[[], float]] = {
            "penstock": lambda: seconds(lambda: compiled.run([image]))
        }
        if (other := litert_runner(path, image)) is not None:
            subjects["litert"] = lambda: seconds(other)
        interleaved(subjects, 1)
        found = medians(interleaved(subjects, 3 if quick else 15))
    result = [Row(NAME, f"{NETWORK}, one core", found["penstock"], "s", LIMIT_SECONDS)]
    if "litert" in found:
        result.append(Row(NAME, "LiteRT BUILTIN_REF, one thread", found["litert"], "s"))
        result.append(
            Row(NAME, "Penstock over LiteRT BUILTIN_REF", found["penstock"] / found["litert"], "x")
        )
    return result


def litert_runner(path: Path, image: Any) -> Callable[[], object] | None:
    """One run of LiteRT's reference kernels; None if LiteRT is not installed."""
    try:
        from ai_edge_litert.interpreter import Interpreter, OpResolverType
    except ImportError:
        return None
    interpreter = Interpreter(
        str(path), experimental_op_resolver_type=OpResolverType.BUILTIN_REF, num_threads=1
    )
    interpreter.allocate_tensors()
    given, wanted = (
        interpreter.get_input_details()[0]["index"],
        interpreter.get_output_details()[0]["index"],
    )

    def run() -> object:
        interpreter.set_tensor(given, image)
        interpreter.invoke()
        return interpreter.get_tensor(wanted)

    return run
