"""Hybrid layers, floats by int8 weights, as float arithmetic over whole numbers.

TFLite's reference kernels quantise each row (of a picture all of it) to 8 bits as they run,
multiply and add whole numbers, and scale the sums. XNNPACK quantises otherwise, and LiteRT's own
kernels are slow. Here the rounding is written out in operations that XNNPACK computes as IEEE 754
has it, and the layer between is given whole numbers.

A FULLY_CONNECTED keeps its int8 weights. Two more columns, whose weights are 0, make each row reach
over just 255: that is what XNNPACK spreads its own 8 bits over, so that its step is 1 and its
rounding changes nothing. Other layers are ones of floats: while their sums stay below 2**24 every
partial sum is exact, in whatever order. Either way the results are the reference's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, TypeAlias

import msgspec
import numpy as np

from penstock.drivers.xnnpack.site import Site
from penstock.ir import DType, Lifetime, NDArray, Operand, Operation, Shape
from penstock.ir.operation import AttributeValue
from penstock.ir.operations import OPERATIONS
from penstock.ir.types import is_static

F32: Final = DType.FLOAT32
MOST_SUM: Final = 1 << 24
"""Up to which every whole number is a float32."""

MOST_INTEGER_SUM: Final = (1 << 31) - 1
MOST_SHIFTED: Final = 510
"""What XNNPACK adds up in 32 bits, and the greatest magnitude of what it multiplies a weight by,
with its offset.
"""

Edges: TypeAlias = tuple[int, int] | tuple[float, float]
"""Two whole numbers, 255 apart, between which all of a row lie: the same for all, or operands with
those of each row.
"""

EDGES: Final[Edges] = (-128.0, 127.0)

LEAST_REACH: Final = 1e-30
"""What the range of a row counts at least: a row of zeros stays one, and no step is below what is
normal.
"""

NO_ACTIVATION: Final = {"fused_activation_function": "NONE"}
POSITIVE: Final = frozenset({"RELU", "RELU6", "RELU_0_TO_1", "LOGISTIC", "ABS", "SOFTMAX"})
KEEPING: Final = frozenset({"PAD", "RESHAPE", "SQUEEZE", "MAX_POOL_2D", "RESIZE_NEAREST_NEIGHBOR"})
"""What gives such numbers, as an operation or an activation, and what only moves them."""

CHANNELS: Final = {"FULLY_CONNECTED": 0, "CONV_2D": 0, "DEPTHWISE_CONV_2D": 3}
"""Layers that are written so, and the dimension of their weights that counts the results of a
place.
"""


def can_expand(site: Site) -> bool:
    """Whether the hybrid layer of *site* may be written so: its sums stay exact, and each row lies
    along the last axis.
    """
    kind, weights = site.operation.type, site.input(1)
    if kind not in CHANNELS or not is_static(weights.shape):
        return False
    shape = site.input(0).shape or ()
    if kind == "FULLY_CONNECTED" and (not shape or shape[-1] != (weights.shape or (0, 0))[1]):
        return False
    axes = tuple(i for i in range(len(weights.shape or ())) if i != CHANNELS[kind])
    largest = int(np.abs(site.value_of(weights).astype(np.int64)).sum(axis=axes).max(initial=0))
    if _keeps_integers(kind, site.input(0)):
        return largest * MOST_SHIFTED <= MOST_INTEGER_SUM
    return largest * (255 if _is_asymmetric(site.operation, weights) else 127) <= MOST_SUM


def _keeps_integers(kind: str, source: Operand) -> bool:
    """Whether the layer keeps its int8 weights: the columns that join its rows must be as many as
    they are.
    """
    return kind == "FULLY_CONNECTED" and is_static(source.shape)


def _is_asymmetric(operation: Operation, weights: Operand) -> bool:
    if operation.type == "FULLY_CONNECTED":
        return operation.attributes.flag("asymmetric_quantize_inputs")
    scales = weights.quantization.scales if weights.quantization is not None else ()
    return operation.type == "DEPTHWISE_CONV_2D" or len(set(scales)) > 1


def expand(
    operands: list[Operand], operation: Operation, weights: NDArray, *, positive: bool = False
) -> list[Operation]:
    """The operations that *operation* is written as; what lies between them joins *operands*.
    *weights* is the value of its filters. Where no value is below zero (*positive*) some of them
    are not needed.
    """
    return _Expansion(operands, operation, positive).layer(weights)


def positive_operands(operations: Sequence[Operation]) -> frozenset[int]:
    """The results that hold no number below zero, whatever is given to *operations*."""
    found: set[int] = set()
    for operation in operations:
        kind, fused = operation.type, operation.attributes.get("fused_activation_function")
        if (
            kind in POSITIVE
            or fused in POSITIVE
            or (kind in KEEPING and operation.inputs[0] in found)
        ):
            found.update(operation.outputs)
    return frozenset(found)


class _Expansion:
    def __init__(self, operands: list[Operand], operation: Operation, positive: bool) -> None:
        self._operands, self._operation, self._positive = operands, operation, positive
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
        """Takes the rows, whatever they were counted by, as those of a matrix, which the results
        are.
        """
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
        # The last of them writes what the layer did.
        last = self._operations[-1]
        self._operations[-1] = Operation(
            last.type, last.inputs, (target,), last.attributes, operation.origin
        )
        self._operands.pop()
        return self._operations

    def _float_sums(self, whole: int, weights: NDArray, shape: Shape) -> int:
        """The products of whole numbers and *weights*, added up."""
        inputs = [whole, self._constant(weights.astype(np.float32)), self._no_bias(weights)]
        attributes = {**self._operation.attributes, **NO_ACTIVATION}
        return self._make(self._operation.type, inputs, shape, attributes)

    def _scaled(self, sums: int, step: int, shape: Shape) -> int:
        """*sums* by the scales of their weights and the step of their row."""
        quantization = self._operands[self._operation.inputs[1]].quantization
        scales = np.array(quantization.scales if quantization is not None else (1.0,), np.float32)
        scale = self._constant(scales if len(scales) > 1 else scales.reshape(()))
        if self._operation.type == "DEPTHWISE_CONV_2D":
            both: Shape = (*self._row[:-1], len(scales))
            return self._finish("MUL", [sums, self._make("MUL", [scale, step], both)], shape)
        return self._finish("MUL", [self._make("MUL", [sums, scale], shape), step], shape)

    def _integer_sums(self, whole: int, edges: Edges, weights: NDArray, shape: Shape) -> int:
        """The products of whole numbers, which lie between *edges*, and *weights*, added up, by the
        weights' scales.
        """
        leading = self._shape[:-1]
        columns = [
            self._constant(np.full((*leading, 1), edge, np.float32))
            if isinstance(edge, float)
            else edge
            for edge in edges
        ]
        rows = (*leading, weights.shape[1] + len(edges))
        whole = self._make(
            "CONCATENATION", [whole, *columns], rows, {"axis": len(leading), **NO_ACTIVATION}
        )
        wider = np.pad(weights, ((0, 0), (0, len(edges))))
        matrix = msgspec.structs.replace(
            self._operands[self._operation.inputs[1]],
            shape=wider.shape,
            lifetime=Lifetime.CONSTANT_COPY,
            value=wider.tobytes(),
            location=None,
            origin=None,
        )
        # LiteRT's own kernels, where XNNPACK leaves the layer to them, find the same step.
        attributes = {**self._operation.attributes, **NO_ACTIVATION, "asymmetric_quantize_inputs": True}  # fmt: skip
        inputs = [whole, self._new(matrix), self._no_bias(weights)]
        return self._make(self._operation.type, inputs, shape, attributes)

    def _no_bias(self, weights: NDArray) -> int:
        return self._constant(np.zeros(weights.shape[CHANNELS[self._operation.type]], np.float32))

    def _has_bias(self) -> bool:
        inputs = self._operation.inputs
        return len(inputs) > 2 and self._operands[inputs[2]].has_value

    def _finish(self, kind: str, inputs: list[int], shape: Shape, *, last: bool = False) -> int:
        """An operation behind the sums; with the layer's activation where it is the last."""
        if not last and self._has_bias():
            return self._make(kind, inputs, shape)
        activation = self._operation.attributes.text("fused_activation_function")
        return self._make(kind, inputs, shape, {"fused_activation_function": activation})

    def _symmetric(self) -> tuple[int, int, Edges]:
        """Whole numbers up to 127, and the step of each row."""
        source = self._source
        size = source if self._positive else self._make("ABS", [source], self._shape)
        reach = self._make("MAXIMUM", [self._over_rows("REDUCE_MAX", size), self._number(LEAST_REACH)], self._row)  # fmt: skip
        greatest = self._number(127)
        inverse = self._make("DIV", [greatest, reach], self._row)
        step = self._make("DIV", [reach, greatest], self._row)
        scaled = self._make("MUL", [self._source, inverse], self._shape)
        return self._away_from_zero(scaled, self._shape), step, EDGES

    def _asymmetric(self) -> tuple[int, int, Edges]:
        """Whole numbers less the row's offset, in a range of 255 around zero, and the step of each
        row.
        """
        zero, row = self._number(0), self._row
        if self._positive:
            return self._from_zero()
        high = self._make("MAXIMUM", [self._over_rows("REDUCE_MAX", self._source), zero], row)
        low = self._make("MINIMUM", [self._over_rows("REDUCE_MIN", self._source), zero], row)
        reach = self._make("SUB", [high, low], row)
        reach = self._make("MAXIMUM", [reach, self._number(LEAST_REACH)], row)
        steps = self._number(255)
        step = self._make("DIV", [reach, steps], row)
        inverse = self._make("DIV", [self._number(1), step], row)
        # The offset is this less 128: how many steps the range reaches below zero.
        share = self._make("DIV", [low, reach], row)
        below = self._make("MUL", [share, self._number(-255)], row)
        centred = self._away_from_zero(self._make("SUB", [below, self._number(128)], row), row)
        least = self._make("SUB", [self._number(-128), centred], row)
        most = self._make("SUB", [self._number(127), centred], row)
        scaled = self._make("MUL", [self._source, inverse], self._shape)
        whole = self._away_from_zero(scaled, self._shape)
        whole = self._make("MAXIMUM", [whole, least], self._shape)
        return self._make("MINIMUM", [whole, most], self._shape), step, (least, most)

    def _from_zero(self) -> tuple[int, int, Edges]:
        """`_asymmetric` of a range that begins at zero: the offset is -128, and nothing lies beyond
        255.
        """
        reach = self._over_rows("REDUCE_MAX", self._source)
        reach = self._make("MAXIMUM", [reach, self._number(LEAST_REACH)], self._row)
        step = self._make("DIV", [reach, self._number(255)], self._row)
        inverse = self._make("DIV", [self._number(1), step], self._row)
        scaled = self._make("MUL", [self._source, inverse], self._shape)
        return self._away_from_zero(scaled, self._shape), step, (0.0, 255.0)

    def _away_from_zero(self, value: int, shape: Shape) -> int:
        """*value* rounded, halves away from zero: one half more, and the fraction cut off."""
        if self._positive:
            return self._make(
                "FLOOR", [self._make("ADD", [value, self._number(0.5)], shape)], shape
            )
        size = self._make("ABS", [value], shape)
        more = self._make("ADD", [size, self._number(0.5)], shape)
        return self._make("MUL", [self._make("FLOOR", [more], shape), self._make("SIGN", [value], shape)], shape)  # fmt: skip

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
        self._operands.append(Operand(F32, shape))
        made = len(self._operands) - 1
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
        self._operands.append(Operand(dtype, value.shape, Lifetime.CONSTANT_COPY, value=content))
        return len(self._operands) - 1
