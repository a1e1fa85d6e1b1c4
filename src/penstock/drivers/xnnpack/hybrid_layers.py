"""Hybrid layers (float32 activations, int8 weights), rewritten so that XNNPACK computes what
TFLite's reference kernels compute.

TFLite quantises each row of the activations (each image of a convolution) to 8 bits at run time,
multiplies and adds integers, and scales the sums. XNNPACK quantises differently, and LiteRT's own
kernels are slow. There are two rewrites.

`expand` writes the quantisation as float operations, which XNNPACK computes as IEEE 754 defines.
FULLY_CONNECTED keeps its int8 weights: two more columns with zero weights make each row span
exactly 255. XNNPACK spreads its own 8 bits over that span, so its step is 1 and its rounding
changes nothing. Other layers become float layers over integers: as long as sums are below
2**24, every partial sum is exact in any order. Either way the results equal the reference's.

`split_pixels` is for convolutions that XNNPACK quantises as TFLite does, each image over its own
range. With a 1x1 kernel it would quantise each pixel separately, and take longer. A pixel of C
channels becomes two neighbours of C/2 channels, under a 1x2 kernel with stride 2: the same numbers
in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np
from msgspec.structs import replace

from penstock.driverkit.site import Site
from penstock.ir import DType, Lifetime, NDArray, Operand, Operation, Shape
from penstock.ir.operation import AttributeValue
from penstock.ir.operations import OPERATIONS
from penstock.ir.types import is_static, static_shape

F32: Final = DType.FLOAT32
MOST_SUM: Final = 1 << 24
"""Up to this number, every integer is exact in float32."""

MOST_INTEGER_SUM: Final = (1 << 31) - 1
MOST_SHIFTED: Final = 510
"""The greatest sum of XNNPACK's 32-bit integers, and the greatest factor of a weight: an activation
minus its offset.
"""

Edges: TypeAlias = tuple[int, int] | tuple[float, float]
"""The least and the greatest integer of a row, 255 apart: two numbers for all rows, or two operands
with the numbers of each row.
"""

EDGES: Final[Edges] = (-128.0, 127.0)

LEAST_REACH: Final = 1e-30
"""The least range of a row: a row of zeros stays zero, and no step is a subnormal number."""

NO_ACTIVATION: Final = {"fused_activation_function": "NONE"}
NON_NEGATIVE: Final = frozenset({"RELU", "RELU6", "RELU_0_TO_1", "LOGISTIC", "ABS", "SOFTMAX"})
PRESERVING: Final = frozenset(
    {"PAD", "RESHAPE", "SQUEEZE", "MAX_POOL_2D", "RESIZE_NEAREST_NEIGHBOR"}
)
"""Operations and activations with results of at least 0, and operations that move values."""

CHANNELS: Final = {"FULLY_CONNECTED": 0, "CONV_2D": 0, "DEPTHWISE_CONV_2D": 3}
"""Layers that can be expanded, and the dimension of their weights that is the output channel."""


def can_expand(site: Site) -> bool:
    """Whether the hybrid layer *site* can be expanded: exact sums, rows along the last axis."""
    kind, weights = site.operation.type, site.input(1)
    if kind not in CHANNELS or not is_static(weights.shape):
        return False
    shape = site.input(0).shape or ()
    if kind == "FULLY_CONNECTED" and (not shape or shape[-1] != (weights.shape or (0, 0))[1]):
        return False
    axes = tuple(i for i in range(len(weights.shape or ())) if i != CHANNELS[kind])
    sizes = np.abs(site.model.constant(weights).astype(np.int64))
    largest = int(sizes.sum(axis=axes).max(initial=0))
    if _keeps_integers(kind, site.input(0)):
        return largest * MOST_SHIFTED <= MOST_INTEGER_SUM
    return largest * (255 if _is_asymmetric(site.operation, weights) else 127) <= MOST_SUM


def _keeps_integers(kind: str, source: Operand) -> bool:
    """Whether the layer keeps its int8 weights: its rows are known, which get two more columns."""
    return kind == "FULLY_CONNECTED" and is_static(source.shape)


def _is_asymmetric(operation: Operation, weights: Operand) -> bool:
    if operation.type == "FULLY_CONNECTED":
        return operation.attributes.flag("asymmetric_quantize_inputs")
    scales = weights.quantization.scales if weights.quantization is not None else ()
    return operation.type == "DEPTHWISE_CONV_2D" or len(set(scales)) > 1


def expand(
    operands: list[Operand], operation: Operation, weights: NDArray, *, non_negative: bool = False
) -> list[Operation]:
    """The operations that replace *operation*. New operands between them are appended to
    *operands*. *weights* is the value of its filters. If its inputs are *non_negative*, fewer
    operations suffice.
    """
    return _Expansion(operands, operation, non_negative).layer(weights)


def non_negative_operands(operations: Sequence[Operation]) -> frozenset[int]:
    """The results of *operations* that are never negative, whatever the inputs are."""
    found: set[int] = set()
    for operation in operations:
        kind, fused = operation.type, operation.attributes.get("fused_activation_function")
        is_kept = kind in PRESERVING and operation.inputs[0] in found
        if is_kept or not NON_NEGATIVE.isdisjoint({kind, fused}):
            found.update(operation.outputs)
    return frozenset(found)


class _Expansion:
    def __init__(self, operands: list[Operand], operation: Operation, non_negative: bool) -> None:
        self._operands, self._operation = operands, operation
        self._non_negative = non_negative
        self._operations: list[Operation] = []
        self._source = operation.inputs[0]
        self._shape = operands[self._source].shape or ()
        is_matrix = operation.type == "FULLY_CONNECTED"
        if is_matrix and len(self._shape) != 2 and not operation.attributes.flag("keep_num_dims"):
            self._flatten()
        rank = len(self._shape)
        self._axes = [rank - 1] if is_matrix else [1, 2, 3]
        self._row: tuple[int | None, ...] = tuple(
            1 if at in self._axes else size for at, size in enumerate(self._shape)
        )

    def _flatten(self) -> None:
        """Reshapes the input to a matrix of rows, as the result is."""
        *leading, depth = self._shape
        rows = math.prod(d for d in leading if d is not None) if None not in leading else None
        self._shape = (rows, depth)
        sizes = np.array([-1 if d is None else d for d in self._shape], np.int32)
        self._source = self._make("RESHAPE", [self._source, self._constant(sizes)], self._shape)

    def layer(self, weights: NDArray) -> list[Operation]:
        operation, matrix = self._operation, self._operands[self._operation.inputs[1]]
        rounded, step, edges = (
            self._asymmetric() if _is_asymmetric(operation, matrix) else self._symmetric()
        )
        target = operation.outputs[0]
        shape = self._operands[target].shape
        if _keeps_integers(operation.type, self._operands[self._source]):
            sums = self._integer_sums(rounded, edges, weights, shape)
            real = self._finish("MUL", [sums, step], shape)
        else:
            real = self._scaled(self._float_sums(rounded, weights, shape), step, shape)
        if self._has_bias():
            real = self._finish("ADD", [real, operation.inputs[2]], shape, last=True)
        # The last operation writes the layer's output.
        last = self._operations[-1]
        self._operations[-1] = Operation(
            last.type, last.inputs, (target,), last.attributes, operation.origin
        )
        self._operands.pop()
        return self._operations

    def _float_sums(self, whole: int, weights: NDArray, shape: Shape) -> int:
        """The sums of products of integers and *weights*."""
        inputs = [whole, self._constant(weights.astype(np.float32)), self._no_bias(weights)]
        attributes = {**self._operation.attributes, **NO_ACTIVATION}
        return self._make(self._operation.type, inputs, shape, attributes)

    def _scaled(self, sums: int, step: int, shape: Shape) -> int:
        """*sums* times the scales of the weights and the step of the row."""
        quantization = self._operands[self._operation.inputs[1]].quantization
        scales = np.array(quantization.scales if quantization is not None else (1.0,), np.float32)
        scale = self._constant(scales if len(scales) > 1 else scales.reshape(()))
        if self._operation.type == "DEPTHWISE_CONV_2D":
            both: Shape = (*self._row[:-1], len(scales))
            return self._finish("MUL", [sums, self._make("MUL", [scale, step], both)], shape)
        return self._finish("MUL", [self._make("MUL", [sums, scale], shape), step], shape)

    def _integer_sums(self, whole: int, edges: Edges, weights: NDArray, shape: Shape) -> int:
        """The sums of products of integers between *edges* and *weights*, scaled by the weights."""
        leading = self._shape[:-1]
        columns = [
            self._constant(np.full((*leading, 1), e, np.float32)) if isinstance(e, float) else e
            for e in edges
        ]
        rows = (*leading, weights.shape[1] + len(edges))
        joined: dict[str, AttributeValue] = {"axis": len(leading), **NO_ACTIVATION}
        whole = self._make("CONCATENATION", [whole, *columns], rows, joined)
        wider = np.pad(weights, ((0, 0), (0, len(edges))))
        matrix = replace(
            self._operands[self._operation.inputs[1]],
            shape=wider.shape,
            lifetime=Lifetime.CONSTANT_COPY,
            value=wider.tobytes(),
            location=None,
            origin=None,
        )
        # If XNNPACK leaves the layer to LiteRT's own kernels, those kernels find the same step.
        attributes = {**self._operation.attributes, **NO_ACTIVATION}
        attributes["asymmetric_quantize_inputs"] = True
        inputs = [whole, self._new(matrix), self._no_bias(weights)]
        return self._make(self._operation.type, inputs, shape, attributes)

    def _no_bias(self, weights: NDArray) -> int:
        return self._constant(np.zeros(weights.shape[CHANNELS[self._operation.type]], np.float32))

    def _has_bias(self) -> bool:
        inputs = self._operation.inputs
        return len(inputs) > 2 and self._operands[inputs[2]].has_value

    def _finish(self, kind: str, inputs: list[int], shape: Shape, *, last: bool = False) -> int:
        """An operation on the sums, with the layer's activation if it is the last one."""
        if not last and self._has_bias():
            return self._make(kind, inputs, shape)
        activation = self._operation.attributes.text("fused_activation_function")
        return self._make(kind, inputs, shape, {"fused_activation_function": activation})

    def _symmetric(self) -> tuple[int, int, Edges]:
        """Integers up to 127, the step of each row, and the edges."""
        reach = self._reach(self._source if self._non_negative else self._all("ABS", self._source))
        greatest = self._number(127)
        inverse, step = self._rows("DIV", greatest, reach), self._rows("DIV", reach, greatest)
        scaled = self._all("MUL", self._source, inverse)
        return self._away_from_zero(scaled, self._shape), step, EDGES

    def _asymmetric(self) -> tuple[int, int, Edges]:
        """Integers minus the row's offset, in a range of 255 around 0; the rows' steps; edges."""
        zero = self._number(0)
        if self._non_negative:
            return self._from_zero()
        high = self._rows("MAXIMUM", self._over_rows("REDUCE_MAX", self._source), zero)
        low = self._rows("MINIMUM", self._over_rows("REDUCE_MIN", self._source), zero)
        reach = self._rows("SUB", high, low)
        reach = self._rows("MAXIMUM", reach, self._number(LEAST_REACH))
        step = self._rows("DIV", reach, self._number(255))
        inverse = self._rows("DIV", self._number(1), step)
        # The number of steps below zero. The offset is this number minus 128.
        below = self._rows("MUL", self._rows("DIV", low, reach), self._number(-255))
        offset = self._rows("SUB", below, self._number(128))
        centred = self._away_from_zero(offset, self._row)
        least = self._rows("SUB", self._number(-128), centred)
        most = self._rows("SUB", self._number(127), centred)
        whole = self._away_from_zero(self._all("MUL", self._source, inverse), self._shape)
        whole = self._all("MAXIMUM", whole, least)
        return self._all("MINIMUM", whole, most), step, (least, most)

    def _from_zero(self) -> tuple[int, int, Edges]:
        """`_asymmetric` for a range from zero: the offset is -128, no value exceeds 255."""
        step = self._rows("DIV", self._reach(self._source), self._number(255))
        inverse = self._rows("DIV", self._number(1), step)
        scaled = self._all("MUL", self._source, inverse)
        return self._away_from_zero(scaled, self._shape), step, (0.0, 255.0)

    def _reach(self, sizes: int) -> int:
        """The greatest of *sizes* in each row, at least `LEAST_REACH`."""
        reach = self._over_rows("REDUCE_MAX", sizes)
        return self._rows("MAXIMUM", reach, self._number(LEAST_REACH))

    def _away_from_zero(self, value: int, shape: Shape) -> int:
        """*value* rounded, halves away from zero: adds one half and truncates."""
        if self._non_negative:
            more = self._make("ADD", [value, self._number(0.5)], shape)
            return self._make("FLOOR", [more], shape)
        size = self._make("ABS", [value], shape)
        more = self._make("ADD", [size, self._number(0.5)], shape)
        whole, sign = self._make("FLOOR", [more], shape), self._make("SIGN", [value], shape)
        return self._make("MUL", [whole, sign], shape)

    def _rows(self, kind: str, *inputs: int) -> int:
        """An operation with one result for each row."""
        return self._make(kind, inputs, self._row)

    def _all(self, kind: str, *inputs: int) -> int:
        """An operation with one result for each activation."""
        return self._make(kind, inputs, self._shape)

    def _over_rows(self, kind: str, value: int) -> int:
        axes = self._constant(np.array(self._axes, np.int32))
        return self._make(kind, [value, axes], self._row, {"keep_dims": True})

    def _make(
        self,
        kind: str,
        inputs: Sequence[int],
        shape: Shape,
        attributes: dict[str, AttributeValue] | None = None,
    ) -> int:
        row = OPERATIONS[kind]
        if attributes is None:
            attributes = dict(NO_ACTIVATION) if kind in {"ADD", "SUB", "MUL", "DIV"} else {}
        made = self._new(Operand(F32, shape))
        self._operations.append(Operation(kind, tuple(inputs), (made,), row.complete(attributes)))
        return made

    def _number(self, value: float) -> int:
        return self._constant(np.array(value, np.float32))

    def _new(self, operand: Operand) -> int:
        self._operands.append(operand)
        return len(self._operands) - 1

    def _constant(self, value: NDArray) -> int:
        dtype = F32 if value.dtype == np.float32 else DType.INT32
        content = np.ascontiguousarray(value).tobytes()
        return self._new(Operand(dtype, value.shape, Lifetime.CONSTANT_COPY, value=content))


