"""The inputs of a model, and the first operations on each: arithmetic, range, and consumer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from penstock.execution.inputs import dequantize
from penstock.ir import DType, Operation

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from penstock.execution.interface import Interface
    from penstock.ir import Model, Operand, Quantization, TensorMetadata


Values: TypeAlias = "npt.NDArray[np.float64]"

MOST: Final = 64
"""How many operations are followed from an input."""

_UNREAD: Final = frozenset({"SHAPE", "RANK", "ZEROS_LIKE"})
"""Operations that ignore the values of their input."""

_SPATIAL: Final = frozenset(
    {"PAD", "PADV2", "MIRROR_PAD", "RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR"}
)
"""Operations that keep every channel's range of values."""


class Bounds(Struct, frozen=True):
    """The real values that an input can hold without clipping.

    *quantized*: the bounds come from a scale and a zero point. *symmetric*: the stored type is
    signed with zero point 0. The bounds then give only the greatest magnitude; values below zero
    may not occur.
    """

    low: float
    high: float
    quantized: bool = True
    symmetric: bool = False

    @property
    def width(self) -> float:
        return self.high - self.low


class FirstOperations(Struct, frozen=True):
    """What the first operations reveal about an input.

    Leading arithmetic with constants converts a real value x to `scale * x + offset`. Both have one
    element, or one per channel. *bounds* are those of the first quantisation or clipping, in the
    input's real values. *operation* is the first one that combines elements; None if there is none
    or several. It reads the operand *value*, as its input number *index*.
    """

    index: int
    value: Operand
    scale: Values
    offset: Values
    bounds: Bounds | None = None
    operation: Operation | None = None

    @property
    def is_identity(self) -> bool:
        """Whether the arithmetic changes values by no more than rounding."""
        return bool(np.all(np.abs(self.scale - 1) < 0.02) and np.all(np.abs(self.offset) < 0.02))


def first_operations(model: Model, operand: int, channel_axis: int | None) -> FirstOperations:
    """The first operations of the entry subgraph of *model* on operand *operand*.

    *channel_axis* is the axis of the picture's channels, None if it has none.
    """
    path = _Path(model, operand, channel_axis)
    for _ in range(MOST):
        readers = [o for o in path.readers() if o.type not in _UNREAD]
        if len(readers) != 1:
            break
        if not path.follow(readers[0]):
            return path.found(readers[0])
    return path.found(None)


def quantized_bounds(dtype: DType, quantization: Quantization) -> Bounds | None:
    """The range of an integer type of at most 16 bits with one scale; None otherwise."""
    bits = dtype.bits
    if not dtype.is_integer or bits is None or bits > 16 or quantization.per_channel:
        return None
    signed = not dtype.value.startswith("u")
    least = -(1 << (bits - 1)) if signed else 0
    scale, zero_point = quantization.scale, quantization.zero_point
    low, high = scale * (least - zero_point), scale * (least + (1 << bits) - 1 - zero_point)
    return Bounds(low, high, symmetric=signed and zero_point == 0) if high > low else None


def constant_input(model: Model, operation: Operation, position: int) -> Values | None:
    """The real values of a constant input of an operation; None if it has none."""
    if position >= len(operation.inputs):
        return None
    operand = model.operands[operation.inputs[position]]
    if not operand.is_constant or operand.dtype is DType.STRING:
        return None
    value = model.constant(operand)
    if operand.quantization is not None:
        value = dequantize(value, operand.quantization)
    return np.asarray(value, np.float64)


