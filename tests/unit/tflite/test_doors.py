"""One model through both doors: `penstock.compile` and the interpreter give the same, run for
run.
"""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings

import penstock
from penstock import tflite
from penstock.export.tflite import write
from penstock.ir import NDArray
from penstock.testing.random_models import RandomModel
from penstock.testing.strategies import models

RUNS = 3
REFERENCE = tflite.OpResolverType.BUILTIN_REF


def interpreted(interpreter: tflite.Interpreter, inputs: list[NDArray]) -> list[NDArray]:
    for detail, value in zip(interpreter.get_input_details(), inputs, strict=True):
        interpreter.set_tensor(detail["index"], value)
    interpreter.invoke()
    return [interpreter.get_tensor(d["index"]) for d in interpreter.get_output_details()]


@given(random=models(state=0.5))
@settings(max_examples=40)
def test_runs_are_equal(random: RandomModel) -> None:
    content = write(random.model)
    with penstock.compile(content, devices=["reference"]) as compiled:
        count = len(compiled.inputs)
        plain, preserving = (
            tflite.Interpreter(
                model_content=content,
                experimental_op_resolver_type=REFERENCE,
                experimental_preserve_all_tensors=preserve,
            )
            for preserve in (False, True)
        )
        for interpreter in (plain, preserving):
            interpreter.allocate_tensors()
        for run in range(RUNS):
            inputs = [a + np.float32(run) for a in random.inputs[:count]]
            wanted = list(compiled.run(inputs))
            for interpreter in (plain, preserving):
                for got, out in zip(interpreted(interpreter, inputs), wanted, strict=True):
                    np.testing.assert_array_equal(got, out)
            shapes = [d["shape"].tolist() for d in plain.get_output_details()]
            assert shapes == [list(a.shape) for a in wanted]


@given(random=models(state=0.0))
@settings(max_examples=20)
def test_preserved_values_are_those_of_the_operations(random: RandomModel) -> None:
    interpreter = tflite.Interpreter(
        model_content=write(random.model),
        experimental_op_resolver_type=REFERENCE,
        experimental_preserve_all_tensors=True,
    )
    interpreter.allocate_tensors()
    interpreted(interpreter, list(random.inputs[: len(interpreter.get_input_details())]))
    for operator in interpreter._get_ops_details():
        if operator["op_name"] == "RELU":
            read, written = (interpreter.get_tensor(*operator[k]) for k in ("inputs", "outputs"))
            np.testing.assert_array_equal(written, np.maximum(read, 0))
        elif operator["op_name"] == "ADD" and len(operator["inputs"]) == 2:
            a, b = (interpreter.get_tensor(i) for i in operator["inputs"])
            (total,) = (interpreter.get_tensor(i) for i in operator["outputs"])
            np.testing.assert_array_equal(total, a + b)
