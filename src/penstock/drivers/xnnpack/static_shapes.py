"""Whether LiteRT allocates a segment's tensors only once, and folding of computed shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from penstock.driverkit.unrolling import Unrolled, constant_of, live
from penstock.ir import Model, Operand, Operation
from penstock.ir.infer import follow
from penstock.ir.operand import MAX_COPIED_VALUE
from penstock.ir.types import is_static

SHAPED_BY: Final[dict[str, tuple[int, ...]]] = {
    "RESHAPE": (1,),
    "SLICE": (1, 2),
    "STRIDED_SLICE": (1, 2, 3),
    "TILE": (1,),
    "TOPK_V2": (1,),
}
"""Inputs whose values determine a result's shape, by operation type, also at run time."""


def has_static_shapes(model: Model) -> bool:
    """Whether every shape of the entry subgraph is known, and none depends on values. LiteRT then
    never moves a tensor, and views of its inputs and outputs stay valid.
    """
    entry = model.entry
    if not all(is_static(o.shape) for o in entry.operands if o.has_value):
        return False
    return all(
        has_static_result(operation, [entry.operands[i] for i in operation.inputs])
        for operation in entry.operations
    )


def has_static_result(operation: Operation, inputs: Sequence[Operand | None]) -> bool:
    """Whether the result's shape is independent of values that *operation* reads at run time."""
    for position in SHAPED_BY.get(operation.type, ()):
        operand = inputs[position] if position < len(inputs) else None
        if operand is not None and operand.has_value and not operand.is_constant:
            return False
    return True


def fold_shapes(flat: Unrolled) -> Unrolled:
    """*flat* with computed shapes folded to constants. Operations that only computed those shapes
    are removed.

    For example, SHAPE, STRIDED_SLICE and PACK may compute the target of a RESHAPE from an image of
    known size. XNNPACK supports RESHAPE only with a constant shape.
    """
    entry = flat.model.entry
    wanted = {
        i
        for operation in entry.operations
        for position, i in enumerate(operation.inputs)
        if position in SHAPED_BY.get(operation.type, ())
        and entry.operands[i].has_value
        and not entry.operands[i].is_constant
    }
    if not wanted:
        return flat
    operands, constants = list(entry.operands), dict[int, int]()
    for index, value in follow(flat.model, flat.model.main, {}, wanted).items():
        if value.nbytes <= MAX_COPIED_VALUE:
            constants[index] = len(operands)
            operands.append(constant_of(value))
    operations = [_with_constants(operation, constants) for operation in entry.operations]
    unused = live(entry.operations, entry.outputs) - live(operations, entry.outputs)
    kept = [i for i in range(len(operations)) if i not in unused]
    shaped = replace(entry, operands=tuple(operands), operations=tuple(operations[i] for i in kept))
    subgraphs = list(flat.model.subgraphs)
    subgraphs[flat.model.main] = shaped
    return Unrolled(
        replace(flat.model, subgraphs=tuple(subgraphs)), tuple(flat.origins[i] for i in kept)
    )


def _with_constants(operation: Operation, constants: Mapping[int, int]) -> Operation:
    """*operation* with *constants* in place of the operands that determine its result's shape."""
    places = SHAPED_BY.get(operation.type, ())
    inputs = tuple(
        constants.get(i, i) if position in places else i
        for position, i in enumerate(operation.inputs)
    )
    return operation if inputs == operation.inputs else replace(operation, inputs=inputs)
