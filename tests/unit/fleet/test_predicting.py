"""Predict: batches of columns in, columns out, prepared as `penstock run` prepares its files."""

from __future__ import annotations

import json
import subprocess
import sys
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from penstock.errors import InputError
from penstock.export import tflite
from penstock.fleet.ray import Predict
from penstock.fleet.ray.predicting import ADDED
from penstock.ir import DType, ModelBuilder

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install '.[ray]'")
DIGITS = Path(__file__).resolve().parents[3] / "examples" / "digits"
MODEL = str(DIGITS / "digits_int8.tflite")
PICTURES = [str(DIGITS / f"{name}.png") for name in ("zero", "three", "seven")]


@pytest.fixture(scope="module")
def predict() -> Predict:
    return Predict(MODEL, columns=["path"])


def of_run(picture: str, model: str = MODEL) -> dict[str, Any]:
    command = [sys.executable, "-m", "penstock", "run", model, picture, "--json"]
    done = subprocess.run(command, check=True, capture_output=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_answers_are_those_of_the_command_line(predict: Predict) -> None:
    answered = predict(pa.table({"path": PICTURES})).to_pylist()
    for row in answered:
        said = of_run(row["path"])
        assert json.loads(row["answer"])["top"] == said["top"]
        assert row["label"] == said["top"][0]["label"]
        assert row["task"] == said["task"] == "classification"
        assert row["device"] == said["receipt"]["steps"][0]["device"]
        assert row["error"] is None


@pytest.mark.slow
def test_boxes_of_a_detector_are_those_of_the_command_line(corpus: Path) -> None:
    model = str(corpus / "models" / "networks" / "ssd_mobilenet_v1_coco_uint8.tflite")
    picture = str(corpus / "models" / "images" / "cat.bmp")
    (row,) = Predict(model, columns=["path"])(pa.table({"path": [picture]})).to_pylist()
    said = of_run(picture, model)
    assert said["task"] == row["task"] == "detection"
    assert row["boxes"] == said["boxes"]
    best = said["boxes"][0]
    assert best["label"] is None
    assert (row["label"], row["score"]) == (str(best["index"]), best["score"])


def test_contents_and_pixels_are_prepared_as_files_are(predict: Predict) -> None:
    expected = predict(pa.table({"path": PICTURES}))
    contents = [Path(path).read_bytes() for path in PICTURES]
    pixels = [np.asarray(Image.open(path).convert("RGB")) for path in PICTURES]
    for elements in (contents, pixels, np.stack(pixels)):
        answered = predict({"path": elements})
        assert [list(answered[name]) for name in ADDED] == [
            expected.column(name).to_pylist() for name in ADDED
        ]


def test_columns_of_the_batch_are_kept_in_both_kinds(predict: Predict) -> None:
    table = predict(pa.table({"id": [5, 6], "path": PICTURES[:2]}))
    assert table.column_names == ["id", "path", *ADDED]
    assert table.column("id").to_pylist() == [5, 6]
    columns = predict({"id": np.array([5, 6]), "path": np.array(PICTURES[:2])})
    assert list(columns) == ["id", "path", *ADDED]
    assert columns["id"].tolist() == [5, 6]


def test_a_row_that_cannot_be_read_has_an_error_and_stays(predict: Predict, tmp_path: Path) -> None:
    damaged, missing = tmp_path / "damaged.png", tmp_path / "missing.png"
    damaged.write_bytes(b"\x89PNG\r\n\x1a\n and no more")
    rows = predict(pa.table({"path": [str(damaged), PICTURES[1], str(missing)]})).to_pylist()
    assert [row["label"] for row in rows] == [None, "3", None]
    assert "damaged.png" in rows[0]["error"]
    assert "No such file" in rows[2]["error"]
    assert rows[0]["boxes"] == rows[1]["boxes"] == []


def test_schema_does_not_depend_on_the_rows(predict: Predict) -> None:
    good = predict(pa.table({"path": PICTURES}))
    bad = predict(pa.table({"path": ["nowhere.png"]}))
    assert good.schema == bad.schema


def relu(place: Path, shape: tuple[int | None, ...]) -> str:
    """The file of a network float32 *shape* in, the positive part of it out as `y`."""
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, shape, "x")
    (y,) = builder.operation("RELU", [x], [(DType.FLOAT32, shape)])
    file = place / "relu.tflite"
    file.write_bytes(tflite.write(builder.build([y])))
    return str(file)


