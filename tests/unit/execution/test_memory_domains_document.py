"""docs/memory-domains.md: its code runs and prints what the page shows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from penstock.cache import Cache

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "memory-domains.md").read_text("utf-8")


def test_the_examples_print_what_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PENSTOCK_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("PENSTOCK_CACHE_DIR", str(tmp_path / "cache"))
    names: dict[str, Any] = {"__name__": "example"}
    blocks = re.findall(r"```(python|text)\n(.*?)```", PAGE, re.DOTALL)
    shown = 0
    for place, (kind, content) in enumerate(blocks):
        if kind == "text":
            continue
        exec(compile(content, "memory-domains.md", "exec"), names)  # our own page
        wanted = (
            blocks[place + 1][1]
            if blocks[place + 1 : place + 2] and blocks[place + 1][0] == "text"
            else ""
        )
        assert capsys.readouterr().out == wanted
        shown += bool(wanted)
    assert shown == PAGE.count("```text")
    assert all(defect is None for _, defect in Cache().verify())


def test_it_says_what_to_prefer() -> None:
    assert "For what the host reads or writes often, prefer a pool" in PAGE
