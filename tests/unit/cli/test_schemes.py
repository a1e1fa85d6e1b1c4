"""`penstock run` with a picture: follows the file, and where that says nothing compares or asks."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from penstock.cli.application import app
from penstock.export import tflite
from penstock.ir import DType, Lifetime, Model, ModelBuilder, Operand

Run = Callable[..., Result]

FLOAT = DType.FLOAT32
SIDE = 8


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("PENSTOCK_DEVICES", "reference")
    return lambda *words: CliRunner().invoke(app, [str(w) for w in words])


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    """Grey of 90 and 110, whose mean every usual scheme turns into another one."""
    grey = Image.new("RGB", (SIDE, SIDE), (90, 90, 90))
    grey.paste((110, 110, 110), (0, 0, SIDE, SIDE // 2))
    grey.save(tmp_path / "grey.png")
    return tmp_path / "grey.png"


def start(channels: int = 3) -> tuple[ModelBuilder, int]:
    builder = ModelBuilder()
    return builder, builder.input(FLOAT, (1, SIDE, SIDE, channels), "image")


def constant(builder: ModelBuilder, value: object, dtype: type = np.float32) -> int:
    return builder.constant(np.asarray(value, dtype), "c")


def mean(builder: ModelBuilder, x: int, channels: int = 3) -> int:
    axes = constant(builder, [1, 2], np.int32)
    (m,) = builder.operation("MEAN", [x, axes], [(FLOAT, (1, channels))])
    return m


def classes(builder: ModelBuilder, x: int, weights: Sequence[float], bias: Sequence[float]) -> int:
    """Softmax of two sums: the channels' means by a weight each, and a bias each."""
    channels = 3
    matrix = constant(builder, np.outer(weights, np.ones(channels)))
    offset = constant(builder, bias)
    (logits,) = builder.operation("FULLY_CONNECTED", [x, matrix, offset], [(FLOAT, (1, 2))])
    (y,) = builder.operation("SOFTMAX", [logits], [(FLOAT, (1, 2))], {"beta": 1.0})
    return y


def saved(model: Model, path: Path) -> Path:
    path.write_bytes(tflite.write(model))
    return path


@pytest.fixture
def undecided(tmp_path: Path) -> Path:
    """Class 0 where the mean is above 2, as it is of values up to 255 alone; class 1 elsewhere."""
    builder, x = start()
    y = classes(builder, mean(builder, x), [1, 0], [-6, 0])
    return saved(builder.build([y]), tmp_path / "undecided.tflite")


@pytest.fixture
def decided(tmp_path: Path) -> Path:
    """Class 1 whatever the picture."""
    builder, x = start()
    y = classes(builder, mean(builder, x), [0, 0], [0, 1])
    return saved(builder.build([y]), tmp_path / "decided.tflite")


def test_classes_that_differ_stand_side_by_side_and_the_code_is_2(
    run: Run, undecided: Path, picture: Path
) -> None:
    result = run("run", undecided, picture)
    assert result.exit_code == 2
    lines = [line.split() for line in result.stdout.splitlines()]
    shown = {words[1]: words[2] for words in lines if words[:1] == ["--normalize"]}
    assert shown == {"unit": "1", "pm1": "1", "f255": "0", "imagenet": "1", "caffe": "1"}
    assert "the file does not say how pictures are normalized" in result.stdout
    assert "plan:" not in result.stdout
    assert result.stderr.count("\n") == 1
    assert "say it with --normalize" in result.stderr


def test_json_has_the_same_facts_about_classes_that_differ(
    run: Run, undecided: Path, picture: Path
) -> None:
    result = run("run", undecided, picture, "--json")
    assert result.exit_code == 2
    found = json.loads(result.stdout)
    assert found["error"]["type"] == "UsageError"
    assert "--normalize" in found["error"]["message"]
    assert found["top"] is None
    best = {p["normalize"]: p["top"][0]["index"] for p in found["preparations"]}
    assert best == {"unit": 1, "pm1": 1, "f255": 0, "imagenet": 1, "caffe": 1}
    assert found["inputs"][0]["normalize"] is None


