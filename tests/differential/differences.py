"""Where LiteRT is wrong: the differences that docs/differences.md describes, as predicates of drawn
models.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np

from penstock.ir import DType, Model, NDArray, Operation
from penstock.ir.types import FLOATS, dtype_of
from tests.differential.draw import with_shapes

Predicate: TypeAlias = "Callable[[Model, Operation, list[NDArray | None]], bool]"
"""Whether the operation, on these inputs (None: computed by another operation), is one that LiteRT
computes wrongly.
"""


def tiny_quotients(model: Model, operation: Operation, inputs: list[NDArray | None]) -> NDArray:
    """Where the exact quotients of a quantised DIV are less than one step of the output, or so many
    that LiteRT shifts by less than nothing; of operands that are not known, everywhere.
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
        steps = np.abs(first / second) / scales[2].scale
    small: NDArray = (steps < 1) | (steps >= 2.0**22)
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
    """GELU approximated far below zero, where the last bit of a hyperbolic tangent is all that is
    left.
    """
    (x,) = inputs
    far = len(model.operations) > 1 or x is None or bool(x.size and x.max() < -2)
    return operation.attributes.flag("approximate") and far


def _beyond_integers(model: Model, operation: Operation, inputs: list[NDArray | None]) -> bool:
    """QUANTIZE of what no int32 holds; of the greatest floats, which segments without elements
    have.
    """
    made, (x, *_) = model.operands[operation.outputs[0]].quantization, inputs
    if any(o.key.startswith("UNSORTED_SEGMENT_M") for o in model.operations):
        return True
    if made is None or x is None or x.dtype.kind in "iu":
        return _far_apart(model, operation, inputs)
    with np.errstate(all="ignore"):
        steps = np.abs(x.astype(np.float64)) / min(made.scales)
    return bool((~(steps < 2.0**31)).any())


def _not_finite(model: Model, operation: Operation, inputs: list[NDArray | None]) -> bool:
    """Infinities or not-a-numbers among the inputs."""
    floats = (x for x in inputs if x is not None and dtype_of(x.dtype) in FLOATS)
    return any(not np.isfinite(x.astype(np.float64)).all() for x in floats)


def _four_lanes(model: Model, operation: Operation, inputs: list[NDArray | None]) -> bool:
    """Four floats or more, not-a-numbers among them, that lie beside each other along the axis."""
    x, axis = inputs[0], inputs[1]
    if x is None or axis is None or x.dtype.kind != "f" or not np.isnan(x).any():
        return False
    along = int(axis.reshape(-1)[0]) % x.ndim
    return x.shape[along] >= 4 and all(d == 1 for d in x.shape[along + 1 :])


def _hybrid(model: Model, operation: Operation, inputs: list[NDArray | None]) -> bool:
    """Floats that are to be quantised at run time and are not finite; a bias of 8-bit values that
    is not int32; or scales far apart.
    """
    given = [model.operands[i] for i in operation.inputs if model.operands[i].has_value]
    mixed = any(o.dtype.is_float for o in given) and any(
        o.dtype.is_integer and o.quantization is not None for o in given
    )
    if not mixed:
        data = model.operands[operation.inputs[2 if operation.type == "TRANSPOSE_CONV" else 0]]
        bias = [o for o in given[2:] if o is not data]
        odd = data.dtype.bits == 8 and any(o.dtype is not DType.INT32 for o in bias)
        return odd or _far_apart(model, operation, inputs) or _great_bias(model, operation, inputs)
    return _not_finite(model, operation, inputs)


def _great_bias(model: Model, operation: Operation, inputs: list[NDArray | None]) -> bool:
    """A bias of 64 bits that is beyond int32 in the scale of the output."""
    bias = inputs[2] if operation.type == "FULLY_CONNECTED" and len(inputs) > 2 else None
    if bias is None or bias.dtype != np.int64:
        return False
    scales = [model.operands[i].quantization for i in (*operation.inputs[:2], operation.outputs[0])]
    if any(q is None for q in scales):
        return False
    given, weights, made = (np.array(q.scales) for q in scales if q is not None)
    steps = np.abs(bias.astype(np.float64)) * (given.max() * weights.max() / made.min())
    return bool((steps >= 2.0**31).any())


def _great_scales(model: Model, operation: Operation, inputs: list[NDArray | None]) -> bool:
    """A comparison of quantised values, a scale of which is 1 or more."""
    known = [model.operands[i].quantization for i in operation.inputs]
    unscaled = operation.type == "NOT_EQUAL" and _unscaled_int16(model, operation, inputs)
    return unscaled or any(q is not None and q.scale >= 1 for q in known)


def _far_apart(model: Model, operation: Operation, inputs: list[NDArray | None]) -> bool:
    """Quantised inputs and outputs with scales so far apart that a result may leave 32 bits."""
    operands = [model.operands[i] for i in (*operation.inputs, *operation.outputs)]
    given = [o.quantization for o in operands[: len(operation.inputs)]]
    made = operands[len(operation.inputs)].quantization
    if made is None:
        return False
    sizes = [
        max(q.scales) * 2.0 ** (o.dtype.bits or 8)
        for q, o in zip(given, operands, strict=False)
        if q is not None and (o.dtype.bits or 64) <= 16
    ]
    greatest = math.prod(sizes) * 64 if operation.type in PRODUCTS else max(sizes, default=0.0)
    if operation.type == "SUB" and max(q.scale for q in given if q) >= 2.0**13 * made.scale:
        return True
    return max(greatest, 6.0) / made.scale >= 2.0**31 or any(s >= 2.0**16 for s in sizes)


