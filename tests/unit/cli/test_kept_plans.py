"""`penstock run`, `bench` and `plan` use the plan that an earlier command kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from penstock.cli.application import app
from penstock.export import tflite
from penstock.ir import DType, ModelBuilder
from penstock.loaders import read
from penstock.runtime import compiling, session


@pytest.fixture
def looked_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[bool]:
    """For each time that a plan is looked for, whether one was found. Caches are the test's own."""
    monkeypatch.setenv("PENSTOCK_CACHE_DIR", str(tmp_path / "cache"))
    found: list[bool] = []
    look = session.kept_plan

    def looking(*arguments: Any) -> Any:
        kept = look(*arguments)
        found.append(kept.restored is not None)
        return kept

    monkeypatch.setattr(compiling, "kept_plan", looking)
    return found


def written(path: Path, *shape: int | None) -> Path:
    """y = relu(x + 1)."""
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, shape, "x")
    one = builder.constant(np.ones(1, np.float32), "one")
    (added,) = builder.operation("ADD", [x, one], [(DType.FLOAT32, shape)])
    path.write_bytes(
        tflite.write(builder.build(builder.operation("RELU", [added], [(DType.FLOAT32, shape)])))
    )
    return path


def answer(*arguments: object) -> dict[str, Any]:
    result = CliRunner().invoke(app, [*map(str, arguments), "-d", "sample", "--json"])
    assert result.exit_code == 0, result.output
    data: dict[str, Any] = json.loads(result.stdout)
    return data


@pytest.mark.parametrize(
    ("command", "inputs"), [(["run"], ["random"]), (["bench", "--runs", 1], []), (["plan"], [])]
)
def test_second_start_decodes_nothing(
    command: list[object],
    inputs: list[str],
    looked_up: list[bool],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = written(tmp_path / "m.tflite", 2, 3)
    first = answer(*command, model, *inputs)

    def never(*_: object) -> None:
        raise AssertionError("decoded")

    monkeypatch.setattr(compiling, "decode", never)
    second = answer(*command, model, *inputs)
    assert looked_up == [False, True]
    assert second["plan"] == first["plan"]
    assert second.get("values") == first.get("values")
    other = CliRunner().invoke(app, ["run", str(model), "random", "-d", "reference"])
    assert "decoded" in other.stderr


def test_shapes_of_inputs_find_their_own_plan(looked_up: list[bool], tmp_path: Path) -> None:
    model = written(tmp_path / "m.tflite", None, 3)
    for rows in (2, 2, 4):
        np.save(tmp_path / "x.npy", np.zeros((rows, 3), np.float32))
        assert answer("run", model, tmp_path / "x.npy")["outputs"][0]["shape"] == [rows, 3]
    # The shapes are known when the input has been read.
    assert looked_up == [False, False, False, True, False, False]
    looked_up.clear()
    for _ in range(2):
        answer("run", model, "random", "--shape", "x=5,3")
    assert looked_up == [False, True]


def test_file_is_read_once(
    looked_up: list[bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = written(tmp_path / "m.tflite", 2, 3)
    reads: list[object] = []

    def reading(source: Any) -> Any:
        reads.append(source)
        return read(source)

    monkeypatch.setattr(compiling, "read", reading)
    answer("run", model, "random")
    assert reads == [str(model)]
    assert looked_up == [False]
