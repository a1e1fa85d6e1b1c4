"""Control flow for engines: subgraphs that fit what they are given, and the rounds of a loop that
are known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from penstock.ir import Model, NDArray, Operand, Operation, Subgraph
from penstock.ir.infer import follow
from penstock.ir.settled import branches_of
from penstock.ir.types import is_static

MOST_ROUNDS: Final = 256
"""Rounds of a loop that are counted."""

Values = Mapping[int, NDArray]


def fits(graph: Subgraph, inputs: Sequence[Operand | None], outputs: Sequence[Operand]) -> bool:
    """Whether a subgraph takes *inputs* and gives *outputs*: types and known shapes alike."""
    pairs = [
        (inputs, [graph.operands[i] for i in graph.inputs]),
        (outputs, [graph.operands[i] for i in graph.outputs]),
    ]
    return all(
        len(ours) == len(theirs)
        and all(
            a is not None and a.dtype is b.dtype and a.shape == b.shape and is_static(a.shape)
            for a, b in zip(ours, theirs, strict=True)
        )
        for ours, theirs in pairs
    )


def rounds_of(model: Model, operation: Operation) -> list[Values] | None:
    """What is known of the values that a WHILE of a `settled` model goes round with, by position,
    before each round, and after the last. None where the number of rounds is not known, or more
    than `MOST_ROUNDS`.

    Known is what follows from constants and shapes alone: a counter, say, and its limit.
    """
    condition, body = branches_of(operation)
    operands = model.entry.operands
    values: Values = {
        at: model.constant(operands[i])
        for at, i in enumerate(operation.inputs)
        if operands[i].is_constant
    }
    found = []
    for _ in range(MOST_ROUNDS + 1):
        found.append(values)
        (truth,) = model.subgraphs[condition].outputs
        going = _follow(model, condition, values, [truth]).get(truth)
        if going is None or going.size != 1:
            return None
        if not going.reshape(-1)[0]:
            return found
        outputs = model.subgraphs[body].outputs
        made = _follow(model, body, values, outputs)
        values = {at: made[i] for at, i in enumerate(outputs) if i in made}
    return None


def _follow(
    model: Model, subgraph: int, values: Values, wanted: Sequence[int]
) -> dict[int, NDArray]:
    inputs = model.subgraphs[subgraph].inputs
    return follow(model, subgraph, {inputs[at]: v for at, v in values.items()}, wanted)
