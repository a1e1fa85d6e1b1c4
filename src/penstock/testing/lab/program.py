"""What the lab device executes, and the format of its own that it is kept in.

A program is a stream (its values, inputs, outputs and instructions) and the weights that its
constants lie in. The stream is little-endian:

    "PLAB"  u8 format  u8 artefact  u16 slots  u16 inputs  u16 outputs  u16 instructions  u64 bytes
    of weights
    slot         u8 element type  u8 rank  u8 is constant  u32 dimension...  [u64 offset in the
    weights]
                 (rank 255 is not known; dimension 2**32 - 1 is not known)
    input        u16 slot
    output       u16 slot
    instruction  u8 opcode  u8 activation  u8 inputs  i8 axis  f32 beta  u16 output  u16 input...
                 u8 operations  u16 operation...

`decode` takes nothing on trust: whatever it returns can be executed without looking again.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np

from penstock.errors import GeneralFailure
from penstock.ir import DType, NDArray, Shape
from penstock.ir.types import is_static, static_shape
from penstock.testing.lab.kernels import ACTIVATIONS, OPCODES

Bytes: TypeAlias = bytes | memoryview

ARTEFACTS: Final = ("baseline", "optimised")
"""The forms of a program: as the model has it, and with activations fused and weights turned."""

DTYPES: Final = tuple(DType(name) for name in (
    "float32", "float16", "bfloat16", "float64", "int8", "int16", "int32", "int64",
    "uint8", "uint16", "uint32", "uint64", "bool", "complex64", "complex128",
))  # fmt: skip
"""What a value may be. Instructions take float32 only; the others pass through."""

MOST_BYTES: Final = 1 << 30
"""Of one value."""
MOST_RANK: Final = 32
ALIGNMENT: Final = 16
"""Of a constant in the weights."""

_MAGIC: Final = b"PLAB"
_FORMAT: Final = 2
_ANY: Final = (1 << 32) - 1
_ANY_RANK: Final = 255
_HEADER: Final = struct.Struct("<4sBBHHHHQ")
_SLOT: Final = struct.Struct("<BBB")
_INSTRUCTION: Final = struct.Struct("<BBBbfH")
_NUMBER: Final = struct.Struct("<H")
_COUNT: Final = struct.Struct("<B")
_OFFSET: Final = struct.Struct("<Q")


class MalformedProgram(GeneralFailure):
    """Bytes are not a program of the lab device."""


class Slot(msgspec.Struct, frozen=True):
    """A value: a constant at *offset* of the weights, else an input or the result of an
    instruction.
    """

    dtype: DType
    shape: Shape
    offset: int | None = None

    @property
    def is_static(self) -> bool:
        """Whether its size is known before a run."""
        return is_static(self.shape)

    @property
    def known_shape(self) -> tuple[int, ...]:
        """Its shape, where that is known."""
        return static_shape(self.shape) or ()

    @property
    def nbytes(self) -> int:
        """Bytes of a value of known size."""
        return math.prod(self.known_shape) * self.dtype.numpy.itemsize

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Whether a value may have this shape."""
        return self.shape is None or (
            len(self.shape) == len(shape)
            and all(d is None or d == g for d, g in zip(self.shape, shape, strict=True))
        )


class Instruction(msgspec.Struct, frozen=True):
    """What one kernel computes; *inputs* and *output* are numbers of slots, *operations* the
    model's that it stands for.
    """

    opcode: str
    inputs: tuple[int, ...]
    output: int
    activation: str = "NONE"
    axis: int = 0
    beta: float = 1.0
    operations: tuple[int, ...] = ()


class Program(msgspec.Struct, frozen=True):
    """Everything that an execution needs."""

    artefact: str
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


def encode(program: Program) -> tuple[memoryview, memoryview]:
    """The stream, and the weights."""
    out = bytearray(
        _HEADER.pack(
            _MAGIC,
            _FORMAT,
            ARTEFACTS.index(program.artefact),
            len(program.slots),
            len(program.inputs),
            len(program.outputs),
            len(program.instructions),
            program.weights.nbytes,
        )
    )
    for slot in program.slots:
        dimensions = [_ANY if d is None else d for d in slot.shape or ()]
        rank = _ANY_RANK if slot.shape is None else len(dimensions)
        out += _SLOT.pack(DTYPES.index(slot.dtype), rank, slot.offset is not None)
        out += struct.pack(f"<{len(dimensions)}I", *dimensions)
        if slot.offset is not None:
            out += _OFFSET.pack(slot.offset)
    for number in (*program.inputs, *program.outputs):
        out += _NUMBER.pack(number)
    for one in program.instructions:
        out += _INSTRUCTION.pack(
            list(OPCODES).index(one.opcode),
            ACTIVATIONS.index(one.activation),
            len(one.inputs),
            one.axis,
            one.beta,
            one.output,
        )
        out += struct.pack(f"<{len(one.inputs)}H", *one.inputs)
        out += struct.pack(f"<B{len(one.operations)}H", len(one.operations), *one.operations)
    return memoryview(bytes(out)), program.weights


def decode(stream: Bytes, weights: Bytes) -> Program:
    """The program, whose constants are views of *weights*. Raises `MalformedProgram`."""
    reader = _Reader(stream)
    magic, format_, artefact, slots, inputs, outputs, instructions, size = reader.take(_HEADER)
    if magic != _MAGIC or format_ != _FORMAT or artefact >= len(ARTEFACTS):
        raise MalformedProgram("this is no program, or one of another format")
    content = memoryview(weights)
    if size != content.nbytes:
        raise MalformedProgram(f"{content.nbytes} bytes of weights, and {size} are due")
    program = Program(
        ARTEFACTS[artefact],
        tuple(_slot(reader, content.nbytes) for _ in range(slots)),
        tuple(reader.numbers(inputs)),
        tuple(reader.numbers(outputs)),
        tuple(_instruction(reader) for _ in range(instructions)),
        content,
    )
    reader.finish()
    _check(program)
    return program


