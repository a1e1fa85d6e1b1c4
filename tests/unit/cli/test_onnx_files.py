"""ONNX files at the command line: pictures go in channels first."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from penstock.cli.application import app
from tests.support_onnx import helper, model_of

Run = Callable[..., Result]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *words: CliRunner().invoke(app, [str(w) for w in words])


@pytest.fixture
def network(tmp_path: Path) -> Path:
    """The sum of each channel of a picture, times 2."""
    nodes = [
        helper.make_node("ReduceSum", ["picture", "axes"], ["s"], keepdims=0),
        helper.make_node("Mul", ["s", "two"], ["sums"], name="doubled"),
    ]
    constants = {"axes": np.array([2, 3]), "two": np.array(2, np.float32)}
    model = model_of(nodes, {"picture": np.zeros((1, 3, 8, 8), np.float32)}, ["sums"], constants)
    path = tmp_path / "sums.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def test_a_picture_is_fed_channels_first(run: Run, network: Path, tmp_path: Path) -> None:
    pixels = np.zeros((8, 8, 3), np.uint8)
    pixels[:4, :, 0], pixels[:4, :, 1] = 255, 51
    picture = tmp_path / "picture.png"
    Image.fromarray(pixels).save(picture)
    out = tmp_path / "out.npz"
    result = run("run", network, picture, "--normalize", "unit", "-d", "reference", "--out", out)
    assert result.exit_code == 0, result.output
    np.testing.assert_allclose(np.load(out)["sums"], [[64, 12.8, 0]], rtol=1e-5)


@pytest.mark.parametrize(
    "words", [("inspect",), ("plan", "-d", "reference"), ("dump", "--after", "load")]
)
def test_other_commands_take_onnx_files(run: Run, network: Path, words: tuple[str, ...]) -> None:
    result = run(words[0], network, *words[1:])
    assert result.exit_code == 0, result.output
    assert "SUM" in result.stdout


def test_inspect_as_json(run: Run, network: Path) -> None:
    result = run("inspect", network, "--json")
    assert result.exit_code == 0, result.output
    assert "picture" in json.dumps(json.loads(result.stdout))


def test_an_unknown_operator_is_an_input_error(run: Run, tmp_path: Path) -> None:
    model = model_of(
        [helper.make_node("Frobnicate", ["x"], ["y"], name="odd")],
        {"x": np.zeros(2, np.float32)},
        ["y"],
    )
    path = tmp_path / "odd.onnx"
    path.write_bytes(model.SerializeToString())
    result = run("run", path, "random")
    assert result.exit_code == 3
    assert "node 0 'odd' (ai.onnx.Frobnicate, opset 17)" in result.output.replace("\n", " ")


def classifier(tmp_path: Path, nodes: list[Any], constants: dict[str, Any], start: str) -> Path:
    """*nodes* and then, from their result *start*, the mean of each channel and softmax."""
    end = [
        helper.make_node("GlobalAveragePool", [start], ["mean"]),
        helper.make_node("Flatten", ["mean"], ["flat"]),
        helper.make_node("Softmax", ["flat"], ["classes"]),
    ]
    given = {"picture": np.zeros((1, 3, 8, 8), np.float32)}
    model = model_of([*nodes, *end], given, ["classes"], constants)
    path = tmp_path / "classes.onnx"
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize(
    ("scale", "zero_point", "scheme"),
    [
        (1 / 255, np.int8(-128), "unit"),
        (1.0, np.uint8(0), "f255"),
        (1 / 127.5, np.uint8(128), "pm1"),
        (4.758 / 255, np.uint8(114), "imagenet"),
        (1 / 127, np.int8(0), None),
    ],
)
def test_a_picture_is_prepared_as_the_first_quantization_says(
    run: Run, tmp_path: Path, scale: float, zero_point: Any, scheme: str | None
) -> None:
    nodes = [
        helper.make_node("QuantizeLinear", ["picture", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
    ]
    constants = {"s": np.array(scale, np.float32), "z": np.array(zero_point)}
    network = classifier(tmp_path, nodes, constants, "d")
    Image.linear_gradient("L").save(tmp_path / "x.png")
    result = run("run", network, tmp_path / "x.png", "-d", "reference", "--json")
    found = json.loads(result.stdout)["inputs"][0]
    assert found["normalize"] == scheme
    assert found["normalize_from"] == ("quantization" if scheme else "")


def test_a_picture_is_prepared_as_a_first_batch_normalization_says(
    run: Run, tmp_path: Path
) -> None:
    nodes = [helper.make_node("BatchNormalization", ["picture", "g", "b", "m", "v"], ["n"])]
    constants = {"g": [1, 1, 1], "b": [0, 0, 0], "m": [123, 117, 104], "v": [3200, 3100, 3300]}
    arrays = {name: np.array(value, np.float32) for name, value in constants.items()}
    network = classifier(tmp_path, nodes, arrays, "n")
    Image.linear_gradient("L").save(tmp_path / "x.png")
    result = run("run", network, tmp_path / "x.png", "-d", "reference", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["inputs"][0]["normalize"] == "f255"
