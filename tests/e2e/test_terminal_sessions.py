"""The sessions on a terminal that the README and the tutorial show, typed as they stand there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from tests.conftest import ROOT

PAGES = {page: (ROOT / page).read_text("utf-8") for page in ("README.md", "docs/tutorial.md")}


def console(page: str) -> list[tuple[str, list[str]]]:
    """Each command that the page shows, with the lines shown below it."""
    lines = "".join(re.findall(r"```console\n(.*?)```", PAGES[page], re.DOTALL)).splitlines()
    found: list[tuple[str, list[str]]] = []
    for line in lines:
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif line != "...":
            found[-1][1].append(line)
    return found


def plain(text: str) -> str:
    """Without what is another each time: tokens, sizes, places; and with single blanks."""
    for pattern, stands_for in (
        (r"\b[0-9a-f]{12}\b", "TOKEN"),
        (r"\b[\d.]+ KiB\b", "SIZE"),
        (r"in /\S+", "in PLACE"),
        (r"[ \t]+", " "),
    ):
        text = re.sub(pattern, stands_for, text)
    return text.strip()


def test_readme_and_tutorial_show_a_start_from_a_damaged_cache() -> None:
    tutorial = [command for command, _ in console("docs/tutorial.md")]
    assert tutorial[0] == "pip install '.[openvino]'"
    assert sum(command.startswith("penstock run") for command in tutorial) == 4
    assert "penstock cache verify" in tutorial
    readme = [command for command, _ in console("README.md")]
    assert sum(command.startswith("penstock run") for command in readme) == 3
    assert any("DAMAGED" in command for command in readme)


@pytest.mark.parametrize("page", PAGES)
def test_every_command_prints_what_the_page_shows(page: str, tmp_path: Path) -> None:
    if not any(d.name == "openvino-cpu" and d.usable for d in penstock.devices()):
        pytest.skip("needs OpenVINO: the extra `openvino`")
    if shutil.which("bash") is None:
        pytest.skip("needs bash")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    program = tmp_path / "bin" / "penstock"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m penstock "$@"\n')
    program.chmod(0o755)
    steps = [(c, shown) for c, shown in console(page) if not c.startswith("pip ")]
    script = "\n".join(f"{command}\necho '<end>'" for command, _ in steps)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")} | {
        "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}",
        "PENSTOCK_STATE_DIR": str(tmp_path / "state"),
        "PENSTOCK_KEY_STORE": "file",
        "TMPDIR": str(tmp_path),
    }
    ran = subprocess.run(
        ["bash", "-c", f"exec 2>&1\n{script}"],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
        timeout=300,
    )
    made = {path.name for path in tmp_path.iterdir()} - {"examples", "bin", "state"}
    assert len(made) == 1, made
    assert made.pop().startswith("tmp.")
    printed = ran.stdout.split("<end>\n")
    for (command, shown), answer in zip(steps, printed, strict=False):
        for line in shown:
            assert plain(line) in plain(answer), (command, answer)
