"""Shapes of operations that run other subgraphs, and what that may cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from penstock import loaders
from penstock.errors import InvalidOperation, LimitExceeded, ModelError
from penstock.export.tflite import write
from penstock.ir import DType, Model, ModelBuilder, Shape, SubgraphBuilder, infer_shapes
from penstock.ir.validate import MAX_DEPTH
from tests.unit.ir.operations.single import FLOAT, INT, ints

BOOL = DType.BOOL
Body = Callable[[SubgraphBuilder, list[int]], list[int]]


def subgraph(builder: ModelBuilder, shapes: Sequence[Shape], body: Body) -> int:
    """Adds a subgraph of float inputs of *shapes*; returns its index."""
    inner = builder.subgraph()
    inputs = [inner.input(FLOAT, s) for s in shapes]
    return builder.add_subgraph(inner.finish(body(inner, inputs)))


def through(builder: SubgraphBuilder, kind: str, *inputs: int, **attributes: Any) -> int:
    return builder.operation(kind, list(inputs), [(FLOAT, None)], attributes)[0]


def same(builder: SubgraphBuilder, inputs: list[int]) -> list[int]:
    return [through(builder, "RELU", i) for i in inputs]


def grow(builder: SubgraphBuilder, inputs: list[int]) -> list[int]:
    """Appends the first input to itself, along its first dimension."""
    return [
        through(builder, "CONCATENATION", inputs[0], inputs[0], axis=0),
        *same(builder, inputs[1:]),
    ]


def always(builder: SubgraphBuilder, inputs: list[int]) -> list[int]:
    return [builder.constant(np.array([True]))]


def looped(
    shapes: Sequence[Shape], body: Body, kind: str = "WHILE", condition: Body = always
) -> Model:
    builder = ModelBuilder()
    inputs = [builder.input(FLOAT, s) for s in shapes]
    attributes = {
        "cond_subgraph_index": subgraph(builder, shapes, condition),
        "body_subgraph_index": subgraph(builder, shapes, body),
    }
    outputs = builder.operation(kind, inputs, [(FLOAT, None)] * len(shapes), attributes)
    return builder.build(outputs)


def branched(a: Body, b: Body, shapes: Sequence[Shape] = ((2, 3),)) -> Model:
    builder = ModelBuilder()
    condition = builder.input(BOOL, (1,))
    inputs = [builder.input(FLOAT, s) for s in shapes]
    attributes = {
        "then_subgraph_index": subgraph(builder, shapes, a),
        "else_subgraph_index": subgraph(builder, shapes, b),
    }
    outputs = builder.operation("IF", [condition, *inputs], [(FLOAT, None)], attributes)
    return builder.build(outputs)


def shapes_of(model: Model) -> list[Shape]:
    return [o.shape for o in infer_shapes(model).outputs]


@pytest.mark.parametrize("kind", ["WHILE", "STABLEHLO_WHILE"])
def test_a_loop_keeps_the_shapes_that_its_body_keeps(kind: str) -> None:
    assert shapes_of(looped([(2, 3), (4,)], same, kind)) == [(2, 3), (4,)]
    assert shapes_of(looped([(2, 3), (4,)], grow, kind)) == [(None, 3), (4,)]


def test_a_loop_that_never_settles_is_unknown() -> None:
    def rotate(builder: SubgraphBuilder, inputs: list[int]) -> list[int]:
        return [
            builder.operation(
                "TRANSPOSE", [inputs[0], builder.constant(ints(1, 2, 3, 4, 5, 0))], [(FLOAT, None)]
            )[0]
        ]

    assert shapes_of(looped([(1, 2, 3, 4, 5, 6)], rotate)) in ([(None,) * 6], [None])


def test_a_condition_gives_one_boolean() -> None:
    def two(builder: SubgraphBuilder, inputs: list[int]) -> list[int]:
        return always(builder, inputs) + always(builder, inputs)

    def many(builder: SubgraphBuilder, inputs: list[int]) -> list[int]:
        return [builder.constant(np.array([True, False]))]

    for condition in (two, many):
        with pytest.raises(ModelError):
            infer_shapes(looped([(2,)], same, condition=condition))


def test_a_branch_leaves_what_both_agree_on() -> None:
    assert shapes_of(branched(same, same)) == [(2, 3)]
    assert shapes_of(branched(same, grow)) == [(None, 3)]

    def flat(builder: SubgraphBuilder, inputs: list[int]) -> list[int]:
        return [through(builder, "RESHAPE", inputs[0], builder.constant(ints(-1)))]

    assert shapes_of(branched(same, flat)) == [None]


def test_branches_of_other_counts_are_refused() -> None:
    def two(builder: SubgraphBuilder, inputs: list[int]) -> list[int]:
        return same(builder, inputs) + same(builder, inputs)

    with pytest.raises(InvalidOperation):
        infer_shapes(branched(same, two))


def test_calls_with_another_number_of_inputs_are_refused() -> None:
    builder = ModelBuilder()
    inputs = [builder.input(FLOAT, (2,)), builder.input(FLOAT, (2,))]
    target = subgraph(builder, [(2,)], same)
    outputs = builder.operation("CALL", inputs, [(FLOAT, None)], {"subgraph": target})
    with pytest.raises(InvalidOperation, match="subgraph 1"):
        infer_shapes(builder.build(outputs))


def test_composites_and_cases_use_their_subgraphs() -> None:
    builder = ModelBuilder()
    source = builder.input(FLOAT, (2, 3))
    index = builder.input(INT, ())
    doubling, keeping = subgraph(builder, [(2, 3)], grow), subgraph(builder, [(2, 3)], same)
    (a,) = builder.operation(
        "STABLEHLO_COMPOSITE",
        [source],
        [(FLOAT, None)],
        {"name": "x", "decomposition_subgraph_index": doubling},
    )
    (b,) = builder.operation(
        "STABLEHLO_CASE",
        [index, source],
        [(FLOAT, None)],
        {"branch_subgraph_indices": (doubling, keeping)},
    )
    (c,) = builder.operation("CALL", [source], [(FLOAT, None)], {"subgraph": keeping})
    assert shapes_of(builder.build([a, b, c])) == [(4, 3), (None, 3), (2, 3)]


def test_references_in_a_list_are_checked_like_single_ones() -> None:
    builder = ModelBuilder()
    source, index = builder.input(FLOAT, (2,)), builder.input(INT, ())
    outputs = builder.operation(
        "STABLEHLO_CASE", [index, source], [(FLOAT, None)], {"branch_subgraph_indices": (7,)}
    )
    with pytest.raises(ModelError, match="refers to subgraph 7 of 1"):
        builder.build(outputs)


def test_references_in_a_list_survive_the_writer() -> None:
    builder = ModelBuilder()
    source, index = builder.input(FLOAT, (2,)), builder.input(INT, ())

    def branch(kind: str) -> int:
        inner = builder.subgraph()
        outputs = inner.operation(kind, [inner.input(FLOAT, (2,))], [(FLOAT, (2,))])
        return builder.add_subgraph(inner.finish(outputs))

    relu, tanh = branch("RELU"), branch("TANH")
    outputs = builder.operation(
        "STABLEHLO_CASE",
        [index, source],
        [(FLOAT, (2,))],
        {"branch_subgraph_indices": (tanh, relu)},
    )
    model = builder.build(outputs)
    again = loaders.load(write(model))
    branches = again.operations[0].attributes.integers("branch_subgraph_indices")
    assert [again.subgraphs[b].operations[0].type for b in branches] == ["TANH", "RELU"]
    assert again.digest == model.digest


def nested(depth: int) -> Model:
    """Every subgraph branches into the next one twice, the last does not."""
    builder = ModelBuilder()
    target = subgraph(builder, [(2,)], same)
    for _ in range(depth):
        inner = builder.subgraph()
        condition, value = inner.constant(np.array([True])), inner.input(FLOAT, (2,))
        attributes = {"then_subgraph_index": target, "else_subgraph_index": target}
        outputs = inner.operation("IF", [condition, value], [(FLOAT, None)], attributes)
        target = builder.add_subgraph(inner.finish(outputs))
    source = builder.input(FLOAT, (2,))
    return builder.build(builder.operation("CALL", [source], [(FLOAT, None)], {"subgraph": target}))


def test_the_cost_of_nested_branches_does_not_double_with_each_level() -> None:
    model = nested(MAX_DEPTH - 1)
    start = time.process_time()
    assert shapes_of(model) == [(2,)]
    assert time.process_time() - start < 0.5


def test_nesting_has_a_limit() -> None:
    with pytest.raises(LimitExceeded):
        infer_shapes(nested(MAX_DEPTH + 1))


@pytest.mark.parametrize("kind", ["CALL", "STABLEHLO_COMPOSITE"])
def test_calls_with_another_type_of_input_are_refused(kind: str) -> None:
    builder = ModelBuilder()
    source = builder.input(DType.COMPLEX64, (2,))
    name = "subgraph" if kind == "CALL" else "decomposition_subgraph_index"
    target = subgraph(builder, [(2,)], same)
    outputs = builder.operation(kind, [source], [(FLOAT, None)], {name: target})
    with pytest.raises(InvalidOperation, match="takes float32, not complex64"):
        builder.build(outputs)
