"""The cases by which the onnx package defines its operators, as far as they lower."""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.errors import ModelError, NotLowerable, PlacementError
from penstock.ir import NDArray

onnx: Any = pytest.importorskip("onnx", reason="the extra onnx is not installed")

LEAST_SHARE = 0.8
"""Of the package's cases, those that run here with the results that it gives (onnx 1.22)."""

DIFFERENT = (
    "fullymasked",  # a fully masked row of attention: sums are finite here (docs/onnx.md)
    "boolmask_nan_robustness",
    "structural_empty",
    "qk_matmul_bias_3d_mask_causal",
    "qk_matmul_bias_4d_mask_causal",
    "negative_shift",  # not defined
    "empty_set",  # the least and greatest of nothing are finite here
    "align_corners",  # ONNX Runtime's reading of scales that do not come out even
)


def numbers(value: Any) -> NDArray:
    if hasattr(value, "data_type"):
        value = onnx.numpy_helper.to_array(value)
    return np.asarray(value)


def with_constants(case: Any) -> tuple[Any, list[NDArray]]:
    """The case's model with all inputs but the first as constants, and what is left to feed."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    inputs, left, fed = [numbers(v) for v in case.data_sets[0][0]], [], []
    for index, (declared, array) in enumerate(zip(list(model.graph.input), inputs, strict=True)):
        if index and array.dtype.kind not in "OSU":
            model.graph.initializer.append(onnx.numpy_helper.from_array(array, declared.name))
        else:
            left.append(declared)
            fed.append(array)
    del model.graph.input[:]
    model.graph.input.extend(left)
    return model, fed


def same(got: NDArray, want: NDArray) -> bool:
    if got.shape != want.shape:
        return False
    if want.dtype.kind in "OSU":
        texts = [v if isinstance(v, bytes) else str(v).encode() for v in want.reshape(-1).tolist()]
        return bool(got.reshape(-1).tolist() == texts)
    if got.dtype != want.dtype:
        return False
    if want.dtype.kind not in "fV":
        return bool(np.array_equal(got, want))
    a, b = got.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return False
    largest = max(float(np.abs(b[finite]).max(initial=0)), 1e-3)
    return bool(np.abs(a[finite] - b[finite]).max(initial=0) <= 2e-3 * largest)


def outcome(case: Any) -> str:
    """How *case* ends: right, wrong, or the name of its refusal."""
    model, fed = case.model, None
    try:
        try:
            loaded = penstock.load(model.SerializeToString())
        except NotLowerable:
            model, fed = with_constants(case)
            loaded = penstock.load(model.SerializeToString())
    except ModelError as error:
        return type(error).__name__
    if fed is None:
        fed = [numbers(v) for v in case.data_sets[0][0]]
    try:
        with penstock.compile(loaded, devices=["reference"]) as net:
            results = net.run(fed)
    except PlacementError:
        return "PlacementError"
    wanted = [numbers(v) for v in case.data_sets[0][1]]
    right = all(same(results[i], w) for i, w in enumerate(wanted))
    return "right" if right else "wrong"


@pytest.mark.slow
def test_the_packages_own_cases() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        cases = [c for c in collect_testcases(None) if c.data_sets and _plain(c)]
    outcomes: Counter[str] = Counter()
    wrong = []
    for case in cases:
        found = outcome(case)
        outcomes[found] += 1
        if found == "wrong":
            wrong.append(case.name)
    assert [n for n in wrong if not any(part in n for part in DIFFERENT)] == []
    assert outcomes["right"] >= LEAST_SHARE * len(cases), outcomes


def _plain(case: Any) -> bool:
    """Whether all that a case is fed and gives are tensors."""
    values = [*case.data_sets[0][0], *case.data_sets[0][1]]
    return all(isinstance(v, np.ndarray | np.generic | onnx.TensorProto) for v in values)
