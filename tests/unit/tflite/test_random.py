"""Random sequences in the interpreter: they go on until tensors are allocated anew."""

from __future__ import annotations

from typing import Any

import numpy as np

import penstock.tflite
from penstock.ir import DType
from tests.support_litert import Given, Wanted, litert, single_operation


def walk(interpreter: type[Any]) -> list[Any]:
    given = [Given(np.array([2], np.int32))]
    content = single_operation("RANDOM_UNIFORM", given, [Wanted(DType.FLOAT32)], seed=1, seed2=2)
    runner = interpreter(model_content=content)
    found: list[Any] = []

    def run(*shape: int) -> None:
        runner.set_tensor(0, np.array(shape, np.int32))
        runner.invoke()
        found.append(runner.get_tensor(1).tolist())

    runner.allocate_tensors()
    run(2)
    run(2)
    runner.reset_all_variables()
    run(2)
    runner.allocate_tensors()
    run(2)
    for size in (2, 1):
        runner.resize_tensor_input(0, [size])
        runner.allocate_tensors()
        run(*[2] * size)
        run(*[2] * size)
    return found


def test_random_call_sequences_behave_as_in_litert() -> None:
    assert walk(penstock.tflite.Interpreter) == walk(litert.Interpreter)
