"""What the README and the tutorial say, done."""

from __future__ import annotations

import os
import re

from penstock.cli.commands import COMMANDS
from tests.conftest import ROOT
from tests.support_programs import run_python

README = (ROOT / "README.md").read_text("utf-8")
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text("utf-8")


def run(code: str) -> str:
    """What the *code* prints."""
    return run_python(
        "-c", code, check=True, cwd=ROOT, env=os.environ | {"PENSTOCK_DEVICES": "reference"}
    ).stdout


def test_readme_opens_with_words_a_picture_and_the_two_commands() -> None:
    assert "fell back from flaky" in README
    opening = README.partition("## ")[0]
    assert opening.startswith("# Penstock\n\nA penstock is")
    assert "](docs/images/pipeline.svg)" in opening
    assert opening.index("docs/images/pipeline.svg") < opening.index("scripts/demo")
    for script in ("demo", "test"):
        assert (ROOT / "scripts" / script).stat().st_mode & 0o111


def test_python_of_the_tutorial_prints_the_plan_and_the_receipt() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", TUTORIAL, re.DOTALL)
    printed = run(code)
    assert "step 0 on reference: 6 operations" in printed
    assert "1 step, 6 operations (reference 6)" in " ".join(printed.split())


def test_every_command_of_the_readme_and_the_tutorial_exists() -> None:
    shown = set(re.findall(r"(?m)^(?:\$ )?penstock (\w+)", README + TUTORIAL))
    known = {name.partition(" ")[0] for name in COMMANDS}
    assert len(shown) == 9
    assert shown <= known


def test_picture_of_a_terminal_shows_the_present_commands() -> None:
    picture = (ROOT / "docs" / "images" / "run.svg").read_text("utf-8")
    text = re.sub(r"<[^>]*>", " ", picture).replace("&#160;", " ")
    for words in (
        "penstock run examples/digits/digits_float32.tflite",
        "probability",
        "plan:",
        "time:",
    ):
        assert words in text
