"""The benchmarks measure in turns, judge by their limits, and write what they print."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from benchmarks import (
    competitors,
    conversion,
    engine_race,
    engine_table,
    engines,
    first,
    gates,
    operations,
    results,
    standings,
)
from benchmarks.measuring import Row, interleaved, medians
from benchmarks.models.making import Case
from penstock.ir import NDArray
from penstock.runtime.entries import installed_entries
from penstock.runtime.measuring import Rest
from penstock.testing.operations import OperationCase
from tests.conftest import ROOT
from tests.support_programs import run_python


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
    result = run_python(
        "-m", "benchmarks", "overhead", "--quick", "--json", tmp_path / "b.json", cwd=ROOT
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
def test_operations_are_compared_with_those_of_litert(family: Callable[[], Iterator[Case]]) -> None:
    pytest.importorskip("ai_edge_litert.interpreter", reason="ai-edge-litert is not installed")
    case = next(family())
    row = operations.compared(case, rounds=1)
    assert row is not None
    assert row.measure.startswith(case.name)
    assert row.value > 0
    assert row.limit == (3 if case.work > 1e6 else None)


def test_a_name_that_is_no_benchmark_is_refused() -> None:
    result = run_python("-m", "benchmarks", "flying", cwd=ROOT)
    assert result.returncode == 2
    assert "flying" in result.stderr


RESNET: Final = "networks/resnet8_cifar10_float.tflite"


def coarse(call: competitors.Call) -> competitors.Call:
    """*call*, its results off by a thousandth: beyond `faithful` in each operation."""
    rounded = partial(np.multiply, 1.001, dtype=np.float32)
    return lambda given: [rounded(array) for array in call(given)]


def coarsely(make: competitors.Make) -> competitors.Make:
    return lambda path, threads, inputs: coarse(make(path, threads, inputs))


def test_one_judge_holds_each_operation_of_an_engine_and_of_the_plan_to_the_class(
    corpus: Path,
) -> None:
    pytest.importorskip("ai_edge_litert.interpreter", reason="ai-edge-litert is not installed")
    path = corpus / "models" / RESNET
    within = gates.Verdict(1, None)
    inputs = engine_race.draw(path)
    with engine_race.ours(path, 1, "faithful", inputs, "reference") as compiled:
        on_plan = engine_race.alone_on_plan(compiled)
        by_litert = gates.alone_by(competitors.litert, 1)
        for alone in (on_plan, by_litert):
            verdict = gates.judge_operations(alone, path, within)
            assert verdict.judged == verdict.operations == 16
            assert verdict.in_class
        by_coarse = gates.alone_by(coarsely(competitors.litert), 1)

        def coarse_plan(case: OperationCase) -> Sequence[NDArray] | None:
            return coarse(lambda _: on_plan(case) or [])([])

        for alone in (coarse_plan, by_coarse):
            verdict = gates.judge_operations(alone, path, within)
            assert (verdict.in_outputs, verdict.in_class) == (True, False)
            assert verdict.beyond > gates.SHOWN == len(verdict.departures)
            assert verdict.why().startswith("operation 0 (CONV_2D, ")
            assert "off by 0.001" in verdict.why()


def test_one_judge_holds_whole_outputs_of_an_engine_and_of_the_plan_to_the_class(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ai_edge_litert.interpreter", reason="ai-edge-litert is not installed")
    path = corpus / "models" / RESNET
    inputs = engine_race.draw(path)
    monkeypatch.setattr(gates, "operations_of", lambda _: iter(()))
    ways = {"litert": {"": coarsely(competitors.litert), "plain": competitors.litert}}
    monkeypatch.setattr(engine_race, "COMPETITORS", {"openvino": ways["litert"]})
    field = engine_race.Field(path, 1, "faithful", inputs)
    with engine_race.ours(path, 1, "faithful", inputs, "reference") as compiled:
        field.judge_ours(compiled, "reference")
    field.judge_others()
    cases = len([*gates.recorded_cases(path, inputs)])
    assert cases > 1
    assert {name: verdict.cases for name, verdict in field.verdicts.items()} == {
        "penstock": cases,
        "openvino": 1,  # the first that lies beyond
        "openvino (plain)": cases,
    }
    assert field.verdicts["penstock"].in_class
    assert list(field.subjects) == ["openvino (plain)"]
    assert field.refused["openvino"].startswith("output 0: ")


def test_a_network_without_recorded_cases_is_judged_on_the_inputs_of_the_race(corpus: Path) -> None:
    pytest.importorskip("ai_edge_litert.interpreter", reason="ai-edge-litert is not installed")
    path = corpus / "models" / "networks" / "toy_decoder_kv_cache.tflite"
    inputs = engine_race.draw(path)
    verdict = gates.judge_outputs(competitors.litert, path, 1, "faithful", inputs)
    assert (verdict.cases, verdict.outputs) == (1, None)
    off = gates.judge_outputs(coarsely(competitors.litert), path, 1, "faithful", inputs)
    assert not off.in_outputs


def test_engine_that_refuses_recorded_shapes_is_judged_on_the_race_inputs(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ai_edge_litert.interpreter", reason="ai-edge-litert is not installed")
    path = corpus / "models" / RESNET
    inputs = engine_race.draw(path)

    def stubborn(file: Path, threads: int, given: Sequence[NDArray]) -> competitors.Call:
        if given is not inputs:
            raise ValueError("only one shape")
        return competitors.litert(file, threads, given)

    verdict = gates.judge_outputs(stubborn, path, 1, "faithful", inputs)
    assert (verdict.cases, verdict.outputs) == (1, None)
    monkeypatch.setattr(gates, "cases_of_race", lambda *_: iter(()))
    with pytest.raises(ValueError, match="only one shape"):
        gates.judge_outputs(stubborn, path, 1, "faithful", inputs)


def test_an_engine_races_in_its_first_way_within_the_class_and_its_first_within_it_by_outputs(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ai_edge_litert.interpreter", reason="ai-edge-litert is not installed")
    path = corpus / "models" / RESNET
    outside, rounded, careful, late = (partial(competitors.litert) for _ in range(4))
    found: dict[competitors.Make, gates.Verdict] = {
        outside: gates.Verdict(3, "output 0 is off"),
        rounded: gates.Verdict(3, None, 16, 16, 1, ("operation 3 is off",)),
        careful: gates.Verdict(3, None, 16, 16),
    }

    def judge(make: competitors.Make, *_: object) -> gates.Verdict:
        return found[make]

    def operations(alone: gates.Alone, _: Path, outputs: gates.Verdict) -> gates.Verdict:
        return outputs

    monkeypatch.setattr(engine_race, "judge_outputs", judge)
    monkeypatch.setattr(engine_race, "judge_operations", operations)
    ways = {
        "litert": {"": outside, "careful": careful},
        "openvino": {"": rounded, "wrong": outside, "careful": careful, "late": late},
        "onnxruntime": {"": outside},
    }
    monkeypatch.setattr(engine_race, "COMPETITORS", ways)
    field = engine_race.Field(path, 1, "faithful", engine_race.draw(path))
    field.judge_others()
    # LiteRT's format: it races whatever the judge says.
    assert list(field.subjects) == ["litert", "openvino", "openvino (careful)"]
    assert field.refused == {
        "litert": "output 0 is off",
        "openvino": "operation 3 is off",
        "openvino (wrong)": "output 0 is off",
        "onnxruntime": "output 0 is off",
    }


@pytest.mark.parametrize(
    ("make", "network"),
    [
        (competitors.litert, RESNET),
        (competitors.openvino, RESNET),
        (competitors.onnxruntime, "networks/keras_mlp_onnx.onnx"),
    ],
)
def test_bound_arrays_are_read_anew_in_each_run(
    corpus: Path, make: competitors.Make, network: str
) -> None:
    engine = {"litert": "ai_edge_litert"}.get(make.__name__, make.__name__)
    pytest.importorskip(engine, reason=f"{engine} is not installed")
    path = next((corpus / "models").rglob(Path(network).name))
    (first,) = engine_race.draw(path)
    second = np.ascontiguousarray(first[..., ::-1])
    call = make(path, 1, [first])
    one, other = (np.array(call([array])[0]) for array in (first, second))
    assert not np.array_equal(one, other)
    np.testing.assert_array_equal(call([first])[0], one)
    first[...] = second
    np.testing.assert_array_equal(call([first])[0], other)


def ran(identity: str, times: dict[str, float], **verdicts: tuple[bool, bool]) -> standings.Race:
    """A race of two rounds; *verdicts* say which subjects are within the class, and by outputs."""
    judged = {
        name: {
            "in_class": verdicts.get(name, (True, True))[0],
            "in_outputs": verdicts.get(name, (True, True))[1],
            "outputs": None,
            "departures": ["operation 3 is off"],
            "cases": 2,
        }
        for name in times
    }
    return {
        "accuracy": "faithful",
        "threads": 1,
        "id": identity,
        "macs": 2_000_000,
        "native": "litert",
        "load": 0.5,
        "verdicts": judged,
        "refused": {},
        "times": {name: [took, took] for name, took in times.items()},
        "plan": [["xnnpack", 16]],
    }


TIMES: Final = {"penstock": 2e-3, "penstock (burst)": 2e-3, "litert": 3e-3, "openvino": 1e-3}


def test_the_ratio_is_over_the_best_within_the_class_and_over_the_best_by_outputs() -> None:
    race = ran("a", TIMES, openvino=(False, True))
    assert (standings.best(race), standings.best(race, by="in_outputs")) == ("litert", "openvino")
    assert standings.ratio(race, "litert") == pytest.approx(2 / 3)
    assert (standings.lost(race), standings.lost(race, by="in_outputs")) == (False, True)
    assert "| 1.000† | 0.667 | 0.667 | 2.000 | lost by outputs |" in engine_table.row(race)
    assert standings.lost(ran("a", TIMES))
    assert standings.lost(ran("a", {**TIMES, "openvino": 9e-3}, penstock=(False, True)))
    means = standings.means([race, ran("b", TIMES)])
    assert {name: (round(mean, 6), count) for name, (mean, count) in means.items()} == {
        "litert": (1.5, 2),
        "openvino": (0.5, 1),
    }


def test_results_are_written_race_by_race_and_a_later_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = [
        {"id": name, "path": name, "format": "tflite", "macs": 2_000_000} for name in ("a", "b")
    ]
    asked: list[str] = []

    def raced(entry: dict[str, Any], threads: int, accuracy: str, rounds: int) -> standings.Race:
        asked.append(entry["id"])
        fails = {"failed": "killed"} if asked == ["a"] else {}
        return {**ran(entry["id"], TIMES), **fails}

    monkeypatch.setattr(engines, "raced", raced)
    place = tmp_path / "kept" / "engines"
    given = (["faithful"], [1], 5)
    first = engines.races(entries, *given, results.Results(place, 5))
    next(first)
    first.close()
    assert asked == ["a"]
    assert [r["id"] for r in json.loads(place.with_suffix(".json").read_bytes())["races"]] == ["a"]
    rows = [*engines.races(entries, *given, results.Results(place, 5))]
    assert asked == ["a", "a", "b"]
    assert [row.measure for row in rows[:2]] == ["faithful a, 1 threads", "faithful b, 1 threads"]
    table = place.with_suffix(".md").read_text("utf-8")
    assert "2 networks; 2 lost" in table
    assert table.count("| **lost** |") == 2
    with pytest.raises(results.OtherRun, match=r"\(rounds differ\)"):
        results.Results(place, 6)


def test_race_without_a_result_is_lost_and_shows_the_reason() -> None:
    race = {**ran("a", {}), "failed": "no end after 1800 s"}
    assert engines.judged(race).met is False
    assert standings.lost(race)
    table = "\n".join(engine_table.table("faithful", 1, [race]))
    assert "1 networks; 1 lost" in table
    assert "- a: no race: no end after 1800 s" in table


def test_failed_tf2onnx_conversion_is_reported_once_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "tf2onnx"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "convert.py").write_text(
        "import pathlib\n"
        "def from_tflite(source, *, opset, output_path):\n"
        "    print('loud')\n"
        "    content = pathlib.Path(source).read_bytes()\n"
        "    if content == b'bad':\n"
        "        raise ValueError('no such operator')\n"
        "    pathlib.Path(output_path).write_bytes(content)\n"
    )
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\ncd {tmp_path} && exec {sys.executable} "$@"\n')
    python.chmod(0o700)
    monkeypatch.setenv(conversion.PYTHON, str(python))
    monkeypatch.setenv(conversion.KEPT, str(tmp_path / "kept"))
    good, bad = tmp_path / "good.tflite", tmp_path / "bad.tflite"
    good.write_bytes(b"good")
    bad.write_bytes(b"bad")
    convert = conversion.Converter()
    try:
        assert convert(good).read_bytes() == b"good"
        with pytest.raises(conversion.NotConverted, match="ValueError: no such operator"):
            convert(bad)
    finally:
        convert.close()
    monkeypatch.delenv(conversion.PYTHON)
    assert convert(good).read_bytes() == b"good"
    with pytest.raises(conversion.NotConverted, match="no such operator"):
        convert(bad)


def test_each_further_driver_is_a_distribution_with_a_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(first.drivers(tmp_path / "site"))
    made = [entry for entry in installed_entries() if entry.name.startswith("toy")]
    assert len(made) == first.DRIVERS
    assert [device().name for device in (entry.load() for entry in made)] == [
        entry.name for entry in made
    ]


def test_the_middle_half_of_starts() -> None:
    assert first.half([1.0, 2.0, 3.0, 4.0, 100.0]) == "2 to 52"
