"""Driver-managed buffers (memory domains, NNAPI section 6.4 to 6.7)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, Protocol, TypeAlias

import msgspec

from penstock.hal.prepared import PreparedModel
from penstock.hal.request import Memory
from penstock.ir.validate import MAX_RANK

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
"""The state of a buffer after what happens to it; what is not there is `GeneralFailure` (NNAPI HAL,
`IDevice.allocate`). A call that is refused by `InvalidArgument` before the driver begins is no
event, except of `copy_from`.
"""


class BufferDesc(msgspec.Struct, frozen=True):
    """What a buffer must hold: *dimensions* refine those of the roles; 0-length means any."""

    dimensions: Annotated[tuple[int | None, ...], msgspec.Meta(max_length=MAX_RANK)] = ()


class BufferRole(msgspec.Struct, frozen=True):
    """One use the buffer must serve: input or output *index* of *prepared*, with a hint of how
    often, 0 < *frequency* <= 1.
    """

    prepared: PreparedModel
    kind: Literal["input", "output"]
    index: int
    frequency: float = 1.0


class Buffer(Protocol):
    """One allocation in the driver's memory.

    It starts uninitialised; a successful `copy_from` or an output of a successful execution
    initialises it, a failed one of either leaves it uninitialised.
    """

    def copy_to(self, destination: Memory) -> None:
        """Copies the content out. Raises `GeneralFailure` while uninitialised, `InvalidArgument`
        when sizes differ. After any other error *destination* may hold some, all or none of the
        bytes.
        """
        ...

    def copy_from(self, source: Memory, dimensions: tuple[int, ...]) -> None:
        """Copies in; *dimensions* must be complete unless the allocation's were. Raises
        `InvalidArgument` when sizes or dimensions do not fit, and is then uninitialised.
        """
        ...

    def close(self) -> None:
        """Frees the allocation and its token; twice is harmless."""
        ...


class OutOfProcessBuffer(Protocol):
    """A `Buffer` in memory of another process."""

    @property
    def lost(self) -> str:
        """How the process ended; empty while it runs."""
        ...

    def carries(self, memory: Memory) -> bool:
        """Whether copying to *memory*, or from it, takes one copy more: the other process would not
        map it.
        """
        ...


def loss_of(buffer: object) -> str:
    """How the process ended that had *buffer*; empty while it runs, and for a buffer of this
    process.
    """
    told: str = getattr(buffer, "lost", "")
    return told


def needs_copy(buffer: Any, memory: Memory) -> bool:
    """Whether copying between *buffer* and *memory* takes one copy more; never for a buffer of this
    process.
    """
    carries = getattr(buffer, "carries", None)
    return carries is not None and bool(carries(memory))
