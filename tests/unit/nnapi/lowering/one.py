"""NNAPI models of one operation, written in the short names of forms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

import numpy as np

from penstock.drivers.reference import ReferenceDevice
from penstock.hal import ExecutionConfig, HostMemory, PrepareConfig, Request
from penstock.ir import Model, NDArray, infer_shapes
from penstock.ir.types import Shape
from penstock.nnapi.description import (
    ChannelQuantization,
    NnapiLifetime,
    NnapiModel,
    NnapiOperand,
    NnapiOperation,
    NnapiSubgraph,
    OperandType,
)
from penstock.nnapi.lowering import lower
from penstock.nnapi.lowering.forms import KINDS

Arguments: TypeAlias = Mapping[str, NnapiOperand]


def t(kind: str, *shape: int | None, scale: float = 0.0, zero: int = 0) -> NnapiOperand:
    """A tensor; quantised ones have the scale 0.5 where none is given."""
    known = KINDS[kind]
    if known.is_quantized and scale == 0.0:
        scale = 0.5
    return NnapiOperand(known, shape, scale=scale, zero_point=zero)


def nothing(kind: str = "f32") -> NnapiOperand:
    """An optional tensor that is left out."""
    return NnapiOperand(KINDS[kind], (0,), NnapiLifetime.NO_VALUE, name="nothing")


NOTHING: Final = nothing()


def channels(*shape: int, axis: int = 0, count: int | None = None) -> NnapiOperand:
    """A filter with a scale a channel."""
    scales = (0.25,) * (shape[axis] if count is None else count)
    kind = OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL
    return NnapiOperand(kind, shape, channel_quantization=ChannelQuantization(axis, scales))


def i(value: int) -> NnapiOperand:
    return _scalar(OperandType.INT32, value)


def b(value: bool) -> NnapiOperand:
    return _scalar(OperandType.BOOL, value)


def f(value: float) -> NnapiOperand:
    return _scalar(OperandType.FLOAT32, value)


def h(value: float) -> NnapiOperand:
    return _scalar(OperandType.FLOAT16, value)


def constant(
    kind: str, values: Sequence[float] | Sequence[Sequence[float]] | NDArray
) -> NnapiOperand:
    """A constant tensor."""
    array = np.asarray(values, KINDS[kind].dtype.numpy)
    return NnapiOperand(
        KINDS[kind], array.shape, NnapiLifetime.CONSTANT_COPY, value=array.tobytes()
    )


def _scalar(kind: OperandType, value: float) -> NnapiOperand:
    data = np.array(value, kind.dtype.numpy).tobytes()
    return NnapiOperand(kind, (), NnapiLifetime.CONSTANT_COPY, value=data)


def unknown_rank(operand: NnapiOperand) -> NnapiOperand:
    return replace(operand, dimensions=None)


def of_shape(operand: NnapiOperand, shape: Shape) -> NnapiOperand:
    return replace(operand, dimensions=shape)


def model_of(
    kind: str, inputs: Sequence[NnapiOperand], outputs: Sequence[NnapiOperand]
) -> NnapiModel:
    """The model of one operation; operands that are no constants become inputs and outputs."""
    operands = [
        replace(o, lifetime=NnapiLifetime.SUBGRAPH_INPUT)
        if o.lifetime is NnapiLifetime.TEMPORARY_VARIABLE
        else o
        for o in inputs
    ]
    fed = tuple(at for at, o in enumerate(operands) if o.lifetime is NnapiLifetime.SUBGRAPH_INPUT)
    written = tuple(range(len(operands), len(operands) + len(outputs)))
    operands += [replace(o, lifetime=NnapiLifetime.SUBGRAPH_OUTPUT) for o in outputs]
    operation = NnapiOperation(kind, tuple(range(len(inputs))), written)
    return NnapiModel(NnapiSubgraph(tuple(operands), (operation,), fed, written))


def lowered(
    kind: str,
    inputs: Arguments | Sequence[NnapiOperand],
    outputs: Sequence[NnapiOperand],
    level: int = 8,
) -> Model:
    """The IR's model of one operation."""
    given = list(inputs.values()) if isinstance(inputs, Mapping) else inputs
    return lower(model_of(kind, given, outputs), level)


def run(model: Model, fed: Sequence[NDArray], room: int = 4096) -> list[NDArray]:
    """The outputs of *model* on the reference device; those of unknown shape get *room* bytes."""
    model = infer_shapes(model, {at: a.shape for at, a in enumerate(fed)})
    prepared = ReferenceDevice().prepare_model(model, PrepareConfig())
    operands = [model.entry.operands[o] for o in model.entry.outputs]
    memory: list[NDArray] = []
    for operand in operands:
        shape = operand.shape
        known = shape is not None and None not in shape
        full = tuple(d or 0 for d in shape or ())
        memory.append(np.zeros(full, operand.dtype.numpy) if known else np.zeros(room, np.uint8))
    arguments = tuple(HostMemory(a) for a in fed), tuple(HostMemory(a) for a in memory)
    result = prepared.execute(Request(*arguments), ExecutionConfig())
    found = []
    for at, operand in enumerate(operands):
        final = result.output_shapes[at].dimensions if result.output_shapes else memory[at].shape
        assert final is not None
        dtype = operand.dtype.numpy
        nbytes = int(np.prod(final, dtype=np.int64)) * dtype.itemsize
        found.append(memory[at].reshape(-1).view(np.uint8)[:nbytes].view(dtype).reshape(final))
    return found
