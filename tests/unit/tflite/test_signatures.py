from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from penstock import tflite
from penstock.errors import ClosedError
from penstock.ir import NDArray
from tests.unit.loaders.files import accumulator
from tests.unit.tflite import models

A, B = np.array([1, -2], np.float32), np.array([10, 20], np.float32)


@pytest.fixture
def interpreter() -> tflite.Interpreter:
    return tflite.Interpreter(model_content=models.signed())


def test_the_list_has_every_signature_of_the_file(interpreter: tflite.Interpreter) -> None:
    assert interpreter.get_signature_list() == {
        "negate": {"inputs": ["x"], "outputs": ["y"]},
        "add": {"inputs": ["x", "y"], "outputs": ["sum"]},
        "inner": {"inputs": ["x"], "outputs": ["between"]},
    }


def test_signature_runs_by_name_on_any_subgraph(interpreter: tflite.Interpreter) -> None:
    total = interpreter.get_signature_runner("add")(y=B, x=A)
    np.testing.assert_array_equal(total["sum"], A + B)
    np.testing.assert_array_equal(interpreter.get_signature_runner("negate")(x=A)["y"], [0, 2])


def test_signature_resizes_its_inputs(interpreter: tflite.Interpreter) -> None:
    add = interpreter.get_signature_runner("add")
    wide = np.ones((3, 5), np.float32)
    np.testing.assert_array_equal(add(x=wide, y=wide)["sum"], 2 * wide)
    np.testing.assert_array_equal(add(x=A, y=B)["sum"], A + B)
    assert add.get_input_details()["x"]["shape"].tolist() == [2]
    assert add.get_output_details()["sum"]["index"] == 2


def test_an_inner_tensor_has_a_value_where_all_are_preserved() -> None:
    options: Any = {"experimental_op_resolver_type": tflite.OpResolverType.BUILTIN_REF}
    plain = tflite.Interpreter(model_content=models.signed(), **options)
    with pytest.raises(ValueError, match="experimental_preserve_all_tensors"):
        plain.get_signature_runner("inner")(x=A)
    kept = tflite.Interpreter(
        model_content=models.signed(), experimental_preserve_all_tensors=True, **options
    )
    np.testing.assert_array_equal(kept.get_signature_runner("inner")(x=A)["between"], -A)


def test_results_are_copies(interpreter: tflite.Interpreter) -> None:
    add = interpreter.get_signature_runner("add")
    first = add(x=A, y=B)["sum"]
    add(x=B, y=B)
    np.testing.assert_array_equal(first, A + B)


def test_state_is_the_interpreters() -> None:
    file = accumulator()
    ends = {
        "inputs": [{"name": "x", "tensor_index": 1}],
        "outputs": [{"name": "total", "tensor_index": 3}],
    }
    definition = {"signature_key": "add", "subgraph_index": 0, **ends}
    interpreter = tflite.Interpreter(model_content=file.encode(signature_defs=[definition]))
    for total in ([2, 3], [3, 4]):
        runner = interpreter.get_signature_runner()
        np.testing.assert_array_equal(runner(x=np.ones(2, np.float32))["total"], total)
        del runner


def test_a_living_runner_keeps_the_interpreter_from_moving_memory(
    interpreter: tflite.Interpreter,
) -> None:
    interpreter.allocate_tensors()
    runner = interpreter.get_signature_runner("add")
    with pytest.raises(RuntimeError, match="internal data"):
        interpreter.invoke()
    runner(x=A, y=B)
    del runner
    interpreter.invoke()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "expected 2 vs provided 0"),
        ({"x": A}, "expected 2 vs provided 1"),
        ({"x": A, "z": B}, "Invalid Input name"),
        ({"x": A, "y": B.astype(int)}, "Got value of type INT64 but expected type FLOAT32"),
    ],
)
def test_wrong_inputs(
    interpreter: tflite.Interpreter, given: dict[str, NDArray], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        interpreter.get_signature_runner("add")(**given)


def test_signature_runner_needs_a_known_name(interpreter: tflite.Interpreter) -> None:
    calls: tuple[tuple[Callable[[], object], str], ...] = (
        (interpreter.get_signature_runner, "model has 3 Signatures"),
        (lambda: interpreter.get_signature_runner("nope"), 'signature_key provided: "nope"'),
        (lambda: interpreter.get_signature_runner(""), "None signature_key provided"),
        (tflite.SignatureRunner, "None interpreter provided"),
    )
    for call, words in calls:
        with pytest.raises(ValueError, match=words):
            call()


def test_after_close(interpreter: tflite.Interpreter) -> None:
    runner = interpreter.get_signature_runner("add")
    interpreter.close()
    with pytest.raises(ClosedError):
        runner(x=A, y=B)
    with pytest.raises(ClosedError):
        runner.get_input_details()