@pytest.mark.parametrize(("scheme", "best"), [("unit", 1), ("f255", 0), ("0,1", 0), ("0,255", 1)])
def test_every_scheme_shown_can_be_chosen(
    run: Run, undecided: Path, picture: Path, scheme: str, best: int
) -> None:
    result = run("run", undecided, picture, "--normalize", scheme, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["top"][0]["index"] == best
    assert found["inputs"][0]["normalize"] == scheme
    assert found["inputs"][0]["normalize_from"] == "option"
    assert "preparations" not in found


def test_agreeing_schemes_give_the_answer_after_a_note(
    run: Run, decided: Path, picture: Path
) -> None:
    result = run("run", decided, picture)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].startswith("note: the file does not say how pictures are normalized")
    assert "unit, pm1, f255, imagenet, caffe all give this best class" in lines[0]
    assert lines[2].split()[0] == "1"
    found = json.loads(run("run", decided, picture, "--json").stdout)
    assert found["top"][0]["index"] == 1
    assert len(found["preparations"]) == 5
    assert found["inputs"][0]["normalize"] is None


def test_scores_that_are_no_numbers_agree_on_nothing(
    run: Run, picture: Path, tmp_path: Path
) -> None:
    builder, x = start()
    y = classes(builder, mean(builder, x), [0, 0], [float("nan"), 0])
    path = saved(builder.build([y]), tmp_path / "nan.tflite")
    result = run("run", path, picture)
    assert result.exit_code == 2, result.output
    assert "NaN" in result.stdout


@pytest.mark.parametrize("bias", [[0.5, 0.5], [0, float("nan")]])
def test_schemes_under_which_no_class_is_best_agree_on_nothing(
    run: Run, picture: Path, tmp_path: Path, bias: list[float]
) -> None:
    builder, x = start()
    y = classes(builder, mean(builder, x), [0, 0], bias)
    path = saved(builder.build([y]), tmp_path / "m.tflite")
    result = run("run", path, picture, "--json")
    assert result.exit_code == 2, result.output
    found = json.loads(result.stdout)
    assert found["top"] is None
    assert [p["top"] for p in found["preparations"]] == [None] * 5
    assert "however the picture is normalized" in found["error"]["message"]
    assert "--task outputs with --normalize" in found["error"]["message"]
    shown = run("run", path, picture, "--task", "outputs", "--normalize", "unit")
    assert shown.exit_code == 0, shown.output
    alone = json.loads(run("run", path, picture, "--normalize", "unit", "--json").stdout)
    assert alone["error"]["type"] == "UsageError"
    assert alone["top"] is None


def test_classes_that_share_the_best_score_are_no_answer(
    run: Run, picture: Path, tmp_path: Path
) -> None:
    builder, x = start()
    y = classes(builder, mean(builder, x), [0, 0], [1, 1])
    path = saved(builder.build([y]), tmp_path / "tie.tflite")
    result = run("run", path, picture, "--normalize", "unit")
    assert result.exit_code == 2
    assert "no class stands out: 2 of 2 classes share the best score, 50.0 %" in result.stderr
    assert "class  label" not in result.stdout
    assert run("run", path, picture, "--normalize", "unit", "--task", "outputs").exit_code == 0


@pytest.mark.parametrize(("lines", "code"), [("a\n", 2), ("a\nb\n", 0), ("a\nb\nc\n", 2)])
def test_labels_must_be_as_many_as_the_classes(
    run: Run, decided: Path, picture: Path, tmp_path: Path, lines: str, code: int
) -> None:
    (tmp_path / "l.txt").write_text(lines)
    result = run("run", decided, picture, "--labels", tmp_path / "l.txt", "--json")
    assert result.exit_code == code, result.output
    found = json.loads(result.stdout)
    assert found["top"][0] == {
        "index": 1,
        "label": None if code else "b",
        "score": pytest.approx(0.731, abs=1e-3),
    }
    if code:
        assert found["error"]["type"] == "UsageError"
        assert "the file needs a line for each class" in result.stderr


