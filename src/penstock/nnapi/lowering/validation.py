"""NNAPI's rules for operands and structure (NNAPI sections 8.1 and 8.4), and the IR's operands."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from penstock import errors
from penstock.arguments import check_kind
from penstock.ir import (
    ConstantPool,
    DType,
    ExtensionType as IrExtensionType,
    Lifetime,
    Operand,
    Quantization,
)
from penstock.ir.types import Shape, is_static
from penstock.nnapi.description import (
    AnyType,
    ChannelQuantization,
    ExtensionType,
    NnapiLifetime,
    NnapiModel,
    NnapiOperand,
    NnapiSubgraph,
    OperandType,
    ir_shape,
    value_size,
)

ZERO_POINTS: Final[Mapping[AnyType, tuple[int, int]]] = {
    OperandType.TENSOR_QUANT8_ASYMM: (0, 255),
    OperandType.TENSOR_QUANT8_ASYMM_SIGNED: (-128, 127),
    OperandType.TENSOR_QUANT16_ASYMM: (0, 65535),
}
"""Zero points by type; other types have 0."""

MAX_BYTES: Final = 2**32 - 1
MAX_RANK: Final = 32


def _require(
    condition: bool,
    message: str,
    kind: type[errors.ModelError] = errors.InvalidOperand,
    where: str | None = None,
) -> None:
    if not condition:
        raise kind(message, where=where)


def check_operand(
    operand: NnapiOperand, pools: Sequence[ConstantPool], subgraphs: int, feature_level: int
) -> None:
    """Raises the `ModelError` of the first rule that the operand itself breaks."""
    kind = operand.type
    _require(
        kind.feature_level <= feature_level,
        f"{kind.name} needs feature level {kind.feature_level}, the model keeps to {feature_level}",
    )
    is_model = kind is OperandType.SUBGRAPH
    _require(
        is_model == (operand.lifetime is NnapiLifetime.SUBGRAPH),
        f"a {kind.name} cannot have the lifetime {operand.lifetime.value}",
    )
    _check_dimensions(operand, feature_level)
    _check_quantization(operand)
    _require(
        not operand.extension_data or isinstance(kind, ExtensionType),
        f"a {kind.name} is no extension's type and has no extension data",
    )
    if is_model:
        index = operand.subgraph
        known = index is not None and 0 <= index < subgraphs
        _require(known, f"refers to subgraph {index} of {subgraphs}")
    else:
        _check_value(operand, pools)


def _check_dimensions(operand: NnapiOperand, feature_level: int) -> None:
    dimensions, kind = operand.dimensions, operand.type
    if dimensions is None:
        _require(kind.is_tensor, f"a {kind.name} has a rank, 0")
        _require(feature_level >= 3, "an unknown rank needs feature level 3")
        return
    scalar = not kind.is_tensor or operand.lifetime is NnapiLifetime.NO_VALUE
    _require(scalar or bool(dimensions), f"a {kind.name} has dimensions, or an unknown rank")
    _require(kind.is_tensor or not dimensions, f"a {kind.name} has no dimensions, not {dimensions}")
    rank = len(dimensions)
    _require(rank <= MAX_RANK, f"{rank} dimensions; the limit is {MAX_RANK}")
    counted = all(d is None or 0 <= d < 2**32 for d in dimensions)
    _require(counted, f"a dimension of {dimensions} is out of range")
    if kind is not OperandType.SUBGRAPH and is_static(dimensions):
        size = value_size(kind, dimensions)
        _require(size <= MAX_BYTES, f"{size} bytes are more than 32 bits can count")


def _check_quantization(operand: NnapiOperand) -> None:
    kind, scale, zero_point = operand.type, operand.scale, operand.zero_point
    channels, wrong = operand.channel_quantization, errors.InvalidQuantization
    _require(
        (channels is not None) == (kind is OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL),
        f"a {kind.name} has {'' if channels else 'no '}scales for channels",
        wrong,
    )
    usable = math.isfinite(scale) and scale >= 0
    _require(usable, f"scale {scale} is negative, infinite or not a number", wrong)
    quantized = kind.is_quantized and channels is None
    needed = quantized and operand.lifetime is not NnapiLifetime.NO_VALUE
    _require(scale != 0 or not needed, f"a {kind.name} needs a scale above 0", wrong)
    allowed = quantized or kind is OperandType.TENSOR_INT32
    _require(scale == 0 or allowed, f"a {kind.name} has no scale, not {scale}", wrong)
    low, high = ZERO_POINTS.get(kind, (0, 0))
    _require(
        low <= zero_point <= high,
        f"zero point {zero_point} of a {kind.name} is not in [{low}, {high}]",
        wrong,
    )
    if channels is not None:
        check_channels(operand.dimensions, channels)


def check_channels(dimensions: Shape, channels: ChannelQuantization) -> None:
    """Raises `InvalidQuantization` if the scales do not fit an operand of these *dimensions*."""
    axis, count, wrong = channels.dimension, len(channels.scales), errors.InvalidQuantization
    positive = all(math.isfinite(s) and s > 0 for s in channels.scales)
    _require(count > 0 and positive, "the scale of a channel is not a positive number", wrong)
    if dimensions is None or not 0 <= axis < len(dimensions):
        raise wrong(f"channels along dimension {axis} of {dimensions}")
    size = dimensions[axis]
    _require(size in {None, count}, f"{count} scales for {size} channels", wrong)


def _check_value(operand: NnapiOperand, pools: Sequence[ConstantPool]) -> None:
    value, place = operand.value, operand.location
    _require(
        (value is not None) == (operand.lifetime is NnapiLifetime.CONSTANT_COPY)
        and (place is not None) == (operand.lifetime is NnapiLifetime.CONSTANT_POOL),
        "a constant_copy has a value, a constant_pool a location, nothing else either",
    )
    if place is not None:
        size = len(pools[place.pool]) if 0 <= place.pool < len(pools) else -1
        length, end = place.length, place.offset + place.length
        _require(
            place.offset >= 0 and length >= 0 and end <= size,
            f"bytes {place.offset} to {end} of pool {place.pool}",
            errors.OffsetOutOfBounds,
        )
    elif value is not None:
        length = len(value)
    else:
        return
    if operand.dimensions is None or not is_static(operand.dimensions):
        raise errors.InvalidOperand("a constant's dimensions must be known")
    expected = value_size(operand.type, operand.dimensions)
    _require(length == expected, f"{length} bytes of value, where {expected} are needed")


def quantization_of(operand: NnapiOperand) -> Quantization | None:
    """The IR's quantisation of an operand: scales as float32 values."""
    channels = operand.channel_quantization
    if channels is not None:
        scales = tuple(float(np.float32(s)) for s in channels.scales)
        return Quantization(scales, (0,) * len(scales), channels.dimension)
    if operand.scale == 0.0:
        return None
    return Quantization((float(np.float32(operand.scale)),), (operand.zero_point,))


