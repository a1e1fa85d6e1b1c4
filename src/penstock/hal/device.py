"""Protocols of a device: the interface that a driver implements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol, TypeGuard

from penstock.errors import GeneralFailure
from penstock.hal.capabilities import (
    HARDWARE_BUFFERS_FROM_LEVEL,
    PADDING_FROM_LEVEL,
    Capabilities,
    DeviceType,
    MemoryPreference,
    Support,
)
from penstock.hal.config import PrepareConfig
from penstock.hal.prepared import PreparedModel
from penstock.ir import Model

if TYPE_CHECKING:
    from penstock.hal.buffer import Buffer, BufferDesc, BufferRole

HAL_VERSION: Final = 1
"""Raised whenever a driver written for the contract before would break."""

NO_VERSION: Final = "invalid"
"""The version of a device that reports none."""


class Device(Protocol):
    """One accelerator, engine or processor.

    Drivers are found by the entry-point group `penstock.drivers`; each entry is a callable that
    returns a device or a sequence of devices. Methods may be called from any thread, also at the
    same time. `DeviceBase` has every optional member with its default.
    """

    @property
    def name(self) -> str:
        """Unique in a process, stable across runs, one line of printable characters."""

    @property
    def version(self) -> str:
        """One printable line, not empty; changes if compiled artefacts could change."""

    @property
    def type(self) -> DeviceType: ...

    @property
    def feature_level(self) -> int:
        """NNAPI feature level that the driver supports, 1 to 8."""

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def hal_version(self) -> int:
        """The `HAL_VERSION` the driver was written for."""

    def check(self) -> str | None:
        """Why the device cannot be used on this system, or None. Cheap: opens no device."""

    def supported_operations(self, model: Model) -> Sequence[Support]:
        """One answer for each operation of the entry subgraph, in order. A rejection has a reason.

        Pure and quick: equal models give equal answers, and nothing is compiled. If an operation is
        accepted, `prepare_model` must accept it too, in any combination of accepted operations.
        Control flow is supported only if every operation in its subgraphs is.
        """

    def cache_files_needed(self) -> tuple[int, int]:
        """How many (model, data) cache files a compilation needs, each 0 to 32.

        Constant for the device's life. (0, 0) means that the device does not cache.
        """

    def prepare_model(self, model: Model, config: PrepareConfig) -> PreparedModel:
        """Compiles *model*, and saves to the cache handles of *config* if there are any.

        The model is not changed. Raises `InvalidArgument` for an invalid model or configuration,
        `MissedDeadline*`, `ResourceExhausted*`, `DeviceUnavailable`, `GeneralFailure` or
        `Cancelled`. No fault of the cache makes it fail: if the number of handles is wrong, or a
        handle cannot be written, it compiles without saving.
        """

    def prepare_model_from_cache(self, config: PrepareConfig) -> PreparedModel:
        """Loads what `prepare_model` saved.

        Raises `InvalidArgument` for a wrong number of handles. Raises `GeneralFailure` for anything
        except exactly what was saved for this token, device and version; the caller then compiles.
        """

    def allocate(self, desc: BufferDesc, roles: Sequence[BufferRole]) -> tuple[int, Buffer]:
        """Allocates driver-managed memory for *roles*. Returns (token, buffer).

        The token is positive and unique among live buffers. Raises `InvalidArgument` if roles
        contradict each other or *desc*, `GeneralFailure` if the driver has no memory domains,
        `ResourceExhausted*` if it has no room.
        """

    def close(self) -> None:
        """Releases the device's resources. A second call does nothing."""


class DeviceBase:
    """The optional members of `Device`, with their defaults.

    A driver's class inherits it and adds `name`, `version`, `supported_operations` and
    `prepare_model`.
    """

    type: DeviceType = DeviceType.OTHER
    feature_level: int = 8
    capabilities: Capabilities = Capabilities()
    hal_version: int = HAL_VERSION
    stages: tuple[str, ...] = ()
    """Optional: the stages of a compile that `dump` prints, in their order. The default prints
    none.
    """
    own_process: bool = False
    """Optional: whether the device runs in a host process unless the caller or the knob `isolate`
    decides otherwise, because its engine may end the process. Such a device is described in the
    caller's process, and only a device that is used starts the host.
    """

    def check(self) -> str | None:
        """Optional. The default accepts every system."""
        return None

    def cache_files_needed(self) -> tuple[int, int]:
        """Optional. The default does not cache."""
        return 0, 0

    def prepare_model_from_cache(self, config: PrepareConfig) -> PreparedModel:
        """Optional. The default raises `GeneralFailure`: nothing is saved."""
        raise GeneralFailure("this device does not cache")

    def allocate(self, desc: BufferDesc, roles: Sequence[BufferRole]) -> tuple[int, Buffer]:
        """Optional. The default supports no device memory."""
        raise GeneralFailure("this device has no memory domains")

    def dump(self, model: Model, config: PrepareConfig, stage: str) -> str:
        """Optional: the result of *stage*, one of `stages`, of a compile of *model*, as text for
        people. Equal models have equal texts; nothing is saved. Raises what `prepare_model` raises.
        """
        raise GeneralFailure("this device prints no stages of its compile")

    def explain(self, model: Model, config: PrepareConfig) -> Sequence[str]:
        """Optional: how the device computes each operation of *model*, in a few words each; nothing
        is compiled. The default says nothing.
        """
        return ()

    def close(self) -> None:
        """Optional. The default does nothing."""


class OutOfProcessDevice(Protocol):
    """A `Device` whose driver runs in another process."""

    @property
    def isolated(self) -> bool:
        """True."""


class UnavailableDevice(OutOfProcessDevice, Protocol):
    """Placeholder for an `OutOfProcessDevice` whose host process could not be reached."""

    @property
    def is_placeholder(self) -> bool:
        """True."""

    def is_available(self) -> bool:
        """Whether the driver can be reached now. Raises `DriverError` or `Cancelled`."""


def is_isolated(device: object) -> bool:
    """Whether *device* is an `OutOfProcessDevice`."""
    return getattr(device, "isolated", False) is True


def is_placeholder(device: object) -> TypeGuard[UnavailableDevice]:
    """Whether *device* is an `UnavailableDevice`."""
    return getattr(device, "is_placeholder", False) is True


def preferred_memory(device: Device) -> MemoryPreference:
    """Memory preference of *device*. Below feature level 5 no driver can request padding."""
    claims = device.capabilities
    padding = claims.padding if device.feature_level >= PADDING_FROM_LEVEL else 1
    return MemoryPreference(claims.alignment, padding)


def mappable_kinds(device: Device) -> tuple[str, ...]:
    """The kinds of memory *device* accepts: no hardware buffer below feature level 3."""
    kinds = device.capabilities.memory_kinds
    if device.feature_level >= HARDWARE_BUFFERS_FROM_LEVEL:
        return kinds
    return tuple(kind for kind in kinds if not kind.startswith("hardware_buffer"))
