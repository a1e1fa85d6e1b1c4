"""All cases, by family and number."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Final

from tests.unit.ir.operations.cases.case import Case


def _collect() -> dict[str, Case]:
    found: dict[str, Case] = {}
    for path in sorted(Path(__file__).parent.glob("*.py")):
        if path.stem in {"case", "every"}:
            continue
        cases = import_module(f"tests.unit.ir.operations.cases.{path.stem}").CASES
        found |= {f"{path.stem}-{c.kind}-{at}": c for at, c in enumerate(cases)}
    return found


EVERY_CASE: Final = _collect()
