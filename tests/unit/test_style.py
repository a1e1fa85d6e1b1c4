"""A rule of style that no linter has: names of tests that say what holds."""

from __future__ import annotations

import ast
import re
from typing import Final

import pytest

from tests.conftest import ROOT

UNNAMED: Final = (
    "so nor neither likewise also such nobody who whoever whose whatever what where wherever which"
    " it its they their them these this that those there here he his otherwise else and or but"
    " as of"
).replace(" ", "|")
"""A pronoun or a connective that stands for what another test is about."""

RIDDLES: Final = (
    rf"^(?:{UNNAMED})_",
    (
        r"^(?:one|ones|others|the_rest|the_same|the_other|another_one)_"
        r"(?:that|who|whose|which|may|is|are)_"
    ),
    r"_(?:likewise|too|as_well|either|so|neither|as_ever|nobodys?)$",
    r"_(?:told(?!_apart)|tells|tell)(?:_|$)",
)
"""What a test's name must not match, behind `test_`: it would say nothing at random order."""

WORDS: Final = {"test_where_agrees_with_litert": "WHERE is an operation"}
"""Names that match and yet say what holds, with the reason."""


def is_riddle(name: str) -> bool:
    return name not in WORDS and any(
        re.search(riddle, name.removeprefix("test_")) for riddle in RIDDLES
    )


def test_names_of_tests_say_what_holds() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {node.name}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef)
        and node.name.startswith("test_")
        and is_riddle(node.name)
    ]
    assert found == []


@pytest.mark.parametrize(
    "name",
    [
        "test_likewise_in_a_burst",
        "test_nor_is_one_that_reads_what_nobody_writes",
        "test_so_is_one_that_fails_in_a_run",
        "test_it_needs_exactly_one_named_device",
        "test_they_are_held_weakly",
        "test_of_a_run",
        "test_what_is_no_cache",
        "test_whatever_a_driver_raises_is_a_failure",
        "test_one_that_never_ends_does",
        "test_one_whose_time_is_over_is_not_waited_for",
        "test_other_names_are_nobodys",
        "test_constants_are_widened_too",
        "test_progress_is_told_step_by_step",
    ],
)
def test_riddle_in_a_name_is_found(name: str) -> None:
    assert is_riddle(name)


def test_exceptions_are_names_of_tests() -> None:
    text = "\n".join(path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name in WORDS if f"def {name}(" not in text] == []
