"""Inputs and outputs of a compiled model, and their shapes in one execution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from penstock.ir.types import Shape, static_shape
from penstock.nnapi import parameters
from penstock.nnapi.codes import bad_data, bad_state
from penstock.nnapi.description import AnyType, NnapiOperand, value_size
from penstock.nnapi.devices import operand_type

if TYPE_CHECKING:
    from penstock.execution.compiled import CompiledModel

Kind: TypeAlias = Literal["input", "output"]

MAX_LENGTH: Final = 0xFFFFFFFF
"""Bytes of one argument of an execution."""


@dataclass(frozen=True, slots=True)
class OperandDesc:
    """A description of an operand: `ANeuralNetworksOperandType`.

    *type* and *dimensions* are as for `Model.add_operand`: 0 or None is unknown. An execution
    accepts one if the model leaves dimensions unknown.
    """

    type: AnyType | int
    dimensions: Sequence[int | None] = ()
    scale: float = 0.0
    zero_point: int = 0


@dataclass(frozen=True, slots=True)
class Port:
    """One input or output, and its operand."""

    kind: Kind
    index: int
    operand: NnapiOperand

    def __str__(self) -> str:
        name = f" ({self.operand.name})" if self.operand.name else ""
        return f"{self.kind} {self.index}{name}"


class Ported:
    """What memories and executions need of a `Compilation`: its compiled model, and its ports."""

    ports: Mapping[Kind, tuple[NnapiOperand, ...]]
    """The operands of the model's inputs and outputs, in order."""

    names_devices = False
    """Whether it was created for devices: then there is no fallback."""

    _compiled: CompiledModel | None = None
    _sealed = ""

    @property
    def is_finished(self) -> bool:
        """Whether `finish` has succeeded."""
        return self._compiled is not None

    @property
    def compiled(self) -> CompiledModel:
        """The compiled model; BAD_STATE unless `finish` has succeeded."""
        if self._compiled is None:
            raise bad_state(f"the compilation {self._sealed or 'is not finished'}")
        return self._compiled

    def port(self, kind: Kind, index: object) -> Port:
        """Input or output *index*; BAD_DATA if it does not exist."""
        place = parameters.whole(index, f"the {kind}'s index", -(2**63), 2**63)
        operands = self.ports[kind]
        if not 0 <= place < len(operands):
            raise bad_data(f"{kind} {place} of {len(operands)}")
        return Port(kind, place, operands[place])


def refined(port: Port, given: OperandDesc | None) -> Shape:
    """The shape of *port* in one execution, where *given* describes it (NNAPI section 1.4).

    Raises BAD_DATA if *given* has another type, scale, zero point or rank, or contradicts a known
    dimension.
    """
    operand = port.operand
    known = operand.dimensions
    if given is None:
        return known
    if not isinstance(given, OperandDesc):
        raise bad_data(
            f"the type of {port} must be a penstock.nnapi.OperandDesc, not {type(given).__name__}"
        )
    kind = operand_type(given.type)
    scale = parameters.real(given.scale, "the scale")
    zero_point = parameters.whole(given.zero_point, "the zero point")
    if (kind, scale, zero_point) != (operand.type, operand.scale, operand.zero_point):
        raise bad_data(
            f"{port} is {operand.type.name} with scale {operand.scale} and zero point "
            f"{operand.zero_point}, not {kind.name} with {scale} and {zero_point}"
        )
    shape = parameters.dimensions(given.dimensions, tensor=kind.is_tensor)
    if known is None:
        return shape
    if shape is None or len(shape) != len(known):
        raise bad_data(f"{port} has the dimensions {known}, not {shape}")
    if any(k is not None and k != g for k, g in zip(known, shape, strict=True)):
        raise bad_data(f"{port} has the dimensions {known}: {shape} changes what the model knows")
    return shape


def merged(one: Shape, other: Shape, what: str) -> Shape:
    """NNAPI's merge rule (section 6.4): the merged shape. Raises BAD_DATA for a contradiction."""
    if one is None or other is None:
        return other if one is None else one
    if len(one) != len(other) or any(
        a is not None and b is not None and a != b for a, b in zip(one, other, strict=True)
    ):
        raise bad_data(f"{what}: the dimensions {one} and {other} contradict each other")
    return tuple(b if a is None else a for a, b in zip(one, other, strict=True))


def size_of(operand: NnapiOperand, shape: Shape) -> int | None:
    """Bytes of a value of that shape; None if it is not fully known."""
    known = static_shape(shape)
    return None if known is None else value_size(operand.type, known)
