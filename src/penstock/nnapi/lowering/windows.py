"""Shared by operations over image windows: layouts, implicit and explicit padding, weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from penstock.errors import InvalidQuantization
from penstock.ir import DType, Quantization
from penstock.ir.types import Shape
from penstock.nnapi.description import OperandType
from penstock.nnapi.lowering.graph import ValueType
from penstock.nnapi.lowering.operation import PADDINGS as SCHEMES, OperationLowering

PADS: Final = "left:i>=0 right:i>=0 top:i>=0 bottom:i>=0"
PADDINGS: Final = (PADS, "padding:i")
STRIDES: Final = "stride_w:i>0 stride_h:i>0"
LAYOUT: Final = "nchw:b@3"
QUANT8: Final = frozenset({OperandType.TENSOR_QUANT8_ASYMM, OperandType.TENSOR_QUANT8_ASYMM_SIGNED})
BIAS_TOLERANCE: Final = 1e-6
"""Greatest difference of bias scale and product, relative to the larger one (NNAPI section 8.1)."""

Sides = tuple[tuple[int, int], tuple[int, int]]
"""Elements of padding (before, after) of height and width."""


@dataclass(frozen=True, slots=True)
class Padding:
    """How windows handle borders: an implicit scheme, or explicit *sides*."""

    scheme: Literal["SAME", "VALID", "EXPLICIT"]
    sides: Sides = ((0, 0), (0, 0))

    @property
    def implicit(self) -> Literal["SAME", "VALID"]:
        """The implicit scheme that remains once explicit padding has been added."""
        return "SAME" if self.scheme == "SAME" else "VALID"

    def resolved(
        self,
        image: Shape,
        extents: tuple[int | None, ...],
        strides: tuple[int, int],
        dilations: tuple[int, int] = (1, 1),
    ) -> Padding:
        """The implicit scheme that equals explicit padding, if there is one. *image* is NHWC."""
        if self.scheme != "EXPLICIT":
            return self
        if self.sides == ((0, 0), (0, 0)):
            return Padding("VALID")
        for axis in (0, 1):
            size, extent = None if image is None else image[1 + axis], extents[axis]
            if size is None or extent is None:
                return self
            if same_padding(size, extent, strides[axis], dilations[axis]) != self.sides[axis]:
                return self
        return Padding("SAME")


def same_padding(size: int, extent: int, stride: int, dilation: int = 1) -> tuple[int, int]:
    """The padding of SAME before and after *size* elements (NNAPI section 8.1)."""
    reach = (extent - 1) * dilation + 1
    total = max(0, (-(-size // stride) - 1) * stride + reach - size)
    return total // 2, total - total // 2


def padding_of(op: OperationLowering) -> Padding:
    """The padding by the operation's arguments."""
    if "left" not in op.match.inputs:
        return Padding(op.choice("padding", SCHEMES, "padding scheme"))
    left, right, top, bottom = (op.integer(n) for n in ("left", "right", "top", "bottom"))
    return Padding("EXPLICIT", ((top, bottom), (left, right)))


def strides_of(op: OperationLowering) -> tuple[int, int]:
    """(height, width) strides."""
    return op.integer("stride_h"), op.integer("stride_w")


def image(op: OperationLowering, name: str = "input") -> int:
    """The image in the layout NHWC."""
    op.require_rank(name, 4)
    index = op.tensor(name)
    return op.transpose(index, (0, 2, 3, 1)) if op.layout == "NCHW" else index


def bind_image(op: OperationLowering, result: int) -> None:
    """Binds *result*, NHWC, as the output in the operation's layout."""
    op.bind(0, op.transpose(result, (0, 3, 1, 2)) if op.layout == "NCHW" else result)


def padded(op: OperationLowering, index: int, sides: Sides) -> int:
    """An NHWC image surrounded by zeros; quantised ones store the zero point."""
    if sides == ((0, 0), (0, 0)):
        return index
    return op.emit("PAD", [index, op.integers([(0, 0), *sides, (0, 0)])])


def check_weights(op: OperationLowering, channels: int) -> None:
    """Checks that filter and bias fit the input.

    Checks types, the dimension of channel scales, and the scale of the bias. *channels* is the
    filter's dimension of output channels.
    """
    data, weights, bias = (op.operand(n) for n in ("input", "filter", "bias"))
    per_channel = weights.type is OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL
    real = data.type not in QUANT8
    op.require(
        weights.type is data.type or (per_channel and not real),
        f"a filter {weights.type.name} beside an input {data.type.name}",
    )
    op.require(
        bias.type is (data.type if real else OperandType.TENSOR_INT32),
        f"a bias {bias.type.name} beside an input {data.type.name}",
    )
    if real:
        return
    if not per_channel:
        product = data.scale * weights.scale
        if abs(bias.scale - product) > BIAS_TOLERANCE * max(bias.scale, product):
            raise InvalidQuantization(
                f"the bias of {op.type} has scale {bias.scale:g}, input times filter have "
                f"{product:g}"
            )
        op.require(
            op.feature_level >= 3 or op.operand("output").scale > product,
            "below feature level 3 the output's scale must be above that of input times filter",
        )
        return
    if bias.scale != 0:
        raise InvalidQuantization(
            f"a bias beside scales for channels has scale 0, not {bias.scale:g}"
        )
    quantization = weights.channel_quantization
    if quantization is not None and quantization.dimension != channels:
        raise InvalidQuantization(
            f"scales along dimension {quantization.dimension} of the filter of {op.type}, "
            f"where {channels} is needed"
        )


def signed_type(kind: ValueType) -> ValueType:
    """The signed 8-bit type of the same real values."""
    dtype, quantization = kind
    if dtype is not DType.UINT8 or quantization is None:
        return kind
    return DType.INT8, Quantization(quantization.scales, (quantization.zero_point - 128,))


def signed(op: OperationLowering, index: int) -> int:
    """Unsigned 8-bit values as signed ones of the same real values; others unchanged."""
    kind = op.value_type(index)
    moved = signed_type(kind)
    return index if moved == kind else op.emit("QUANTIZE", [index], moved)


def finish_weighted(
    op: OperationLowering, kind: str, inputs: list[int], data: int, **attributes: str | int | bool
) -> int:
    """Appends the operation with weights and returns its result, of the output's type.

    *data* is the position of the image in *inputs*. With channel scales, which the IR has for
    signed activations only, unsigned ones are converted there and back.
    """
    result = op.result_type()
    per_channel = op.operand("filter").type is OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL
    if not per_channel or op.operand("input").type is not OperandType.TENSOR_QUANT8_ASYMM:
        return op.emit(kind, inputs, result, **attributes)
    inputs = [signed(op, x) if at == data else x for at, x in enumerate(inputs)]
    moved = op.emit(kind, inputs, signed_type(result), **attributes)
    return op.emit("QUANTIZE", [moved], result)
