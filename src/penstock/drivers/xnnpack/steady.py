"""Whether LiteRT lays a segment's tensors out once and for all."""

from __future__ import annotations

from typing import Final

from penstock.ir import Model
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
    tensor, and views of its inputs and outputs stay good. Of scalars it gives no views.
    """
    entry = model.entry
    if any(entry.operands[i].shape == () for i in (*entry.inputs, *entry.outputs)):
        return False
    if not all(is_static(o.shape) for o in entry.operands if o.has_value):
        return False
    return all(
        entry.operands[operation.inputs[position]].is_constant
        for operation in entry.operations
        for position in SHAPED_BY.get(operation.type, ())
        if position < len(operation.inputs)
    )
