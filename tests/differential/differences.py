"""Where LiteRT is wrong: the differences that docs/differences.md describes, as predicates of drawn models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np

from penstock.ir import DType, Model, NDArray, Operation

Predicate: TypeAlias = "Callable[[Model, Operation, list[NDArray | None]], bool]"
"""Whether the operation, on these inputs (None: computed by another operation), is one that LiteRT computes wrongly."""


def _tiny_quotients(model: Model, operation: Operation, inputs: list[NDArray | None]) -> bool:
    """Quantised DIV whose exact quotient is less than one step of the output."""
    a, b, made = (model.operands[i] for i in (*operation.inputs, *operation.outputs))
    if a.quantization is None or b.quantization is None or made.quantization is None:
        return False
    if any(x is None for x in inputs):
        return True
    real = [
        (np.asarray(x, np.float64) - q.zero_point) * q.scale
        for x, q in zip(inputs, (a.quantization, b.quantization), strict=True)
    ]
    with np.errstate(all="ignore"):
        steps = np.abs(real[0] / real[1]) / made.quantization.scale
    return bool((steps < 1).any())


def _unscaled_int16(model: Model, operation: Operation, inputs: list[NDArray | None]) -> bool:
    """NOT_EQUAL of int16 that has no scale."""
    given = model.operands[operation.inputs[0]]
    return given.dtype is DType.INT16 and given.quantization is None


def _empty_padding(model: Model, operation: Operation, inputs: list[NDArray | None]) -> bool:
    """STABLEHLO_PAD whose result has no elements."""
    shape = model.operands[operation.outputs[0]].shape
    return shape is None or 0 in shape


def _one_selected(model: Model, operation: Operation, inputs: list[NDArray | None]) -> bool:
    """SELECT_V2 whose result has one element."""
    shape = model.operands[operation.outputs[0]].shape
    return shape is None or all(d in {1, None} for d in shape)


def _softmax_to_int16(model: Model, operation: Operation, inputs: list[NDArray | None]) -> bool:
    """SOFTMAX of 8 bits to int16."""
    given, made = (model.operands[i].dtype for i in (*operation.inputs, *operation.outputs))
    return made is DType.INT16 is not given


def _sum_of_nothing(model: Model, operation: Operation, inputs: list[NDArray | None]) -> bool:
    """A quantised sum or mean of an operand without elements."""
    given = model.operands[operation.inputs[0]]
    return given.quantization is not None and (given.shape is None or 0 in given.shape)


def _length_one(model: Model, operation: Operation, inputs: list[NDArray | None]) -> bool:
    """RFFT2D of length 1 along the last dimension."""
    return inputs[1] is None or int(inputs[1].reshape(-1)[-1]) == 1


KNOWN: Final[dict[str, Predicate]] = {
    "DIV": _tiny_quotients,
    "NOT_EQUAL": _unscaled_int16,
    "STABLEHLO_PAD": _empty_padding,
    "SELECT_V2": _one_selected,
    "RFFT2D": _length_one,
    "SOFTMAX": _softmax_to_int16,
    "SUM": _sum_of_nothing,
    "MEAN": _sum_of_nothing,
}


def is_known(model: Model, inputs: tuple[NDArray, ...]) -> bool:
    """Whether some operation of *model* is one that LiteRT computes wrongly."""
    entry = model.entry
    values = dict(zip(entry.inputs, inputs, strict=False))

    def value(index: int) -> NDArray | None:
        operand = entry.operands[index]
        return model.constant(operand) if operand.is_constant else values.get(index)

    return any(
        o.key in KNOWN and KNOWN[o.key](model, o, [value(i) for i in o.inputs])
        for o in entry.operations
    )
