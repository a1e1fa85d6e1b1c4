"""The payloads of the cache files: what OpenVINO exported, and what it takes to execute it.

The model file holds a manifest (its length in 4 bytes, little-endian, then msgpack) and the exported bytes
without the constants that were found in them; the data file holds those, one after another. Both are put
together again in memory of this process.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
import numpy as np

from penstock.errors import GeneralFailure
from penstock.ir import DType, Lifetime, Model, NDArray, Operand, Subgraph
from penstock.ir.types import static_shape

SCHEMA: Final = 1
SMALLEST_CONSTANT: Final = 1024
"""Bytes from which on a constant is kept in the data file."""

NEEDLE: Final = 64
MAX_TRIES: Final = 16
"""A constant is looked for by its first bytes, in so many places."""

MAX_PORTS: Final = 1 << 16
MAX_MANIFEST: Final = 1 << 24
ALIGNMENT: Final = 64
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
    -1 where OpenVINO computes it.
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
    """What an artefact says of itself. *engine* is the build that exported it; each of *cuts* is (offset in
    the exported bytes, bytes) of what lies in the data file instead, ascending; *length* counts all bytes.
    """

    schema: int
    engine: str
    form: str
    ports: Ports
    length: int
    cuts: tuple[tuple[int, int], ...]


def ports_of(model: Model) -> Ports:
    """The ports of a model's entry subgraph, whose shapes are known."""
    entry = model.entry
    inputs, outputs = (
        tuple(_port(entry.operands[index]) for index in indexes)
        for indexes in (entry.inputs, entry.outputs)
    )
    forwards = (entry.inputs.index(i) if i in entry.inputs else -1 for i in entry.outputs)
    return Ports(inputs, outputs, tuple(forwards))


def pack(
    exported: bytes,
    constants: Sequence[NDArray],
    ports: Ports,
    engine: str,
    form: str,
) -> tuple[bytes, bytes]:
    """The payloads of the model file and of the data file."""
    cuts = find_constants(exported, constants)
    manifest = msgspec.msgpack.encode(
        Manifest(SCHEMA, engine, form, ports, len(exported), tuple(cuts))
    )
    content = memoryview(exported)
    kept, moved, at = [], [], 0
    for offset, length in cuts:
        kept.append(content[at:offset])
        moved.append(content[offset : offset + length])
        at = offset + length
    kept.append(content[at:])
    return b"".join([_LENGTH.pack(len(manifest)), manifest, *kept]), b"".join(moved)


def unpack(model: memoryview, data: memoryview) -> tuple[Manifest, NDArray]:
    """The manifest, and the exported bytes in fresh memory. Raises `GeneralFailure` for what `pack` never
    makes.
    """
    if model.nbytes < _LENGTH.size:
        raise GeneralFailure("the artefact has no manifest")
    (size,) = _LENGTH.unpack(model[: _LENGTH.size])
    if size > min(MAX_MANIFEST, model.nbytes - _LENGTH.size):
        raise GeneralFailure("the artefact's manifest is longer than its file")
    body = model[_LENGTH.size :]
    try:
        manifest = msgspec.msgpack.decode(body[:size], type=Manifest)
    except msgspec.MsgspecError as error:
        raise GeneralFailure(f"the artefact's manifest cannot be read: {error}") from None
    _check(manifest, body.nbytes - size, data.nbytes)
    blob = _aligned(manifest.length)
    source, read = np.frombuffer(body[size:], np.uint8), 0
    constants, taken, at = np.frombuffer(data, np.uint8), 0, 0
    for offset, length in (*manifest.cuts, (manifest.length, 0)):
        blob[at:offset] = source[read : read + offset - at]
        read += offset - at
        blob[offset : offset + length] = constants[taken : taken + length]
        taken += length
        at = offset + length
    return manifest, blob


def find_constants(exported: bytes, constants: Sequence[NDArray]) -> list[tuple[int, int]]:
    """Where large constants stand in the exported bytes, as they are: (offset, bytes), ascending, apart."""
    found: list[tuple[int, int]] = []
    for value in constants:
        if value.nbytes < SMALLEST_CONSTANT:
            continue
        content = np.ascontiguousarray(value).reshape(-1).view(np.uint8).data
        start = exported.find(content[:NEEDLE])
        tries = 0
        while start >= 0 and tries < MAX_TRIES:
            if exported[start : start + content.nbytes] == content:
                found.append((start, content.nbytes))
                break
            start, tries = exported.find(content[:NEEDLE], start + 1), tries + 1
    return _apart(found)


def _apart(found: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Without those that overlap an earlier one."""
    apart: list[tuple[int, int]] = []
    end = 0
    for offset, length in sorted(found):
        if offset >= end:
            apart.append((offset, length))
            end = offset + length
    return apart


def _check(manifest: Manifest, model_bytes: int, data_bytes: int) -> None:
    if manifest.schema != SCHEMA:
        raise GeneralFailure(f"the artefact has schema {manifest.schema}, not {SCHEMA}")
    ports = manifest.ports
    if max(len(ports.inputs), len(ports.outputs)) > MAX_PORTS:
        raise GeneralFailure(f"the artefact has more than {MAX_PORTS} inputs or outputs")
    known = len(ports.forwards) == len(ports.outputs)
    if not known or not all(-1 <= i < len(ports.inputs) for i in ports.forwards):
        raise GeneralFailure("the artefact forwards inputs that it does not have")
    end = 0
    for offset, length in manifest.cuts:
        if offset < end or length < 0:
            raise GeneralFailure("the artefact's constants overlap")
        end = offset + length
    moved = sum(length for _, length in manifest.cuts)
    if end > manifest.length or moved != data_bytes or manifest.length - moved != model_bytes:
        raise GeneralFailure("the artefact's files are not of the lengths that its manifest says")


def _aligned(length: int) -> NDArray:
    """Fresh writable bytes at an address that suits every vector instruction."""
    room = np.empty(length + ALIGNMENT, np.uint8)
    start = -room.ctypes.data % ALIGNMENT
    return room[start : start + length]


def _port(operand: Operand) -> Port:
    return Port(operand.name, operand.dtype.value, static_shape(operand.shape) or ())


def _operand(port: Port, lifetime: Lifetime) -> Operand:
    try:
        return Operand(DType(port.dtype), port.shape, lifetime, port.name)
    except ValueError:
        raise GeneralFailure(f"the artefact has a port of type {port.dtype!r}") from None
