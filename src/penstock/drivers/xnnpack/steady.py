"""Whether LiteRT lays a segment's tensors out once and for all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.ir import Model, Operand, Operation
from penstock.ir.types import is_static

SHAPED_BY: Final[dict[str, tuple[int, ...]]] = {
    "RESHAPE": (1,),
    "SLICE": (1, 2),
    "STRIDED_SLICE": (1, 2, 3),
    "TILE": (1,),
    "TOPK_V2": (1,),
}
"""Inputs whose values make the shape of a result, of the operations that may have them at run time."""


def is_steady(model: Model) -> bool:
    """Whether every shape of the entry subgraph is known, and none is made of values: LiteRT then never moves a
    tensor, and views of its inputs and outputs stay good.
    """
    entry = model.entry
    if not all(is_static(o.shape) for o in entry.operands if o.has_value):
        return False
    return all(
        is_shaped_once(operation, [entry.operands[i] for i in operation.inputs])
        for operation in entry.operations
    )


def is_shaped_once(operation: Operation, inputs: Sequence[Operand | None]) -> bool:
    """Whether no value that *operation* reads at run time makes the shape of its result."""
    for position in SHAPED_BY.get(operation.type, ()):
        operand = inputs[position] if position < len(inputs) else None
        if operand is not None and operand.has_value and not operand.is_constant:
            return False
    return True
