"""Hybrid convolutions, floats by int8 weights, that XNNPACK quantises as TFLite does: each picture
over its own range.

Of a kernel of 1x1 it would quantise each pixel by itself, and take longer. A pixel of C channels is
two neighbours of C/2 to it, under a kernel of 1x2 that moves on by two: the same numbers in the
same places.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from penstock.ir import DType, Lifetime, Operand, Operation
from penstock.ir.operations import OPERATIONS
from penstock.ir.types import static_shape

SUMMING: Final = frozenset(
    {"CONV_2D", "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV", "FULLY_CONNECTED", "BATCH_MATMUL"}
)
FOLLOWING: Final = frozenset(
    {"RELU", "RELU6", "LEAKY_RELU", "PRELU", "HARD_SWISH", "PAD", "RESHAPE", "SQUEEZE"}
    | {"MAX_POOL_2D", "AVERAGE_POOL_2D", "MEAN", "RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR"}
)
JOINING: Final = frozenset({"ADD", "MUL", "CONCATENATION"})
"""Layers of floats; what keeps their results from any grid, of the first input alone and of all of
them.
"""


def is_hybrid(operation: Operation, operands: Sequence[Operand]) -> bool:
    """Whether *operation* is such a convolution."""
    if operation.type != "CONV_2D":
        return False
    source, weights = (operands[i] for i in operation.inputs[:2])
    return source.dtype is DType.FLOAT32 and weights.dtype is DType.INT8


def is_quantised_alike(
    operation: Operation, operands: Sequence[Operand], summed: frozenset[int]
) -> bool:
    """Whether *operation* is a hybrid convolution that XNNPACK rounds as TFLite does, but for what
    lies within 1e-5 of a half.

    Weights of several scales have their pictures quantised with an offset, as XNNPACK does it.
    Values that a network was given may all be halves: pictures in [-1, 1] are. Those in *summed*
    are not.
    """
    if not is_hybrid(operation, operands) or operation.inputs[0] not in summed:
        return False
    quantization = operands[operation.inputs[1]].quantization
    if quantization is None or len(set(quantization.scales)) < 2:
        return False
    return not _is_of_pixels(operation, operands) or can_split(operation, operands)


def can_split(operation: Operation, operands: Sequence[Operand]) -> bool:
    """Whether *operation* is a hybrid convolution with a kernel of 1x1 that can be one of 1x2."""
    if not is_hybrid(operation, operands):
        return False
    shape = static_shape(operands[operation.inputs[0]].shape)
    return _is_of_pixels(operation, operands) and shape is not None and shape[3] % 2 == 0


def split(operands: list[Operand], operation: Operation) -> tuple[Operation, Operation]:
    """*operation* by a kernel of 1x2, behind what halves its pixels. What they need joins
    *operands*.
    """
    source, weights, *bias = operation.inputs
    batch, height, width, channels = static_shape(operands[source].shape) or (1, 1, 1, 2)
    halved = (batch, height, 2 * width, channels // 2)
    shape = np.array(halved, np.int32)
    first = len(operands)
    filters = operands[weights]
    operands += [
        Operand(DType.INT32, shape.shape, Lifetime.CONSTANT_COPY, value=shape.tobytes()),
        Operand(DType.FLOAT32, halved),
        msgspec.structs.replace(
            filters, shape=((filters.shape or (None,))[0], 1, 2, channels // 2), origin=None
        ),
    ]
    reshaping = OPERATIONS["RESHAPE"].complete({})
    convolving = {**operation.attributes, "stride_w": 2, "padding": "VALID"}
    return (
        Operation("RESHAPE", (source, first), (first + 1,), reshaping),
        msgspec.structs.replace(
            operation,
            inputs=(first + 1, first + 2, *bias),
            attributes=OPERATIONS["CONV_2D"].complete(convolving),
        ),
    )


def summed_operands(operations: Sequence[Operation], operands: Sequence[Operand]) -> frozenset[int]:
    """The results that layers of floats have made, and what only such results flow into."""
    found: set[int] = set()
    for operation in operations:
        kind = operation.type
        given = [i for i in operation.inputs if not operands[i].is_constant]
        if kind in SUMMING:
            made = operands[operation.outputs[0]].dtype is DType.FLOAT32
        elif kind in FOLLOWING:
            made = operation.inputs[0] in found
        else:
            made = kind in JOINING and found.issuperset(given)
        if made:
            found.update(operation.outputs)
    return frozenset(found)


def _is_of_pixels(operation: Operation, operands: Sequence[Operand]) -> bool:
    """Whether the kernel is 1x1 and meets every pixel, so that XNNPACK takes it for a matrix."""
    shape = operands[operation.inputs[1]].shape or ()
    attributes = operation.attributes
    strides = {attributes.integer("stride_w"), attributes.integer("stride_h")}
    return tuple(shape[1:3]) == (1, 1) and strides == {1}
