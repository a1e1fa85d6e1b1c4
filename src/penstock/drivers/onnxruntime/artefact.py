"""The payload of the cache file: the model that ONNX Runtime has optimised, and its inputs and outputs.

A manifest (its length in 4 bytes, little-endian, then msgpack), and the bytes of an ONNX model.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from penstock.errors import GeneralFailure
from penstock.ir import DType, Lifetime, Model, Operand, Subgraph
from penstock.ir.types import static_shape

SCHEMA: Final = 1
MAX_PORTS: Final = 1 << 16
MAX_MANIFEST: Final = 1 << 24
_LENGTH: Final = struct.Struct("<I")


class Port(msgspec.Struct, frozen=True, array_like=True):
    """One input or output: its name, element type and shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class Interface(msgspec.Struct, frozen=True):
    """The inputs and outputs of a model, in the place of the model: what requests are checked against."""

    entry: Subgraph


class Ports(msgspec.Struct, frozen=True, array_like=True):
    """The inputs and outputs of an entry subgraph; *forwards* gives for each output the input that it is, or
    -1 where ONNX Runtime computes it.
    """

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    forwards: tuple[int, ...]

    def interface(self) -> Interface:
        """Operands for every port, inputs first."""
        given = [_operand(port, Lifetime.SUBGRAPH_INPUT) for port in self.inputs]
        wanted = [_operand(port, Lifetime.SUBGRAPH_OUTPUT) for port in self.outputs]
        everything = range(len(given) + len(wanted))
        indexes = tuple(everything[: len(given)]), tuple(everything[len(given) :])
        return Interface(Subgraph((*given, *wanted), (), *indexes))


class Manifest(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What an artefact says of itself; *engine* is the version of ONNX Runtime that optimised it."""

    schema: int
    engine: str
    ports: Ports


def ports_of(model: Model) -> Ports:
    """The ports of a model's entry subgraph, whose shapes are known."""
    entry = model.entry
    inputs, outputs = (
        tuple(_port(entry.operands[index]) for index in indexes)
        for indexes in (entry.inputs, entry.outputs)
    )
    forwards = (entry.inputs.index(i) if i in entry.inputs else -1 for i in entry.outputs)
    return Ports(inputs, outputs, tuple(forwards))


def pack(model: bytes, ports: Ports, engine: str) -> bytes:
    """The payload of the model file."""
    manifest = msgspec.msgpack.encode(Manifest(SCHEMA, engine, ports))
    return b"".join([_LENGTH.pack(len(manifest)), manifest, model])


def unpack(content: memoryview) -> tuple[Manifest, bytes]:
    """The manifest and the model. Raises `GeneralFailure` for what `pack` never makes."""
    if content.nbytes < _LENGTH.size:
        raise GeneralFailure("the artefact has no manifest")
    (size,) = _LENGTH.unpack(content[: _LENGTH.size])
    if size > min(MAX_MANIFEST, content.nbytes - _LENGTH.size):
        raise GeneralFailure("the artefact's manifest is longer than its file")
    body = content[_LENGTH.size :]
    try:
        manifest = msgspec.msgpack.decode(body[:size], type=Manifest)
    except msgspec.MsgspecError as error:
        raise GeneralFailure(f"the artefact's manifest cannot be read: {error}") from None
    if manifest.schema != SCHEMA:
        raise GeneralFailure(f"the artefact has schema {manifest.schema}, not {SCHEMA}")
    ports = manifest.ports
    if max(len(ports.inputs), len(ports.outputs)) > MAX_PORTS:
        raise GeneralFailure(f"the artefact has more than {MAX_PORTS} inputs or outputs")
    known = len(ports.forwards) == len(ports.outputs)
    if not known or not all(-1 <= i < len(ports.inputs) for i in ports.forwards):
        raise GeneralFailure("the artefact forwards inputs that it does not have")
    return manifest, bytes(body[size:])


def _port(operand: Operand) -> Port:
    return Port(operand.name, operand.dtype.value, static_shape(operand.shape) or ())


def _operand(port: Port, lifetime: Lifetime) -> Operand:
    try:
        return Operand(DType(port.dtype), port.shape, lifetime, port.name)
    except ValueError:
        raise GeneralFailure(f"the artefact has a port of type {port.dtype!r}") from None