@pytest.mark.parametrize("more", [(), ("--normalize", "unit"), ("--normalize", "1e12,1")])
def test_a_picture_of_one_colour_is_no_answer(
    run: Run, decided: Path, picture: Path, tmp_path: Path, more: tuple[str, ...]
) -> None:
    Image.new("RGBA", (SIDE, SIDE), (0, 0, 0, 9)).save(tmp_path / "black.png")
    result = run("run", decided, tmp_path / "black.png", *more)
    assert result.exit_code == 2, result.output
    assert "the picture is one colour after preparation" in result.stderr
    assert "transparent parts" in result.stderr
    assert result.stdout == ""
    faded = run("run", decided, picture, *more)
    assert faded.exit_code == (2 if "1e12,1" in more else 0), faded.output
    shown = run(
        "run",
        decided,
        tmp_path / "black.png",
        *(more or ("--normalize", "raw")),
        "--task",
        "outputs",
    )
    assert shown.exit_code == 0, shown.output


def test_a_picture_that_spans_next_to_nothing_is_noted(
    run: Run, decided: Path, tmp_path: Path
) -> None:
    values = np.arange(SIDE * SIDE, dtype=np.uint16).reshape(SIDE, SIDE) * 10
    Image.fromarray(values).save(tmp_path / "faint.png")
    result = run("run", decided, tmp_path / "faint.png")
    assert result.exit_code == 0, result.output
    first, second = result.stdout.splitlines()[:2]
    assert "in which white is 65535, and its greatest value is 630; scale it" in first
    assert "it spans 2 of the 255 steps from black to white" in second


def test_an_input_of_nothing_but_nan_is_no_answer(run: Run, decided: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "nan.npy", np.full((1, SIDE, SIDE, 3), np.nan, np.float32))
    result = run("run", decided, tmp_path / "nan.npy")
    assert result.exit_code == 2
    assert "every value is NaN (not a number)" in result.stderr
    shown = run("run", decided, tmp_path / "nan.npy", "--task", "outputs")
    assert shown.exit_code == 0
    assert "every value is NaN" in shown.stdout


def test_run_without_an_answer_writes_no_file(
    run: Run, undecided: Path, picture: Path, tmp_path: Path
) -> None:
    out, trace = tmp_path / "out.npz", tmp_path / "trace.json"
    assert run("run", undecided, picture, "--out", out, "--trace", trace).exit_code == 2
    assert not out.exists()
    assert not trace.exists()


