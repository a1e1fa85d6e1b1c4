"""The program that the lab device executes, and its stored format.

A program is a stream (its values, inputs, outputs and instructions) and the weights, which hold its
constants. The stream is a MessagePack array: the word PLAB, the number of the format, the artefact,
slots, inputs, outputs, instructions, and the number of bytes of the weights. `decode` validates
everything: the program that it returns can be executed without further checks.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Annotated, Final, Literal, NamedTuple, TypeAlias

import msgspec
import numpy as np

from penstock.errors import GeneralFailure
from penstock.ir import DType, NDArray
from penstock.ir.types import is_static, static_shape
from penstock.testing.lab.kernels import ACTIVATIONS, OPCODES

Bytes: TypeAlias = bytes | memoryview
Artefact: TypeAlias = Literal["baseline", "optimised"]
"""The forms of a program: baseline, and optimised with fused activations and transposed weights."""
Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=1 << 16)]
Offset: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]

DTYPES: Final = tuple(DType(name) for name in (
    "float32", "float16", "bfloat16", "float64", "int8", "int16", "int32", "int64",
    "uint8", "uint16", "uint32", "uint64", "bool", "complex64", "complex128",
))  # fmt: skip
"""The types of a value. Instructions accept float32 only; other types are passed through."""

MOST_BYTES: Final = 1 << 30
"""Limit of the bytes of one value."""
MOST_RANK: Final = 32
ALIGNMENT: Final = 16
"""Alignment in bytes of a constant in the weights."""

_FORMAT: Final = 3
_LENGTH: Final = struct.Struct("<Q")


class MalformedProgram(GeneralFailure):
    """The bytes are not a program of the lab device."""


class Slot(msgspec.Struct, frozen=True, array_like=True):
    """A value: a constant at *offset* in the weights, otherwise an input or an instruction's
    result.
    """

    dtype: DType
    shape: tuple[Offset | None, ...] | None
    offset: Offset | None = None

    @property
    def known_shape(self) -> tuple[int, ...]:
        """The shape; empty if it is unknown."""
        return static_shape(self.shape) or ()

    @property
    def nbytes(self) -> int:
        """Size in bytes, if it is known."""
        return math.prod(self.known_shape) * self.dtype.numpy.itemsize


class Instruction(msgspec.Struct, frozen=True, array_like=True):
    """One call of a kernel.

    *inputs* and *output* are numbers of slots. *operations* are the indexes of the model's
    operations that it computes.
    """

    opcode: str
    inputs: tuple[Number, ...]
    output: Number
    activation: str = "NONE"
    axis: int = 0
    beta: float = 1.0
    operations: tuple[Number, ...] = ()


class Program(msgspec.Struct, frozen=True):
    """A program that can be executed."""

    artefact: Artefact
    slots: tuple[Slot, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    instructions: tuple[Instruction, ...]
    weights: memoryview

    def constant(self, slot: Slot) -> NDArray:
        """The read-only value of a constant slot: a view of the weights."""
        begin = slot.offset or 0
        content = self.weights[begin : begin + slot.nbytes].toreadonly()
        array: NDArray = np.frombuffer(content, slot.dtype.numpy).reshape(slot.known_shape)
        return array


class Compiled(NamedTuple):
    """A program, and the payloads of (model, data) files that it was deserialised from."""

    program: Program
    model: list[bytes]
    data: list[bytes]


_Stream: TypeAlias = tuple[
    Literal["PLAB"],
    int,
    Artefact,
    tuple[Slot, ...],
    tuple[Number, ...],
    tuple[Number, ...],
    tuple[Instruction, ...],
    int,
]


def encode(program: Program) -> tuple[memoryview, memoryview]:
    """The stream, and the weights."""
    p = program
    parts = p.artefact, p.slots, p.inputs, p.outputs, p.instructions, p.weights.nbytes
    return memoryview(msgspec.msgpack.encode(("PLAB", _FORMAT, *parts))), p.weights


def decode(stream: Bytes, weights: Bytes) -> Program:
    """The program, whose constants are views of *weights*. Raises `MalformedProgram`."""
    try:
        _, version, artefact, slots, inputs, outputs, instructions, size = msgspec.msgpack.decode(
            stream, type=_Stream
        )
    except (msgspec.DecodeError, ValueError) as error:
        raise MalformedProgram(f"this is no program: {error}") from error
    if version != _FORMAT:
        raise MalformedProgram(f"a program of format {version}, not {_FORMAT}")
    content = memoryview(weights)
    if size != content.nbytes:
        raise MalformedProgram(f"{content.nbytes} bytes of weights, and {size} are due")
    program = Program(artefact, slots, inputs, outputs, instructions, content)
    for slot in program.slots:
        _check_slot(slot, content.nbytes)
    _check(program)
    return program


def pack(stream: Bytes, weights: Bytes) -> bytes:
    """Stream and weights in one payload, which `unpack` splits. The weights stay aligned."""
    padding = bytes(-(len(stream) + _LENGTH.size) % ALIGNMENT)
    return b"".join((_LENGTH.pack(len(stream)), stream, padding, weights))


def unpack(content: Bytes) -> tuple[memoryview, memoryview]:
    """The stream and the weights. Raises `MalformedProgram`."""
    both = memoryview(content)
    if both.nbytes < _LENGTH.size:
        raise MalformedProgram("the program ends too early")
    end = _LENGTH.size + _LENGTH.unpack(both[: _LENGTH.size])[0]
    return both[_LENGTH.size : end], both[end + -end % ALIGNMENT :]


def split(stream: Bytes, weights: Bytes, files: tuple[int, int]) -> tuple[list[bytes], list[bytes]]:
    """One payload for each of *files*: (model, data). If only one kind has files, those hold
    both.
    """
    models, datas = files
    if not models:
        return [], _parts(pack(stream, weights), datas)
    if not datas:
        return _parts(pack(stream, weights), models), []
    return _parts(stream, models), _parts(weights, datas)


def join(model: Sequence[Bytes], data: Sequence[Bytes]) -> tuple[Bytes, Bytes]:
    """Stream and weights, from the payloads. A single data file is not copied."""
    if model and data:
        return _whole(model), _whole(data)
    return unpack(_whole(model or data))


def _parts(content: Bytes, count: int) -> list[bytes]:
    size = -(-len(content) // count)
    return [bytes(content[i * size : (i + 1) * size]) for i in range(count)]


def _whole(parts: Sequence[Bytes]) -> Bytes:
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _check_slot(slot: Slot, weights: int) -> None:
    shape, offset = slot.shape, slot.offset
    if slot.dtype not in DTYPES or len(shape or ()) > MOST_RANK:
        raise MalformedProgram(f"no slot has type {slot.dtype.value} and shape {shape}")
    if offset is not None and not is_static(slot.shape):
        raise MalformedProgram(f"a constant of shape {shape}")
    if slot.nbytes > MOST_BYTES:
        raise MalformedProgram(f"a value of {slot.nbytes} bytes")
    if offset is not None and (offset % ALIGNMENT or offset + slot.nbytes > weights):
        raise MalformedProgram(f"a constant at {offset} of {weights} bytes of weights")


def _check(program: Program) -> None:
    """Raises unless every slot is written once, before it is read, in its instruction's shape and
    type.
    """
    slots = program.slots
    used = {n for i in program.instructions for n in (*i.inputs, i.output)}
    named = {*program.inputs, *program.outputs} | used
    if max(named, default=-1) >= len(slots):
        raise MalformedProgram(f"slot {max(named)} of {len(slots)}")
    known = {n for n, slot in enumerate(slots) if slot.offset is not None}
    if len(set(program.inputs)) != len(program.inputs) or known & set(program.inputs):
        raise MalformedProgram("an input is a constant, or listed twice")
    known.update(program.inputs)
    for place, one in enumerate(program.instructions):
        if one.opcode not in OPCODES or one.activation not in ACTIVATIONS:
            raise MalformedProgram(f"no instruction has {one.opcode!r} and {one.activation!r}")
        if not math.isfinite(one.beta):
            raise MalformedProgram(f"instruction {place} has beta {one.beta}")
        if not known.issuperset(one.inputs) or one.output in known:
            raise MalformedProgram(f"instruction {place} reads or writes out of order")
        if not all(slots[n].dtype is DType.FLOAT32 for n in (*one.inputs, one.output)):
            raise MalformedProgram(f"instruction {place} is not in float32")
        if not all(is_static(slots[n].shape) for n in (*one.inputs, one.output)):
            fits = OPCODES[one.opcode].arity == len(one.inputs)
        else:
            shapes = [slots[n].known_shape for n in one.inputs]
            fits = OPCODES[one.opcode].fits(one, shapes, slots[one.output].known_shape)
        if not fits:
            raise MalformedProgram(f"instruction {place} ({one.opcode}) does not fit its values")
        known.add(one.output)
    if not known.issuperset(program.outputs):
        raise MalformedProgram("an output is never written")
