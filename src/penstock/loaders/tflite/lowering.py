"""Subgraphs of a file to subgraphs of the IR.

Most networks keep no state and enter no subgraph: each of their operators is an operation, and that is what stands
here. `states` does the same for the others.

- DENSIFY of a constant is the constant, which was made dense when it was read.
- A tensor listed more than once among the inputs of an entry subgraph is one input of it.
- Operands that hold no elements have their empty value.
"""

from __future__ import annotations

from typing import Final

from penstock.loaders.tflite.body import Body, Lowered
from penstock.loaders.tflite.operators import RawSubgraph

STATEFUL_OPERATORS: Final = frozenset(
    {"VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE", "CALL_ONCE"}
    | {"HASHTABLE", "HASHTABLE_IMPORT", "HASHTABLE_FIND", "HASHTABLE_SIZE"}
    | {"RANDOM_UNIFORM", "RANDOM_STANDARD_NORMAL", "MULTINOMIAL"}
    | {"SVDF", "RNN", "UNIDIRECTIONAL_SEQUENCE_RNN", "BIDIRECTIONAL_SEQUENCE_RNN"}
    | {"LSTM", "UNIDIRECTIONAL_SEQUENCE_LSTM", "BIDIRECTIONAL_SEQUENCE_LSTM"}
)
"""Operators that keep state, or read or change it, whatever their operands are."""


def lower(raw: list[RawSubgraph], data: memoryview, zero_limit: int) -> Lowered:
    """Lowers all subgraphs of a file with content *data*.

    *zero_limit* bounds the bytes of the initial values that the file does not hold.
    """
    if any(map(_needs_more, raw)):
        from penstock.loaders.tflite.states import lower_states

        return lower_states(raw, data, zero_limit)
    bodies = [Body(subgraph) for subgraph in raw]
    return Lowered([body.lower() for body in bodies], [], [body.renamed for body in bodies])


def _needs_more(subgraph: RawSubgraph) -> bool:
    """Whether *subgraph* may have state, or enters another."""
    return bool(subgraph.variables) or any(
        operator.type in STATEFUL_OPERATORS or operator.targets or operator.mutated
        for operator in subgraph.operators
    )
