"""Models that the tests of the IR take apart."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec.structs import replace

from penstock.ir import (
    Attributes,
    DType,
    Lifetime,
    Model,
    ModelBuilder,
    Operand,
    Operation,
    Quantization,
    Subgraph,
)

F32 = DType.FLOAT32


def small() -> Model:
    """x + k, RELU of it; k lies in a pool."""
    b = ModelBuilder()
    x = b.input(F32, (2, 40), "x")
    k = b.constant(np.arange(80, dtype=np.float32).reshape(2, 40), "k")
    (s,) = b.operation("ADD", [x, k], [(F32, (2, 40))])
    (y,) = b.operation("RELU", [s], [(F32, (2, 40))])
    return b.build([y])


def quantized() -> Model:
    b = ModelBuilder()
    q = Quantization((0.5,), (3,))
    x = b.input(DType.INT8, (4,), "x", q)
    (y,) = b.operation("RELU", [x], [(DType.INT8, (4,), q)])
    return b.build([y])


def counter() -> Model:
    """One variable with an initial value: before + x is after, and the output."""
    b = ModelBuilder()
    x = b.input(F32, (2,), "x")
    before = b.operand(Operand(F32, (2,), Lifetime.SUBGRAPH_INPUT, "before"))
    (after,) = b.operation("ADD", [before, x], [(F32, (2,))])
    (shown,) = b.operation("RELU", [after], [(F32, (2,))])
    b.state(b.variable("count", F32, (2,), initial=np.ones(2, np.float32)), before, after)
    return b.build([shown])


def branching() -> Model:
    """IF over two subgraphs: x + x, or RELU of x."""
    b = ModelBuilder()
    chosen = b.input(DType.BOOL, (), "chosen")
    x = b.input(F32, (3,), "x")
    targets = []
    for kind, count in (("ADD", 2), ("RELU", 1)):
        inner = b.subgraph(kind.lower())
        i = inner.input(F32, (3,), "i")
        out = inner.operation(kind, [i] * count, [(F32, (3,))])
        targets.append(b.add_subgraph(inner.finish(out)))
    attributes = {"then_subgraph_index": targets[0], "else_subgraph_index": targets[1]}
    return b.build(b.operation("IF", [chosen, x], [(F32, (3,))], attributes))


def with_entry(model: Model, **changes: Any) -> Model:
    subgraphs = list(model.subgraphs)
    subgraphs[model.main] = replace(model.entry, **changes)
    return replace(model, subgraphs=tuple(subgraphs))


def with_operand(model: Model, index: int, **changes: Any) -> Model:
    operands = list(model.operands)
    operands[index] = replace(operands[index], **changes)
    return with_entry(model, operands=tuple(operands))


def with_operation(model: Model, index: int, **changes: Any) -> Model:
    operations: list[Operation] = list(model.operations)
    operations[index] = replace(operations[index], **changes)
    return with_entry(model, operations=tuple(operations))


def subgraph_of(model: Model, index: int) -> Subgraph:
    return model.subgraphs[index]


def branching_twice(depth: int) -> Model:
    """Subgraphs of which each enters the next for either branch: as a tree they have no end."""
    condition = Operand(DType.BOOL, (), Lifetime.SUBGRAPH_INPUT)
    x = Operand(F32, (1,), Lifetime.SUBGRAPH_INPUT)
    results = (
        Operand(DType.BOOL, (), Lifetime.SUBGRAPH_OUTPUT),
        Operand(F32, (1,), Lifetime.SUBGRAPH_OUTPUT),
    )
    graphs = [
        Subgraph(
            (condition, x, *results),
            (
                Operation(
                    "IF",
                    (0, 0, 1),
                    (2, 3),
                    Attributes(then_subgraph_index=at + 1, else_subgraph_index=at + 1),
                ),
            ),
            (0, 1),
            (2, 3),
        )
        for at in range(depth)
    ]
    return Model((*graphs, Subgraph((condition, x), (), (0, 1), (0, 1))))