@pytest.mark.parametrize("rows", [None, 1])
def test_outputs_are_columns_whether_the_model_takes_batches_or_rows(
    tmp_path: Path, rows: int | None
) -> None:
    predict = Predict(relu(tmp_path, (rows, 3)), answers="outputs", devices=["reference"])
    given = np.array([[-1, 2, 3], [4, -5, 6]], np.float32)
    expected = np.maximum(given, 0)
    name = predict.compiled.outputs[0].name or "output_0"
    columns = predict({"x": given})
    assert np.array_equal(columns[name], expected)
    assert list(columns["device"]) == ["reference", "reference"]
    for column in (pa.array(list(given)), pa.FixedShapeTensorArray.from_numpy_ndarray(given)):
        table = predict(pa.table({"x": column}))
        found = table.column(name).combine_chunks().to_numpy_ndarray()
        assert np.array_equal(found, expected)
        assert table.column("device").to_pylist() == ["reference", "reference"]


def test_open_batches_run_at_once(tmp_path: Path) -> None:
    predict = Predict(relu(tmp_path, (None, 3)), devices=["reference"])
    rows = predict.rows([[np.zeros(3, np.float32)]] * 4)
    assert predict.is_batched
    assert [row.outputs[0].shape for row in rows] == [(1, 3)] * 4
    assert rows[0].outputs[0].base is rows[3].outputs[0].base


def test_outputs_without_answers_raise_for_a_row_that_does_not_fit(tmp_path: Path) -> None:
    predict = Predict(relu(tmp_path, (1, 3)), answers="outputs", devices=["reference"])
    with pytest.raises(InputError, match=r"an element is float64\[3\].*needs float32"):
        predict({"x": np.zeros((2, 3))})


def test_columns_that_do_not_match_the_inputs_are_refused(predict: Predict) -> None:
    with pytest.raises(InputError, match="2 columns are named for the 1 inputs"):
        Predict(MODEL, columns=["a", "b"])
    with pytest.raises(InputError, match="no column 'path'; it has other"):
        predict({"other": PICTURES})


def test_an_open_normalization_asks_for_one(tmp_path: Path) -> None:
    predict = Predict(relu(tmp_path, (1, 16, 16, 3)), columns=["path"], devices=["reference"])
    (row,) = predict(pa.table({"path": PICTURES[:1]})).to_pylist()
    assert "say normalize=, one of" in row["error"]
    stated = Predict(
        relu(tmp_path, (1, 16, 16, 3)), columns=["path"], devices=["reference"], normalize="unit"
    )
    (row,) = stated(pa.table({"path": PICTURES[:1]})).to_pylist()
    assert row["error"] is None


def test_sounds_are_read_as_run_reads_them(tmp_path: Path) -> None:
    file = tmp_path / "sound.wav"
    with wave.open(str(file), "wb") as stream:
        stream.setnchannels(1)
        stream.setsampwidth(2)
        stream.setframerate(16000)
        stream.writeframes(np.full(1600, 16384, "<i2").tobytes())
    predict = Predict(
        relu(tmp_path, (1, 1600)), columns=["sound"], answers="outputs", devices=["reference"]
    )
    name = predict.compiled.outputs[0].name or "output_0"
    for element in (str(file), file.read_bytes()):
        columns = predict({"sound": [element]})
        assert np.array_equal(columns[name], np.full((1, 1600), 0.5, np.float32))
