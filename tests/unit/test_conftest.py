"""What the test session says of itself."""

from __future__ import annotations

import os
from pathlib import Path

from tests.conftest import stamps, tell_of_changes


class Reporter:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def section(self, title: str) -> None:
        self.lines.append(title)

    def line(self, text: str) -> None:
        self.lines.append(text)


def test_files_that_change_while_tests_run_are_named(tmp_path: Path) -> None:
    for name in ("kept", "written", "removed"):
        (tmp_path / f"{name}.py").write_text("")
    before = stamps(tmp_path)
    same = Reporter()
    tell_of_changes(same, before, stamps(tmp_path))
    assert same.lines == []
    os.utime(tmp_path / "written.py", ns=(0, 0))
    (tmp_path / "removed.py").unlink()
    (tmp_path / "made.py").write_text("")
    (tmp_path / "note.txt").write_text("")
    told = Reporter()
    tell_of_changes(told, before, stamps(tmp_path))
    title, *files, advice = told.lines
    assert title == "files that changed while the tests ran"
    assert files == [str(tmp_path / f"{name}.py") for name in ("made", "removed", "written")]
    assert "old and new" in advice
