"""Driver-managed buffers (memory domains, NNAPI sections 6.4 to 6.7).

The protocol, the states, and the checks of a request for a buffer, which all drivers share.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, Protocol, TypeAlias

import msgspec

from penstock.errors import GeneralFailure, InvalidArgument
from penstock.hal.prepared import PreparedModel
from penstock.hal.request import Memory
from penstock.ir import DType, Model, Operand, Quantization, Shape
from penstock.ir.types import MAX_RANK, static_shape

BufferState: TypeAlias = Literal["uninitialized", "initialized"]
BufferEvent: TypeAlias = Literal[
    "copy_from ok", "copy_from failed", "output ok", "output failed", "input", "copy_to"
]

AFTER: Final[Mapping[tuple[BufferState, BufferEvent], BufferState]] = MappingProxyType(
    {
        ("uninitialized", "copy_from ok"): "initialized",
        ("uninitialized", "copy_from failed"): "uninitialized",
        ("uninitialized", "output ok"): "initialized",
        ("uninitialized", "output failed"): "uninitialized",
        ("initialized", "copy_from ok"): "initialized",
        ("initialized", "copy_from failed"): "uninitialized",
        ("initialized", "output ok"): "initialized",
        ("initialized", "output failed"): "uninitialized",
        ("initialized", "input"): "initialized",
        ("initialized", "copy_to"): "initialized",
    }
)
"""The state of a buffer after an event; a missing pair raises `GeneralFailure`.

The source is NNAPI's HAL, `IDevice.allocate`. A call that raises `InvalidArgument` before the
driver begins is no event, except a `copy_from`.
"""


class BufferDesc(msgspec.Struct, frozen=True):
    """Shape requested for a buffer: *dimensions* refine those of the roles; 0-length means any."""

    dimensions: Annotated[tuple[int | None, ...], msgspec.Meta(max_length=MAX_RANK)] = ()


class BufferRole(msgspec.Struct, frozen=True):
    """One use of a buffer: input or output *index* of *prepared*, 0 < *frequency* <= 1."""

    prepared: PreparedModel
    kind: Literal["input", "output"]
    index: int
    frequency: float = 1.0


class Buffer(Protocol):
    """One allocation in the driver's memory.

    It starts uninitialised. A successful `copy_from`, or an output of a successful execution,
    initialises it. A failed one leaves it uninitialised.
    """

    def copy_to(self, destination: Memory) -> None:
        """Copies the content out.

        Raises `GeneralFailure` while uninitialised, `InvalidArgument` if sizes differ. After any
        other error *destination* may hold some, all or none of the bytes.
        """

    def copy_from(self, source: Memory, dimensions: tuple[int, ...]) -> None:
        """Copies the content in.

        *dimensions* must be complete unless the allocation's were. Raises `InvalidArgument` if
        sizes or dimensions do not fit; the buffer is then uninitialised.
        """

    def close(self) -> None:
        """Frees the allocation and its token. A second call does nothing."""


class OutOfProcessBuffer(Protocol):
    """A `Buffer` in memory of another process."""

    @property
    def lost(self) -> str:
        """How the process ended; empty while it runs."""

    def carries(self, memory: Memory) -> bool:
        """Whether a copy to or from *memory* needs a second copy: the process would not map it."""


def loss_of(buffer: object) -> str:
    """How the process of *buffer* ended; empty while it runs, and for this process."""
    loss: str = getattr(buffer, "lost", "")
    return loss


def needs_copy(buffer: Any, memory: Memory) -> bool:
    """Whether a copy between *buffer* and *memory* needs a second copy, for another process."""
    carries = getattr(buffer, "carries", None)
    return carries is not None and bool(carries(memory))


InterfaceOf: TypeAlias = Callable[[Any], "Model | None"]
"""The model of a prepared model of this driver, or one with its interface; None for others."""


class ManagedRole(msgspec.Struct, frozen=True):
    """One checked use: the *operand* that is input or output *index* of *prepared*."""

    prepared: Any
    kind: str
    index: int
    operand: Operand
    frequency: float = 1.0


class Allocation(msgspec.Struct, frozen=True):
    """What a buffer for *roles* holds: elements of *dtype* in a *shape* that fits every role."""

    dtype: DType
    quantization: Quantization | None
    shape: Shape
    roles: tuple[ManagedRole, ...]

    @property
    def nbytes(self) -> int | None:
        """Bytes of a value; None if the shape is not completely known."""
        return bytes_of(self.dtype, self.shape)


def validate_allocate(
    desc: BufferDesc, roles: Sequence[BufferRole], interface_of: InterfaceOf
) -> Allocation:
    """Checks a request for a buffer.

    Raises `InvalidArgument`:

    - if there are no roles, or a role is repeated;
    - if a role names no prepared model of this driver, or none of its inputs and outputs;
    - if a frequency is outside (0, 1];
    - if roles differ in element type or quantisation;
    - if their dimensions and those of *desc* contradict each other. Empty dimensions match any;
      else the ranks must be equal, and so must dimensions where both are known.

    Raises `GeneralFailure` for elements without a fixed size.
    """
    checked = tuple(_checked(role, place, interface_of) for place, role in enumerate(roles))
    return agreed(desc, checked)


def agreed(desc: BufferDesc, roles: Sequence[ManagedRole]) -> Allocation:
    """The allocation that serves all *roles*, each of them valid. Raises as `validate_allocate`."""
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
    """Raises `InvalidArgument` unless the value is a number in (0, 1]."""
    if not isinstance(frequency, int | float) or not 0.0 < frequency <= 1.0:
        raise InvalidArgument(f"role {place} has the frequency {frequency}, not in (0, 1]")


def merged(one: Shape, other: Shape, where: str) -> Shape:
    """The shape that satisfies both. Raises `InvalidArgument` with *where* if they contradict."""
    if one is None or other is None:
        return other if one is None else one
    if len(one) != len(other):
        raise InvalidArgument(f"{where}: rank {len(other)} contradicts rank {len(one)}")
    for a, b in zip(one, other, strict=True):
        if a is not None and b is not None and a != b:
            raise InvalidArgument(f"{where}: dimensions {other} contradict {one}")
    return tuple(b if a is None else a for a, b in zip(one, other, strict=True))


def bytes_of(dtype: DType, shape: Shape) -> int | None:
    """Bytes of an array; None if the shape is not completely known."""
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
        named = f"role {place} names {role.kind} {role.index}"
        raise InvalidArgument(f"{named}; the model has {len(indexes)}")
    operand = entry.operands[indexes[role.index]]
    return ManagedRole(role.prepared, role.kind, role.index, operand, role.frequency)


def _check_alike(operand: Operand, first: Operand, place: int) -> None:
    kind, wanted = operand.dtype.value, first.dtype.value
    if kind != wanted:
        raise InvalidArgument(f"role {place} has elements of {kind}, role 0 of {wanted}")
    scale, wanted_scale = operand.quantization, first.quantization
    if scale != wanted_scale:
        raise InvalidArgument(f"role {place} is quantised by {scale}, role 0 by {wanted_scale}")
