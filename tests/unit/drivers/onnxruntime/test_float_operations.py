"""Every operation the driver takes over float32, whole numbers and truth values: as the reference
computes it.
"""

from __future__ import annotations

from itertools import chain
from typing import Final

import numpy as np
import pytest

from penstock.drivers.onnxruntime.rules import RULES
from tests.support_float_operations import check_agrees
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
    assert check_agrees(device, case) in {"exact", "faithful"}
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
