"""Rows of operations that run other subgraphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.errors import InvalidOperation, ShapeMismatch
from penstock.ir.operations.rules import fixed, product, unknown
from penstock.ir.operations.signature import row, subgraph
from penstock.ir.operations.spec import AttributeSpec, ShapeContext
from penstock.ir.types import Shape

MAX_ROUNDS: Final = 4


def meet(a: Shape, b: Shape) -> Shape:
    """The shape that both shapes match: dimensions that differ are unknown."""
    if a is None or b is None or len(a) != len(b):
        return None
    return tuple(x if x == y else None for x, y in zip(a, b, strict=True))


def argument_shapes(context: ShapeContext, first: int = 0) -> list[Shape]:
    return [context.shape(i) for i in range(first, context.input_count)]


def called(context: ShapeContext, attribute: str, first: int = 0) -> list[Shape]:
    """Output shapes of the subgraph that *attribute* names, for the inputs from *first* on."""
    index = context.attributes.integer(attribute)
    return list(context.subgraph_outputs(index, argument_shapes(context, first)))


def same_count(context: ShapeContext, shapes: Sequence[Shape], what: str) -> None:
    if len(shapes) != context.output_count:
        raise InvalidOperation(
            f"{what} has {len(shapes)} outputs, the operation {context.output_count}"
        )


def _if(context: ShapeContext) -> Sequence[Shape]:
    branches = [called(context, name, 1) for name in ("then_subgraph_index", "else_subgraph_index")]
    for branch in branches:
        same_count(context, branch, "a branch")
    return [meet(a, b) for a, b in zip(*branches, strict=True)]


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
        after = list(context.subgraph_outputs(body, shapes))
        same_count(context, after, "the body")
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


def _call(context: ShapeContext) -> Sequence[Shape]:
    shapes = called(context, "subgraph")
    same_count(context, shapes, "the subgraph")
    return shapes


ROWS: Final = (
    row(
        "IF",
        "condition: bool, arguments...: any -> results...: any",
        _if,
        (subgraph("then_subgraph_index"), subgraph("else_subgraph_index")),
        level=4,
        doc="One of two subgraphs applied to the arguments, by a boolean of one element.",
    ),
    row(
        "WHILE",
        "arguments...: any -> results...: any",
        loop_shapes,
        (subgraph("cond_subgraph_index"), subgraph("body_subgraph_index")),
        level=4,
        doc="The body subgraph applied to the arguments again and again, while the condition "
        "subgraph says true.",
    ),
    row(
        "CALL",
        "arguments...: any -> results...: any",
        _call,
        (AttributeSpec("subgraph", "subgraph", 0),),
        doc="A subgraph applied to the arguments.",
    ),
    row(
        "CALL_ONCE",
        " -> ",
        fixed(),
        (subgraph("init_subgraph_index"),),
        doc="A subgraph run before the first run only. Loaders lower it: what it assigns become "
        "initial values.",
    ),
    row(
        "DELEGATE",
        "arguments...: any -> results...: any",
        unknown,
        doc="A part of a graph that a delegate has taken over; only in memory, never in a file "
        "that runs.",
    ),
)
