"""Every operation the driver takes over float32, whole numbers and truth values: as the reference computes it."""

from __future__ import annotations

from itertools import chain
from typing import Final

import numpy as np
import pytest

from penstock.drivers.onnxruntime.export.rules import RULES
from tests.golden.comparison import FLOAT_SHARE
from tests.support_onnxruntime import cpu, needs_onnxruntime
from tests.support_operations import OneOperation, run_on
from tests.unit.drivers.onnxruntime.operations import FLOAT
from tests.unit.drivers.onnxruntime.whole_operations import WHOLE

pytestmark = needs_onnxruntime

QUANTIZED_ONLY: Final = {"QUANTIZE"}
BRANCHING: Final = {"IF"}
"""Tried in `test_loops`."""


@pytest.mark.parametrize("case", FLOAT, ids=lambda case: case.name)
def test_float_operations_agree_with_the_reference(case: OneOperation) -> None:
    device = cpu()
    (answer,) = device.supported_operations(case.model)
    assert answer.supported, answer.reason
    assert answer.accuracy in {"exact", "faithful"}
    given = [case.inputs(seed) for seed in range(3)]
    ours = run_on([device], case.model, given, answer.accuracy)
    reference = run_on(["reference"], case.model, given)
    for got, wanted in zip(chain(*ours), chain(*reference), strict=True):
        assert got.shape == wanted.shape
        if answer.accuracy == "exact":
            assert np.array_equal(got, wanted)
        else:
            assert np.abs(got - wanted).max() <= FLOAT_SHARE * np.abs(wanted).max()
    assert device.compiles == 1


@pytest.mark.parametrize("case", WHOLE, ids=lambda case: case.name)
def test_other_operations_are_exact(case: OneOperation) -> None:
    (answer,) = cpu().supported_operations(case.model)
    assert (answer.supported, answer.accuracy) == (True, "exact"), answer.reason
    given = [case.inputs(seed) for seed in range(2)]
    ours = run_on([cpu()], case.model, given, "exact")
    reference = run_on(["reference"], case.model, given)
    for got, wanted in zip(chain(*ours), chain(*reference), strict=True):
        assert got.dtype == wanted.dtype
        assert np.array_equal(got, wanted)


def test_every_rule_has_a_case() -> None:
    tried = {operation.key for case in FLOAT + WHOLE for operation in case.model.operations}
    assert set(RULES) == tried | QUANTIZED_ONLY | BRANCHING
