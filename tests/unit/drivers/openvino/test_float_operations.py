"""Every float32 operation the driver takes, on OpenVINO and on the reference driver."""

from __future__ import annotations

from typing import Final

import pytest

from penstock.drivers.openvino.rules import RULES
from tests.support_float_operations import COMMON, check_agrees, resizes
from tests.support_openvino import cpu, needs_openvino
from tests.support_operations import OneOperation

pytestmark = needs_openvino

CASES: Final = [*COMMON, *resizes((21, 18), (49, 66), (14, 6), (14, 7))]
ELSEWHERE: Final = {
    *("QUANTIZE", "SHAPE", "ARG_MAX", "ARG_MIN", "CAST", "SELECT", "SELECT_V2"),
    *("EQUAL", "NOT_EQUAL", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL"),
    *("LOGICAL_AND", "LOGICAL_OR", "LOGICAL_NOT"),
}
"""Types whose cases are in other files."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_agrees_with_the_reference(case: OneOperation) -> None:
    device = cpu()
    check_agrees(device, case)
    assert device.compiles == 1


def test_every_rule_has_a_case() -> None:
    tried = {operation.key for case in CASES for operation in case.model.operations}
    assert set(RULES) == tried | ELSEWHERE
