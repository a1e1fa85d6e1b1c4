"""Devices whose drivers run in host processes: what a compile does about those that are
unavailable, and the placeholder of a device whose host process could not be asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NoReturn

from msgspec.structs import replace

from penstock.compilation.failing import with_last_crash
from penstock.errors import DeadObject, DriverError
from penstock.execution.availability import note_unavailable, refuse_unavailable
from penstock.hal import (
    Buffer,
    BufferDesc,
    BufferRole,
    DeviceBase,
    PrepareConfig,
    PreparedModel,
    Support,
)
from penstock.hal.device import NO_VERSION
from penstock.ipc.deadlines import collecting_restarts, deadline_context, halfway_to
from penstock.ipc.pools import sealed_copies
from penstock.ir import Model

if TYPE_CHECKING:
    from penstock.compilation.prepared import Compilation
    from penstock.execution.availability import UnavailableDevices
    from penstock.hal import Device
    from penstock.ipc.supervision import Supervisor
    from penstock.partitioning.plan import ExecutionPlan


class PlaceholderDevice(DeviceBase):
    """Stands in for a device whose host process could not be asked for its devices.

    Every call raises *error*, a `DeadObject` or `MissedDeadlineTransient`. The device itself is
    discovered once *supervisor* has the process again (`is_available`).
    """

    isolated: Final = True
    is_placeholder: Final = True

    def __init__(self, name: str, supervisor: Supervisor, error: DriverError) -> None:
        self.name, self.version, self.supervisor, self.error = name, NO_VERSION, supervisor, error

    def named(self, name: str) -> PlaceholderDevice:
        """A placeholder of the same process with another device name."""
        return PlaceholderDevice(name, self.supervisor, self.error)

    def check(self) -> str | None:
        reason = str(self.error)
        return with_last_crash(reason) if isinstance(self.error, DeadObject) else reason

    def is_available(self) -> bool:
        """Whether the process runs now. It is started unless it is quarantined."""
        try:
            self.supervisor.link()
        except DriverError:
            return False
        return True

    def supported_operations(self, model: Model) -> Sequence[Support]:
        self._refuse()

    def prepare_model(self, model: Model, config: PrepareConfig) -> PreparedModel:
        self._refuse()

    def prepare_model_from_cache(self, config: PrepareConfig) -> PreparedModel:
        self._refuse()

    def allocate(self, desc: BufferDesc, roles: Sequence[BufferRole]) -> tuple[int, Buffer]:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise type(self.error)(str(self.error))


class IsolatedCompile:
    """One compile of *model* for devices whose drivers run in host processes, from its start on.

    Such a driver may have died, may not answer in time, and may need copies of its arguments.
    """

    def __init__(self, model: Model, deadline_ns: int | None) -> None:
        self._model, self._deadline_ns = model, deadline_ns
        self._before = sealed_copies(model.pools)
        self._restarts: dict[str, str] = {}

    @contextmanager
    def placing(self) -> Iterator[None]:
        """A block that plans: devices must answer within half of the time to the deadline."""
        with deadline_context(halfway_to(self._deadline_ns)), collecting_restarts(self._restarts):
            yield

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """A block that compiles: devices must answer by the deadline."""
        with deadline_context(self._deadline_ns), collecting_restarts(self._restarts):
            yield

    def check(self, plan: ExecutionPlan) -> None:
        """Raises `PlacementError` if a device was unavailable for *plan* and the policy forbids a
        fallback.
        """
        refuse_unavailable(plan)

    def with_notes(
        self, compilation: Compilation, devices: Mapping[str, Device]
    ) -> tuple[Compilation, UnavailableDevices | None]:
        """*compilation* with receipts that name the unavailable devices, the restarted processes
        and the copies made for host processes; and the unavailable devices, None if there are none.
        """
        compilation, absence = note_unavailable(compilation, devices)
        made = sealed_copies(self._model.pools)
        copies = tuple(copy for at, copy in made.items() if at not in self._before)
        notes = [
            f"device {name}: its driver's process {ended}; it was started again for the compile"
            for name, ended in self._restarts.items()
        ]
        receipt = compilation.receipt
        receipt = replace(receipt, copies=copies, notes=(*receipt.notes, *notes))
        return replace(compilation, receipt=receipt), absence
