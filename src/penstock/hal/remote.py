"""What devices, prepared models and buffers have besides the waist's protocols when their driver runs in another process.

A driver in this process has none of these members: callers ask for them by the functions below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from penstock.hal.request import ExecutionResult, Memory

if TYPE_CHECKING:
    from penstock.ir import Model


class OutOfProcessDevice(Protocol):
    """A `Device` whose driver runs in another process."""

    @property
    def isolated(self) -> bool:
        """True."""
        ...


class UnavailableDevice(OutOfProcessDevice, Protocol):
    """An `OutOfProcessDevice` in place of one whose driver could not be reached."""

    def there(self) -> bool:
        """Whether the driver can be reached by now. Raises `DriverError` or `Cancelled`."""
        ...


class OutOfProcessModel(Protocol):
    """A `PreparedModel` that is prepared again after its driver's process has ended."""

    def retain(self, model: Model) -> None:
        """Keeps the model that it was prepared from: one that came from a cache has none."""
        ...


class OutOfProcessBuffer(Protocol):
    """A `Buffer` in memory of another process."""

    @property
    def lost(self) -> str:
        """How the process ended; empty while it runs."""
        ...

    def carries(self, memory: Memory) -> bool:
        """Whether copying to *memory*, or from it, takes one copy more: the other process would not map it."""
        ...


def is_isolated(device: object) -> bool:
    """Whether *device* is an `OutOfProcessDevice`."""
    return getattr(device, "isolated", False) is True


def retain_model(prepared: Any, model: Model) -> None:
    """Gives *model* to *prepared* where that is an `OutOfProcessModel`."""
    if (retain := getattr(prepared, "retain", None)) is not None:
        retain(model)


def loss_of(buffer: object) -> str:
    """How the process ended that had *buffer*; empty while it runs, and for a buffer of this process."""
    told: str = getattr(buffer, "lost", "")
    return told


def needs_copy(buffer: Any, memory: Memory) -> bool:
    """Whether copying between *buffer* and *memory* takes one copy more; never for a buffer of this process."""
    carries = getattr(buffer, "carries", None)
    return carries is not None and bool(carries(memory))


class ArgumentCopy(msgspec.Struct, frozen=True):
    """A copy of one argument on its way to a device or back: of the input, or the output (*out*), number *argument*
    of the request. *start_ns* is on the clock of `time.perf_counter_ns`.
    """

    argument: int
    out: bool
    nbytes: int
    start_ns: int
    wall_ns: int


class CarriedResult(ExecutionResult, frozen=True):
    """The result of an execution that another process did: what was copied between the processes, and what else
    happened on the way, in words.
    """

    copies: tuple[ArgumentCopy, ...] = ()
    incidents: tuple[str, ...] = ()
