"""The code of docs/writing-a-driver.md runs, and says what the page says it says."""

from __future__ import annotations

import re
import sys
import tomllib
import types
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from penstock.testing.contract import CHECKS, Report, run_contract

PAGE = Path(__file__).resolve().parents[3] / "docs" / "writing-a-driver.md"
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    """The names that the page's Python defines, all blocks run in order as one module."""
    module = types.ModuleType("penstock_tutorial")
    sys.modules[module.__name__] = module
    for language, code in BLOCKS:
        if language == "python":
            exec(compile(code, str(PAGE), "exec"), module.__dict__)  # our own page
    return module.__dict__


def test_the_example_prints_what_the_page_shows(capsys: pytest.CaptureFixture[str]) -> None:
    namespace: dict[str, Any] = {"__name__": "penstock_tutorial"}
    for (language, code), (following, shown) in pairwise(BLOCKS):
        if language == "python":
            exec(compile(code, str(PAGE), "exec"), namespace)  # our own page
        if following == "text":
            assert capsys.readouterr().out == shown
            return
    pytest.fail("the page shows no output")


def test_the_registration_is_valid_toml(page: dict[str, Any]) -> None:
    (registration,) = [code for language, code in BLOCKS if language == "toml"]
    entry = tomllib.loads(registration)["project"]["entry-points"]["penstock.drivers"]["relu"]
    assert entry.endswith(":create")
    assert page["create"]().name == "relu"


def test_the_example_has_just_the_gaps_that_the_page_names(page: dict[str, Any]) -> None:
    """It forgot pools, constants and unwanted outputs, and is caught at it."""
    results = run_contract(page["create"]())
    failed = {r.check for r in results if r.outcome == "failed"}
    assert "check_values" in failed
    assert any("takes arrays only" in r.message for r in results)
    assert not failed & {
        "check_support_is_pure",
        "check_support_gives_reasons",
        "check_prepare_refuses_bad_configurations",
        "check_execute_refuses_every_mutation",
    }
    assert Report.of(results).passed > 20


def test_the_suite_of_the_page_is_the_whole_suite(page: dict[str, Any]) -> None:
    (marks,) = [m for m in page["test_contract"].pytestmark if m.args[0] == "check"]
    assert marks.args[1] == CHECKS


def test_the_table_of_claims_has_claims_that_exist() -> None:
    from penstock.hal import Capabilities

    rows = re.findall(r"(?m)^\| (`.*?`) \|", PAGE.read_text("utf-8"))
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert named <= set(Capabilities.__struct_fields__)
    assert len(named) == 7


def test_every_module_that_the_page_names_exists() -> None:
    import importlib

    for name in set(re.findall(r"`(penstock(?:\.\w+)+)`", PAGE.read_text("utf-8"))):
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            parent, _, attribute = name.rpartition(".")
            if name != "penstock.drivers":
                assert hasattr(importlib.import_module(parent), attribute), name
