"""What the README says, done."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from penstock.cli.main import app
from tests.conftest import ROOT

README = (ROOT / "README.md").read_text("utf-8")
PAGES = (
    "README.md",
    "docs/caching.md",
    "docs/litert.md",
    "docs/tasks.md",
    "docs/memory.md",
    "examples/camera/README.md",
    "examples/digits/README.md",
)


def test_it_opens_with_words_a_picture_and_the_two_commands() -> None:
    opening = README.partition("## ")[0]
    assert opening.startswith("# Penstock\n\nA penstock is")
    assert "](docs/images/run.svg)" in opening
    assert opening.index("docs/images/run.svg") < opening.index("scripts/demo")
    for script in ("demo", "test"):
        assert (ROOT / "scripts" / script).stat().st_mode & 0o111


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    links = re.findall(r"\]\(([^)#]+)", text)
    local = [link for link in links if "://" not in link]
    assert [link for link in local if not ((ROOT / page).parent / link).exists()] == []


def test_the_python_runs_and_prints_what_it_says() -> None:
    code = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    result = subprocess.run(
        [sys.executable, "-c", "\n".join(code)],
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PENSTOCK_DEVICES": "reference"},
        timeout=120,
    )
    assert "step 0 on reference: 6 operations" in result.stdout
    assert "plan: 1 step, 6 operations (reference 6)" in result.stdout


def test_every_command_it_shows_exists() -> None:
    shown = set(re.findall(r"(?m)^penstock (\w+)", README))
    known = {c.callback.__name__ for c in app.registered_commands if c.callback is not None}
    known |= {str(g.typer_instance.info.name) for g in app.registered_groups if g.typer_instance}
    assert shown
    assert shown <= known


def test_the_picture_is_of_the_present_commands() -> None:
    picture = (ROOT / "docs" / "images" / "run.svg").read_text("utf-8")
    text = re.sub(r"<[^>]*>", " ", picture).replace("&#160;", " ")
    for words in (
        "penstock run examples/digits/digits_float32.tflite",
        "probability",
        "plan:",
        "time:",
    ):
        assert words in text
