"""Random operators: their generators' positions become state."""

from __future__ import annotations

import numpy as np
import pytest

from penstock import loaders
from penstock.errors import InvalidOperation, NotExportable
from penstock.export.tflite import write
from penstock.ir import DType, Model
from penstock.ir.operation import Attributes
from tests.unit.loaders.files import FileBuilder, random_draws


def in_a_loop() -> FileBuilder:
    """WHILE i < 4: i += 1, with a number drawn in the body."""
    file = FileBuilder()
    i, n = (file.tensor(name, [], "INT32") for name in "in")
    file.operator("WHILE", [i], [n], {"cond_subgraph_index": 1, "body_subgraph_index": 2})
    file.end([i], [n])
    file.begin("cond")
    i, less = file.tensor("i", [], "INT32"), file.tensor("less", [], "BOOL")
    limit = file.tensor("limit", [], "INT32", np.int32(4))
    file.operator("LESS", [i, limit], [less])
    file.end([i], [less])
    file.begin("body")
    i, j = (file.tensor(name, [], "INT32") for name in "ij")
    one = file.tensor("one", [], "INT32", np.int32(1))
    shape = file.tensor("shape", [1], "INT32", np.array([2], np.int32))
    drawn = file.tensor("drawn", [2])
    file.operator("RANDOM_STANDARD_NORMAL", [shape], [drawn], {"seed": 5, "seed2": 0})
    file.operator("ADD", [i, one], [j])
    file.end([i], [j])
    return file


def load(file: FileBuilder) -> Model:
    return loaders.load(file.encode())


def test_each_generator_has_a_position_of_its_own() -> None:
    model = load(random_draws())
    assert [(v.dtype, v.shape, v.value) for v in model.variables] == [(DType.INT64, (), None)] * 2
    for operation, port in zip(model.operations, model.entry.states, strict=True):
        assert operation.inputs[1:] == (port.input,)
        assert operation.outputs[1:] == (port.output,)


def test_a_loop_carries_the_position_from_its_beginning() -> None:
    model = load(in_a_loop())
    (loop,) = model.operations
    assert not model.variables
    assert model.constant(model.operands[loop.inputs[-1]]).item() == 0
    body = model.subgraphs[loop.attributes.integer("body_subgraph_index")]
    assert body.operations[0].inputs[-1] == body.inputs[-1]
    assert body.operations[0].outputs[-1] == body.outputs[-1]


def in_a_branch() -> FileBuilder:
    """IF c: y = x + a number of one sequence, else y = x + a number of another."""
    file = FileBuilder()
    c, x, y = file.tensor("c", [], "BOOL"), file.tensor("x", [2]), file.tensor("y", [2])
    file.operator("IF", [c, x], [y], {"then_subgraph_index": 1, "else_subgraph_index": 2})
    file.end([c, x], [y])
    for seed in (1, 2):
        file.begin()
        x, drawn, y = (file.tensor(n, [2]) for n in ("x", "drawn", "y"))
        shape = file.tensor("shape", [1], "INT32", np.array([2], np.int32))
        file.operator("RANDOM_UNIFORM", [shape], [drawn], {"seed": seed, "seed2": 0})
        file.operator("ADD", [x, drawn], [y])
        file.end([x], [y])
    return file


def test_a_branch_begins_its_sequence_anew() -> None:
    model = load(in_a_branch())
    assert not model.variables
    assert [len(s.operations[0].inputs) for s in model.subgraphs[1:]] == [1, 1]
    assert loaders.load(write(model)) == model


@pytest.mark.parametrize("seed", [0, 1])
def test_only_numbers_without_seeds_decide_on_another_round(seed: int) -> None:
    file = FileBuilder()
    x, y = file.tensor("x", [1]), file.tensor("y", [1])
    file.operator("WHILE", [x], [y], {"cond_subgraph_index": 1, "body_subgraph_index": 2})
    file.end([x], [y])
    file.begin("cond")
    x, drawn, less = file.tensor("x", [1]), file.tensor("drawn", [1]), file.tensor("l", [1], "BOOL")
    shape = file.tensor("shape", [1], "INT32", np.array([1], np.int32))
    file.operator("RANDOM_UNIFORM", [shape], [drawn], {"seed": seed, "seed2": 0})
    file.operator("LESS", [x, drawn], [less])
    file.end([x], [less])
    file.begin("body")
    x, y = file.tensor("x", [1]), file.tensor("y", [1])
    file.operator("NEG", [x], [y])
    file.end([x], [y])
    if seed:
        with pytest.raises(InvalidOperation, match="seeded sequence in the condition"):
            load(file)
    else:
        assert len(load(file).subgraphs[1].operations[0].inputs) == 1


def test_the_writer_leaves_the_position_to_tflite() -> None:
    model = load(random_draws())
    assert loaders.load(write(model)) == model
    assert model.operations[0].attributes == Attributes(seed=1, seed2=2)


def test_a_position_that_tflite_cannot_keep_is_not_written() -> None:
    with pytest.raises(NotExportable, match="RANDOM_STANDARD_NORMAL keeps its state to itself"):
        write(load(in_a_loop()))


@pytest.mark.parametrize("broken", ["inputs", "outputs"])
def test_operands_that_the_operator_does_not_have_are_named(broken: str) -> None:
    file = random_draws()
    file.graph["operators"][0][broken] = [1, 2]
    with pytest.raises(InvalidOperation, match="RANDOM_UNIFORM"):
        load(file)