class _Path:
    """Follows an input through element-wise operations."""

    def __init__(self, model: Model, operand: int, channel_axis: int | None) -> None:
        self.model, self.at, self.axis = model, operand, channel_axis
        self.scale, self.offset = np.ones(1), np.zeros(1)
        self.bounds: Bounds | None = None
        self.clipped: dict[str, float] = {}
        self.offset_rounded: float | None = None
        self.zero_point_0 = False
        start = model.operands[operand]
        if start.quantization is not None:
            self.bounds = quantized_bounds(start.dtype, start.quantization)

    def readers(self) -> list[Operation]:
        return [o for o in self.model.operations if self.at in o.inputs]

    def found(self, operation: Operation | None) -> FirstOperations:
        value = self.model.operands[self.at]
        bounds = self.bounds or self._clip_bounds()
        return FirstOperations(self.at, value, self.scale, self.offset, bounds, operation)

    def follow(self, operation: Operation) -> bool:
        """Follows *operation* if it is element-wise; otherwise returns False."""
        rule = _RULES.get(operation.type)
        if rule is None or not rule(self, operation):
            return False
        self.at = operation.outputs[0]
        return True

    def per_channel(self, value: Values) -> Values | None:
        """*value* as one number or one per channel; None if it varies along another axis."""
        if value.size == 1:
            return value.reshape(1)
        rank = len(self.model.operands[self.at].shape or ())
        padded = (1,) * (rank - value.ndim) + value.shape
        if self.axis is None or len(padded) != rank or padded[self.axis] != value.size:
            return None
        return value.reshape(-1)

    def arithmetic(self, operation: Operation) -> bool:
        if operation.attributes.get("fused_activation_function", "NONE") != "NONE":
            return False
        first = operation.inputs[0] == self.at
        if operation.inputs[0] == operation.inputs[1] or (operation.type == "DIV" and not first):
            return False
        given = constant_input(self.model, operation, 1 if first else 0)
        number = None if given is None else self.per_channel(given)
        if number is None or not np.all(np.isfinite(number)):
            return False
        scale, offset = _composed(operation.type, self.scale, self.offset, number, first=first)
        if not np.all(np.isfinite(scale)) or not np.all(np.isfinite(offset)):
            return False
        self.scale, self.offset = scale, offset
        return True

    def clip(self, operation: Operation) -> bool:
        other = constant_input(self.model, operation, 1 if operation.inputs[0] == self.at else 0)
        if other is None or other.size != 1 or self.scale.size != 1 or self.scale[0] <= 0:
            return False
        limit = float(other.reshape(-1)[0])
        bound = (limit - float(self.offset[0])) / float(self.scale[0])
        if self.offset_rounded is not None and operation.type == "MAXIMUM":
            # The sum added since the rounding is the zero point.
            added = abs(float(self.offset[0]) - self.offset_rounded)
            self.zero_point_0 = limit < 0 and added < 0.5
        self.clipped.setdefault("low" if operation.type == "MAXIMUM" else "high", bound)
        return True

    def round(self, _: Operation) -> bool:
        if self.offset.size != 1:
            return False
        self.offset_rounded = float(self.offset[0])
        return True

    def quantize(self, operation: Operation) -> bool:
        output = self.model.operands[operation.outputs[0]]
        if output.quantization is not None:
            self._bound(quantized_bounds(output.dtype, output.quantization))
        return True

    def fake_quant(self, operation: Operation) -> bool:
        low, high = operation.attributes.number("min"), operation.attributes.number("max")
        self._bound(Bounds(low, high) if low < high else None)
        return True

    def transpose(self, operation: Operation) -> bool:
        order = constant_input(self.model, operation, 1)
        if order is None:
            return False
        if self.axis is not None:
            self.axis = [int(i) for i in order].index(self.axis)
        return True

    def reshape(self, operation: Operation) -> bool:
        if operation.inputs[0] != self.at:
            return False
        before, after = self.model.operands[self.at], self.model.operands[operation.outputs[0]]
        self.axis = _moved(before, after, self.axis)
        return self.axis is not None or self.scale.size == 1

    def cast(self, operation: Operation) -> bool:
        here, there = self.model.operands[self.at], self.model.operands[operation.outputs[0]]
        numbers = all(o.dtype.is_float or o.dtype.is_integer for o in (here, there))
        return numbers and here.quantization is None and there.quantization is None

    def unpack(self, operation: Operation) -> bool:
        return len(operation.outputs) == 1 and self.reshape(operation)

    def slice(self, operation: Operation) -> bool:
        if operation.inputs[0] != self.at:
            return False
        strides: Values | None = np.ones(1)
        if operation.type == "STRIDED_SLICE":
            strides = constant_input(self.model, operation, 3)
        before, after = self.model.operands[self.at], self.model.operands[operation.outputs[0]]
        if strides is None or np.any(strides < 0) or before.shape is None or after.shape is None:
            return False
        if self.axis is None:
            return True
        same_rank = len(before.shape) == len(after.shape)
        return same_rank and before.shape[self.axis] == after.shape[self.axis]

    def keep(self, operation: Operation) -> bool:
        return operation.inputs[0] == self.at

    def _bound(self, bounds: Bounds | None) -> None:
        usable = self.scale.size == 1 and self.scale[0] > 0
        if self.bounds is None and bounds is not None and usable:
            low, high = ((b - self.offset[0]) / self.scale[0] for b in (bounds.low, bounds.high))
            self.bounds = replace(bounds, low=float(low), high=float(high))

    def _clip_bounds(self) -> Bounds | None:
        """The bounds of a pair MAXIMUM, MINIMUM, which ONNX uses for quantisation."""
        low, high = self.clipped.get("low"), self.clipped.get("high")
        if low is None or high is None or not low < high:
            return None
        return Bounds(low, high, self.offset_rounded is not None, self.zero_point_0)


