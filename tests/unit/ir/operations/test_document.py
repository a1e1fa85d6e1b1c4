"""The generated page and indexes are what the operation table and the kernels say."""

from __future__ import annotations

from penstock.ir.operations import OPERATIONS
from tools.generate_operations import main, page


def test_indexes_are_up_to_date() -> None:
    assert main(["--check"]) == 0, "run tools/generate_operations.py"


def test_every_row_is_on_the_page_once() -> None:
    lines = [line.split("`")[1] for line in page().splitlines() if line.startswith("| `")]
    assert sorted(lines) == sorted(OPERATIONS)
