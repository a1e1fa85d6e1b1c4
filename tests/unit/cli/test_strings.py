"""`penstock run` of a model that takes and gives strings."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from penstock.cli.application import app
from penstock.ir import NDArray
from tests.unit.loaders.files import FileBuilder

WORDS = np.array(["hello", "w\u00f6rld", ""])


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Strings in reverse."""
    file = FileBuilder()
    x, y = file.tensor("x", [3], "STRING"), file.tensor("y", [3], "STRING")
    places = file.tensor("places", [3], "INT32", np.array([2, 1, 0], np.int32))
    file.operator("GATHER", [x, places], [y])
    path = tmp_path / "strings.tflite"
    path.write_bytes(file.finish([x], [y]))
    return path


def run(model: Path, words: NDArray, *arguments: str) -> str:
    given = model.with_name("given.npy")
    np.save(given, words)
    result = CliRunner().invoke(app, ["run", str(model), str(given), *arguments])
    return f"{result.exit_code} {result.output}"


@pytest.mark.parametrize("words", [WORDS, np.char.encode(WORDS, "utf-8")], ids=["U", "S"])
def test_strings_of_a_file_come_out_readable(model: Path, words: NDArray) -> None:
    printed = run(model, words)
    assert printed.startswith("0 ")
    assert "y holds '', 'w\u00f6rld', 'hello'" in printed
    described = json.loads(run(model, words, "--json").partition(" ")[2])
    assert described["values"][0]["strings"] == ["", "w\u00f6rld", "hello"]


def test_strings_are_written_as_bytes(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.npz"
    assert run(model, WORDS, "--out", str(out)).startswith("0 ")
    with np.load(out, allow_pickle=False) as arrays:
        assert arrays["y"].tolist() == [b"", "w\u00f6rld".encode(), b"hello"]
