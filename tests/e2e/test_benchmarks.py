"""The benchmarks measure in turns, judge by their limits, and write what they print."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from benchmarks import competitors, engine_race, operations
from benchmarks.measuring import Row, interleaved, medians
from benchmarks.models.making import Case
from penstock.ir import NDArray
from penstock.runtime.rest import Rest
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


def test_engines_race_at_rest_and_follow_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    monkeypatch.setattr(engine_race, "TURN_S", 0.0)
    monkeypatch.setattr(Rest, "__call__", lambda _: order.append("|"))
    subjects = {name: partial(order.append, name) for name in "abc"}
    times = engine_race.race(subjects, 3)
    assert "".join(order) == "|aa|bb|cc" + "|aa|bb|cc" + "|aa|cc|bb" + "|cc|aa|bb"
    assert {name: len(each) for name, each in times.items()} == {"a": 3, "b": 3, "c": 3}


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


def test_an_engine_competes_within_a_class_as_far_as_each_operation_meets_it(corpus: Path) -> None:
    pytest.importorskip("ai_edge_litert.interpreter", reason="ai-edge-litert is not installed")
    path = corpus / "models" / "networks" / "resnet8_cifar10_float.tflite"
    by_litert = competitors.COMPETITORS["litert"][""]
    competitors.hold_operations(path, by_litert, 1)

    def coarse(
        file: Path, threads: int, inputs: Sequence[NDArray]
    ) -> Callable[[Sequence[NDArray]], Sequence[NDArray]] | None:
        call = by_litert(file, threads, inputs)
        rounded = partial(np.multiply, 1.001, dtype=np.float32)
        return call and (lambda given: [rounded(array) for array in call(given)])

    with pytest.raises(AssertionError, match=r"operation 0 \(CONV_2D, .*off by 0.001"):
        competitors.hold_operations(path, coarse, 1)


def test_an_engine_beyond_the_class_competes_in_the_first_of_its_ways_within_it(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ai_edge_litert.interpreter", reason="ai-edge-litert is not installed")
    path = corpus / "models" / "networks" / "resnet8_cifar10_float.tflite"
    by_litert = competitors.COMPETITORS["litert"][""]
    coarse = partial(by_litert)
    bold = partial(by_litert)
    careful = partial(by_litert)

    def hold(file: Path, make: competitors.Make, threads: int) -> None:
        if make is coarse or make is bold:
            raise AssertionError("operation 3 is off")

    ways = {
        "litert": {"": by_litert},
        "slow": {"": coarse, "careful": careful, "late": bold},
        "wrong": {"": coarse},
    }
    monkeypatch.setattr(competitors, "COMPETITORS", ways)
    monkeypatch.setattr(competitors, "hold_operations", hold)
    inputs = engine_race.draw(path)
    subjects, refused = competitors.competitors(path, 1, "faithful", inputs)
    assert list(subjects) == ["litert", "slow (careful)"]
    off = "AssertionError: operation 3 is off"
    assert refused == {"slow": off, "wrong": off}
    subjects, refused = competitors.competitors(path, 1, "relaxed", inputs)
    assert list(subjects) == ["litert", "slow", "wrong"]
    assert not refused
