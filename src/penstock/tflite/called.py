"""Values inside the subgraphs that IF and WHILE of the main subgraph enter, for an interpreter that
preserves all.

No run of the whole model keeps them. They are computed when they are asked for: the subgraph is run
by itself on what the operator gave it, a loop step by step; as in LiteRT, the body's inputs end as
what it gave last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from penstock.ir import DType, Operation
from penstock.tflite.graph import Graph

Find = Callable[[int], Graph]


def enter(main: Graph, subgraph: int, find: Find) -> bool:
    """Runs *subgraph* as the main subgraph's last run entered it; False where it was not entered.

    *find* gives the graph of a subgraph. False too where an operator hands over more than tensors.
    """
    for operation in main.operations:
        if operation.type == "IF":
            branches = ("then_subgraph_index", "else_subgraph_index")
            then, otherwise = (operation.attributes.integer(name) for name in branches)
            if subgraph in (then, otherwise):
                return _branch(main, operation, subgraph == then, find(subgraph))
        elif operation.type == "WHILE":
            parts = ("cond_subgraph_index", "body_subgraph_index")
            condition, body = (operation.attributes.integer(name) for name in parts)
            if subgraph in (condition, body):
                return _loop(main, operation, find(condition), find(body))
    return False


def _branch(main: Graph, operation: Operation, then: bool, graph: Graph) -> bool:
    given = _given(main, operation)
    if given is None or bool(np.all(given[0])) is not then:
        return False
    run(graph, given[1:])
    return True


def _loop(main: Graph, operation: Operation, condition: Graph, body: Graph) -> bool:
    given = _given(main, operation)
    if given is None:
        return False
    while np.all(run(condition, given)[0]):
        given = run(body, given)
    _feed(body, given)
    return True


def run(graph: Graph, given: Sequence[Any]) -> list[Any]:
    """The outputs of one subgraph on *given* inputs, whose shapes it takes."""
    _feed(graph, given)
    graph.invoke()
    return [graph.get(tensor) for tensor in graph.catalog.outputs]


def _feed(graph: Graph, given: Sequence[Any]) -> None:
    for tensor, value in zip(graph.catalog.inputs, given, strict=True):
        graph.resize(tensor, np.array(np.shape(value), np.int32), strict=False)
    graph.allocate()
    for tensor, value in zip(graph.catalog.inputs, given, strict=True):
        graph.set(tensor, value)


def _given(main: Graph, operation: Operation) -> list[Any] | None:
    """What the file's operator gave to the subgraph; None where that is more than values of
    tensors.
    """
    if operation.origin is None:
        return None
    inputs = main.catalog.operators[operation.origin.index].inputs
    if len(inputs) != len(operation.inputs) or min(inputs, default=0) < 0:
        return None
    if any(main.tensor(i).dtype in (DType.RESOURCE, DType.VARIANT) for i in inputs):
        return None
    return [main.get(i) for i in inputs]
