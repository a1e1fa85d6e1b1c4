"""How often an operation is expected to run each subgraph that it enters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.errors import PenstockError
from penstock.ir import Model, Operation, Subgraph
from penstock.ir.types import Shape, static_shape
from penstock.partitioning import work

MOST_ROUNDS: Final = 1_000_000
"""More rounds than this count as so many."""


def expected_runs(model: Model, subgraph: int, operation: Operation) -> float:
    """The expected runs of each subgraph in one run of *operation* of that *subgraph*.

    For a loop that counts to a limit known before the run, its rounds; otherwise `work.share_of`.
    """
    if operation.type == "WHILE" and (found := rounds_of(model, subgraph, operation)) is not None:
        return float(found)
    return work.share_of(operation)


def rounds_of(model: Model, subgraph: int, operation: Operation) -> int | None:
    """The rounds of a WHILE whose condition is `counter < limit`, perhaps with other conditions
    that are true, and whose body adds a constant to the counter. None if it is another loop.
    """
    condition = model.subgraphs[operation.attributes.integer("cond_subgraph_index")]
    body = model.subgraphs[operation.attributes.integer("body_subgraph_index")]
    outer = model.subgraphs[subgraph]
    if len(condition.outputs) != 1:
        return None
    pending, found = [condition.outputs[0]], list[int]()
    while pending:
        test = _writer(condition, pending.pop())
        if test is None:
            continue
        if test.type == "LOGICAL_AND":
            pending += test.inputs
        elif test.type in {"LESS", "LESS_EQUAL"}:
            rounds = _counted(model, outer, condition, body, operation, test)
            if rounds is not None:
                found.append(rounds)
    return min(found, default=None)


def _counted(
    model: Model,
    outer: Subgraph,
    condition: Subgraph,
    body: Subgraph,
    operation: Operation,
    test: Operation,
) -> int | None:
    """The rounds after which *test* of the *condition* fails."""
    counter, limit = test.inputs
    if counter not in condition.inputs:
        return None
    at = condition.inputs.index(counter)
    first = _whole(model, outer, operation.inputs[at])
    last = _carried(model, outer, condition, body, operation, limit)
    step = _step(model, body, at)
    if first is None or last is None or step is None or step <= 0:
        return None
    last += test.type == "LESS_EQUAL"
    return min(MOST_ROUNDS, max(0, -(-(last - first) // step)))


def _carried(
    model: Model,
    outer: Subgraph,
    condition: Subgraph,
    body: Subgraph,
    operation: Operation,
    operand: int,
) -> int | None:
    """The whole number that *operand* of the *condition* has in every round."""

    def shape_of(held: int) -> Shape:
        """A shape, which the *outer* subgraph may know of what the loop carries unchanged."""
        shape = condition.operands[held].shape
        if held not in condition.inputs or static_shape(shape) is not None:
            return shape
        at = condition.inputs.index(held)
        same = body.outputs[at] == body.inputs[at]
        return outer.operands[operation.inputs[at]].shape if same else shape

    if operand not in condition.inputs:
        return _whole(model, condition, operand, shape_of)
    at = condition.inputs.index(operand)
    same = body.outputs[at] == body.inputs[at]
    return _whole(model, outer, operation.inputs[at]) if same else None


def _step(model: Model, body: Subgraph, at: int) -> int | None:
    """What the *body* adds to the value that it carries at position *at*."""
    adding = _writer(body, body.outputs[at])
    if adding is None or adding.type != "ADD" or body.inputs[at] not in adding.inputs:
        return None
    one, other = adding.inputs
    return _whole(model, body, other if one == body.inputs[at] else one)


def _whole(
    model: Model,
    subgraph: Subgraph,
    operand: int,
    shape_of: Callable[[int], Shape] | None = None,
) -> int | None:
    """The single whole number of *operand*: a constant, or a dimension that SHAPE gives of an
    operand whose shape *shape_of* knows (None: as *subgraph* declares it).
    """
    held = subgraph.operands[operand]
    if held.is_constant:
        if held.dtype.is_float or work.elements_of(held.shape) != 1:
            return None
        try:
            return int(model.constant(held).reshape(-1)[0])
        except (PenstockError, ValueError):
            return None
    picking = _writer(subgraph, operand)
    if picking is None:
        return None
    if picking.type in {"RESHAPE", "SQUEEZE", "CAST", "EXPAND_DIMS"}:
        return _whole(model, subgraph, picking.inputs[0], shape_of)
    if picking.type != "GATHER":
        return None
    asked = _writer(subgraph, picking.inputs[0])
    index = _whole(model, subgraph, picking.inputs[1])
    if asked is None or asked.type != "SHAPE" or index is None:
        return None
    given = asked.inputs[0]
    shape = static_shape(shape_of(given) if shape_of else subgraph.operands[given].shape)
    return shape[index] if shape is not None and -len(shape) <= index < len(shape) else None


def _writer(subgraph: Subgraph, operand: int) -> Operation | None:
    return next((o for o in subgraph.operations if operand in o.outputs), None)
