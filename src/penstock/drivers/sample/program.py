"""The contents of the sample driver's cache files: a model as bytes, and its large constants.

The format is MessagePack with fixed types, so reading it can fail, but cannot run code. The result
is a `Model`, which validates itself.
"""

import msgspec

from penstock.errors import GeneralFailure, ModelError
from penstock.ir import (
    Attributes,
    ConstantPool,
    DataLocation,
    DType,
    Lifetime,
    Model,
    Operand,
    Operation,
    Subgraph,
)

ALIGNMENT = 64


class Value(msgspec.Struct, frozen=True, array_like=True):
    """An operand. *place* is the (offset, length) of a large constant in the data file."""

    dtype: DType
    shape: tuple[int | None, ...] | None
    lifetime: Lifetime
    value: bytes | None
    place: tuple[int, int] | None


class Step(msgspec.Struct, frozen=True, array_like=True):
    """An operation, with the attributes that kernels read: flags and names."""

    type: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    attributes: dict[str, bool | str]


class Program(msgspec.Struct, frozen=True, array_like=True):
    """The entry subgraph of a model."""

    values: tuple[Value, ...]
    steps: tuple[Step, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def encode(model: Model) -> tuple[bytes, bytes]:
    """The program, and the large constants that it refers to."""
    values, constants = [], bytearray()
    for operand in model.operands:
        place = None
        if (at := operand.location) is not None:
            constants += bytes(-len(constants) % ALIGNMENT)
            place = len(constants), at.length
            constants += model.pools[at.pool].view[at.offset : at.offset + at.length]
        values.append(Value(operand.dtype, operand.shape, operand.lifetime, operand.value, place))
    steps = [
        Step(
            operation.type,
            operation.inputs,
            operation.outputs,
            {n: v for n, v in operation.attributes.items() if isinstance(v, bool | str)},
        )
        for operation in model.operations
    ]
    entry = model.entry
    program = Program(tuple(values), tuple(steps), entry.inputs, entry.outputs)
    return msgspec.msgpack.encode(program), bytes(constants)


def decode(program: memoryview, constants: memoryview) -> Model:
    """The model, whose large constants stay in *constants*. Raises `GeneralFailure`."""
    try:
        read = msgspec.msgpack.decode(program, type=Program)
        operands = tuple(
            Operand(
                v.dtype,
                v.shape,
                v.lifetime,
                value=v.value,
                location=v.place and DataLocation(0, *v.place),
            )
            for v in read.values
        )
        operations = tuple(
            Operation(s.type, s.inputs, s.outputs, Attributes(s.attributes)) for s in read.steps
        )
        subgraph = Subgraph(operands, operations, read.inputs, read.outputs)
        return Model((subgraph,), (ConstantPool(constants),))
    except (msgspec.MsgspecError, UnicodeDecodeError, ModelError) as error:
        raise GeneralFailure(f"the cached program is malformed: {error}") from error
