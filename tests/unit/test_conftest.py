"""The summary of a test session."""

from __future__ import annotations

import os
from pathlib import Path

from tests.conftest import functions_and_cases, report_changes, stamps


class Reporter:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def section(self, title: str) -> None:
        self.lines.append(title)

    def line(self, text: str) -> None:
        self.lines.append(text)


def test_summary_names_files_that_changed_while_tests_ran(tmp_path: Path) -> None:
    for name in ("kept", "written", "removed"):
        (tmp_path / f"{name}.py").write_text("")
    before = stamps(tmp_path)
    same = Reporter()
    report_changes(same, before, stamps(tmp_path))
    assert same.lines == []
    os.utime(tmp_path / "written.py", ns=(0, 0))
    (tmp_path / "removed.py").unlink()
    (tmp_path / "made.py").write_text("")
    (tmp_path / "note.txt").write_text("")
    changed = Reporter()
    report_changes(changed, before, stamps(tmp_path))
    title, *files, advice = changed.lines
    assert title == "files that changed while the tests ran"
    assert files == [str(tmp_path / f"{name}.py") for name in ("made", "removed", "written")]
    assert "old and new" in advice


def test_summary_counts_functions_and_cases() -> None:
    ids = ["a.py::test_x[1]", "a.py::test_x[2]", "a.py::test_x[2]", "a.py::test_y", "b.py::test_x"]
    assert functions_and_cases(ids) == "3 test functions, 4 cases"
