"""The corpus's files that LiteRT refuses, and damaged ones, through `penstock.compile`."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pytest

import penstock
from penstock import errors
from penstock.ir import DType, NDArray, Operand
from tests.conftest import CORPUS
from tests.golden.cases import operators_meant, parameters, rule
from tests.golden.comparison import Case, compare
from tests.golden.engine_rules import judge
from tests.golden.unrecorded import judged_on_zeros

REFUSED: Final[dict[str, type[errors.ModelError]]] = {
    "hello_int8__badzp": errors.InvalidQuantization,
    "hello_int8__word1": errors.InvalidQuantization,
    "lstm_int8__word1": errors.InvalidQuantization,
    "lstm_int8__cycle": errors.CyclicModel,
}
"""Damaged files that LiteRT runs and Penstock refuses (docs/differences.md), with the class of the
error.
"""


def _load(entry: dict[str, Any]) -> penstock.Model:
    assert CORPUS is not None
    return penstock.load(CORPUS / "models" / entry["file"])


def _run(model: penstock.Model, devices: list[str] | None = None) -> list[NDArray]:
    with penstock.compile(model, devices=devices) as compiled:
        return list(compiled.run([_zeros(operand) for operand in compiled.inputs]))


def _zeros(operand: Operand) -> NDArray:
    shape = tuple(1 if d is None else d for d in operand.shape or ())
    if operand.dtype is DType.STRING:
        return np.full(shape, b"text", object)
    return np.zeros(shape, operand.dtype.numpy)


@pytest.mark.parametrize("entry", parameters("rejected"))
def test_files_that_litert_rejects(entry: dict[str, Any]) -> None:
    stage = entry["reference_runtime"]["stops_at"]
    if stage == "load":
        with pytest.raises(errors.ModelError):
            _load(entry)
    elif stage == "allocate":
        with pytest.raises((errors.ModelError, errors.PlacementError)) as caught:
            penstock.compile(_load(entry))
        names = operators_meant(entry)
        assert any(name in str(caught.value) for name in names), (names, str(caught.value))
    elif stage == "runs":
        fed = judged_on_zeros(entry)
        judge(_run(_load(entry)), fed, "faithful")
    else:
        with pytest.raises(errors.PenstockError):
            _run(_load(entry))


@pytest.mark.parametrize("entry", parameters("corrupted"))
def test_damaged_files(entry: dict[str, Any]) -> None:
    if entry["reference_runtime"]["stops_at"] != "runs":
        with pytest.raises(errors.PenstockError):
            _run(_load(entry))
        return
    if entry["id"] in REFUSED:
        with pytest.raises(REFUSED[entry["id"]]):
            _load(entry)
        return
    fed = judged_on_zeros(entry)
    exact = _run(_load(entry), devices=["reference"])
    compare(exact, Case(fed.out, fed.reference), rule(fed.entry))
    judge(_run(_load(entry)), fed, "faithful")
