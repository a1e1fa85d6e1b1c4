"""Every operator, in small models of one node, judged by ONNX Runtime."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.loaders.onnx.operators import operators
from tests.support_onnx import ML, check, one_node, ours
from tests.unit.loaders.onnx_files.onnx_cases import ROWS

DEFINED_BY_ONNX = {
    "CastLike", "HardSigmoid", "Mish", "Shrink", "Softsign", "Swish", "ThresholdedRelu",
}  # fmt: skip
"""Operators that are lowered by the functions that define them."""

ELSEWHERE = frozenset({
    "Constant", "Loop", "Scan", "SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase",
        "SequenceInsert",
    "SequenceLength", "SplitToSequence", "ConcatFromSequence", "Scatter", "Unique",
        "ai.onnx.ml.ZipMap",
})  # fmt: skip
"""Operators that stand in graphs of several nodes: `test_onnx_graphs.py`."""


def rows() -> list[Any]:
    seen: Counter[str] = Counter()
    found = []
    for row in ROWS:
        seen[row[0]] += 1
        found.append(pytest.param(*row, id=f"{row[0]}-{seen[row[0]]}"))
    return found


@pytest.mark.parametrize(("op", "inputs", "attributes", "options"), rows())
def test_operator_computes_what_onnx_does(
    op: str, inputs: list[Any], attributes: dict[str, Any], options: dict[str, Any]
) -> None:
    options = dict(options)
    judge = options.pop("judge", True)
    model, fed = one_node(op, inputs, attributes, **options)
    if judge:
        check(model, fed)
    else:
        assert ours(model, fed)


def test_every_operator_is_tested() -> None:
    tested = {f"{ML}.{r[0]}" if r[3].get("domain") else r[0] for r in ROWS} | ELSEWHERE
    assert tested == set(operators()) | DEFINED_BY_ONNX


def test_the_documentation_lists_every_operator() -> None:
    page = (Path(penstock.__file__).parents[2] / "docs" / "onnx.md").read_text("utf-8")
    rows = re.findall(r"(?m)^\| ([^|]*) \| ([A-Z][^|]*) \|$", page)
    listed = {
        f"{ML}.{name}" if family == f"`{ML}`" else name
        for family, names in rows
        for name in names.split(", ")
    }
    assert listed == set(operators()) | DEFINED_BY_ONNX | {"If"}
