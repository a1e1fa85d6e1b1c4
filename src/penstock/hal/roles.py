"""What `Device.allocate` may be asked for (NNAPI sections 6.4 to 6.7), checked in one place for
every driver.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgspec

from penstock.errors import GeneralFailure, InvalidArgument
from penstock.hal.buffer import BufferDesc, BufferRole
from penstock.ir import DType, Model, Operand, Quantization, Shape
from penstock.ir.types import static_shape

InterfaceOf: TypeAlias = Callable[[Any], "Model | None"]
"""The model that a prepared model of this driver was made from, or one with the same inputs and
outputs; None for whatever is no prepared model of it.
"""


class ManagedRole(msgspec.Struct, frozen=True):
    """One checked use: the *operand* that is input or output *index* of *prepared*."""

    prepared: Any
    kind: str
    index: int
    operand: Operand
    frequency: float = 1.0


class Allocation(msgspec.Struct, frozen=True):
    """What a buffer for *roles* holds: elements of *dtype*, in a *shape* that all of them and the
    description fit.
    """

    dtype: DType
    quantization: Quantization | None
    shape: Shape
    roles: tuple[ManagedRole, ...]

    @property
    def nbytes(self) -> int | None:
        """Bytes of a value; None where the shape is not completely known."""
        return bytes_of(self.dtype, self.shape)


def validate_allocate(
    desc: BufferDesc, roles: Sequence[BufferRole], interface_of: InterfaceOf
) -> Allocation:
    """Checks a request for a buffer.

    Raises `InvalidArgument` without roles, for a role that names no prepared model of this driver,
    no input or output of it, a frequency outside (0, 1], or another role again; for roles that
    differ in element type or quantisation; and where their dimensions and those of *desc*
    contradict each other: nothing said is anything, else ranks are equal, and dimensions where both
    are known. `GeneralFailure` for elements of no fixed size.
    """
    checked = tuple(_checked(role, place, interface_of) for place, role in enumerate(roles))
    return agreed(desc, checked)


def agreed(desc: BufferDesc, roles: Sequence[ManagedRole]) -> Allocation:
    """What serves all of *roles*, each of which is possible by itself; raises as
    `validate_allocate`.
    """
    if not roles:
        raise InvalidArgument("a buffer needs at least one role")
    first = roles[0].operand
    known = set[tuple[int, str, int]]()
    for place, role in enumerate(roles):
        check_frequency(role.frequency, place)
        use = id(role.prepared), role.kind, role.index
        if use in known:
            raise InvalidArgument(f"role {place}, {role.kind} {role.index}, is there already")
        known.add(use)
        _check_alike(role.operand, first, place)
    shape = _described(desc)
    for place, role in enumerate(roles):
        shape = merged(shape, role.operand.shape, f"role {place}")
    if first.dtype.bits is None:
        raise GeneralFailure(f"a buffer cannot hold {first.dtype.value} elements")
    return Allocation(first.dtype, first.quantization, shape, tuple(roles))


def check_frequency(frequency: object, place: int) -> None:
    """Raises `InvalidArgument` for what is no number in (0, 1]."""
    if not isinstance(frequency, int | float) or not 0.0 < frequency <= 1.0:
        raise InvalidArgument(f"role {place} has the frequency {frequency}, not in (0, 1]")


def merged(one: Shape, other: Shape, where: str) -> Shape:
    """The shape that says what both say; `InvalidArgument` naming *where* they contradict each
    other.
    """
    if one is None or other is None:
        return other if one is None else one
    if len(one) != len(other):
        raise InvalidArgument(f"{where}: rank {len(other)} contradicts rank {len(one)}")
    for a, b in zip(one, other, strict=True):
        if a is not None and b is not None and a != b:
            raise InvalidArgument(f"{where}: dimensions {other} contradict {one}")
    return tuple(b if a is None else a for a, b in zip(one, other, strict=True))


def bytes_of(dtype: DType, shape: Shape) -> int | None:
    """Bytes of an array; None where the shape is not completely known."""
    full = static_shape(shape)
    return None if full is None else math.prod(full) * dtype.numpy.itemsize


def _described(desc: BufferDesc) -> Shape:
    for d in desc.dimensions:
        if d is not None and (type(d) is not int or d < 0):
            raise InvalidArgument(f"the buffer's dimensions {desc.dimensions} make no sense")
    return tuple(desc.dimensions) or None


def _checked(role: BufferRole, place: int, interface_of: InterfaceOf) -> ManagedRole:
    model = interface_of(role.prepared)
    if model is None:
        raise InvalidArgument(f"role {place} names no prepared model of this device")
    if role.kind not in {"input", "output"}:
        raise InvalidArgument(f"role {place} is {role.kind!r}, neither input nor output")
    entry = model.entry
    indexes = entry.inputs if role.kind == "input" else entry.outputs
    if not 0 <= role.index < len(indexes):
        raise InvalidArgument(
            f"role {place} names {role.kind} {role.index}; the model has {len(indexes)}"
        )
    operand = entry.operands[indexes[role.index]]
    return ManagedRole(role.prepared, role.kind, role.index, operand, role.frequency)


def _check_alike(operand: Operand, first: Operand, place: int) -> None:
    if operand.dtype is not first.dtype:
        raise InvalidArgument(
            f"role {place} has elements of {operand.dtype.value}, role 0 of {first.dtype.value}"
        )
    if operand.quantization != first.quantization:
        raise InvalidArgument(
            f"role {place} is quantised by {operand.quantization}, role 0 by {first.quantization}"
        )
