"""An interpreter uses the plan that is kept for its file, and then decodes no model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from benchmarks.cache import small
from penstock.export.tflite import write
from penstock.ir import ConstantPool, DType, Model, ModelBuilder
from penstock.loaders import tflite as loader
from penstock.tflite import Interpreter, OpResolverType, loading
from penstock.tflite.session import open_shapes

X = np.linspace(-1, 1, 64, dtype=np.float32).reshape(1, 64)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "small.tflite"
    path.write_bytes(small())
    return path


@pytest.fixture
def open_model(tmp_path: Path) -> Path:
    """As `model`, with an open batch."""
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, (None, 64), "x")
    weights = builder.constant(np.linspace(-1, 1, 640, dtype=np.float32).reshape(10, 64))
    made = (DType.FLOAT32, (None, 10))
    outputs = builder.operation("FULLY_CONNECTED", [x, weights, None], [made])
    path = tmp_path / "open.tflite"
    path.write_bytes(write(builder.build(outputs)))
    return path


@pytest.fixture
def open_output(tmp_path: Path) -> Path:
    """A file that states the shapes of its inputs and not that of its output, as files that end in
    a detection do.
    """
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, (1, 64), "x")
    weights = builder.constant(np.linspace(-1, 1, 640, dtype=np.float32).reshape(10, 64))
    outputs = builder.operation("FULLY_CONNECTED", [x, weights, None], [(DType.FLOAT32, None)])
    path = tmp_path / "open_output.tflite"
    path.write_bytes(write(builder.build(outputs)))
    return path


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """One item for each time that a file is decoded."""
    found: list[object] = []
    load: Callable[[ConstantPool], Model] = loader.load

    def counting(pool: ConstantPool) -> Model:
        found.append(pool)
        return load(pool)

    monkeypatch.setattr(loader, "load", counting)
    return found


def answer(model: Path, cache: Path, rows: int = 1) -> tuple[bytes, list[str]]:
    """The output, and the details of every tensor as text."""
    interpreter = Interpreter(str(model), devices=["sample"], cache=cache)
    if rows != 1:
        interpreter.resize_tensor_input(interpreter.get_input_details()[0]["index"], [rows, 64])
    interpreter.allocate_tensors()
    details = [str(d) for d in interpreter.get_tensor_details()]
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], np.repeat(X, rows, 0))
    interpreter.invoke()
    output = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
    interpreter.close()
    return output.tobytes(), details


def test_a_second_interpreter_decodes_nothing(
    model: Path, tmp_path: Path, decoded: list[object]
) -> None:
    first = answer(model, tmp_path / "c")
    assert len(decoded) == 1
    assert answer(model, tmp_path / "c") == first
    assert len(decoded) == 1


def test_a_second_interpreter_decodes_nothing_where_the_batch_is_open(
    open_model: Path, tmp_path: Path, decoded: list[object]
) -> None:
    expected = answer(open_model, tmp_path / "without", 3)
    first = answer(open_model, tmp_path / "c")
    before = len(decoded)
    assert answer(open_model, tmp_path / "c") == first
    assert len(decoded) == before
    assert answer(open_model, tmp_path / "c", 3) == expected


def test_a_second_interpreter_decodes_nothing_where_an_output_is_open(
    open_output: Path, tmp_path: Path, decoded: list[object]
) -> None:
    first = answer(open_output, tmp_path / "c")
    before = len(decoded)
    assert answer(open_output, tmp_path / "c") == first
    assert len(decoded) == before


def test_open_shapes_are_those_of_an_open_file_alone(model: Path, open_model: Path) -> None:
    found = [loading.open_path(path).catalog.subgraphs[0] for path in (model, open_model)]
    assert [*map(open_shapes, found)] == [None, {0: (1, 64)}]
    twice = replace(found[1], inputs=(0, 0))
    assert open_shapes(twice) is None


def test_an_interpreter_with_other_shapes_uses_the_kept_model(
    model: Path, tmp_path: Path, decoded: list[object]
) -> None:
    expected = answer(model, tmp_path / "without", 3)
    answer(model, tmp_path / "c")
    before = len(decoded)
    assert answer(model, tmp_path / "c", 3) == expected
    assert len(decoded) == before


def test_an_interpreter_that_is_resized_back_answers_as_without_a_cache(
    model: Path, tmp_path: Path
) -> None:
    answer(model, tmp_path / "c")
    outputs: list[list[bytes]] = []
    for cache in (False, tmp_path / "c"):
        interpreter = Interpreter(str(model), devices=["sample"], cache=cache)
        index = interpreter.get_input_details()[0]["index"]
        outputs.append([])
        for rows in (1, 2, 1):
            interpreter.resize_tensor_input(index, [rows, 64])
            interpreter.allocate_tensors()
            interpreter.set_tensor(index, np.repeat(X, rows, 0))
            interpreter.invoke()
            output = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
            outputs[-1].append(output.tobytes())
        interpreter.close()
    assert outputs[0] == outputs[1]


def test_an_interpreter_that_preserves_tensors_is_as_without_a_cache(
    model: Path, tmp_path: Path
) -> None:
    answer(model, tmp_path / "c")
    values = []
    for cache in (False, tmp_path / "c"):
        interpreter = Interpreter(
            str(model),
            devices=["sample"],
            cache=cache,
            experimental_preserve_all_tensors=True,
            experimental_op_resolver_type=OpResolverType.BUILTIN_REF,
        )
        interpreter.allocate_tensors()
        interpreter.set_tensor(interpreter.get_input_details()[0]["index"], X)
        interpreter.invoke()
        every = [interpreter.get_tensor(d["index"]) for d in interpreter.get_tensor_details()]
        values.append([value.tobytes() for value in every])
        interpreter.close()
    assert values[0] == values[1]
