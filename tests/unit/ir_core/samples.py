"""Models that the tests of the IR take apart."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec.structs import replace

from penstock import ir

F32 = ir.DType.FLOAT32


def small() -> ir.Model:
    """x + k, RELU of it; k lies in a pool."""
    b = ir.ModelBuilder()
    x = b.input(F32, (2, 40), "x")
    k = b.constant(np.arange(80, dtype=np.float32).reshape(2, 40), "k")
    (s,) = b.operation("ADD", [x, k], [(F32, (2, 40))])
    (y,) = b.operation("RELU", [s], [(F32, (2, 40))])
    return b.build([y])


def quantized() -> ir.Model:
    b = ir.ModelBuilder()
    q = ir.Quantization((0.5,), (3,))
    x = b.input(ir.DType.INT8, (4,), "x", q)
    (y,) = b.operation("RELU", [x], [(ir.DType.INT8, (4,), q)])
    return b.build([y])


def counter() -> ir.Model:
    """One variable with an initial value: before + x is after, and the output."""
    b = ir.ModelBuilder()
    x = b.input(F32, (2,), "x")
    before = b.operand(ir.Operand(F32, (2,), ir.Lifetime.SUBGRAPH_INPUT, "before"))
    (after,) = b.operation("ADD", [before, x], [(F32, (2,))])
    (shown,) = b.operation("RELU", [after], [(F32, (2,))])
    b.state(b.variable("count", F32, (2,), initial=np.ones(2, np.float32)), before, after)
    return b.build([shown])


def branching() -> ir.Model:
    """IF over two subgraphs: x + x, or RELU of x."""
    b = ir.ModelBuilder()
    chosen = b.input(ir.DType.BOOL, (), "chosen")
    x = b.input(F32, (3,), "x")
    targets = []
    for kind, count in (("ADD", 2), ("RELU", 1)):
        inner = b.subgraph(kind.lower())
        i = inner.input(F32, (3,), "i")
        out = inner.operation(kind, [i] * count, [(F32, (3,))])
        targets.append(b.add_subgraph(inner.finish(out)))
    attributes = {"then_subgraph_index": targets[0], "else_subgraph_index": targets[1]}
    return b.build(b.operation("IF", [chosen, x], [(F32, (3,))], attributes))


def with_entry(model: ir.Model, **changes: Any) -> ir.Model:
    subgraphs = list(model.subgraphs)
    subgraphs[model.main] = replace(model.entry, **changes)
    return replace(model, subgraphs=tuple(subgraphs))


def with_operand(model: ir.Model, index: int, **changes: Any) -> ir.Model:
    operands = list(model.operands)
    operands[index] = replace(operands[index], **changes)
    return with_entry(model, operands=tuple(operands))


def with_operation(model: ir.Model, index: int, **changes: Any) -> ir.Model:
    operations: list[ir.Operation] = list(model.operations)
    operations[index] = replace(operations[index], **changes)
    return with_entry(model, operations=tuple(operations))


def subgraph_of(model: ir.Model, index: int) -> ir.Subgraph:
    return model.subgraphs[index]


def branching_twice(depth: int) -> ir.Model:
    """Subgraphs of which each enters the next for either branch: as a tree they have no end."""
    condition = ir.Operand(ir.DType.BOOL, (), ir.Lifetime.SUBGRAPH_INPUT)
    x = ir.Operand(F32, (1,), ir.Lifetime.SUBGRAPH_INPUT)
    results = (
        ir.Operand(ir.DType.BOOL, (), ir.Lifetime.SUBGRAPH_OUTPUT),
        ir.Operand(F32, (1,), ir.Lifetime.SUBGRAPH_OUTPUT),
    )
    graphs = [
        ir.Subgraph(
            (condition, x, *results),
            (
                ir.Operation(
                    "IF",
                    (0, 0, 1),
                    (2, 3),
                    ir.Attributes(then_subgraph_index=at + 1, else_subgraph_index=at + 1),
                ),
            ),
            (0, 1),
            (2, 3),
        )
        for at in range(depth)
    ]
    return ir.Model((*graphs, ir.Subgraph((condition, x), (), (0, 1), (0, 1))))
