"""NNAPI's rules for the structure of a model, before any operation is looked at (NNAPI section
8.4).
"""

from __future__ import annotations

from penstock.arguments import check_kind
from penstock.errors import (
    CyclicModel,
    DuplicateWriter,
    IndexOutOfRange,
    InvalidOperand,
    ModelError,
    UnwrittenOperand,
)
from penstock.nnapi.description import NnapiLifetime, NnapiModel, NnapiSubgraph
from penstock.nnapi.lowering.operands import check_operand

WRITABLE = frozenset({NnapiLifetime.TEMPORARY_VARIABLE, NnapiLifetime.SUBGRAPH_OUTPUT})


def check_structure(model: NnapiModel, feature_level: int) -> None:
    """Raises the `ModelError` of the first defect of *model*'s operands and of how they are
    connected.
    """
    check_kind(model, NnapiModel, "an NnapiModel is lowered")
    check_subgraph(model, model.main, "main", feature_level)
    for index, subgraph in enumerate(model.referenced):
        check_subgraph(model, subgraph, f"subgraph {index}", feature_level)


def check_subgraph(
    model: NnapiModel, subgraph: NnapiSubgraph, where: str, feature_level: int
) -> None:
    """The same for one subgraph."""
    for index, operand in enumerate(subgraph.operands):
        try:
            check_operand(operand, model.pools, len(model.referenced), feature_level)
        except ModelError as error:
            place = f"{where}, operand {index} ({operand.name})"
            raise error.at(place) from None
    _check_interface(subgraph, where)
    _check_order(subgraph, where)


def _check_interface(subgraph: NnapiSubgraph, where: str) -> None:
    if not subgraph.operations:
        raise InvalidOperand("a model needs operations", where=where)
    for kind, listed, lifetime in (
        ("input", subgraph.inputs, NnapiLifetime.SUBGRAPH_INPUT),
        ("output", subgraph.outputs, NnapiLifetime.SUBGRAPH_OUTPUT),
    ):
        if not listed:
            raise InvalidOperand(f"a model needs {kind}s", where=where)
        for index in listed:
            if not 0 <= index < len(subgraph.operands):
                raise IndexOutOfRange(
                    f"{kind} operand {index} of {len(subgraph.operands)}", where=where
                )
        if len(set(listed)) != len(listed):
            raise DuplicateWriter(f"an operand is listed as {kind} twice", where=where)
        have = {i for i, o in enumerate(subgraph.operands) if o.lifetime is lifetime}
        if have != set(listed):
            wrong = min(have ^ set(listed))
            raise InvalidOperand(
                f"operand {wrong} has the lifetime {subgraph.operands[wrong].lifetime.value} and is "
                f"{'' if wrong in listed else 'not '}listed as {kind}",
                where=where,
            )


def _check_order(subgraph: NnapiSubgraph, where: str) -> None:
    written: set[int] = set(subgraph.inputs)
    operands = subgraph.operands
    produced = {o for operation in subgraph.operations for o in operation.outputs}
    for at, operation in enumerate(subgraph.operations):
        place = f"{where}, operation {at} ({operation.type})"
        for index in (*operation.inputs, *operation.outputs):
            if not 0 <= index < len(operands):
                raise IndexOutOfRange(f"operand {index} of {len(operands)}", where=place)
        for index in operation.inputs:
            if operands[index].lifetime in WRITABLE and index not in written:
                if index in produced:
                    raise CyclicModel(
                        f"reads operand {index}, which is only written later", where=place
                    )
                raise UnwrittenOperand(f"reads operand {index}, which nothing writes", where=place)
        for index in operation.outputs:
            if operands[index].lifetime not in WRITABLE or index in written:
                raise DuplicateWriter(
                    f"writes operand {index}, which is written already or cannot be", where=place
                )
            written.add(index)
    for index, operand in enumerate(operands):
        if operand.lifetime in WRITABLE and index not in written:
            raise UnwrittenOperand(
                f"operand {index} ({operand.name}) is never written", where=where
            )
