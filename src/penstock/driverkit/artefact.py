"""Payloads of cache files: a manifest (its length in 4 bytes, little-endian, then msgpack), then
binary parts.
"""

# Annotations are objects here, not text: msgspec compiles the text of a manifest's fields when it
# first reads one, which takes several times as long as to read it.

import struct
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

import msgspec

from penstock.errors import GeneralFailure, OtherVersion
from penstock.ir import DType, Lifetime, Model, Operand, Quantization, Subgraph
from penstock.ir.types import static_shape
from penstock.sealed import LoadedEntry

MAX_PORTS: Final = 1 << 16
MAX_MANIFEST: Final = 1 << 24
_LENGTH: Final = struct.Struct("<I")


class Interface(msgspec.Struct, frozen=True):
    """The inputs and outputs of a model, against which requests to a cached model are checked."""

    entry: Subgraph


class Port(msgspec.Struct, frozen=True, array_like=True):
    """One input or output: its name, element type, shape and quantisation."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    quantization: Quantization | None = None

    def operand(self, lifetime: Lifetime) -> Operand:
        """Raises `GeneralFailure` for an unknown element type."""
        try:
            return Operand(DType(self.dtype), self.shape, lifetime, self.name, self.quantization)
        except ValueError:
            raise GeneralFailure(f"the artefact has a port of type {self.dtype!r}") from None


class Ports(msgspec.Struct, frozen=True, array_like=True):
    """The inputs and outputs of an entry subgraph.

    *forwards* has one number for each output: the index of the input that it forwards, or -1 if the
    engine computes it. *quantized* says whether any value that is not a constant is quantised in 8
    bits.
    """

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    forwards: tuple[int, ...]
    quantized: bool = False


class Manifest(Protocol):
    """The fields that every manifest has. *engine* is the version that wrote the artefact."""

    @property
    def schema(self) -> int: ...
    @property
    def engine(self) -> str: ...
    @property
    def ports(self) -> Ports: ...


M = TypeVar("M", bound=Manifest)
T = TypeVar("T")


def interface_of(ports: Ports) -> Interface:
    """Operands for every port, inputs first."""
    given = [port.operand(Lifetime.SUBGRAPH_INPUT) for port in ports.inputs]
    wanted = [port.operand(Lifetime.SUBGRAPH_OUTPUT) for port in ports.outputs]
    everything = range(len(given) + len(wanted))
    indexes = tuple(everything[: len(given)]), tuple(everything[len(given) :])
    return Interface(Subgraph((*given, *wanted), (), *indexes))


def ports_of(model: Model) -> Ports:
    """The ports of a model's entry subgraph. All their shapes must be known."""
    from penstock.driverkit.site import QUANTIZED

    entry = model.entry
    inputs, outputs = (
        tuple(_port(entry.operands[index]) for index in indexes)
        for indexes in (entry.inputs, entry.outputs)
    )
    forwards = tuple(entry.inputs.index(i) if i in entry.inputs else -1 for i in entry.outputs)
    quantized = any(o.dtype in QUANTIZED and not o.is_constant for o in entry.operands)
    return Ports(inputs, outputs, forwards, quantized)


def framed(manifest: Manifest, *parts: bytes | memoryview) -> bytes:
    """The payload of *manifest* followed by *parts*."""
    encoded = msgspec.msgpack.encode(manifest)
    return b"".join([_LENGTH.pack(len(encoded)), encoded, *parts])


def unframed(content: memoryview, kind: type[M], schema: int) -> tuple[M, memoryview]:
    """The manifest and the bytes behind it. Raises `GeneralFailure` for any other content."""
    if content.nbytes < _LENGTH.size:
        raise GeneralFailure("the artefact has no manifest")
    (size,) = _LENGTH.unpack(content[: _LENGTH.size])
    if size > min(MAX_MANIFEST, content.nbytes - _LENGTH.size):
        raise GeneralFailure("the artefact's manifest is longer than its file")
    body = content[_LENGTH.size :]
    try:
        manifest = msgspec.msgpack.decode(body[:size], type=kind)
    except msgspec.MsgspecError as error:
        raise GeneralFailure(f"the artefact's manifest cannot be read: {error}") from None
    if manifest.schema != schema:
        raise GeneralFailure(f"the artefact has schema {manifest.schema}, not {schema}")
    ports = manifest.ports
    if max(len(ports.inputs), len(ports.outputs)) > MAX_PORTS:
        raise GeneralFailure(f"the artefact has more than {MAX_PORTS} inputs or outputs")
    known = len(ports.forwards) == len(ports.outputs)
    if not known or not all(-1 <= i < len(ports.inputs) for i in ports.forwards):
        raise GeneralFailure("the artefact forwards inputs that it does not have")
    return manifest, body[size:]


def opened(
    entry: LoadedEntry, unpack: Callable[..., tuple[M, T]], version: Callable[[], str]
) -> tuple[M, T]:
    """What *unpack* returns for the files of a verified cache entry, whose private copies are then
    released. Raises `OtherVersion` if the manifest is of another engine than *version* returns.
    """
    files = (*entry.model, *entry.data)
    try:
        manifest, contents = unpack(*files)
    finally:
        for file in files:
            file.release()
    if manifest.engine != (own := version()):
        raise OtherVersion(f"the artefact is of {manifest.engine}, and this is {own}")
    return manifest, contents


def _port(operand: Operand) -> Port:
    shape = static_shape(operand.shape) or ()
    return Port(operand.name, operand.dtype.value, shape, operand.quantization)
