"""Every case of `cases`: the rule gives what is expected, and LiteRT the same."""

from __future__ import annotations

import pytest

from penstock.errors import ModelError
from tests.unit.ir.operations.cases.case import Case
from tests.unit.ir.operations.cases.every import EVERY_CASE
from tests.unit.ir.operations.single import inferred, litert_shapes, single


@pytest.mark.parametrize("case", EVERY_CASE.values(), ids=EVERY_CASE)
def test_shape_rule_gives_the_expected_shapes(case: Case) -> None:
    if case.expected is None:
        with pytest.raises(ModelError):
            inferred(single(case.kind, case.inputs, case.outputs, case.attributes))
    else:
        assert (
            inferred(single(case.kind, case.inputs, case.outputs, case.attributes)) == case.expected
        )


@pytest.mark.parametrize("case", EVERY_CASE.values(), ids=EVERY_CASE)
def test_litert_computes_the_expected_shapes(case: Case) -> None:
    pytest.importorskip(
        "ai_edge_litert.interpreter", reason="ai-edge-litert, the judge, is not installed"
    )
    try:
        model = single(case.kind, case.inputs, case.outputs, case.attributes)
    except ModelError:
        assert case.expected is None
        return
    found = litert_shapes(model)
    if case.expected is None:
        assert isinstance(found, str), f"LiteRT runs it, to {found}"
    else:
        assert found == case.expected
