"""The recorded cases of the corpus, network by network and unit by unit, through `penstock.compile`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import penstock
from tests.conftest import CORPUS, IN_CI, NO_CORPUS
from tests.golden.cases import Entry, Judge, check_labels, entries, groups, load, rule, shapes
from tests.golden.comparison import Case, compare

NO_LSTM = "the reference driver has no LSTM yet"

GAPS: dict[str, str] = {
    "lstm_mnist_float": NO_LSTM,
    "lstm_mnist_uint8_io": NO_LSTM,
    "litert_custom_lstm": NO_LSTM,
    "litert_lstm_quantized": NO_LSTM,
    "litert_unidirectional_sequence_lstm_calibrated": NO_LSTM,
    "litert_unidirectional_sequence_lstm_quantized": NO_LSTM,
}
"""Files that do not run yet, each with its reason; strict: one that starts to pass must leave."""


def test_the_corpus_is_there() -> None:
    if CORPUS is None:
        if IN_CI:
            pytest.fail(NO_CORPUS)
        pytest.skip(NO_CORPUS)
    assert len(entries("network")) >= 60
    assert len(entries("unit")) >= 140


@pytest.mark.parametrize(("entry", "cases"), [*groups("network", GAPS), *groups("unit", GAPS)])
def test_recorded_cases(entry: Entry, cases: list[dict[str, Any]]) -> None:
    assert CORPUS is not None
    path = CORPUS / "models" / entry["file"]
    arrays = np.load(CORPUS / "models" / entry["golden"]["file"], allow_pickle=False)
    model = load(path)
    signature = cases[0].get("signature")
    sizes = shapes(model, signature, cases[0].get("resize_inputs"))
    with penstock.compile(model, devices=["reference"], signature=signature, shapes=sizes) as net:
        for position, case in enumerate(cases):
            given = [arrays[f"{case['id']}/in/{k}"] for k in case["inputs"]]
            wanted = [arrays[f"{case['id']}/out/{k}"] for k in case["outputs"]]
            outputs = net.run(dict(zip(case["inputs"], given, strict=True)) if signature else given)
            got = [outputs[k] if signature else outputs[int(k)] for k in case["outputs"]]
            judge = Judge(path, arrays, cases[: position + 1])
            compare(got, Case(wanted, judge), rule(entry))
            check_labels(case, got)