ORDERED: Final = (
    *("CUSTOM:TFLite_Detection_PostProcess", "STABLEHLO_REDUCE_WINDOW"),
    *("CONV_3D", "CONV_3D_TRANSPOSE", "CUSTOM:Convolution2DTransposeBias"),
    *("CUSTOM:AudioSpectrogram", "CUSTOM:Mfcc"),
)
"""Operations whose results depend on an order, or on padding that is multiplied, where an input is
not finite.
"""

PRODUCTS: Final = frozenset(
    {"CONV_2D", "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV", "FULLY_CONNECTED", "BATCH_MATMUL", "PRELU"}
)
SCALED: Final = (
    *("CONCATENATION", "SUB", "HARD_SWISH", "SQRT", "RSQRT", "EXP", "LOG"),
    *("AVERAGE_POOL_2D", "MAX_POOL_2D", "PRELU"),
    *("RELU", "RELU6", "RELU_0_TO_1", "RELU_N1_TO_1", "LEAKY_RELU"),
)
"""Operations that make integers of real numbers by the ratio of scales."""


def _sum_of_nothing(model: Model, operation: Operation, inputs: list[NDArray | None]) -> bool:
    """A quantised sum or mean of an operand without elements."""
    given = model.operands[operation.inputs[0]]
    return given.quantization is not None and (given.shape is None or 0 in given.shape)


def _length_one(model: Model, operation: Operation, inputs: list[NDArray | None]) -> bool:
    """RFFT2D of length 1 along the last dimension, or of what is not finite."""
    if _not_finite(model, operation, inputs):
        return True
    return inputs[1] is None or int(inputs[1].reshape(-1)[-1]) == 1


def _filled_bytes(model: Model, operation: Operation, inputs: list[NDArray | None]) -> bool:
    """SPACE_TO_BATCH_ND of elements of one or two bytes that have a zero point and are not
    quantised.
    """
    made = model.operands[operation.outputs[0]]
    filled = (made.dtype.bits or 64) <= 16 and made.dtype not in {
        DType.INT8,
        DType.UINT8,
        DType.INT16,
    }
    return filled and made.quantization is not None


def _wide_orders(model: Model, operation: Operation, inputs: list[NDArray | None]) -> bool:
    """Orders and sizes of 64 bits, which LiteRT reads as 32-bit ones; SPACE_TO_BATCH_ND also fills
    bytes.
    """
    filled = operation.type == "SPACE_TO_BATCH_ND" and _filled_bytes(model, operation, inputs)
    return filled or any(model.operands[i].dtype is DType.INT64 for i in operation.inputs[1:])


def _two_widths(model: Model, operation: Operation, inputs: list[NDArray | None]) -> bool:
    """Beginnings and sizes of two types, of which LiteRT reads both as the first."""
    return len({model.operands[i].dtype for i in operation.inputs[1:]}) > 1


def _unturned(model: Model, operation: Operation, inputs: list[NDArray | None]) -> bool:
    """Groups whose output LiteRT leaves in the declared shape: none is declared, or there are no
    elements.
    """
    made = model.operands[operation.outputs[0]]
    return not made.shape_declared or any(x is not None and not x.size for x in inputs)


def _scales_unread(model: Model, operation: Operation, inputs: list[NDArray | None]) -> bool:
    """A recurrent operation whose weights have a scale a channel."""
    known = (model.operands[i].quantization for i in operation.inputs)
    return any(q is not None and q.per_channel for q in known)


RECURRENT: Final = (
    "RNN",
    "UNIDIRECTIONAL_SEQUENCE_RNN",
    "BIDIRECTIONAL_SEQUENCE_RNN",
    "LSTM",
    "UNIDIRECTIONAL_SEQUENCE_LSTM",
    "BIDIRECTIONAL_SEQUENCE_LSTM",
    "SVDF",
)

KNOWN: Final[dict[str, Predicate]] = {
    "DIV": _tiny_quotients,
    **dict.fromkeys(
        ("EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL"), _great_scales
    ),
    **dict.fromkeys(SCALED, _far_apart),
    **dict.fromkeys(
        ("FULLY_CONNECTED", "BATCH_MATMUL", "CONV_2D", "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV"),
        _hybrid,
    ),
    **dict.fromkeys(ORDERED, _not_finite),
    **dict.fromkeys(("ARG_MAX", "ARG_MIN"), _four_lanes),
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
    **dict.fromkeys(("TRANSPOSE", "SPACE_TO_BATCH_ND", "BATCH_TO_SPACE_ND"), _wide_orders),
    "SLICE": _two_widths,
    "CUSTOM:aeq.hadamard_rotation": _unturned,
    **dict.fromkeys(RECURRENT, _scales_unread),
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
    """The inputs of *operation* that are constants or the model's *inputs*, None for others."""
    entry = model.entry
    given = dict(zip(entry.inputs, inputs, strict=False))
    return [
        model.constant(entry.operands[i]) if entry.operands[i].is_constant else given.get(i)
        for i in operation.inputs
    ]
