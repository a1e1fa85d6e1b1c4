"""Every case of `cases`: the rule gives what is expected, and LiteRT the same."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Final

import pytest

from penstock.errors import ModelError
from tests.unit.ir.operations.cases.case import Case
from tests.unit.ir.operations.single import inferred, litert_shapes, single

FAMILIES: Final = sorted(
    p.stem
    for p in (Path(__file__).parent / "cases").glob("*.py")
    if p.stem not in {"case", "__init__"}
)


def _cases() -> list[pytest.param]:  # type: ignore[valid-type]
    found = []
    for family in FAMILIES:
        cases = import_module(f"tests.unit.ir.operations.cases.{family}").CASES
        found += [pytest.param(c, id=f"{family}-{c.kind}-{at}") for at, c in enumerate(cases)]
    return found


@pytest.mark.parametrize("case", _cases())
def test_rule(case: Case) -> None:
    if case.expected is None:
        with pytest.raises(ModelError):
            inferred(single(case.kind, case.inputs, case.outputs, case.attributes))
    else:
        assert (
            inferred(single(case.kind, case.inputs, case.outputs, case.attributes)) == case.expected
        )


@pytest.mark.parametrize("case", _cases())
def test_litert_agrees(case: Case) -> None:
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
