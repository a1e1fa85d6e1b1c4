"""docs/operations.md is what the operation table says."""

from __future__ import annotations

from penstock.ir.operations import OPERATIONS
from tools.operations_doc import TARGET, main, page


def test_the_page_is_up_to_date() -> None:
    assert main(["--check"]) == 0, "run tools/operations_doc.py"
    assert TARGET.read_text(encoding="utf-8") == page()


def test_every_row_is_on_the_page_once() -> None:
    lines = [line.split("`")[1] for line in page().splitlines() if line.startswith("| `")]
    assert sorted(lines) == sorted(OPERATIONS)
