"""Rows of operations that run other subgraphs."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Final

from penstock.errors import InvalidOperation, ShapeMismatch
from penstock.ir.operations.rules import fixed, product, unknown
from penstock.ir.operations.signature import row
from penstock.ir.operations.spec import ShapeContext, ShapeRule
from penstock.ir.types import Shape

MAX_ROUNDS: Final = 4


def meet(a: Shape, b: Shape) -> Shape:
    """The shape that both shapes match: dimensions that differ are unknown."""
    if a is None or b is None or len(a) != len(b):
        return None
    return tuple(x if x == y else None for x, y in zip(a, b, strict=True))


def argument_shapes(context: ShapeContext, first: int = 0) -> list[Shape]:
    return [context.shape(i) for i in range(first, context.input_count)]


def called(context: ShapeContext, subgraph: int, inputs: Sequence[Shape], what: str) -> list[Shape]:
    """Output shapes of a subgraph that has as many outputs as the operation."""
    shapes = list(context.subgraph_outputs(subgraph, inputs))
    same_count(context, shapes, what)
    return shapes


def same_count(context: ShapeContext, shapes: Sequence[Shape], what: str) -> None:
    if len(shapes) != context.output_count:
        raise InvalidOperation(
            f"{what} has {len(shapes)} outputs, the operation {context.output_count}"
        )


def calling(attribute: str) -> ShapeRule:
    """The outputs of the subgraph that *attribute* names, for all inputs."""

    def rule(context: ShapeContext) -> Sequence[Shape]:
        index = context.attributes.integer(attribute)
        return called(context, index, argument_shapes(context), "the subgraph")

    return rule


def branch_shapes(context: ShapeContext, branches: Sequence[int]) -> list[Shape]:
    """The outputs that all *branches* have for the inputs after the first."""
    arguments = argument_shapes(context, 1)
    results = [called(context, branch, arguments, "a branch") for branch in branches]
    return [functools.reduce(meet, shapes) for shapes in zip(*results, strict=True)]


def _if(context: ShapeContext) -> Sequence[Shape]:
    names = ("then_subgraph_index", "else_subgraph_index")
    return branch_shapes(context, [context.attributes.integer(name) for name in names])


def loop_shapes(context: ShapeContext) -> Sequence[Shape]:
    """Shapes of loop-carried values. Dimensions that the body preserves are known, the others
    unknown.

    Each round can only make more dimensions unknown. Shapes that change for more than a few rounds
    become completely unknown. The condition maps the same values to one boolean.
    """
    shapes = argument_shapes(context)
    same_count(context, shapes, "the list of inputs")
    body = context.attributes.integer("body_subgraph_index")
    for _ in range(MAX_ROUNDS):
        after = called(context, body, shapes, "the body")
        met = [meet(a, b) for a, b in zip(shapes, after, strict=True)]
        if met == shapes:
            break
        shapes = met
    else:
        shapes = [None] * len(shapes)
    condition = context.subgraph_outputs(context.attributes.integer("cond_subgraph_index"), shapes)
    if len(condition) != 1 or (condition[0] is not None and product(condition[0]) not in {None, 1}):
        raise ShapeMismatch(f"the condition gives {condition}, not one boolean")
    return shapes


ROWS: Final = (
    row("""IF(condition: bool, arguments...: any; then_subgraph_index: subgraph,
        else_subgraph_index: subgraph) -> results...: any; NNAPI 4
        # One of two subgraphs applied to the arguments, by a boolean of one element.""")(_if),
    row("""WHILE(arguments...: any; cond_subgraph_index: subgraph, body_subgraph_index: subgraph)
        -> results...: any; NNAPI 4
        # The body subgraph applied to the arguments again and again, while the condition subgraph
        says true.""")(loop_shapes),
    row("""CALL(arguments...: any; subgraph: subgraph) -> results...: any
        # A subgraph applied to the arguments.""")(calling("subgraph")),
    row("""CALL_ONCE(; init_subgraph_index: subgraph) ->
        # A subgraph run before the first run only. Loaders lower it: what it assigns become initial
        values.""")(fixed()),
    row("""DELEGATE(arguments...: any) -> results...: any
        # A part of a graph that a delegate has taken over; only in memory, never in a file that
        runs.""")(unknown),
)
