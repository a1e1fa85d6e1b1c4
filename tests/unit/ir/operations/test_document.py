"""The generated page and indexes are what the operation table and the kernels say."""

from __future__ import annotations

from penstock.ir.operations import OPERATIONS
from tools.generate_operations import main, page


def test_generated_indexes_are_up_to_date() -> None:
    assert main(["--check"]) == 0, "run tools/generate_operations.py"


def test_operations_page_has_every_row_once() -> None:
    lines = [line.split("`")[1] for line in page().splitlines() if line.startswith("| `")]
    assert sorted(lines) == sorted(OPERATIONS)


def test_the_newest_versions_are_those_of_the_rows() -> None:
    assert {key: OPERATIONS.newest(key) for key in OPERATIONS} == {
        key: row.versions for key, row in OPERATIONS.items()
    }
