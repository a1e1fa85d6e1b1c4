"""On a terminal: boxes, colours unless NO_COLOR asks for none, and a progress bar that leaves
nothing behind.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.support_programs import run_python
from tests.support_terminal import on_terminal

if sys.platform == "win32":
    pytest.skip("Windows has no pseudo-terminals of this kind", allow_module_level=True)

COLOUR = re.compile(r"\x1b\[[0-9;]*3[0-7]m")


def test_tables_have_boxes(digits: Path) -> None:
    printed = on_terminal("run", digits / "digits_int8.tflite", digits / "seven.png")
    assert "╭" in printed
    assert "1 step, 6 operations (reference 6)" in " ".join(printed.split())


def test_no_color_is_honoured(digits: Path) -> None:
    arguments = ("run", digits / "digits_float32.tflite", digits / "seven.png", "--task", "outputs")
    noted = ("run", digits / "digits_float32.tflite", digits / "seven.png", "--rate", 16000)
    assert COLOUR.search(on_terminal(*noted))
    assert not COLOUR.search(on_terminal(*noted, NO_COLOR="1"))
    assert not COLOUR.search(on_terminal(*arguments, NO_COLOR="1"))


def test_bench_draws_a_bar_and_takes_it_away(digits: Path) -> None:
    printed = on_terminal("bench", digits / "digits_int8.tflite", "--runs", "400")
    assert "measuring" in printed
    assert "measuring" not in printed[printed.rindex("╭") :]


def test_json_on_a_terminal_is_still_one_object(digits: Path) -> None:
    import json

    printed = on_terminal("bench", digits / "digits_int8.tflite", "--runs", "20", "--json")
    assert json.loads(printed)["runs"] == 20


def test_help_needs_neither_numpy_nor_pillow() -> None:
    code = "import sys, penstock.cli.main; print(*sorted({'numpy', 'PIL'} & set(sys.modules)))"
    result = run_python("-c", code, check=True)
    assert result.stdout == "\n"
