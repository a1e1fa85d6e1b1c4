"""Random operators: their generators' positions become state."""

from __future__ import annotations

import numpy as np
import pytest

from penstock import loaders
from penstock.errors import NotExportable
from penstock.export.tflite import write
from penstock.ir import DType, Model
from penstock.ir.operation import Attributes
from tests.unit.loaders.files import FileBuilder


def two_draws() -> FileBuilder:
    """Two operators of the same seeds, which draw from generators of their own."""
    file = FileBuilder()
    shape = file.tensor("shape", [1], "INT32", np.array([3], np.int32))
    first, second = (file.tensor(n, [3]) for n in ("first", "second"))
    for output in (first, second):
        file.operator("RANDOM_UNIFORM", [shape], [output], {"seed": 1, "seed2": 2})
    file.end([], [first, second])
    return file


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
    model = load(two_draws())
    assert [(v.dtype, v.shape, v.value) for v in model.variables] == [(DType.INT64, (), None)] * 2
    for operation, port in zip(model.operations, model.entry.states, strict=True):
        assert operation.inputs[1:] == (port.input,)
        assert operation.outputs[1:] == (port.output,)


def test_a_loop_carries_the_position() -> None:
    model = load(in_a_loop())
    (loop,) = model.operations
    (port,) = model.entry.states
    assert loop.inputs[-1] == port.input
    assert loop.outputs[-1] == port.output
    body = model.subgraphs[loop.attributes.integer("body_subgraph_index")]
    assert body.operations[0].inputs[-1] == body.inputs[-1]


def test_the_writer_leaves_the_position_to_tflite() -> None:
    model = load(two_draws())
    assert loaders.load(write(model)) == model
    assert model.operations[0].attributes == Attributes(seed=1, seed2=2)


def test_a_position_that_tflite_cannot_keep_is_not_written() -> None:
    with pytest.raises(NotExportable, match="RANDOM_STANDARD_NORMAL keeps its state to itself"):
        write(load(in_a_loop()))
