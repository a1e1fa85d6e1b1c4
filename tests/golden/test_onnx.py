"""The recorded cases of the corpus's ONNX files: ONNX Runtime's results, one thread, on the CPU."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.ir import DType, NDArray
from tests.conftest import CORPUS, IN_CI, NO_CORPUS
from tests.golden.comparison import Case, Rule, compare

pytest.importorskip("onnx", reason="the extra onnx is not installed")

GAPS: dict[str, str] = {}
"""Files that cannot be lowered, each with the node that it is for; strict: one that starts to pass must leave."""

SLOW = frozenset({"light_vgg19_onnx"})
"""Networks of hundreds of MiB of constants."""


@cache
def entries() -> list[dict[str, Any]]:
    if CORPUS is None:
        return []
    every = json.loads((CORPUS / "models" / "manifest.json").read_bytes())["entries"]
    return [e for e in every if e["format"] == "onnx" and e["kind"] in {"network", "unit"}]


def parameters() -> list[Any]:
    found = []
    for entry in entries():
        marks: list[pytest.MarkDecorator] = []
        if entry["id"] in GAPS:
            marks.append(pytest.mark.xfail(strict=True, reason=GAPS[entry["id"]]))
        if entry["id"] in SLOW:
            marks.append(pytest.mark.slow)
        found.append(pytest.param(entry, id=entry["id"], marks=marks))
    return found


def test_the_corpus_is_there() -> None:
    if CORPUS is None:
        if IN_CI:
            pytest.fail(NO_CORPUS)
        pytest.skip(NO_CORPUS)
    assert len([e for e in entries() if e["kind"] == "network"]) >= 14
    assert len([e for e in entries() if e["kind"] == "unit"]) >= 79


def rule(entry: dict[str, Any]) -> Rule:
    """ONNX Runtime without optimisation stands in the place of LiteRT's reference kernels."""
    agreement = entry["golden"].get("agreement") or {}
    recorded = agreement.get("optimised_vs_unoptimised") or {}
    steps = entry.get("float_output_step") or {}
    return Rule(recorded.get("max_abs", 0.0), {int(k): float(v) for k, v in steps.items()})


def fed(array: NDArray, dtype: DType) -> NDArray:
    """What ONNX Runtime was given: it takes the printed form of a string of bytes for the string."""
    if dtype is not DType.STRING:
        return array
    texts = np.empty(array.size, object)
    texts[:] = [str(bytes(v)).encode() for v in array.reshape(-1)]
    return texts.reshape(array.shape)


@pytest.mark.parametrize("entry", parameters())
def test_recorded_cases(entry: dict[str, Any]) -> None:
    if CORPUS is None:
        pytest.skip(NO_CORPUS)
    arrays = np.load(CORPUS / "models" / entry["golden"]["file"], allow_pickle=False)
    model = penstock.load(CORPUS / "models" / entry["file"])
    types = {o.name: o.dtype for o in model.inputs}
    assert list(types) == [i["name"] for i in entry["inputs"]]
    assert [o.name for o in model.outputs] == [o["name"] for o in entry["outputs"]]
    with penstock.compile(model, devices=["reference"]) as net:
        for case in entry["golden"]["cases"]:
            given = {k: fed(arrays[f"{case['id']}/in/{k}"], types[k]) for k in case["inputs"]}
            outputs = net.run(given)
            wanted = [arrays[f"{case['id']}/out/{k}"] for k in case["outputs"]]
            got = [outputs[k] for k in case["outputs"]]
            compare(got, Case(wanted, lambda: None), rule(entry))
            if "expected_top1" in case:
                assert int(np.argmax(got[0].reshape(-1))) == case["expected_top1"]
