"""`penstock cache prewarm` and `explain` take a model with unknown dimensions as `penstock run`
does.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from penstock.cli.application import app
from penstock.cli.cache.compiles import Warmed, most_frequent, outcome
from penstock.cli.options import assumed_shapes, in_words
from penstock.compilation import CacheOutcome, StepReceipt
from penstock.compilation.cache_faults import TO_BE_WRITTEN
from penstock.errors import UnknownSignature
from penstock.export import tflite
from penstock.ir import DType, Model, ModelBuilder, Signature

Run = Callable[..., Any]


def build(*, batch: int | None = None) -> Model:
    """y = relu(x + other), x: float32[batch, 3], other: float32[1, 3]."""
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, (batch, 3), "x")
    other = builder.input(DType.FLOAT32, (1, 3), "other")
    (sum_,) = builder.operation("ADD", [x, other], [(DType.FLOAT32, (batch, 3))])
    (y,) = builder.operation("RELU", [sum_], [(DType.FLOAT32, (batch, 3))])
    serve = Signature(0, (("given", x), ("more", other)), (("y", y),))
    return builder.build([y], signatures={"serve": serve})


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "open.tflite"
    path.write_bytes(tflite.write(build()))
    return path


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """The one JSON object of a command."""
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("PENSTOCK_CACHE_DIR", str(tmp_path / "cache"))

    def one(*arguments: object, code: int = 0) -> Any:
        result = CliRunner().invoke(app, [*map(str, arguments), "--json"])
        assert result.exit_code == code, result.output
        return json.loads(result.stdout)

    return one


def outcomes(printed: Any) -> list[str]:
    return [step["cache"]["outcome"] for step in printed["compile_receipt"]["steps"]]


@pytest.mark.parametrize("given", [(), ("--signature", "serve")])
def test_prewarm_warms_what_run_runs(run: Run, model: Path, given: tuple[str, ...]) -> None:
    name = "given" if given else "x"
    warmed = run("cache", "prewarm", model, "-d", "lab", *given)
    assert warmed["models"][0]["steps"][0]["saved"] is True
    assert warmed["notes"] == [f"{model}: compiled for {name}=1,3; --shape gives another shape"]
    explained = run("cache", "explain", model, "-d", "lab", *given)
    assert [step["outcome"] for step in explained["steps"]] == ["hit"]
    assert explained["notes"] == [f"explained for {name}=1,3; --shape gives another shape"]
    assert outcomes(run("run", model, "random", "-d", "lab", *given)) == ["hit"]


def test_a_shape_that_is_given_is_taken(run: Run, model: Path, tmp_path: Path) -> None:
    warmed = run("cache", "prewarm", model, "-d", "lab", "--shape", "x=2,3")
    assert warmed["notes"] == []
    data = tmp_path / "data.npz"
    np.savez(data, x=np.ones((2, 3), np.float32), other=np.ones((1, 3), np.float32))
    assert outcomes(run("run", model, data, "-d", "lab")) == ["hit"]
    assert outcomes(run("run", model, "random", "-d", "lab")) == ["miss"]


def test_known_shapes_are_not_assumed() -> None:
    assert assumed_shapes(build(batch=4), None, None) == {}
    assert assumed_shapes(build(), None, {"x": (7, 3)}) == {}
    assert assumed_shapes(build(), "serve", {"more": (1, 3)}) == {"given": (1, 3)}
    assert in_words({"a": (1, 2), "b": ()}) == "a=1,2 b="
    with pytest.raises(UnknownSignature):
        assumed_shapes(build(), "none", None)


def test_a_rank_that_is_unknown_is_not_made_up() -> None:
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, None, "x")
    model = builder.build(builder.operation("RELU", [x], [(DType.FLOAT32, None)]))
    assert assumed_shapes(model, None, None) == {}


def test_prewarm_names_steps_that_no_device_caches(run: Run, model: Path) -> None:
    chosen = ("-d", "lab", "-d", "reference", "--accuracy", "exact")
    warmed = run("cache", "prewarm", model, *chosen)
    assert warmed["problems"] == []
    assert warmed["models"][0]["steps"][0]["outcome"] == "off"
    start = f"{model}: nothing of it is cached, since reference runs it; lab does not: "
    assert warmed["notes"][-1].startswith(start)
    assert warmed["notes"][-1].endswith("(2 of 2 operations)")
    alone = run("cache", "prewarm", model, "-d", "reference")
    assert "no other device was found that may" in alone["notes"][-1]


def test_reasons_name_options() -> None:
    unknown = {"fast": "the shape of x is known only when it runs (shapes= makes it known)"}
    text = most_frequent([unknown, {"fast": "not ADD"}, unknown], "fast")
    assert "(--shape NAME=N,N,... makes it known) (2 of 3 operations)" in text
    rough = {"fast": "its accuracy there is relaxed; the policy asks for exact"}
    assert "the policy (--accuracy) asks for exact (1 of" in most_frequent([rough], "fast")


def test_prewarm_names_steps_that_compile_at_their_first_run() -> None:
    later = CacheOutcome(
        "miss",
        "NoEntry: nothing is cached here",
        not_saved=TO_BE_WRITTEN.words,
        not_saved_code=TO_BE_WRITTEN.code,
    )
    step = StepReceipt("slow", (0,), 1, cache=later)
    (problem,) = Warmed("m.tflite", (step,)).problems()
    assert problem == (
        "m.tflite: step 0 on slow is compiled when it first runs: 'penstock run m.tflite' with the "
        "same options "
        "warms it"
    )
    assert outcome(step) == ("not compiled", "NoEntry: nothing is cached here")


def join(tmp_path: Path) -> Path:
    """A file of x, float32[1, ?], joined with rows of three."""
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, (1, None), "x")
    rows = builder.constant(np.ones((1, 3), np.float32), "rows")
    (y,) = builder.operation("CONCATENATION", [x, rows], [(DType.FLOAT32, (2, None))], {"axis": 0})
    path = tmp_path / "join.tflite"
    path.write_bytes(tflite.write(builder.build([y])))
    return path


def test_a_shape_that_does_not_fit_names_the_option(run: Run, tmp_path: Path) -> None:
    path = join(tmp_path)
    taken = "x=1,1; --shape gives another shape"
    explained = run("cache", "explain", path, code=3)
    assert explained["error"]["message"].endswith(f"(taken for {taken})")
    warmed = run("cache", "prewarm", path, code=3)
    assert warmed["notes"] == [f"{path}: compiled for {taken}"]
    assert run("cache", "explain", path, "--shape", "x=1,3")["notes"] == []


def test_plan_takes_unknown_dimensions_as_run_does(model: Path, run: Run) -> None:
    told = run("plan", str(model), "-d", "reference")
    assert told["plan"]["steps"][0]["device"] == "reference"
    result = CliRunner().invoke(app, ["plan", str(model), "-d", "reference"])
    assert "planned for x=1,3; --shape gives another shape" in result.output


@pytest.mark.parametrize(
    "command", [("plan",), ("run", "random"), ("bench", "random", "--runs", 1)]
)
def test_plan_run_and_bench_take_shapes(
    run: Run, tmp_path: Path, command: tuple[object, ...]
) -> None:
    path = join(tmp_path)
    name, rest = command[0], command[1:]
    refused = run(name, path, *rest, "-d", "reference", code=3)
    assert refused["error"]["message"].endswith("(taken for x=1,1; --shape gives another shape)")
    told = run(name, path, *rest, "-d", "reference", "--shape", "x=1,3")
    if name != "plan":
        assert told["inputs"][0]["shape"] == [1, 3]
    for shape, words in (
        ("y=1,3", "no input is named 'y'"),
        ("x=2,3", "the input is float32[1, ?]"),
    ):
        message = run(name, path, *rest, "--shape", shape, code=2)
        assert words in message["error"]["message"]


def test_a_file_that_is_not_of_the_shape_given_is_refused(run: Run, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((1, 3), np.float32))
    refused = run("run", join(tmp_path), tmp_path / "x.npy", "--shape", "x=1,4", code=3)
    assert "holds float32[1, 3]; input 'x' needs float32[1, 4]" in refused["error"]["message"]


def test_unused_labels_get_a_note(run: Run, model: Path, tmp_path: Path) -> None:
    labels = tmp_path / "labels.txt"
    labels.write_text("a\nb\n")
    shaped = ("random", "-d", "reference", "--labels", labels, "--shape", "x=2,3")
    (note,) = run("run", model, *shaped)["notes"]
    assert note.startswith(f"--labels {labels} is not used: this is outputs, which has no classes")


def test_plan_says_which_signature_there_is_not(model: Path) -> None:
    result = CliRunner().invoke(app, ["plan", str(model), "--signature", "none such"])
    assert result.exit_code != 0
    assert str(model) in result.output
    assert "none such" in result.output
