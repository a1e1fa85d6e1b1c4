"""Driver-managed buffers (memory domains, NNAPI section 6.4 to 6.7)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

from penstock.hal.request import Memory

if TYPE_CHECKING:
    from penstock.hal.prepared import PreparedModel


class BufferDesc(msgspec.Struct, frozen=True):
    """What a buffer must hold: *dimensions* refine those of the roles; 0-length means any."""

    dimensions: tuple[int | None, ...] = ()


class BufferRole(msgspec.Struct, frozen=True):
    """One use the buffer must serve: input or output *index* of *prepared*, with a hint of how often,
    0 < *frequency* <= 1.
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
        """Copies the content out. Raises `GeneralFailure` while uninitialised, `InvalidArgument` when
        sizes differ. After any other error *destination* may hold some, all or none of the bytes.
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
