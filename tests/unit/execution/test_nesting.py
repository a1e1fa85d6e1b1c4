"""Control flow nested as deeply as models may have it, and shared by many: through every door, in
process and isolated.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

import penstock
from penstock.errors import LimitExceeded
from penstock.export.tflite import write
from penstock.ir import DType, Model, ModelBuilder
from penstock.ir.validate import MAX_DEPTH
from penstock.partitioning import place
from penstock.partitioning.split import MOST_CARRIED, Cutter
from penstock.testing.devices import find_devices
from penstock.tflite import Interpreter
from tests.support_devices import NumpyDevice
from tests.support_nesting import KINDS, RESULT, SHAPE, Kind, X, answer, nested
from tests.unit.delegates.recorder import Recorder

CASES: list[tuple[Kind, int, bool]] = [
    ("IF", 60, False),
    ("IF", 14, True),
    ("IF", MAX_DEPTH, True),
    ("WHILE", MAX_DEPTH, False),
    ("CALL", MAX_DEPTH, False),
]


def check(compiled: penstock.CompiledModel, kind: Kind, *, shared: bool) -> None:
    for flag in (True, False):
        expected = answer(kind, flag, shared=shared)
        np.testing.assert_array_equal(compiled.run([np.array(flag), X])[0], expected)


@pytest.mark.parametrize(("kind", "depth", "shared"), CASES)
@pytest.mark.parametrize("isolate", [False, True])
def test_reference_runs_nested_control_flow(
    kind: Kind, depth: int, shared: bool, isolate: bool
) -> None:
    model = penstock.load(write(nested(kind, depth, shared=shared)))
    with penstock.compile(model, devices=["reference"], cache=False, isolate=isolate) as compiled:
        check(compiled, kind, shared=shared)


@pytest.mark.parametrize(("kind", "depth", "shared"), CASES)
def test_the_devices_of_this_machine_run_it_together(kind: Kind, depth: int, shared: bool) -> None:
    with penstock.compile(nested(kind, depth, shared=shared), cache=False) as compiled:
        check(compiled, kind, shared=shared)


@pytest.mark.parametrize("kind", KINDS)
def test_loops_within_loops_have_a_declared_cost(kind: Kind) -> None:
    devices = [NumpyDevice("a", frozenset({"ADD"})), *find_devices("reference")]
    plan = place(nested(kind, MAX_DEPTH), devices)
    assert plan.predicted_ns is not None


@pytest.mark.parametrize(("depth", "shared"), [(60, False), (14, True)])
@pytest.mark.parametrize("delegated", [False, True])
def test_interpreter_runs_nested_control_flow(depth: int, shared: bool, delegated: bool) -> None:
    delegates = [Recorder("ADD")] if delegated else []
    interpreter = Interpreter(
        model_content=write(nested("IF", depth, shared=shared)), experimental_delegates=delegates
    )
    interpreter.allocate_tensors()
    for detail, value in zip(interpreter.get_input_details(), (np.array(True), X), strict=True):
        interpreter.set_tensor(detail["index"], value)
    interpreter.invoke()
    (output,) = interpreter.get_output_details()
    np.testing.assert_array_equal(interpreter.get_tensor(output["index"]), X + X)


def fan(width: int, depth: int, between: Sequence[str] = ()) -> Model:
    """*width* IFs in a row, each of which enters the same chain of *depth* subgraphs; after each
    the operations *between*.
    """
    b = ModelBuilder()
    leaf = b.subgraph("leaf")
    leaf.input(DType.BOOL, (), "flag")
    inner = b.add_subgraph(
        leaf.finish(leaf.operation("NEG", [leaf.input(DType.FLOAT32, SHAPE, "x")], RESULT))
    )
    for level in range(depth - 1):
        graph = b.subgraph(f"level {level}")
        flag, x = graph.input(DType.BOOL, (), "flag"), graph.input(DType.FLOAT32, SHAPE, "x")
        branches = dict.fromkeys(("then_subgraph_index", "else_subgraph_index"), inner)
        inner = b.add_subgraph(
            graph.finish(graph.operation("IF", [flag, flag, x], RESULT, branches))
        )
    branches = dict.fromkeys(("then_subgraph_index", "else_subgraph_index"), inner)
    flag, x = b.input(DType.BOOL, (), "flag"), b.input(DType.FLOAT32, SHAPE, "x")
    for _ in range(width):
        (x,) = b.operation("IF", [flag, flag, x], RESULT, branches)
        for kind in between:
            (x,) = b.operation(kind, [x], RESULT)
    return b.build([x])


def test_a_subgraph_that_many_operations_enter_is_planned_once() -> None:
    """40 IFs enter one chain of 40 subgraphs."""
    asked: list[Model] = []

    class Counting(NumpyDevice):
        def supported_operations(self, model: Model) -> list[penstock.hal.Support]:
            asked.append(model)
            return super().supported_operations(model)

    devices = [Counting("a", frozenset({"NEG"})), *find_devices("reference")]
    place(fan(40, 40, ["RELU"]), devices)
    # The model, its branches within branches as deep as they are taken apart, and no more.
    assert len(asked) <= 8


def test_cuts_do_not_copy_shared_subgraphs_without_end() -> None:
    model = fan(2_000, 100)
    with pytest.raises(LimitExceeded, match=f"more than {MOST_CARRIED} operands and operations"):
        cut_apart(model)


def cut_apart(model: Model) -> None:
    """Cuts each operation out of *model*."""
    cutter = Cutter(model)
    for index in range(len(model.operations)):
        cutter.cut([index])


def test_many_branches_in_a_row_give_what_they_should() -> None:
    with penstock.compile(fan(5, 20), cache=False) as compiled:
        np.testing.assert_array_equal(compiled.run([np.array(True), X])[0], -X)
