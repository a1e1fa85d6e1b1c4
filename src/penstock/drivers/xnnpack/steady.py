"""Whether LiteRT lays a segment's tensors out once and for all, and what helps it to."""

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
"""Inputs whose values make the shape of a result, of the operations that may have them at
run time.
"""


def cannot_shrink(model: Model) -> bool:
    """Whether every shape of the entry subgraph is known, and none is made of values: LiteRT then
    never moves a tensor, and views of its inputs and outputs stay good.
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


def shaped_beforehand(flat: Unrolled) -> Unrolled:
    """*flat* with constants where values that make shapes follow from other shapes, without the
    operations that only those needed: what SHAPE, STRIDED_SLICE and PACK tell a RESHAPE of a
    picture of known size is known, too. XNNPACK takes a RESHAPE to a constant shape alone.
    """
    entry = flat.model.entry
    wanted = {
        i
        for operation in entry.operations
        for i in _shaping(operation)
        if entry.operands[i].has_value and not entry.operands[i].is_constant
    }
    if not wanted:
        return flat
    operands, constants = list(entry.operands), dict[int, int]()
    for index, value in follow(flat.model, flat.model.main, {}, wanted).items():
        if value.nbytes <= MAX_COPIED_VALUE:
            constants[index] = len(operands)
            operands.append(constant_of(value))
    operations = [_reading(operation, constants) for operation in entry.operations]
    superfluous = live(entry.operations, entry.outputs) - live(operations, entry.outputs)
    kept = [i for i in range(len(operations)) if i not in superfluous]
    shaped = replace(entry, operands=tuple(operands), operations=tuple(operations[i] for i in kept))
    subgraphs = list(flat.model.subgraphs)
    subgraphs[flat.model.main] = shaped
    return Unrolled(
        replace(flat.model, subgraphs=tuple(subgraphs)), tuple(flat.origins[i] for i in kept)
    )


def _shaping(operation: Operation) -> list[int]:
    """The operands of *operation* whose values make the shape of its result."""
    inputs = operation.inputs
    return [inputs[p] for p in SHAPED_BY.get(operation.type, ()) if p < len(inputs)]


def _reading(operation: Operation, constants: Mapping[int, int]) -> Operation:
    """*operation*, whose result is shaped by *constants* in the place of other operands."""
    places = SHAPED_BY.get(operation.type, ())
    inputs = tuple(
        constants.get(i, i) if position in places else i
        for position, i in enumerate(operation.inputs)
    )
    return operation if inputs == operation.inputs else replace(operation, inputs=inputs)
