"""The corpus on OpenVINO: float networks under the rule of every driver, quantised ones by the
answers they give.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pytest

import penstock
from penstock.drivers.openvino import OpenVinoDevice
from penstock.hal import AccuracyClass, Device
from penstock.ir import NDArray
from tests.conftest import CORPUS, NO_CORPUS, corpus_parameters
from tests.golden.arrays import golden
from tests.golden.cases import Entry, LiteRT, check_labels, groups, load, rule, shapes
from tests.golden.comparison import Case, compare
from tests.support_openvino import cpu, needs_openvino

pytestmark = [needs_openvino, pytest.mark.grid]

MOST_MACS: Final = 1_000_000_000
FLOAT: Final = frozenset({"float32", "float16-weights"})
QUANTIZED: Final = frozenset({"int8", "uint8"})
BEST: Final = 5
"""Among so many best classes LiteRT's must be, also of noise, where a step more or less decides."""


def small(schemes: frozenset[str]) -> list[Any]:
    """Groups of cases of the networks of these schemes, save the largest."""
    found = [
        parameter
        for parameter in groups("network", {})
        if parameter.values[0]["dtype_scheme"] in schemes
        and (parameter.values[0].get("macs") or 0) <= MOST_MACS
    ]
    return corpus_parameters(found, arguments=2)


def run(
    entry: Entry, cases: list[dict[str, Any]], device: OpenVinoDevice, accuracy: AccuracyClass
) -> tuple[list[Case], list[list[NDArray]]]:
    """What LiteRT recorded for each case, and what OpenVINO computes with the reference driver's
    help.
    """
    if CORPUS is None:
        raise FileNotFoundError(NO_CORPUS)
    path = CORPUS / "models" / entry["file"]
    arrays = golden(CORPUS / "models" / entry["golden"]["file"])
    model, signature = load(path), cases[0].get("signature")
    sizes = shapes(model, signature, cases[0].get("resize_inputs"))
    devices: list[str | Device] = [device, "reference"]
    policy = penstock.Policy(accuracy=accuracy, placement="nnapi", allow_fallback=False)
    recorded, computed = [], []
    with penstock.compile(
        model, devices=devices, signature=signature, shapes=sizes, policy=policy, cache=False
    ) as net:
        for position, case in enumerate(cases):
            given = [arrays[f"{case['id']}/in/{k}"] for k in case["inputs"]]
            wanted = [arrays[f"{case['id']}/out/{k}"] for k in case["outputs"]]
            outputs = net.run(dict(zip(case["inputs"], given, strict=True)) if signature else given)
            computed.append([outputs[k if signature else int(k)] for k in case["outputs"]])
            recorded.append(Case(wanted, LiteRT(path, arrays, cases[: position + 1])))
    return recorded, computed


@pytest.mark.parametrize(("entry", "cases"), small(FLOAT))
def test_float_networks_are_right(entry: Entry, cases: list[dict[str, Any]]) -> None:
    recorded, computed = run(entry, cases, cpu(), "faithful")
    for case, wanted, got in zip(cases, recorded, computed, strict=True):
        compare(got, wanted, rule(entry))
        check_labels(case, got)


@pytest.mark.parametrize(("entry", "cases"), small(QUANTIZED))
def test_quantized_networks_keep_their_answers(entry: Entry, cases: list[dict[str, Any]]) -> None:
    device = cpu()
    recorded, computed = run(entry, cases, device, "relaxed")
    assert device.compiles, "OpenVINO took no partition"
    for case, got in zip(cases, computed, strict=True):
        if "expected_top1" in case:
            assert rank(got[0], case["expected_top1"]) == 0, case["expected_label"]
    if "classification" in entry["task"] or "keyword" in entry["task"]:
        for wanted, got in zip(recorded, computed, strict=True):
            assert rank(got[0], int(np.argmax(wanted.out[0]))) < BEST


def rank(scores: NDArray, index: int) -> int:
    """How many classes score higher than *index*."""
    return int(np.sum(scores.reshape(-1) > scores.reshape(-1)[index]))
