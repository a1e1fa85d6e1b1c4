"""docs/writing-a-driver.md, done: every block in order, in an empty directory, and every output as
the page has it.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.conftest import ROOT

PAGE: Final = ROOT / "docs" / "writing-a-driver.md"
TEXT: Final = PAGE.read_text("utf-8")
TIMEOUT: Final = 300


class Block(NamedTuple):
    """A fenced block: its language, the file that it is put into, its text, and the output shown
    behind it.
    """

    language: str
    file: str
    text: str
    shown: str


def blocks() -> list[Block]:
    found = re.findall(r"```(\w+)(?: file=(\S+))?\n(.*?)```", TEXT, re.DOTALL)
    made: list[Block] = []
    for language, file, text in found:
        if language == "text":
            made[-1] = made[-1]._replace(shown=text)
        else:
            made.append(Block(language, file, text, ""))
    return made


BLOCKS: Final = blocks()


class Project:
    """The reader's directory, and where `pip install .` puts what is in it."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.site = directory / "project", directory / "site"
        self.directory.mkdir()
        self.environment = {
            **{k: v for k, v in os.environ.items() if k != "PENSTOCK_DEVICES"},
            "PYTHONPATH": os.pathsep.join(
                [str(self.site), *filter(None, [os.environ.get("PYTHONPATH")])]
            ),
            "PENSTOCK_STATE_DIR": str(directory / "state"),
            "PENSTOCK_CACHE_DIR": str(directory / "cache"),
            "NO_COLOR": "1",
            "COLUMNS": "200",
        }

    def do(self, block: Block) -> str:
        """What is wrong with the block; empty: nothing."""
        if block.file:
            (self.directory / block.file).write_text(block.text, "utf-8")
            return ""
        if block.language == "console":
            return "\n".join(filter(None, map(self._command, commands(block.text))))
        printed = self._run([sys.executable, "-c", block.text])
        return difference(printed, block.shown)

    def _command(self, command: tuple[str, str]) -> str:
        line, shown = command
        words = shlex.split(line)
        if words[:2] == ["pip", "install"]:
            # Without network, and without touching the environment that runs this test.
            offline = ["--no-deps", "--no-build-isolation", "--no-index", "--upgrade", "--quiet"]
            target = ["--target", str(self.site), "--disable-pip-version-check"]
            words = ["python", "-m", "pip", "install", *offline, *target, *words[2:]]
        if words[0] == "penstock":
            words = ["python", "-m", *words]
        assert words[0] == "python", f"the page shows a command that is not known here: {line}"
        return difference(self._run([sys.executable, *words[1:]]), shown)

    def _run(self, words: list[str]) -> str:
        done = subprocess.run(
            words,
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT,
        )
        return done.stdout + done.stderr


def commands(text: str) -> list[tuple[str, str]]:
    """Each line behind a `$`, and the output shown below it."""
    found: list[tuple[str, str]] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], ""))
        else:
            found[-1] = found[-1][0], f"{found[-1][1]}{line}\n"
    return found


def difference(printed: str, shown: str) -> str:
    """Empty where *printed* is what the page shows: `...` stands for any lines, or for any text in
    a line; how much white space there is, and how many milliseconds something took, does not
    matter.
    """
    patterns = []
    for line in shown.splitlines():
        words = [re.escape(part.strip()) for part in " ".join(line.split()).split("...")]
        pattern = r"\s?.*?\s?".join(words)
        pattern = re.sub(r"[\d\\.]+\\ ms", r"[\\d.]+\\ ms", pattern)
        patterns.append(r"(?:.*\n)*?" if line == "..." else pattern + r"\n")
    lines = "".join(" ".join(line.split()) + "\n" for line in printed.splitlines())
    if not shown or re.fullmatch("".join(patterns), lines):
        return ""
    return f"--- the page shows\n{shown}--- what was printed\n{printed}"


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What is wrong with each block, all of them done in order."""
    project = Project(tmp_path_factory.mktemp("driver"))
    return [project.do(block) for block in BLOCKS]


@pytest.mark.parametrize("position", range(len(BLOCKS)))
def test_block_of_writing_a_driver_does_what_the_page_shows(
    position: int, outcomes: list[str]
) -> None:
    assert not outcomes[position], outcomes[position]


def test_the_ten_line_driver_has_ten_lines() -> None:
    first = BLOCKS[0]
    assert first.file == "penstock_relu.py"
    assert len(first.text.splitlines()) == 10
    assert "class Relu(KernelDevice)" in first.text


def test_the_registration_names_a_driver_of_the_page() -> None:
    (block,) = [b for b in BLOCKS if b.language == "toml"]
    entries = tomllib.loads(block.text)["project"]["entry-points"]["penstock.drivers"]
    assert entries == {"relu": "penstock_relu:Relu"}


def test_the_comparison_notices_what_differs() -> None:
    assert difference("a 1\nb\nc  0.3 ms\n", "a 1\n...\nc 9.0 ms\n") == ""
    assert difference("a 1\nb\n", "a ...\nb\n") == ""
    assert difference("a 1\nb\n", "a 2\nb\n") != ""
    assert difference("a\nb\n", "a\n") != ""
    assert difference("", "a\n") != ""


def test_the_table_of_claims_has_claims_that_exist() -> None:
    from penstock.hal import Capabilities

    rows = re.findall(r"(?m)^\| (`.*?`) \|", TEXT)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    fields = set(Capabilities.__struct_fields__)
    assert named <= fields
    assert fields - named == {"if_performance", "while_performance", "alignment", "padding"}