def ir_operand(operand: NnapiOperand) -> Operand:
    """The IR's operand of an input, a constant or an output."""
    return Operand(
        operand.type.dtype,
        ir_shape(operand.type, operand.dimensions),
        Lifetime[operand.lifetime.name],
        operand.name,
        quantization_of(operand),
        operand.value,
        operand.location,
        extension=ir_extension(operand),
    )


def ir_extension(operand: NnapiOperand) -> IrExtensionType | None:
    """The operand's extension type in the IR."""
    kind = operand.type
    if not isinstance(kind, ExtensionType):
        return None
    return IrExtensionType(
        kind.extension, kind.code, kind.byte_size, kind.is_tensor, operand.extension_data
    )


def value_type(operand: NnapiOperand) -> tuple[DType, Quantization | None]:
    """The element type and quantisation of an operand in the IR."""
    return operand.type.dtype, quantization_of(operand)


def check_structure(model: NnapiModel, feature_level: int) -> None:
    """Raises the `ModelError` of the first defect in the operands and connections of *model*."""
    check_kind(model, NnapiModel, "an NnapiModel is lowered")
    named = [(f"subgraph {at}", subgraph) for at, subgraph in enumerate(model.referenced)]
    for where, subgraph in [("main", model.main), *named]:
        for index, operand in enumerate(subgraph.operands):
            try:
                check_operand(operand, model.pools, len(model.referenced), feature_level)
            except errors.ModelError as error:
                raise error.at(f"{where}, operand {index} ({operand.name})") from None
        _check_interface(subgraph, where)
        _check_order(subgraph, where)


def _check_interface(subgraph: NnapiSubgraph, where: str) -> None:
    operands = subgraph.operands
    _require(bool(subgraph.operations), "a model needs operations", where=where)
    for kind, listed, lifetime in (
        ("input", subgraph.inputs, NnapiLifetime.SUBGRAPH_INPUT),
        ("output", subgraph.outputs, NnapiLifetime.SUBGRAPH_OUTPUT),
    ):
        _require(bool(listed), f"a model needs {kind}s", where=where)
        for index in listed:
            known = 0 <= index < len(operands)
            text = f"{kind} operand {index} of {len(operands)}"
            _require(known, text, errors.IndexOutOfRange, where)
        once = len(set(listed)) == len(listed)
        _require(once, f"an operand is listed as {kind} twice", errors.DuplicateWriter, where)
        have = {i for i, o in enumerate(operands) if o.lifetime is lifetime}
        if have != set(listed):
            wrong = min(have ^ set(listed))
            raise errors.InvalidOperand(
                f"operand {wrong} has the lifetime {operands[wrong].lifetime.value} and "
                f"is {'' if wrong in listed else 'not '}listed as {kind}",
                where=where,
            )


def _check_order(subgraph: NnapiSubgraph, where: str) -> None:
    written: set[int] = set(subgraph.inputs)
    operands = subgraph.operands
    produced = {o for operation in subgraph.operations for o in operation.outputs}
    for at, operation in enumerate(subgraph.operations):
        place = f"{where}, operation {at} ({operation.type})"
        for index in (*operation.inputs, *operation.outputs):
            known = 0 <= index < len(operands)
            text = f"operand {index} of {len(operands)}"
            _require(known, text, errors.IndexOutOfRange, place)
        for index in operation.inputs:
            if operands[index].lifetime.is_written and index not in written:
                text = f"reads operand {index}, which is only written later"
                _require(index not in produced, text, errors.CyclicModel, place)
                text = f"reads operand {index}, which nothing writes"
                raise errors.UnwrittenOperand(text, where=place)
        for index in operation.outputs:
            free = operands[index].lifetime.is_written and index not in written
            text = f"writes operand {index}, which is written already or cannot be"
            _require(free, text, errors.DuplicateWriter, place)
            written.add(index)
    for index, operand in enumerate(operands):
        done = index in written or not operand.lifetime.is_written
        text = f"operand {index} ({operand.name}) is never written"
        _require(done, text, errors.UnwrittenOperand, where)
