"""docs/shadow.md and docs/capsules.md: their code runs and prints what they say, and their tables
are whole.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import get_args

import pytest

from penstock.cache.verdicts import Fault
from penstock.capsules import archive
from penstock.capsules.archive import FORMAT, Manifest, Stage
from penstock.capsules.evidence import MOST_KEPT, MOST_KEPT_BYTES
from penstock.execution.shadow import ShadowReport
from penstock.knobs import KNOBS
from penstock.runtime import shadow as worker

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGES = {name: (DOCS / f"{name}.md").read_text("utf-8") for name in ("shadow", "capsules")}


def test_the_example_of_shadow_verification_prints_the_same_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("PENSTOCK_STATE_DIR", str(tmp_path / "state"))
    first = re.findall(r"```python\n(.*?)```", PAGES["shadow"], re.DOTALL)[0]
    for _ in range(2):
        exec(compile(first, "shadow.md", "exec"), {"__name__": "example"})  # our own page
    told = capsys.readouterr().out
    assert told == 2 * told[: len(told) // 2]


def cells(page: str) -> set[str]:
    return set(re.findall(r"(?m)^\| `([^`]+)`", page))


def test_every_fault_and_count_is_explained() -> None:
    page = PAGES["shadow"]
    assert cells(page) == set(get_args(Fault))
    for name in (*ShadowReport.__struct_fields__, "waiting"):
        assert name == "verdicts" or f"`{name}`" in page
    assert (worker.MOST_WAITING, worker.CLOSE_SECONDS) == (2, 10.0)
    assert "at most two more wait" in page
    assert "ten seconds at most" in page


def test_page_of_capsules_describes_the_format() -> None:
    page = PAGES["capsules"]
    assert f"Format {FORMAT}:" in page
    for name in (*Manifest.__struct_fields__, *get_args(Stage)):
        assert f"`{name}`" in page, name
    assert (archive.MOST_BYTES, archive.MOST_MEMBERS) == (1 << 30, 4096)
    assert "1 GiB, 4,096 members and 16 MiB of manifest" in page
    assert (MOST_KEPT, MOST_KEPT_BYTES, archive.MOST_MANIFEST_BYTES) == (8, 64 << 20, 16 << 20)
    assert {archive.MANIFEST, archive.MODEL} <= cells(page)


@pytest.mark.parametrize("knob", ["driver_verdicts", "keep_failures", "keep_failure_data"])
def test_the_knobs_are_named(knob: str) -> None:
    assert knob in KNOBS
    assert f"`{knob}`" in PAGES["shadow"] + PAGES["capsules"]