SUMMING: Final = frozenset(
    {"CONV_2D", "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV", "FULLY_CONNECTED", "BATCH_MATMUL"}
)
FOLLOWING: Final = frozenset(
    {"RELU", "RELU6", "LEAKY_RELU", "PRELU", "HARD_SWISH", "PAD", "RESHAPE", "SQUEEZE"}
    | {"MAX_POOL_2D", "AVERAGE_POOL_2D", "MEAN", "RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR"}
)
JOINING: Final = frozenset({"ADD", "MUL", "CONCATENATION"})
"""Layers with float results; operations that pass on such values from the first input; and
operations that pass them on from all inputs.
"""


def is_hybrid(operation: Operation, operands: Sequence[Operand]) -> bool:
    """Whether *operation* is a hybrid convolution."""
    if operation.type != "CONV_2D":
        return False
    source, weights = (operands[i] for i in operation.inputs[:2])
    return source.dtype is DType.FLOAT32 and weights.dtype is DType.INT8


def is_quantized_alike(
    operation: Operation, operands: Sequence[Operand], summed: frozenset[int]
) -> bool:
    """Whether *operation* is a hybrid convolution that XNNPACK rounds as TFLite does, except within
    1e-5 of a half.

    With weights of several scales, TFLite quantises images with an offset, as XNNPACK does. All
    inputs of a network may be halves, for example images in [-1, 1]. Values in *summed* are not.
    """
    if not is_hybrid(operation, operands) or operation.inputs[0] not in summed:
        return False
    quantization = operands[operation.inputs[1]].quantization
    if quantization is None or len(set(quantization.scales)) < 2:
        return False
    return not _is_of_pixels(operation, operands) or can_split_pixels(operation, operands)