def split(stream: Bytes, weights: Bytes, files: tuple[int, int]) -> tuple[list[bytes], list[bytes]]:
    """One payload for each of *files*: (model, data). Without data files the model files have the
    weights too.
    """
    models, datas = files
    if not models:
        return [], _parts(_joined(stream, weights), datas)
    if not datas:
        return _parts(_joined(stream, weights), models), []
    return _parts(stream, models), _parts(weights, datas)


def join(model: Sequence[Bytes], data: Sequence[Bytes]) -> tuple[Bytes, Bytes]:
    """Stream and weights, from the payloads. One data file is used where it lies."""
    if model and data:
        return _whole(model), _whole(data)
    both = memoryview(_whole(model or data))
    if both.nbytes < _OFFSET.size:
        raise MalformedProgram("the program ends too early")
    (length,) = _OFFSET.unpack(both[: _OFFSET.size])
    return both[_OFFSET.size :][:length], both[_OFFSET.size :][length:]


def _joined(stream: Bytes, weights: Bytes) -> bytes:
    padded = bytes(stream) + bytes(-(len(stream) + _OFFSET.size) % ALIGNMENT)
    return _OFFSET.pack(len(padded)) + padded + bytes(weights)


def _parts(content: Bytes, count: int) -> list[bytes]:
    size = -(-len(content) // count)
    return [bytes(content[i * size : (i + 1) * size]) for i in range(count)]


def _whole(parts: Sequence[Bytes]) -> Bytes:
    return parts[0] if len(parts) == 1 else b"".join(parts)


class _Reader:
    """Takes fixed-size pieces from the front, and never more than there is."""

    def __init__(self, stream: Bytes) -> None:
        self._left = memoryview(stream)

    def take(self, form: struct.Struct) -> tuple[Any, ...]:
        if self._left.nbytes < form.size:
            raise MalformedProgram("the program ends too early")
        values = form.unpack(self._left[: form.size])
        self._left = self._left[form.size :]
        return values

    def numbers(self, count: int, letter: str = "H") -> tuple[int, ...]:
        return self.take(struct.Struct(f"<{count}{letter}"))

    def finish(self) -> None:
        if self._left.nbytes >= ALIGNMENT or any(self._left):
            raise MalformedProgram(f"{self._left.nbytes} bytes follow the program")


def _slot(reader: _Reader, weights: int) -> Slot:
    kind, rank, constant = reader.take(_SLOT)
    if kind >= len(DTYPES) or (rank > MOST_RANK and rank != _ANY_RANK) or constant > 1:
        raise MalformedProgram(f"no slot has type {kind} and rank {rank}")
    shape: Shape = None
    if rank != _ANY_RANK:
        shape = tuple(None if d == _ANY else d for d in reader.numbers(rank, "I"))
    (offset,) = reader.take(_OFFSET) if constant else (None,)
    slot = Slot(DTYPES[kind], shape, offset)
    if constant and not slot.is_static:
        raise MalformedProgram(f"a constant of shape {shape}")
    if slot.nbytes > MOST_BYTES:
        raise MalformedProgram(f"a value of {slot.nbytes} bytes")
    if offset is not None and (offset % ALIGNMENT or offset + slot.nbytes > weights):
        raise MalformedProgram(f"a constant at {offset} of {weights} bytes of weights")
    return slot


def _instruction(reader: _Reader) -> Instruction:
    opcode, activation, count, axis, beta, output = reader.take(_INSTRUCTION)
    if opcode >= len(OPCODES) or activation >= len(ACTIVATIONS) or not math.isfinite(beta):
        raise MalformedProgram(f"no instruction has opcode {opcode} and activation {activation}")
    inputs = reader.numbers(count)
    (operations,) = reader.take(_COUNT)
    return Instruction(
        list(OPCODES)[opcode],
        inputs,
        output,
        ACTIVATIONS[activation],
        axis,
        float(beta),
        reader.numbers(operations),
    )


def _check(program: Program) -> None:
    """Every slot is written before it is read, once, in the shape and type that its instruction
    gives.
    """
    slots = program.slots
    named = {
        *program.inputs,
        *program.outputs,
        *(n for i in program.instructions for n in (*i.inputs, i.output)),
    }
    if max(named, default=-1) >= len(slots):
        raise MalformedProgram(f"slot {max(named)} of {len(slots)}")
    known = {n for n, slot in enumerate(slots) if slot.offset is not None}
    if len(set(program.inputs)) != len(program.inputs) or known & set(program.inputs):
        raise MalformedProgram("an input is a constant, or stands there twice")
    known.update(program.inputs)
    for place, one in enumerate(program.instructions):
        if not known.issuperset(one.inputs) or one.output in known:
            raise MalformedProgram(f"instruction {place} reads or writes out of order")
        if not all(slots[n].dtype is DType.FLOAT32 for n in (*one.inputs, one.output)):
            raise MalformedProgram(f"instruction {place} is not in float32")
        if not all(slots[n].is_static for n in (*one.inputs, one.output)):
            fits = OPCODES[one.opcode].arity == len(one.inputs)
        else:
            shapes = [slots[n].known_shape for n in one.inputs]
            fits = OPCODES[one.opcode].fits(one, shapes, slots[one.output].known_shape)
        if not fits:
            raise MalformedProgram(f"instruction {place} ({one.opcode}) does not fit its values")
        known.add(one.output)
    if not known.issuperset(program.outputs):
        raise MalformedProgram("an output is never written")
