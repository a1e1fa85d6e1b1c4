"""Where LiteRT is wrong: the differences that docs/differences.md describes, as predicates of drawn models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np

from penstock.ir import DType, Model, NDArray, Operation
from tests.differential.draw import with_shapes

Predicate: TypeAlias = "Callable[[Model, Operation, list[NDArray | None]], bool]"
"""Whether the operation, on these inputs (None: computed by another operation), is one that LiteRT computes wrongly."""


def tiny_quotients(model: Model, operation: Operation, inputs: list[NDArray | None]) -> NDArray:
    """Where the exact quotients of a quantised DIV are less than one step of the output; of operands that are not known,
    everywhere.
    """
    operands = [model.operands[i] for i in (*operation.inputs, *operation.outputs)]
    scales = [o.quantization for o in operands]
    a, b = inputs
    if scales[0] is None or scales[1] is None or scales[2] is None:
        return np.zeros((), bool)
    if a is None or b is None:
        return np.ones((), bool)
    first = (a.astype(np.float64) - scales[0].zero_point) * scales[0].scale
    second = (b.astype(np.float64) - scales[1].zero_point) * scales[1].scale
    with np.errstate(all="ignore"):
        small: NDArray = np.abs(first / second) / scales[2].scale < 1
    return small


def _tiny_quotients(model: Model, operation: Operation, inputs: list[NDArray | None]) -> bool:
    """DIV among other operations: whatever follows has the wrong quotients too."""
    return len(model.operations) > 1 and bool(tiny_quotients(model, operation, inputs).any())


def _unscaled_int16(model: Model, operation: Operation, inputs: list[NDArray | None]) -> bool:
    """NOT_EQUAL of int16 that has no scale."""
    given = model.operands[operation.inputs[0]]
    return given.dtype is DType.INT16 and given.quantization is None


def _empty_padding(model: Model, operation: Operation, inputs: list[NDArray | None]) -> bool:
    """STABLEHLO_PAD whose result has no elements."""
    shape = model.operands[operation.outputs[0]].shape
    return shape is None or 0 in shape


def _one_selected(model: Model, operation: Operation, inputs: list[NDArray | None]) -> bool:
    """SELECT or SELECT_V2 whose result has one element."""
    shape = model.operands[operation.outputs[0]].shape
    return shape is None or all(d in {1, None} for d in shape)


def _softmax_to_int16(model: Model, operation: Operation, inputs: list[NDArray | None]) -> bool:
    """SOFTMAX of 8 bits to int16."""
    given, made = (model.operands[i].dtype for i in (*operation.inputs, *operation.outputs))
    return made is DType.INT16 is not given


def _constant_product(model: Model, operation: Operation, inputs: list[NDArray | None]) -> bool:
    """A quantised REDUCE_PROD of a constant to another scale or zero point, or of nothing."""
    given, made = (model.operands[i] for i in (operation.inputs[0], *operation.outputs))
    rescaled = given.is_constant and given.quantization != made.quantization
    return rescaled or _sum_of_nothing(model, operation, inputs)


def _short_offsets(model: Model, operation: Operation, inputs: list[NDArray | None]) -> bool:
    """STRIDED_SLICE with ends relative to the begins, for fewer dimensions than there are."""
    shape, begins = (model.operands[i].shape for i in operation.inputs[:2])
    short = shape is None or begins is None or begins[0] is None or begins[0] < len(shape)
    return operation.attributes.flag("offset") and short


def _responses(model: Model, operation: Operation, inputs: list[NDArray | None]) -> bool:
    """LOCAL_RESPONSE_NORMALIZATION, where only the reference kernels run the rest of the model."""
    return len(model.operations) > 1


def _cancelled(model: Model, operation: Operation, inputs: list[NDArray | None]) -> bool:
    """GELU approximated far below zero, where the last bit of a hyperbolic tangent is all that is left."""
    (x,) = inputs
    far = len(model.operations) > 1 or x is None or bool(x.size and x.max() < -2)
    return operation.attributes.flag("approximate") and far


def _beyond_integers(model: Model, operation: Operation, inputs: list[NDArray | None]) -> bool:
    """QUANTIZE of the greatest floats, which segments without elements have."""
    return any(o.key.startswith("UNSORTED_SEGMENT_M") for o in model.operations)


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
    "GELU": _cancelled,
    "QUANTIZE": _beyond_integers,
    "SELECT": _one_selected,
    "SELECT_V2": _one_selected,
    "RFFT2D": _length_one,
    "SOFTMAX": _softmax_to_int16,
    "SUM": _sum_of_nothing,
    "MEAN": _sum_of_nothing,
    "REDUCE_PROD": _constant_product,
    "STRIDED_SLICE": _short_offsets,
    "LOCAL_RESPONSE_NORMALIZATION": _responses,
}


def is_known(model: Model, inputs: tuple[NDArray, ...]) -> bool:
    """Whether some operation of *model* is one that LiteRT computes wrongly."""
    model = with_shapes(model)
    return any(
        o.key in KNOWN and KNOWN[o.key](model, o, values_of(model, o, inputs))
        for o in model.operations
    )


def values_of(
    model: Model, operation: Operation, inputs: tuple[NDArray, ...]
) -> list[NDArray | None]:
    """The inputs of *operation* that are constants or among the model's *inputs*, None for others."""
    entry = model.entry
    given = dict(zip(entry.inputs, inputs, strict=False))
    return [
        model.constant(entry.operands[i]) if entry.operands[i].is_constant else given.get(i)
        for i in operation.inputs
    ]
