"""The names of `penstock.nnapi`, what importing them loads, and the example of its page."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest

from penstock import nnapi
from tests.support_programs import run_python

PAGE = Path(__file__).resolve().parents[3] / "docs" / "nnapi.md"


def loaded(code: str) -> list[str]:
    """The modules that are there after *code*, in a process of its own."""
    program = f"import sys\n{code}\nprint(*sys.modules)"
    done = run_python("-c", program, check=True)
    return done.stdout.split()


def test_importing_it_loads_next_to_nothing() -> None:
    found = loaded("import penstock.nnapi")
    assert sorted(m for m in found if m.startswith("penstock")) == [
        "penstock",
        "penstock.facade",
        "penstock.logs",
        "penstock.nnapi",
    ]
    assert "numpy" not in found


def test_codes_and_errors_load_no_numpy() -> None:
    found = loaded(
        "from penstock.nnapi import ResultCode, OperationCode, NnapiError; ResultCode.BAD_DATA"
    )
    assert "numpy" not in found


def test_every_public_name_is_what_the_facade_bound() -> None:
    bound = {name: getattr(nnapi, name) for name in nnapi.__all__}
    for module in pkgutil.walk_packages(nnapi.__path__, "penstock.nnapi."):
        importlib.import_module(module.name)
    assert {name: getattr(nnapi, name) for name in nnapi.__all__} == bound
    assert dir(nnapi) == sorted(nnapi.__all__)
    assert not any(inspect.ismodule(value) for value in bound.values())


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Executions"):
        _ = nnapi.Executions


def documented() -> set[str]:
    """What the page's table of functions names on Penstock's side."""
    table = PAGE.read_text("utf-8").split("## Every function")[1].split("\n## ")[0]
    rows = [line.split("|")[2] for line in table.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"\w+", row)}


@pytest.mark.parametrize(
    "name",
    [
        f"{kind}.{name}"
        for kind in ("Model", "Compilation", "Execution", "Memory", "MemoryDesc", "Burst", "Event")
        for name in vars(getattr(nnapi, kind))
        if re.match(
            "get_|set_|add_|create_|start_|compute|burst_|copy$|finish$|wait$|enable_", name
        )
    ],
)
def test_every_call_is_on_the_page(name: str) -> None:
    called = name.split(".")[1]
    getter = re.match("get_preferred_memory", called)
    assert getter or called in documented()