def _composed(
    kind: str, scale: Values, offset: Values, number: Values, *, first: bool
) -> tuple[Values, Values]:
    """Scale and offset after an operation with *number*; *first* if the value is first."""
    with np.errstate(all="ignore"):
        if kind == "ADD":
            return scale, offset + number
        if kind == "SUB":
            return (scale, offset - number) if first else (-scale, number - offset)
        if kind == "MUL":
            return scale * number, offset * number
        return scale / number, offset / number


def _moved(before: Operand, after: Operand, axis: int | None) -> int | None:
    """The position of *axis* after dimensions of 1 are added or removed; None for other changes."""
    old, new = before.shape, after.shape
    if axis is None or old is None or new is None or old[axis] == 1:
        return None
    if [d for d in old if d != 1] != [d for d in new if d != 1]:
        return None
    place = sum(d != 1 for d in old[:axis])
    return [i for i, d in enumerate(new) if d != 1][place]


_RULES: Final[Mapping[str, Callable[[_Path, Operation], bool]]] = MappingProxyType(
    dict.fromkeys(("ADD", "SUB", "MUL", "DIV"), _Path.arithmetic)
    | dict.fromkeys(("MAXIMUM", "MINIMUM"), _Path.clip)
    | dict.fromkeys(("RESHAPE", "SQUEEZE", "EXPAND_DIMS"), _Path.reshape)
    | dict.fromkeys(("SLICE", "STRIDED_SLICE"), _Path.slice)
    | dict.fromkeys((*_SPATIAL, "DEQUANTIZE"), _Path.keep)
    | {
        "ROUND": _Path.round,
        "QUANTIZE": _Path.quantize,
        "FAKE_QUANT": _Path.fake_quant,
        "TRANSPOSE": _Path.transpose,
        "CAST": _Path.cast,
        "UNPACK": _Path.unpack,
    }
)


class Slot(Struct, frozen=True):
    """One input of *model*, with the name and shape that the user sees, and its *metadata*."""

    operand: Operand
    model: Model
    index: int
    metadata: TensorMetadata | None = None

    @property
    def content(self) -> str:
        """The content by the metadata: "image", "audio", "feature", "bounding_box", or ""."""
        return self.metadata.content if self.metadata is not None else ""

    def first_operations(self, channel_axis: int | None = None) -> FirstOperations:
        """The model's first operations on this input."""
        return first_operations(self.model, self.index, channel_axis)


def slots_of(model: Model, interface: Interface, operands: Sequence[Operand]) -> list[Slot]:
    """A slot for each of *operands*, the inputs of *interface*."""
    indexes, metadata = model.entry.ordinary_inputs, model.metadata.inputs
    # Metadata describes only the file's first subgraph.
    described = dict(enumerate(metadata)) if model.main == 0 else {}
    return [
        Slot(operand, model, indexes[position], described.get(position))
        for operand, position in zip(operands, interface.input_positions, strict=True)
    ]
