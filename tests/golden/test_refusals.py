"""The files of the corpus that LiteRT stops at, and the damaged ones, through `penstock.compile`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import penstock
from penstock.errors import ModelError, PenstockError, PlacementError
from penstock.ir import DType, NDArray, Operand
from tests.conftest import CORPUS
from tests.golden.cases import operators_meant, parameters


def _load(entry: dict[str, Any]) -> penstock.Model:
    assert CORPUS is not None
    return penstock.load(CORPUS / "models" / entry["file"])


def _run(model: penstock.Model) -> None:
    with penstock.compile(model) as compiled:
        compiled.run([_zeros(operand) for operand in compiled.inputs])


def _zeros(operand: Operand) -> NDArray:
    shape = tuple(1 if d is None else d for d in operand.shape or ())
    if operand.dtype is DType.STRING:
        return np.full(shape, b"text", object)
    return np.zeros(shape, operand.dtype.numpy)


@pytest.mark.parametrize("entry", parameters("rejected"))
def test_files_that_litert_rejects(entry: dict[str, Any]) -> None:
    stage = entry["reference_runtime"]["stops_at"]
    if stage == "load":
        with pytest.raises(ModelError):
            _load(entry)
    elif stage == "allocate":
        with pytest.raises((ModelError, PlacementError)) as caught:
            penstock.compile(_load(entry))
        names = operators_meant(entry)
        assert any(name in str(caught.value) for name in names), (names, str(caught.value))
    elif stage == "runs":
        _run(_load(entry))
    else:
        with pytest.raises(PenstockError):
            _run(_load(entry))


@pytest.mark.parametrize("entry", parameters("corrupted"))
def test_damaged_files(entry: dict[str, Any]) -> None:
    try:
        model = _load(entry)
    except ModelError:
        return
    if entry["reference_runtime"]["stops_at"] == "runs":
        return
    with pytest.raises(PenstockError):
        _run(model)
