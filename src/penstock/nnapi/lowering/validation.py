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
from penstock.ir.types import is_static
from penstock.nnapi.description import (
    AnyType,
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

LIFETIMES: Final = {
    NnapiLifetime.TEMPORARY_VARIABLE: Lifetime.TEMPORARY_VARIABLE,
    NnapiLifetime.SUBGRAPH_INPUT: Lifetime.SUBGRAPH_INPUT,
    NnapiLifetime.SUBGRAPH_OUTPUT: Lifetime.SUBGRAPH_OUTPUT,
    NnapiLifetime.CONSTANT_COPY: Lifetime.CONSTANT_COPY,
    NnapiLifetime.CONSTANT_POOL: Lifetime.CONSTANT_POOL,
    NnapiLifetime.NO_VALUE: Lifetime.NO_VALUE,
}


def check_operand(
    operand: NnapiOperand, pools: Sequence[ConstantPool], subgraphs: int, feature_level: int
) -> None:
    """Raises the `ModelError` of the first rule that the operand itself breaks."""
    kind = operand.type
    if kind.feature_level > feature_level:
        raise errors.InvalidOperand(
            f"{kind.name} needs feature level {kind.feature_level}, the model keeps to "
            f"{feature_level}"
        )
    if (kind is OperandType.SUBGRAPH) != (operand.lifetime is NnapiLifetime.SUBGRAPH):
        raise errors.InvalidOperand(
            f"a {kind.name} cannot have the lifetime {operand.lifetime.value}"
        )
    _check_dimensions(operand, feature_level)
    _check_quantization(operand)
    if operand.extension_data and not isinstance(kind, ExtensionType):
        raise errors.InvalidOperand(
            f"a {kind.name} is no extension's type and has no extension data"
        )
    if kind is OperandType.SUBGRAPH:
        if operand.subgraph is None or not 0 <= operand.subgraph < subgraphs:
            raise errors.InvalidOperand(f"refers to subgraph {operand.subgraph} of {subgraphs}")
        return
    _check_value(operand, pools)


def _check_dimensions(operand: NnapiOperand, feature_level: int) -> None:
    dimensions = operand.dimensions
    if dimensions is None:
        if not operand.type.is_tensor:
            raise errors.InvalidOperand(f"a {operand.type.name} has a rank, 0")
        if feature_level < 3:
            raise errors.InvalidOperand("an unknown rank needs feature level 3")
        return
    if operand.type.is_tensor and not dimensions and operand.lifetime is not NnapiLifetime.NO_VALUE:
        raise errors.InvalidOperand(f"a {operand.type.name} has dimensions, or an unknown rank")
    if not operand.type.is_tensor and dimensions:
        raise errors.InvalidOperand(f"a {operand.type.name} has no dimensions, not {dimensions}")
    if len(dimensions) > MAX_RANK:
        raise errors.InvalidOperand(f"{len(dimensions)} dimensions; the limit is {MAX_RANK}")
    if any(d is not None and not 0 <= d < 2**32 for d in dimensions):
        raise errors.InvalidOperand(f"a dimension of {dimensions} is out of range")
    if operand.type is not OperandType.SUBGRAPH and is_static(dimensions):
        size = value_size(operand.type, dimensions)
        if size > MAX_BYTES:
            raise errors.InvalidOperand(f"{size} bytes are more than 32 bits can count")


def _check_quantization(operand: NnapiOperand) -> None:
    kind, scale, zero_point = operand.type, operand.scale, operand.zero_point
    channels = operand.channel_quantization
    if (channels is not None) != (kind is OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL):
        raise errors.InvalidQuantization(
            f"a {kind.name} has {'' if channels else 'no '}scales for channels"
        )
    if not math.isfinite(scale) or scale < 0:
        raise errors.InvalidQuantization(f"scale {scale} is negative, infinite or not a number")
    quantized = kind.is_quantized and channels is None
    if quantized and scale == 0 and operand.lifetime is not NnapiLifetime.NO_VALUE:
        raise errors.InvalidQuantization(f"a {kind.name} needs a scale above 0")
    if not quantized and scale != 0 and kind is not OperandType.TENSOR_INT32:
        raise errors.InvalidQuantization(f"a {kind.name} has no scale, not {scale}")
    low, high = ZERO_POINTS.get(kind, (0, 0))
    if not low <= zero_point <= high:
        raise errors.InvalidQuantization(
            f"zero point {zero_point} of a {kind.name} is not in [{low}, {high}]"
        )
    if channels is None:
        return
    dimensions = operand.dimensions
    if not channels.scales or not all(math.isfinite(s) and s > 0 for s in channels.scales):
        raise errors.InvalidQuantization("the scale of a channel is not a positive number")
    if dimensions is None or not 0 <= channels.dimension < len(dimensions):
        raise errors.InvalidQuantization(
            f"channels along dimension {channels.dimension} of {dimensions}"
        )
    if dimensions[channels.dimension] not in {None, len(channels.scales)}:
        raise errors.InvalidQuantization(
            f"{len(channels.scales)} scales for {dimensions[channels.dimension]} channels"
        )


def _check_value(operand: NnapiOperand, pools: Sequence[ConstantPool]) -> None:
    copied = operand.lifetime is NnapiLifetime.CONSTANT_COPY
    pooled = operand.lifetime is NnapiLifetime.CONSTANT_POOL
    if (operand.value is not None) != copied or (operand.location is not None) != pooled:
        raise errors.InvalidOperand(
            "a constant_copy has a value, a constant_pool a location, nothing else either"
        )
    length = len(operand.value) if operand.value is not None else None
    if operand.location is not None:
        place = operand.location
        size = len(pools[place.pool]) if 0 <= place.pool < len(pools) else -1
        if place.offset < 0 or place.length < 0 or place.offset + place.length > size:
            raise errors.OffsetOutOfBounds(
                f"bytes {place.offset} to {place.offset + place.length} of pool {place.pool}"
            )
        length = place.length
    if length is None:
        return
    if operand.dimensions is None or not is_static(operand.dimensions):
        raise errors.InvalidOperand("a constant's dimensions must be known")
    expected = value_size(operand.type, operand.dimensions)
    if length != expected:
        raise errors.InvalidOperand(f"{length} bytes of value, where {expected} are needed")


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
        LIFETIMES[operand.lifetime],
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


WRITABLE = frozenset({NnapiLifetime.TEMPORARY_VARIABLE, NnapiLifetime.SUBGRAPH_OUTPUT})


def check_structure(model: NnapiModel, feature_level: int) -> None:
    """Raises the `ModelError` of the first defect in the operands and connections of *model*."""
    check_kind(model, NnapiModel, "an NnapiModel is lowered")
    check_subgraph(model, model.main, "main", feature_level)
    for index, subgraph in enumerate(model.referenced):
        check_subgraph(model, subgraph, f"subgraph {index}", feature_level)


def check_subgraph(
    model: NnapiModel, subgraph: NnapiSubgraph, where: str, feature_level: int
) -> None:
    """The same for one subgraph."""
    for index, operand in enumerate(subgraph.operands):
        try:
            check_operand(operand, model.pools, len(model.referenced), feature_level)
        except errors.ModelError as error:
            place = f"{where}, operand {index} ({operand.name})"
            raise error.at(place) from None
    _check_interface(subgraph, where)
    _check_order(subgraph, where)


def _check_interface(subgraph: NnapiSubgraph, where: str) -> None:
    if not subgraph.operations:
        raise errors.InvalidOperand("a model needs operations", where=where)
    for kind, listed, lifetime in (
        ("input", subgraph.inputs, NnapiLifetime.SUBGRAPH_INPUT),
        ("output", subgraph.outputs, NnapiLifetime.SUBGRAPH_OUTPUT),
    ):
        if not listed:
            raise errors.InvalidOperand(f"a model needs {kind}s", where=where)
        for index in listed:
            if not 0 <= index < len(subgraph.operands):
                raise errors.IndexOutOfRange(
                    f"{kind} operand {index} of {len(subgraph.operands)}", where=where
                )
        if len(set(listed)) != len(listed):
            raise errors.DuplicateWriter(f"an operand is listed as {kind} twice", where=where)
        have = {i for i, o in enumerate(subgraph.operands) if o.lifetime is lifetime}
        if have != set(listed):
            wrong = min(have ^ set(listed))
            raise errors.InvalidOperand(
                f"operand {wrong} has the lifetime {subgraph.operands[wrong].lifetime.value} and "
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
            if not 0 <= index < len(operands):
                raise errors.IndexOutOfRange(f"operand {index} of {len(operands)}", where=place)
        for index in operation.inputs:
            if operands[index].lifetime in WRITABLE and index not in written:
                if index in produced:
                    raise errors.CyclicModel(
                        f"reads operand {index}, which is only written later", where=place
                    )
                raise errors.UnwrittenOperand(
                    f"reads operand {index}, which nothing writes", where=place
                )
        for index in operation.outputs:
            if operands[index].lifetime not in WRITABLE or index in written:
                raise errors.DuplicateWriter(
                    f"writes operand {index}, which is written already or cannot be", where=place
                )
            written.add(index)
    for index, operand in enumerate(operands):
        if operand.lifetime in WRITABLE and index not in written:
            raise errors.UnwrittenOperand(
                f"operand {index} ({operand.name}) is never written", where=where
            )
