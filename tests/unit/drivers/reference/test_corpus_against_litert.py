"""Every layer of the corpus's networks, one by one, against LiteRT's reference kernels.

Each kernel gets the tensors that the judge's operator read, so that no deviation hides or adds up.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import CORPUS, NO_CORPUS
from tests.support_litert import IN_OTHER_SUBGRAPHS, assert_agrees, case_inputs, record

LAYERS = frozenset(
    {
        "AVERAGE_POOL_2D",
        "BATCH_MATMUL",
        "CONV_2D",
        "DEPTHWISE_CONV_2D",
        "DEQUANTIZE",
        "FULLY_CONNECTED",
        "MAX_POOL_2D",
        "QUANTIZE",
        "TRANSPOSE_CONV",
    }
)
FLOAT_TOLERANCE = 5e-5
"""Of the greatest output: float32 sums of thousands of products, in another order than the
judge's.
"""

BEYOND_THE_JUDGE = {"edsr_f32b5_qat", "hair_segmentation_float"}
"""LiteRT lacks a reference kernel for an operator of theirs."""


def _networks() -> list[Any]:
    if CORPUS is None:
        return [pytest.param({}, marks=pytest.mark.skip(reason=NO_CORPUS))]
    entries = json.loads((CORPUS / "models" / "manifest.json").read_bytes())["entries"]
    chosen = []
    for entry in entries:
        macs = entry.get("macs") or 0
        unsigned = any("signature" not in c for c in entry.get("golden", {}).get("cases", ()))
        wanted = LAYERS & entry.get("ops", {}).keys() and entry["kind"] in {"network", "unit"}
        judged = entry["format"] == "tflite" and entry["id"] not in BEYOND_THE_JUDGE
        if wanted and unsigned and judged:
            marks = [pytest.mark.slow] if macs > 1e9 else []
            chosen.append(pytest.param(entry, id=entry["id"], marks=marks))
    return chosen


@pytest.mark.parametrize("entry", _networks())
def test_corpus_layers_agree_with_litert(entry: dict[str, Any], corpus: Path) -> None:
    inputs = case_inputs(corpus, entry)[0]
    recorded = record(corpus / "models" / entry["file"], inputs)
    layers = [each for each in recorded if each.operation.type in LAYERS]
    if not layers:
        pytest.skip(IN_OTHER_SUBGRAPHS)
    for layer in layers:
        assert_agrees(layer, FLOAT_TOLERANCE)
