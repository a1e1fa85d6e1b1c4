"""Tables and lines off a terminal are those that rich prints there."""

from __future__ import annotations

import io

import pytest
from hypothesis import given, settings, strategies as st
from rich.console import Console

from penstock.cli.layout import PIPE_WIDTH, plain_table
from penstock.cli.output import Output

CELLS = st.text("aZ09 .%,-|[]", max_size=12) | st.sampled_from(["-1.5 ms", "10", "3 %", ""])


def by_rich(heads: list[str], rows: list[list[str]]) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=PIPE_WIDTH, highlight=False, markup=False, emoji=False)
    Output(console=console).table(heads, rows)
    return stream.getvalue()


@given(
    st.integers(1, 4).flatmap(
        lambda n: st.tuples(
            st.lists(CELLS, min_size=n, max_size=n),
            st.lists(st.lists(CELLS, min_size=n, max_size=n), max_size=4),
        )
    )
)
@settings(max_examples=150, deadline=None)
def test_plain_table_is_laid_out_as_by_rich(table: tuple[list[str], list[list[str]]]) -> None:
    heads, rows = table
    lines = plain_table(heads, rows)
    assert lines is not None
    assert "\n".join(lines) + "\n" == by_rich(heads, rows)


@pytest.mark.parametrize("cell", ["caf\u00e9", "\u6c34", "a\tb", "x" * PIPE_WIDTH])
def test_other_tables_are_laid_out_by_rich(cell: str, capsys: pytest.CaptureFixture[str]) -> None:
    heads, rows = ["name", "b"], [[cell, "1"]]
    assert plain_table(heads, rows) is None
    Output().table(heads, rows)
    assert capsys.readouterr().out == by_rich(heads, rows)


@pytest.mark.parametrize("text", ["", "a  ", "a\n", "\n b\n\nc", "a\tb\n\tc", "[bold]", "x" * 3000])
def test_lines_are_those_of_rich(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=PIPE_WIDTH, highlight=False, markup=False, emoji=False)
    Output(console=console).line(text, "yellow")
    Output().line(text, "yellow")
    assert capsys.readouterr().out == stream.getvalue()
