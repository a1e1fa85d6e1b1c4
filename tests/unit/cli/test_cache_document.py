"""docs/caching.md: its code runs and prints what it says, and its tables name everything there
is.
"""

from __future__ import annotations

import re
from pathlib import Path

from typer.testing import CliRunner

from penstock import knobs
from penstock.cache.ingredients import ingredients_of
from penstock.cli.application import app
from penstock.errors import CacheError
from penstock.hal import PrepareConfig
from penstock.ir import DType, ModelBuilder
from penstock.testing.lab import LabDevice

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "caching.md").read_text("utf-8")


def section(title: str) -> str:
    return PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]


def rows(title: str) -> set[str]:
    """The words in backquotes of the first column of a section's table."""
    cells = re.findall(r"(?m)^\| (`[^|]*) \|", section(title))
    return {word for cell in cells for word in re.findall(r"`([^`]+)`", cell)}


def test_every_refusal_is_explained() -> None:
    every = [CacheError]
    for kind in every:
        every += kind.__subclasses__()
    named = {kind.__name__ for kind in every[1:] if kind.__module__ == CacheError.__module__}
    assert rows("Hit, miss, off") == named


def test_every_ingredient_is_explained() -> None:
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, (1,), "x")
    model = builder.build(builder.operation("RELU", [x], [(DType.FLOAT32, (1,))]))
    there = ingredients_of(model, LabDevice(), PrepareConfig())
    assert rows("What the key is made of") == set(there)


def test_every_command_is_named() -> None:
    text = section("The commands").partition(";")[0]
    shown = set(re.findall(r"`(\w+)`", text))
    help_ = CliRunner().invoke(app, ["cache"], env={"TERM": "dumb", "COLUMNS": "200"}).stdout
    assert shown == set(re.findall(r"(?m)^│ (\w+)  ", help_))


def test_the_settings_are_those_of_the_code() -> None:
    assert f"| {knobs.cache_limit_mib.default} | `cache_limit_mib` |" in PAGE
    assert f"`lease_seconds` ({knobs.lease_seconds.default:.0f})" in PAGE
    assert f"`late_write_seconds` ({knobs.late_write_seconds.default:.0f})" in PAGE
