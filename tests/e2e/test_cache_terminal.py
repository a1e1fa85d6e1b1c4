"""The cache's commands on a terminal: a question before everything goes, tables, and a bar that
leaves nothing behind.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.cache import Cache
from tests.conftest import ROOT

if sys.platform == "win32":
    pytest.skip("Windows has no pseudo-terminals of this kind", allow_module_level=True)

QUESTION = "[y/N]: "


def on_terminal(directory: Path, *arguments: object, answer: str = "") -> tuple[int, str]:
    """The exit code and all that the program writes to its terminal, where a user types *answer*
    when asked.
    """
    ours, its = os.openpty()
    environment = os.environ | {
        "PENSTOCK_CACHE_DIR": str(directory),
        "COLUMNS": "120",
        "TERM": "xterm-256color",
    }
    with subprocess.Popen(
        [sys.executable, "-m", "penstock", *map(str, arguments)],
        stdin=its,
        stdout=its,
        stderr=its,
        cwd=ROOT,
        env=environment,
    ) as process:
        os.close(its)
        printed = bytearray()
        while part := _read(ours):
            printed += part
            if answer and printed.decode(errors="replace").rstrip("\n").endswith(QUESTION):
                os.write(ours, answer.encode() + b"\n")
                answer = ""
        os.close(ours)
    return process.returncode, printed.decode()


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # how Linux says that the other end has closed
        return b""


def test_a_bar_while_it_compiles_and_a_table_afterwards(tmp_path: Path, model: Path) -> None:
    code, printed = on_terminal(tmp_path / "cache", "cache", "prewarm", model, "-d", "lab")
    assert code == 0, printed
    assert "add.tflite compiling" in printed
    table = printed[printed.rindex("╭") :]
    assert "compiled, saved" in table
    assert "compiling" not in table


@pytest.mark.parametrize("command", [("run", "random"), ("bench", "--runs", "1")])
def test_run_and_bench_show_compile_progress(
    tmp_path: Path, model: Path, command: tuple[str, ...]
) -> None:
    name, *rest = command
    code, printed = on_terminal(tmp_path / "cache", name, model, *rest, "-d", "lab")
    assert code == 0, printed
    assert "compiling" in printed
    assert "compiling" not in printed[printed.rindex("╭") :]
    assert "cache: lab miss: NoEntry: nothing is cached here; saved" in printed


def test_clear_asks(tmp_path: Path, model: Path) -> None:
    directory = tmp_path / "cache"
    assert on_terminal(directory, "cache", "prewarm", model, "-d", "lab")[0] == 0
    code, printed = on_terminal(directory, "cache", "clear", answer="n")
    assert code == 1
    assert f"remove 1 entry from {directory}?" in printed.replace("\r\n", "")
    assert "nothing was removed" in printed
    assert len(Cache(directory).entries()) == 1
    code, printed = on_terminal(directory, "cache", "clear", answer="y")
    assert code == 0, printed
    assert "1 entry removed" in printed
    assert Cache(directory).entries() == []


def test_json_never_asks(tmp_path: Path, model: Path) -> None:
    directory = tmp_path / "cache"
    assert on_terminal(directory, "cache", "prewarm", model, "-d", "lab")[0] == 0
    assert on_terminal(directory, "cache", "clear", "--json")[0] == 2
    assert on_terminal(directory, "cache", "clear", "--json", "--yes")[0] == 0
    assert Cache(directory).entries() == []
