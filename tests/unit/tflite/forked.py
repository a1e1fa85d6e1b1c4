"""Run as a program, with the name of an engine's device and the names of the others: what was made
with the engine before a fork, in the child, which says what it found and ends as programs end.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from typing import Final

import numpy as np

import penstock
from penstock import tflite
from penstock.errors import PlacementError, StateError
from penstock.export.tflite import write
from penstock.ir import DType, Model, ModelBuilder, NDArray
from penstock.partitioning.policy import Policy

SIZE: Final = 96
SECONDS: Final = 60


def products() -> Model:
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, (SIZE, SIZE), "x")
    y = x
    for _ in range(3):
        (y,) = builder.operation("BATCH_MATMUL", [y, x], [(DType.FLOAT32, (SIZE, SIZE))])
    return builder.build([y])


def say(name: str, found: object, *more: object) -> None:
    os.write(1, f"{name} {' '.join(map(str, (found, *more)))}\n".encode())


def invoke(interpreter: tflite.Interpreter, given: NDArray) -> bool:
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], given)
    interpreter.invoke()
    return bool(
        np.array_equal(interpreter.get_tensor(interpreter.get_output_details()[0]["index"]), given)
    )


def main(engine: str) -> None:
    others = sorted({d.name for d in penstock.devices() if d.usable} - {engine, "reference"})
    model, given = products(), np.eye(SIZE, dtype=np.float32)
    # Whatever this machine would choose by itself.
    policy = Policy(forbid={"*": [*others, "reference"]})
    in_child = Policy(forbid={"*": others})
    compiled = penstock.compile(model, cache=False, num_threads=3, policy=policy)
    compiled(given)
    interpreter = tflite.Interpreter(model_content=write(model), num_threads=3, policy=in_child)
    interpreter.allocate_tensors()
    program = interpreter._core._main._program
    assert program is not None
    assert isinstance(program.compiled, penstock.CompiledModel)
    used = {o.device for plan in (compiled.plan, program.compiled.plan) for o in plan.operations}
    say("engine", used == {engine}, invoke(interpreter, given))
    child = os.fork()
    if child == 0:
        signal.alarm(SECONDS)
        try:
            compiled(given)
        except StateError:
            say("refused", True)
        say("interpreter", invoke(interpreter, given))
        del compiled, interpreter
        gc.collect()
        try:
            penstock.compile(model, devices=[engine], cache=False, num_threads=3)(given)
            say("named", True)
        except PlacementError as error:
            say("named", "forked" in str(error))
        again = penstock.compile(model, cache=False, num_threads=3)
        say("anew", bool(np.array_equal(again(given)[0], given)))
        again.close()
        sys.exit(0)
    say("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    say("parent", invoke(interpreter, given))


if __name__ == "__main__":
    main(sys.argv[1])
