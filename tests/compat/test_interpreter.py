"""Every scenario against LiteRT and against Penstock: the same results, exceptions and words."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.compat.comparison import difference
from tests.compat.divergences import DIVERGENCES
from tests.compat.observe import SCENARIOS, observe
from tests.compat.scenarios import load_all
from tests.conftest import ROOT
from tests.support_programs import run_python

load_all()

Observations = dict[str, dict[str, Any]]

needs_litert = pytest.mark.skipif(
    importlib.util.find_spec("ai_edge_litert") is None, reason="ai-edge-litert is not installed"
)


@pytest.fixture(scope="session")
def litert(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Observations:
    """What LiteRT shows in every scenario asked for, each in a process of its own."""
    asked = {
        item.callspec.params["name"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and "name" in getattr(item, "callspec", _None).params
    }
    names = [name for name in SCENARIOS if name in asked]
    recorder = Path(__file__).with_name("recorder.py")
    directory = tmp_path_factory.mktemp("litert")
    done = run_python(
        recorder,
        "ai_edge_litert.interpreter",
        directory,
        *names,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        cwd=ROOT,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {line.pop("scenario"): line for line in lines}


class _None:
    params: dict[str, Any] = {}  # noqa: RUF012 - never written


@needs_litert
@pytest.mark.usefixtures("no_descriptor_leaks")
@pytest.mark.parametrize("name", [name for name in SCENARIOS if name not in DIVERGENCES])
def test_penstock_does_what_litert_does(name: str, litert: Observations, tmp_path: Path) -> None:
    from penstock import tflite

    wanted, got = litert[name], observe(name, tflite, tmp_path)
    assert "crashed" not in wanted, f"LiteRT: {wanted['crashed']}; Penstock: {got}"
    found = difference(wanted["result"], got["result"])
    assert found is None, found
    assert got["warnings"] == wanted["warnings"]


@needs_litert
@pytest.mark.parametrize("name", [name for name in DIVERGENCES if name in SCENARIOS])
def test_divergence_is_as_its_table_records(
    name: str, litert: Observations, tmp_path: Path
) -> None:
    from penstock import tflite

    wanted, got = litert[name], observe(name, tflite, tmp_path)
    ours = DIVERGENCES[name].ours
    assert ours is None or _short(got["result"]) == ours
    agree = "crashed" not in wanted and (
        difference(wanted["result"], got["result"]) is None
        and wanted["warnings"] == got["warnings"]
    )
    assert not agree, "LiteRT and Penstock agree: strike the divergence"


def test_divergences_name_scenarios_and_reasons() -> None:
    assert DIVERGENCES.keys() <= SCENARIOS.keys()
    assert all(divergence.reason for divergence in DIVERGENCES.values())


def _short(observed: Any) -> Any:
    """Exceptions by their names alone."""
    match observed:
        case {"raised": [name, *_]}:
            return name
        case list():
            return [_short(o) for o in observed]
        case _:
            return observed


def test_the_documentation_gives_every_reason() -> None:
    page = " ".join((ROOT / "docs" / "litert.md").read_text("utf-8").split())
    assert [d.reason for d in DIVERGENCES.values() if d.reason not in page] == []
