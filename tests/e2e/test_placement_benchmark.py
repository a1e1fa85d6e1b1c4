"""What the benchmark `placement` says: who races, the ratios, the limits and the predictions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import engine_race, measuring, placement
from benchmarks.placement_race import Field
from benchmarks.placement_standings import Race, excess, limit, lost, missed, ratio, rival
from benchmarks.placement_table import document, section
from benchmarks.results import Results
from penstock.errors import PenstockError, PlacementError
from penstock.runtime.measuring import Rest


class Net(ExitStack):
    """A compiled model with a plan of *steps*: a device and its operations."""

    def __init__(self, *steps: tuple[str, tuple[int, ...]]) -> None:
        super().__init__()
        self.plan = SimpleNamespace(
            steps=[SimpleNamespace(device=d, operations=o, control=None) for d, o in steps],
            operations=[SimpleNamespace(device=d) for d, o in steps for _ in o],
            predicted_ns=5,
        )


def refusing() -> Any:
    raise PlacementError("no device")


def test_subjects_of_one_plan_race_once_and_idle_engines_do_not_race() -> None:
    with ExitStack() as stack:
        field = Field(stack)
        made: dict[str, Any] = {
            "default": Net(("xnnpack", (0, 1)), ("reference", (2,))),
            "llvm": Net(("reference", (0, 1, 2))),
            "xnnpack": Net(("xnnpack", (0, 1)), ("reference", (2,))),
            "openvino-cpu": Net(("openvino-cpu", (0,)), ("reference", (1, 2))),
        }
        for name, net in made.items():
            field.enter(name, lambda net=net: net)  # type: ignore[misc]
        field.enter("onnxruntime-cpu", refusing)
        with pytest.raises(PenstockError):
            field.enter("tuned", refusing)
    assert list(field.racing) == ["default", "openvino-cpu"]
    assert field.same == {"xnnpack": "default"}
    assert field.plans["xnnpack"]["steps"] == [("xnnpack", 2), ("reference", 1)]
    assert field.refused == {
        "llvm": "it runs none of the operations",
        "onnxruntime-cpu": "PlacementError: no device",
    }


def test_subject_far_behind_is_timed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rest, "__call__", lambda _: None)
    now = 0.0

    def spend(seconds: float) -> None:
        nonlocal now
        now += seconds

    clock = SimpleNamespace(perf_counter=lambda: now)
    monkeypatch.setattr(engine_race, "time", clock)
    monkeypatch.setattr(measuring, "time", clock)
    takes = {"ours": 5e-3, "fast": 1e-3, "near": 3e-3, "far": 5e-3, "hours": 1.0}
    subjects = {name: lambda took=took: spend(took) for name, took in takes.items()}
    behind = dict.fromkeys(("near", "far", "hours"), 4.0)
    times = engine_race.race(subjects, 4, behind=behind)
    assert {name: len(each) for name, each in times.items()} == {
        "ours": 4,
        "fast": 4,
        "near": 4,
        "far": 1,
        "hours": 1,
    }
    assert times["hours"] == pytest.approx([1.0])


def ran(identity: str, same: dict[str, str] | None = None, **ms: Sequence[float]) -> Race:
    """A race of subjects with these milliseconds a round, each predicted to take 1 ms."""
    plans = {
        name: {"predicted_ns": 1_000_000, "steps": [["x", 3]]} for name in [*ms, *(same or {})]
    }
    times = {name: [took / 1e3 for took in each] for name, each in ms.items()}
    told = {"accuracy": "relaxed", "threads": 1, "id": identity, "load": 0.5, "at": "now"}
    return {**told, "times": times, "plans": plans, "same": same or {}, "refused": {}}


def test_ratio_is_over_the_best_engine_alone_and_has_a_limit() -> None:
    race = ran("a", default=[1.2, 1.2, 2.4], llvm=[2, 2, 2], xnnpack=[1, 1, 2], tuned=[1.05] * 3)
    assert rival(race) == "xnnpack"
    assert ratio(race, "default") == pytest.approx(1.2)
    assert excess(race, "default") == pytest.approx(0.2e-3)
    assert limit(race, "default") == pytest.approx(1.11)
    assert (lost(race), lost(race, "tuned")) == (True, True)
    rows = [*placement.judged(race)]
    assert [(row.measure, row.met) for row in rows] == [
        ("relaxed a, 1 threads", False),
        ("relaxed a, 1 threads, tuned", False),
    ]
    assert not lost(ran("b", default=[1.1005] * 3, llvm=[1] * 3))
    same = ran("c", {"llvm": "default"}, default=[1, 2], xnnpack=[3])
    assert (rival(same), ratio(same, "default"), lost(same)) == ("llvm", 1.0, False)
    (alone,) = placement.judged(ran("e", default=[1]))
    assert math.isnan(alone.value)
    assert alone.met is None


@pytest.mark.parametrize(
    ("found", "wrong"), [(1.5, False), (1.6, True), (0.66, True), (0.67, False), (None, True)]
)
def test_prediction_farther_off_than_the_limit_or_missing_is_wrong(
    found: float | None, wrong: bool
) -> None:
    assert missed(found) is wrong


def test_means_and_shares_of_wrong_predictions_are_of_all_networks() -> None:
    races = [
        ran("a", default=[1.0], llvm=[1.0]),
        ran("b", default=[4.0], llvm=[1.0], xnnpack=[5.0]),
        {"accuracy": "relaxed", "threads": 1, "id": "c", "failed": "killed", "load": 1, "at": "z"},
    ]
    mean, chosen, alone = placement.summed("relaxed", 1, races)
    assert [row.value for row in (mean, chosen, alone)] == pytest.approx([2, 50, 100 / 3])
    assert [row.met for row in (mean, chosen, alone)] == [False, False, False]
    assert [row.note for row in (chosen, alone)] == ["1 of 2", "1 of 3"]
    table = [*section("relaxed", 1, races)]
    assert "3 networks; 2 lost." in table
    assert "| b | x 4.000 (0.25!) | llvm 1.000 | 4.000 | 3000 |" in "\n".join(table)
    assert table[-1].startswith("| c | killed |")
    assert table[-1].endswith("**lost** |")
    assert len({line.count("|") for line in table if line.startswith("|")}) == 1


def test_later_run_repeats_failed_races_and_those_without_the_tuned_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def printed(_: str, arguments: Sequence[str], home: str) -> Race:
        asked.append(" ".join(arguments))
        if len(asked) == 1:
            return {"failed": "killed"}
        same = {"tuned": "llvm"} if "tuned" in arguments else {}
        found = ran("", same, default=[1.0], llvm=[1.0])
        return {name: found[name] for name in ("times", "plans", "same", "refused")}

    monkeypatch.setattr(placement, "printed", printed)
    entries = [{"id": name, "path": f"{name}.tflite"} for name in "ab"]

    def race(*, tuned: bool = False) -> None:
        results = Results(tmp_path / "placement", 5, document)
        [*placement.races(entries, [("relaxed", 1)], 5, results, "home", tuned=tuned)]

    race()
    race()
    race(tuned=True)
    one, other = "a.tflite 1 relaxed 5", "b.tflite 1 relaxed 5"
    assert asked == [one, other, one, f"{one} tuned", f"{other} tuned"]
    assert "2 networks; 0 lost." in (tmp_path / "placement.md").read_text("utf-8")
