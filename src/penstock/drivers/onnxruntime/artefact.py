"""The payload of the cache file: the model that ONNX Runtime has optimised, behind a manifest with
its inputs and outputs.
"""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.driverkit.artefact import Interface, forwards_of, framed, interface_of, unframed
from penstock.errors import GeneralFailure
from penstock.ir import DType, Lifetime, Model, Operand
from penstock.ir.types import static_shape

SCHEMA: Final = 1


class Port(msgspec.Struct, frozen=True, array_like=True):
    """One input or output: its name, element type and shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    def operand(self, lifetime: Lifetime) -> Operand:
        """Raises `GeneralFailure` for an element type that there is not."""
        try:
            return Operand(DType(self.dtype), self.shape, lifetime, self.name)
        except ValueError:
            raise GeneralFailure(f"the artefact has a port of type {self.dtype!r}") from None


class Ports(msgspec.Struct, frozen=True, array_like=True):
    """The inputs and outputs of an entry subgraph; *forwards* gives for each output the input that
    it is, or -1 where ONNX Runtime computes it.
    """

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    forwards: tuple[int, ...]

    def interface(self) -> Interface:
        """Operands for every port, inputs first."""
        return interface_of(self)


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
    return Ports(inputs, outputs, forwards_of(entry))


def pack(model: bytes, ports: Ports, engine: str) -> bytes:
    """The payload of the model file."""
    return framed(Manifest(SCHEMA, engine, ports), model)


def unpack(content: memoryview) -> tuple[Manifest, bytes]:
    """The manifest and the model. Raises `GeneralFailure` for what `pack` never makes."""
    manifest, model = unframed(content, Manifest, SCHEMA)
    return manifest, bytes(model)


def _port(operand: Operand) -> Port:
    return Port(operand.name, operand.dtype.value, static_shape(operand.shape) or ())