def test_every_scheme_starts_from_the_models_first_state(
    run: Run, picture: Path, tmp_path: Path
) -> None:
    """Class 0 in the first run, class 1 in every later one."""
    builder, x = start()
    initial = np.array([[0.5, 0]], np.float32)
    variable = builder.variable("count", FLOAT, (1, 2), initial=initial)
    before = builder.operand(Operand(FLOAT, (1, 2), Lifetime.SUBGRAPH_INPUT, "before"))
    step = constant(builder, [[0, 1]])
    (after,) = builder.operation("ADD", [before, step], [(FLOAT, (1, 2))])
    zeros = constant(builder, np.zeros((2, 3)))
    (none,) = builder.operation(
        "FULLY_CONNECTED", [mean(builder, x), zeros, None], [(FLOAT, (1, 2))]
    )
    (logits,) = builder.operation("ADD", [none, before], [(FLOAT, (1, 2))])
    (y,) = builder.operation("SOFTMAX", [logits], [(FLOAT, (1, 2))], {"beta": 1.0})
    builder.state(variable, before, after)
    path = saved(builder.build([y]), tmp_path / "counting.tflite")
    result = run("run", path, picture, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["top"][0]["index"] == 0


def segmentation(builder: ModelBuilder, x: int) -> list[int]:
    weights = constant(builder, np.ones((2, 1, 1, 3)))
    (y,) = builder.operation(
        "CONV_2D",
        [x, weights, constant(builder, [0, 1])],
        [(FLOAT, (1, SIDE, SIDE, 2))],
        {"padding": "SAME", "stride_h": 1, "stride_w": 1},
    )
    return [y]


def detection(builder: ModelBuilder, x: int) -> list[int]:
    shapes: list[tuple[int, ...]] = [(1, 3, 4), (1, 3), (1, 3), (1,)]
    outputs = []
    for shape in shapes:
        size = int(np.prod(shape))
        matrix = constant(builder, np.ones((size, 3)))
        (flat,) = builder.operation(
            "FULLY_CONNECTED", [mean(builder, x), matrix, None], [(FLOAT, (1, size))]
        )
        (y,) = builder.operation(
            "RESHAPE", [flat, constant(builder, shape, np.int32)], [(FLOAT, shape)]
        )
        outputs.append(y)
    return outputs


def pose(builder: ModelBuilder, x: int) -> list[int]:
    matrix = constant(builder, np.ones((51, 3)))
    (flat,) = builder.operation(
        "FULLY_CONNECTED", [mean(builder, x), matrix, None], [(FLOAT, (1, 51))]
    )
    shape = (1, 1, 17, 3)
    return builder.operation(
        "RESHAPE", [flat, constant(builder, shape, np.int32)], [(FLOAT, shape)]
    )


def filtered(builder: ModelBuilder, x: int) -> list[int]:
    return list(builder.operation("RELU", [x], [(FLOAT, (1, SIDE, SIDE, 3))]))


@pytest.mark.parametrize(
    ("task", "body"),
    [
        ("segmentation", segmentation),
        ("detection", detection),
        ("pose", pose),
        ("outputs", filtered),
    ],
)
def test_answers_that_cannot_be_compared_need_the_scheme(
    run: Run,
    picture: Path,
    tmp_path: Path,
    task: str,
    body: Callable[[ModelBuilder, int], list[int]],
) -> None:
    builder, x = start()
    path = saved(builder.build(body(builder, x)), tmp_path / "m.tflite")
    result = run("run", path, picture)
    assert result.exit_code == 2, result.output
    assert f"answers of the task {task} cannot be compared" in result.stderr
    assert (
        "--normalize (unit, pm1, f255, imagenet, caffe are usual; raw, bgr, bgr255, m127d128 and "
        "MEAN,STD are the others)" in result.stderr
    )
    refused = json.loads(run("run", path, picture, "--json").stdout)
    assert refused["error"]["type"] == "UsageError"
    found = json.loads(run("run", path, picture, "--normalize", "unit", "--json").stdout)
    assert found["task"] == task


def unknown_vector(path: Path, weights: Sequence[float], bias: Sequence[float]) -> Path:
    """A model with two scores for its output and no word that they are scores."""
    builder, x = start()
    matrix = constant(builder, np.outer(weights, np.ones(3)))
    arguments = [mean(builder, x), matrix, constant(builder, bias)]
    (y,) = builder.operation("FULLY_CONNECTED", arguments, [(FLOAT, (1, 2))])
    return saved(builder.build([y]), path)


@pytest.mark.parametrize(("weights", "agree"), [([0, 0], True), ([1, 0], False)])
def test_a_vector_of_which_nothing_is_known_is_compared_as_scores_and_is_no_answer(
    run: Run, picture: Path, tmp_path: Path, weights: list[float], agree: bool
) -> None:
    path = unknown_vector(tmp_path / "m.tflite", weights, [-6, 0])
    result = run("run", path, picture)
    assert result.exit_code == 2, result.output
    lines = [line.split() for line in result.stdout.splitlines()]
    shown = {words[1]: words[2] for words in lines if words[:1] == ["--normalize"]}
    assert shown == {
        "unit": "1",
        "pm1": "1",
        "f255": "1" if agree else "0",
        "imagenet": "1",
        "caffe": "1",
    }
    assert "say --task classification (or name the classes with --labels)" in result.stderr
    assert ("choose with --normalize" in result.stderr) != agree
    found = json.loads(run("run", path, picture, "--json").stdout)
    assert (found["task"], found["top"]) == ("outputs", None)
    told = run("run", path, picture, "--task", "classification")
    assert told.exit_code == (0 if agree else 2), told.output
    (tmp_path / "l.txt").write_text("a\nb\n")
    named = run("run", path, picture, "--labels", tmp_path / "l.txt", "--normalize", "unit")
    assert named.exit_code == 0, named.output


def test_a_vector_of_which_nothing_is_known_is_summarised_with_a_note_on_the_task(
    run: Run, picture: Path, tmp_path: Path
) -> None:
    path = unknown_vector(tmp_path / "m.tflite", [1, 0], [-6, 0])
    note = "if it is a score for each class, --task classification shows the best ones"
    assert note in run("run", path, picture, "--normalize", "unit").stdout
    named = run("run", path, picture, "--normalize", "unit", "--task", "outputs")
    assert named.exit_code == 0
    assert note not in named.stdout
    assert note not in run("run", path, "random").stdout


def test_arithmetic_that_the_graph_begins_with_is_followed(
    run: Run, picture: Path, tmp_path: Path
) -> None:
    builder, x = start()
    (scaled,) = builder.operation(
        "MUL", [x, constant(builder, 1 / 255)], [(FLOAT, (1, SIDE, SIDE, 3))]
    )
    y = classes(builder, mean(builder, scaled), [1, 0], [-1, 0])
    path = saved(builder.build([y]), tmp_path / "scaling.tflite")
    result = run("run", path, picture, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    (slow,) = found["notes"]
    assert slow.startswith("slow: 100% of the multiply-accumulates run on reference")
    assert found["inputs"][0]["normalize"] == "f255"
    assert found["inputs"][0]["normalize_from"] == "arithmetic"
    assert found["top"][0]["index"] == 0


def test_two_pictures_are_prepared_alike(run: Run, picture: Path, tmp_path: Path) -> None:
    builder, x = start()
    other = builder.input(FLOAT, (1, SIDE, SIDE, 3), "other")
    (both,) = builder.operation("ADD", [x, other], [(FLOAT, (1, SIDE, SIDE, 3))])
    y = classes(builder, mean(builder, both), [1, 0], [-6, 0])
    path = saved(builder.build([y]), tmp_path / "two.tflite")
    result = run("run", path, picture, picture, "--json")
    assert result.exit_code == 2
    best = {p["normalize"]: p["top"][0]["index"] for p in json.loads(result.stdout)["preparations"]}
    assert (best["unit"], best["f255"]) == (1, 0)
    assert run("run", path, picture, picture, "--normalize", "f255").exit_code == 0


@pytest.mark.parametrize("command", ["bench", "compare"])
def test_commands_that_give_no_answer_say_which_scheme_was_taken(
    run: Run, undecided: Path, picture: Path, command: str
) -> None:
    more: list[Any] = ["--runs", "1"] if command == "bench" else ["-d", "sample"]
    result = run(command, undecided, picture, *more, "--json")
    notes = json.loads(result.stdout)["notes"]
    assert "the file does not say how pictures are normalized: unit is taken (--normalize)" in notes


def test_the_old_spelling_is_no_option(run: Run, decided: Path, picture: Path) -> None:
    assert run("run", decided, picture, "--normalise", "unit").exit_code == 2


def test_the_help_has_the_spelling_and_the_rule(run: Run) -> None:
    text = " ".join(run("run", "--help").stdout.split())
    for words in (
        "--normalize",
        "raw",
        "unit",
        "pm1",
        "f255",
        "imagenet",
        "MEAN,STD",
        "exit code 2",
    ):
        assert words in text
