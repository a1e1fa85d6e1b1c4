"""Tables, lines and JSON."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from rich.console import Console

from penstock.cli.output import Output, jsonable, milliseconds, shortened, size
from penstock.cli.terminal import make_table


def printed(output: Output, stream: io.StringIO) -> str:
    output.table(("name", "size"), [("[1, 224]", 10), ("x" * 150, None)])
    output.line("[bold]not markup[/bold]")
    output.notes(["a note"])
    return stream.getvalue()


def test_off_a_terminal_tables_are_plain_and_never_wrapped() -> None:
    stream = io.StringIO()
    text = printed(Output(console=Console(file=stream, width=400, markup=False)), stream)
    assert "[1, 224]" in text
    assert "x" * 150 in text
    assert "[bold]not markup[/bold]" in text
    assert "note: a note" in text
    assert not set(text) & set("╭│─")


def test_on_a_terminal_tables_have_boxes() -> None:
    stream = io.StringIO()
    text = printed(Output(console=Console(file=stream, width=80, force_terminal=True)), stream)
    assert "╭" in text


def test_whole_columns_are_not_broken_inside_a_word() -> None:
    stream = io.StringIO()
    output = Output(console=Console(file=stream, width=80, force_terminal=True, color_system=None))
    rows = [("densify_limit_mib", "settings file", "word " * 40)]
    output.table(("knob", "from", "what it does"), rows, whole=("knob", "from"))
    assert "densify_limit_mib" in stream.getvalue()
    assert "settings file" in stream.getvalue()
    assert max(map(len, stream.getvalue().splitlines())) == 80


def test_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    stream = io.StringIO()
    text = printed(Output(console=Console(file=stream, force_terminal=True, width=200)), stream)
    assert "\x1b[33m" not in text


def test_json_output_is_one_object_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output(as_json=True)
    output.table(("a",), [(1,)])
    output.line("text")
    output.json({"a": np.float32(0.5), "b": (1, 2), "c": float("nan"), "d": np.arange(2)})
    assert json.loads(capsys.readouterr().out) == {"a": 0.5, "b": [1, 2], "c": None, "d": [0, 1]}


def test_without_json_no_object_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    Output().json({"a": 1})
    assert not capsys.readouterr().out


def test_jsonable_takes_anything() -> None:
    assert jsonable({1: b"ab", "x": [float("inf"), True, None], "y": ValueError("z")}) == {
        "1": "ab",
        "x": [None, True, None],
        "y": "z",
    }


def test_columns_of_numbers_are_right_aligned() -> None:
    table = make_table(
        ("n", "text", "unit"),
        [("1", "1 (numpy 2)", "3.5 ms"), ("-20", "b", "1,000.0 ms")],
        boxed=False,
    )
    assert [c.justify for c in table.columns] == ["right", "left", "right"]


@pytest.mark.parametrize(
    ("nanoseconds", "text"), [(1500, "0.002 ms"), (2_500_000, "2.5 ms"), (3_210_000_000, "3.21 s")]
)
def test_times(nanoseconds: int, text: str) -> None:
    assert milliseconds(nanoseconds) == text


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1536, "1.5 KiB"),
        (3 * 2**20, "3.0 MiB"),
        (2**34, "16.0 GiB"),
    ],
)
def test_sizes(nbytes: int, text: str) -> None:
    assert size(nbytes) == text


def test_long_texts_keep_their_beginning() -> None:
    assert shortened("1 (numpy 2)") == "1 (numpy 2)"
    assert shortened("x" * 40) == "x" * 40
    assert shortened("y" * 41) == "y" * 37 + "..."


HOSTILE = "\x1b]0;title\x07\x1b[2Jname\x9b31m\x7f"
ESCAPED = r"\x1b]0;title\x07\x1b[2Jname\x9b31m\x7f"


@pytest.mark.parametrize("terminal", [False, True])
def test_no_control_character_of_a_name_reaches_a_terminal(
    terminal: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=400, force_terminal=terminal, color_system=None)
    output = Output(console=console)
    output.table((HOSTILE,), [(HOSTILE,)])
    output.line(HOSTILE)
    output.notes([HOSTILE])
    output.warnings([HOSTILE])
    told = stream.getvalue() + capsys.readouterr().err
    assert told.count(ESCAPED) == 5
    assert all(c.isprintable() or c == "\n" for c in told)


def test_a_name_of_two_lines_is_one_row() -> None:
    stream = io.StringIO()
    output = Output(console=Console(file=stream, width=400))
    output.table(("name", "share"), [("x\ny", "1.0 %")])
    assert stream.getvalue().splitlines()[1].startswith(r"x\ny")


def test_json_has_control_characters_as_its_own_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    Output(as_json=True).json({HOSTILE: HOSTILE})
    told = capsys.readouterr().out
    assert all(c.isprintable() or c == "\n" for c in told)
    assert json.loads(told) == {HOSTILE: HOSTILE}