def can_split_pixels(operation: Operation, operands: Sequence[Operand]) -> bool:
    """Whether *operation* is a hybrid convolution whose 1x1 kernel can become a 1x2 kernel."""
    if not is_hybrid(operation, operands):
        return False
    shape = static_shape(operands[operation.inputs[0]].shape)
    return _is_of_pixels(operation, operands) and shape is not None and shape[3] % 2 == 0


def split_pixels(operands: list[Operand], operation: Operation) -> tuple[Operation, Operation]:
    """A RESHAPE that halves pixels, and *operation* by a 1x2 kernel. Appends to *operands*."""
    source, weights, *bias = operation.inputs
    batch, height, width, channels = static_shape(operands[source].shape) or (1, 1, 1, 2)
    halved = (batch, height, 2 * width, channels // 2)
    shape = np.array(halved, np.int32)
    first, filters = len(operands), operands[weights]
    outputs = (filters.shape or (None,))[0]
    operands += [
        Operand(DType.INT32, shape.shape, Lifetime.CONSTANT_COPY, value=shape.tobytes()),
        Operand(F32, halved),
        replace(filters, shape=(outputs, 1, 2, channels // 2), origin=None),
    ]
    reshaping = OPERATIONS["RESHAPE"].complete({})
    convolving = {**operation.attributes, "stride_w": 2, "padding": "VALID"}
    inputs, attributes = (first + 1, first + 2, *bias), OPERATIONS["CONV_2D"].complete(convolving)
    return (
        Operation("RESHAPE", (source, first), (first + 1,), reshaping),
        replace(operation, inputs=inputs, attributes=attributes),
    )


def summed_operands(operations: Sequence[Operation], operands: Sequence[Operand]) -> frozenset[int]:
    """The results of float layers, and values that are computed only from such results."""
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
    """Whether the kernel is 1x1 with stride 1, so that XNNPACK computes a matrix product."""
    shape = operands[operation.inputs[1]].shape or ()
    attributes = operation.attributes
    strides = {attributes.integer("stride_w"), attributes.integer("stride_h")}
    return tuple(shape[1:3]) == (1, 1) and strides == {1}
