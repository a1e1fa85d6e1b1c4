"""Every operation of the corpus's networks that is no layer with weights, one by one, against
LiteRT's reference kernels: on the tensors that the judge's operator read.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from penstock.drivers.reference.kernel import KERNELS
from tests.conftest import CORPUS, NO_CORPUS
from tests.support_litert import IN_OTHER_SUBGRAPHS, assert_agrees, case_inputs, record

ELSEWHERE: Final = frozenset(
    {
        "AVERAGE_POOL_2D",
        "BATCH_MATMUL",
        "CONV_2D",
        "DEPTHWISE_CONV_2D",
        "DEQUANTIZE",
        "FULLY_CONNECTED",
        "IF",
        "LSTM",
        "MAX_POOL_2D",
        "QUANTIZE",
        "STABLEHLO_COMPOSITE",
        "SVDF",
        "TRANSPOSE_CONV",
        "UNIDIRECTIONAL_SEQUENCE_LSTM",
        "WHILE",
    }
)
"""Layers, which have a test of their own, operations that need the model's other subgraphs, and
those whose state the judge has moved on when it is read.
"""

BEYOND_THE_JUDGE: Final = {"hair_segmentation_float"}
"""LiteRT has no kernels for its custom operators."""

FLOAT_TOLERANCE: Final = 1e-5
"""Of the greatest output: float32 sums of a thousand terms, in another order than the judge's."""


def _parameters() -> list[Any]:
    if CORPUS is None:
        return [pytest.param({}, marks=pytest.mark.skip(reason=NO_CORPUS))]
    entries = json.loads((CORPUS / "models" / "manifest.json").read_bytes())["entries"]
    chosen = []
    for entry in entries:
        cases = entry.get("golden", {}).get("cases", ())
        judged = entry["format"] == "tflite" and entry["id"] not in BEYOND_THE_JUDGE
        if (
            judged
            and entry.get("ops", {}).keys() - ELSEWHERE
            and cases
            and "signature" not in cases[0]
        ):
            marks = [pytest.mark.slow] if (entry.get("macs") or 0) > 1e9 else []
            chosen.append(pytest.param(entry, id=entry["id"], marks=marks))
    return chosen


@pytest.mark.parametrize("entry", _parameters())
def test_corpus_operations_agree_with_litert(entry: dict[str, Any], corpus: Path) -> None:
    recorded = record(corpus / "models" / entry["file"], case_inputs(corpus, entry)[0])
    judged = [
        each
        for each in recorded
        if each.operation.key in KERNELS and each.operation.type not in ELSEWHERE
    ]
    if not judged:
        pytest.skip(IN_OTHER_SUBGRAPHS)
    for each in judged:
        assert_agrees(each, FLOAT_TOLERANCE)
