"""One operation looked at while it is added, before the rest of its model is there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.errors import NotLowerable
from penstock.nnapi.assembly import Packing, assemble
from penstock.nnapi.description import (
    MAXIMUM_FEATURE_LEVEL,
    NnapiLifetime,
    NnapiOperand,
    NnapiOperation,
    NnapiSubgraph,
    OperandType,
)
from penstock.nnapi.failures import translated
from penstock.nnapi.lowering import lower
from penstock.nnapi.lowering.forms import Match
from penstock.nnapi.lowering.registry import rule_of
from penstock.nnapi.operands import PER_CHANNEL, FinishedSubgraph, OperandSlot

WRITABLE: Final = frozenset({NnapiLifetime.TEMPORARY_VARIABLE, NnapiLifetime.SUBGRAPH_OUTPUT})

UNUSED: Final = NnapiOperand(OperandType.FLOAT32, (), NnapiLifetime.SUBGRAPH_INPUT)
"""A model needs an input, and an operation may have none."""


def check_operation(operation: NnapiOperation, operands: Sequence[OperandSlot]) -> None:
    """Raises BAD_DATA for an operation that no model can have: numbers and types of its operands,
    and, where its scalars and optional operands are given by now, dimensions, scales and ranges.
    """
    inputs = [operands[i] for i in operation.inputs]
    outputs = [operands[i] for i in operation.outputs]
    with translated():
        match = rule_of(operation.type).match(
            [slot.described() for slot in inputs],
            [slot.described() for slot in outputs],
            MAXIMUM_FEATURE_LEVEL,
        )
        if not _is_settled(operation, match, inputs, outputs):
            return
        try:
            lower(assemble(_alone(operation, operands)))
        except NotLowerable:
            # What it needs may be what the rest of the model tells: finishing the model decides.
            return


def _is_settled(
    operation: NnapiOperation,
    match: Match,
    inputs: Sequence[OperandSlot],
    outputs: Sequence[OperandSlot],
) -> bool:
    """Whether nothing that a caller may still set changes what is valid, and the operation can
    stand alone.
    """
    written = set(operation.outputs)
    optional = {match.inputs.get(a.name) for a in match.form.inputs if a.optional}
    return (
        bool(outputs)
        and len(written) == len(outputs)
        and written.isdisjoint(operation.inputs)
        and all(slot.lifetime in WRITABLE for slot in outputs)
        and all(
            slot.channels is not None for slot in (*inputs, *outputs) if slot.type is PER_CHANNEL
        )
        and not any(
            slot.lifetime is NnapiLifetime.TEMPORARY_VARIABLE
            and (not slot.type.is_tensor or at in optional)
            for at, slot in enumerate(inputs)
        )
    )


def _alone(operation: NnapiOperation, operands: Sequence[OperandSlot]) -> FinishedSubgraph:
    """The model of one operation. Large constants are inputs of it: they are read once, by
    `Model.finish`.
    """
    packing, places = Packing(), {}
    listed, fed = [UNUSED], [0]
    for index in dict.fromkeys((*operation.inputs, *operation.outputs)):
        slot, places[index] = operands[index], len(listed)
        if index in operation.outputs:
            listed.append(slot.described(lifetime=NnapiLifetime.SUBGRAPH_OUTPUT))
        elif slot.lifetime is NnapiLifetime.NO_VALUE or slot.model is not None or slot.is_small:
            listed.append(packing.operand(slot))
        else:
            fed.append(len(listed))
            listed.append(slot.described(lifetime=NnapiLifetime.SUBGRAPH_INPUT))
    inputs = tuple(places[i] for i in operation.inputs)
    outputs = tuple(places[i] for i in operation.outputs)
    alone = NnapiOperation(operation.type, inputs, outputs)
    return packing.finished(NnapiSubgraph(tuple(listed), (alone,), tuple(fed), outputs))
