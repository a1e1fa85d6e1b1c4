"""The recorded cases of the corpus's ONNX files: ONNX Runtime's results, one thread, on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import penstock
from penstock.errors import ModelError, PenstockError
from tests.conftest import CORPUS, IN_CI, NO_CORPUS, corpus_parameters
from tests.golden.arrays import golden
from tests.golden.cases import Entry, entries, given_to_onnx, rule
from tests.golden.comparison import Case, compare
from tests.golden.engine_gaps import ONNX_GAPS

pytest.importorskip("onnx", reason="the extra onnx is not installed")

SLOW = frozenset({"light_vgg19_onnx"})
"""Networks of hundreds of MiB of constants."""


def every_file() -> list[Entry]:
    return [*entries("network", "onnx"), *entries("unit", "onnx")]


def parameters() -> list[Any]:
    found = []
    for entry in every_file():
        marks: list[pytest.MarkDecorator] = []
        if entry["id"] in ONNX_GAPS:
            marks.append(pytest.mark.xfail(strict=True, reason=ONNX_GAPS[entry["id"]]))
        if entry["id"] in SLOW:
            marks.append(pytest.mark.slow)
        found.append(pytest.param(entry, id=entry["id"], marks=marks))
    return corpus_parameters(found)


def test_corpus_has_onnx_networks_and_unit_models() -> None:
    if CORPUS is None:
        if IN_CI:
            pytest.fail(NO_CORPUS)
        pytest.skip(NO_CORPUS)
    assert len(entries("network", "onnx")) >= 14
    assert len(entries("unit", "onnx")) >= 79


@pytest.mark.parametrize("entry", parameters())
def test_recorded_cases(entry: Entry) -> None:
    if CORPUS is None:
        pytest.skip(NO_CORPUS)
    arrays = golden(CORPUS / "models" / entry["golden"]["file"])
    model = penstock.load(CORPUS / "models" / entry["file"])
    assert [o.name for o in model.inputs] == [i["name"] for i in entry["inputs"]]
    assert [o.name for o in model.outputs] == [o["name"] for o in entry["outputs"]]
    with penstock.compile(model, devices=["reference"]) as net:
        for case in entry["golden"]["cases"]:
            given = {k: given_to_onnx(arrays[f"{case['id']}/in/{k}"]) for k in case["inputs"]}
            outputs = net.run(given)
            wanted = [arrays[f"{case['id']}/out/{k}"] for k in case["outputs"]]
            got = [outputs[k] for k in case["outputs"]]
            compare(got, Case(wanted, lambda: None), rule(entry))
            if "expected_top1" in case:
                assert int(np.argmax(got[0].reshape(-1))) == case["expected_top1"]


@pytest.mark.parametrize(
    "entry", corpus_parameters(pytest.param(e, id=e["id"]) for e in entries("corrupted", "onnx"))
)
def test_damaged_files_run_or_are_refused_by_name(entry: Entry) -> None:
    """What ONNX Runtime does not even load is no model here either."""
    if CORPUS is None:
        pytest.skip(NO_CORPUS)
    try:
        model = penstock.load(CORPUS / "models" / entry["file"])
    except ModelError:
        assert entry["reference_runtime"]["stops_at"] != "runs"
        return
    assert entry["reference_runtime"]["stops_at"] != "load"
    try:
        with penstock.compile(model, devices=["reference"]) as net:
            net.run(
                [np.zeros([d or 1 for d in o.shape or ()], o.dtype.numpy) for o in model.inputs]
            )
    except PenstockError:
        assert entry["reference_runtime"]["stops_at"] != "runs"
