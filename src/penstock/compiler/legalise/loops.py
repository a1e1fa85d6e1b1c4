"""Loops whose rounds are known when they are compiled: each round is written out.

The condition, counters and positions of such a loop follow from constants and shapes alone. They
are constants of the round that is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from penstock.compiler.legalise.builder import Operation, legal
from penstock.compiler.legalise.subgraphs import inferred, return_, written
from penstock.driverkit.site import require
from penstock.interrupts import polled
from penstock.ir import Model, NDArray, Operand, Subgraph
from penstock.ir.infer import MAX_FOLDED_BYTES, follow
from penstock.ir.operand import Lifetime

MOST_ROUNDS: Final = 256
MOST_OPERATIONS: Final = 4096
"""Operations that are written for one loop."""


class State(Struct):
    """What the loop carries before a round: operands with their shapes, tensors, and the values of
    those that are known, by position.
    """

    operands: list[Operand]
    tensors: list[int]
    known: dict[int, NDArray]


@legal("WHILE")
def while_loop(operation: Operation) -> None:
    """The body, once for each round. The number of rounds must not depend on data."""
    site = operation.site
    condition, body = (
        site.attributes.integer(f"{name}_subgraph_index") for name in ("cond", "body")
    )
    count = len(site.inputs)
    operands = [site.input(position) for position in range(count)]
    tensors = [operation.tensor(position) for position in range(count)]
    known = {k: site.value(k, "a state") for k, o in enumerate(operands) if _is_small(o)}
    state = State(operands, tensors, known)
    rounds = written_operations = 0
    while _goes_on(site.model, condition, state):
        rounds += 1
        written_operations += len(site.model.subgraphs[body].operations)
        require(rounds <= MOST_ROUNDS, f"a loop of more than {MOST_ROUNDS} rounds")
        require(written_operations <= MOST_OPERATIONS, f"more than {MOST_OPERATIONS} operations")
        state = _round(operation, body, state)
    return_(operation, state.tensors)


def _is_small(operand: Operand) -> bool:
    """Whether *operand* is a constant of the size of counters and positions."""
    data = operand.value
    if not operand.is_constant or operand.quantization is not None:
        return False
    size = operand.location.length if operand.location is not None else len(data or b"")
    return size <= MAX_FOLDED_BYTES and operand.dtype.bits is not None and operand.dtype.bits >= 8


def _graph(model: Model, index: int, state: State) -> tuple[Model, Subgraph]:
    """Subgraph *index* for the shapes of *state*, and the model with it."""
    graph = inferred(model, index, state.operands)
    subgraphs = (*model.subgraphs[:index], graph, *model.subgraphs[index + 1 :])
    return replace(model, subgraphs=subgraphs), graph


def _given(graph: Subgraph, state: State) -> dict[int, NDArray]:
    """The known values of the inputs of *graph*, by operand."""
    return {graph.inputs[position]: value for position, value in state.known.items()}


def _goes_on(model: Model, condition: int, state: State) -> bool:
    """Whether there is another round. Refuses a condition that only a run knows."""
    shaped, graph = _graph(model, condition, state)
    (output,) = graph.outputs[:1]
    found = follow(shaped, condition, _given(graph, state), [output])
    require(output in found and found[output].size, "a loop whose rounds only a run knows")
    return bool(found[output].reshape(-1)[0])


def _round(operation: Operation, body: int, state: State) -> State:
    """Writes one round. Returns the state after it."""
    shaped, graph = _graph(operation.site.model, body, state)
    given = _given(graph, state)
    made = [i for inner in graph.operations for i in inner.outputs]
    found = {**follow(shaped, body, given, made), **given}
    frozen = _frozen(graph, found)
    arguments = {
        operand: tensor
        for operand, tensor in zip(graph.inputs, state.tensors, strict=True)
        if operand not in found
    }
    tensors = written(operation, body, frozen, arguments)
    values = {k: found[i] for k, i in enumerate(graph.outputs) if i in found}
    values |= {
        k: shaped.constant(graph.operands[i])
        for k, i in enumerate(graph.outputs)
        if _is_small(graph.operands[i])
    }
    require(len(tensors) == len(state.tensors), "a body of other outputs")
    return State([graph.operands[i] for i in graph.outputs], tensors, values)


def _frozen(graph: Subgraph, values: Mapping[int, NDArray]) -> Subgraph:
    """*graph* with constants in the place of the operands whose *values* are known."""
    operands = list(graph.operands)
    for index, value in polled(values.items()):
        if operands[index].is_constant:
            continue
        operands[index] = replace(
            operands[index], shape=value.shape, lifetime=Lifetime.CONSTANT_COPY,
            value=np.ascontiguousarray(value, operands[index].dtype.numpy).tobytes(),
        )  # fmt: skip
    return replace(graph, operands=tuple(operands))
