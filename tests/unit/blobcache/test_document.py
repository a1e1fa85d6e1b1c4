"""The code of docs/blobcache.md runs, and prints what the page says it prints."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from penstock import blobcache
from penstock.blobcache import Capacity, Limits, Select
from penstock.blobcache.persistent import LOCK_TIMEOUT_S, SAVE_DELAY_S

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "blobcache.md").read_text("utf-8")


def test_the_examples_print_what_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "example"}
    pairs = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE, re.DOTALL)
    assert len(pairs) == 2
    for code, shown in pairs:
        exec(compile(code, "blobcache.md", "exec"), names)  # our own page
        assert capsys.readouterr().out == shown
    assert (tmp_path / "words.cache").read_bytes().startswith(b"nn$$")


def test_the_numbers_and_names_are_those_of_the_code() -> None:
    assert f"written {SAVE_DELAY_S:.0f} seconds (`save_delay`)" in PAGE
    assert f"`lock_timeout` seconds ({LOCK_TIMEOUT_S:.0f})" in PAGE
    assert (Limits().key, Limits().value, Limits().total) == (12 << 10, 64 << 10, 2 << 20)
    for choice in (*Select, *Capacity):
        assert f"| `{choice.name}` |" in PAGE


def test_the_package_names_its_surface() -> None:
    public = {
        name
        for name, value in vars(blobcache).items()
        if not name.startswith("_") and not inspect.ismodule(value)
    }
    assert public == set(blobcache.__all__)
