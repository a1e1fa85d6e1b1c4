"""The benchmarks measure in turns, judge by their limits, and write what they print."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks import operations
from benchmarks.measuring import Row, interleaved, medians
from benchmarks.models.making import Case
from tests.conftest import ROOT


def test_subjects_take_turns_and_no_one_is_always_first() -> None:
    order: list[str] = []

    def subject(name: str) -> float:
        order.append(name)
        return float(len(order))

    values = interleaved({n: lambda n=n: subject(n) for n in "abc"}, 3)  # type: ignore[misc]
    assert order == ["a", "b", "c", "b", "c", "a", "c", "a", "b"]
    assert values == {"a": [1, 6, 8], "b": [2, 4, 9], "c": [3, 5, 7]}
    assert medians(values) == {"a": 6, "b": 4, "c": 5}


@pytest.mark.parametrize(("value", "limit", "met"), [(1, 1, True), (2, 1, False), (2, None, None)])
def test_a_row_knows_whether_its_limit_holds(
    value: float, limit: float | None, met: bool | None
) -> None:
    row = Row("b", "m", value, "s", limit)
    assert row.met is met
    assert row.to_dict()["met"] is met


def test_the_table_and_the_json_say_the_same(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "benchmarks", "overhead", "--quick", "--json", tmp_path / "b.json"],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
    )
    written = json.loads((tmp_path / "b.json").read_text("utf-8"))
    assert result.returncode == (1 if any(r["met"] is False for r in written["rows"]) else 0), (
        result.stderr
    )
    assert [r["measure"] for r in written["rows"]][:3] == [
        "a run on the null driver",
        "of it the driver's own time",
        "of it the runtime's",
    ]
    assert len(result.stdout.splitlines()) == len(written["rows"]) > 5
    assert set(written["machine"]) == {"python", "numpy", "platform", "processor"}


@pytest.mark.parametrize("family", operations.FAMILIES, ids=lambda f: f.__name__)
def test_operations_are_compared_with_those_of_litert(
    family: Callable[[], Iterator[Case]],
) -> None:
    pytest.importorskip("ai_edge_litert.interpreter", reason="ai-edge-litert is not installed")
    case = next(family())
    row = operations.compared(case, rounds=1)
    assert row is not None
    assert row.measure.startswith(case.name)
    assert row.value > 0
    assert row.limit == (3 if case.work > 1e6 else None)


def test_a_name_that_is_no_benchmark_is_refused() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "benchmarks", "flying"],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
    )
    assert result.returncode == 2
    assert "flying" in result.stderr
