"""Drivers in host processes, their devices, and compiles with unavailable ones."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, NoReturn

from msgspec.structs import replace

from penstock import errors, knobs
from penstock.compilation.failing import with_last_crash
from penstock.distribution import BY_THE_PROGRAM, DISTRIBUTION
from penstock.execution.availability import UnavailableDevices, note_unavailable
from penstock.hal import Device, Support
from penstock.hal.device import NO_VERSION
from penstock.hal.loading import RefusingDevice
from penstock.ipc.deadlines import collecting_restarts, deadline_context, halfway_to
from penstock.ipc.pools import sealed_copies
from penstock.ir import Model
from penstock.logs import Log
from penstock.runtime.entries import DriverEntry, source_of

if TYPE_CHECKING:
    from penstock.compilation.prepared import Compilation
    from penstock.ipc.supervision import Supervisor
    from penstock.runtime.examination import Found


class PlaceholderDevice(RefusingDevice):
    """Stands in for a device whose host process could not be asked for its devices.

    Every call raises *error*, a `DeadObject` or `MissedDeadlineTransient`. The device itself is
    discovered once *supervisor* has the process again (`is_available`).
    """

    isolated: Final = True
    is_placeholder: Final = True

    def __init__(self, name: str, supervisor: Supervisor, error: errors.DriverError) -> None:
        self.name, self.version, self.supervisor, self.error = name, NO_VERSION, supervisor, error

    def named(self, name: str) -> PlaceholderDevice:
        """A placeholder of the same process with another device name."""
        return PlaceholderDevice(name, self.supervisor, self.error)

    def check(self) -> str | None:
        reason = str(self.error)
        return with_last_crash(reason) if isinstance(self.error, errors.DeadObject) else reason

    def is_available(self) -> bool:
        """Whether the process runs now. It is started unless it is quarantined."""
        try:
            self.supervisor.connection()
        except errors.DriverError:
            return False
        return True

    def supported_operations(self, model: Model) -> Sequence[Support]:
        self.refuse()

    def refuse(self) -> NoReturn:
        raise type(self.error)(str(self.error))


class IsolatedCompile:
    """One compile of *model* for host processes, which may die, be late, and need copies."""

    def __init__(self, model: Model, deadline_ns: int | None) -> None:
        self._model, self._deadline_ns = model, deadline_ns
        self._before = sealed_copies(model.pools)
        self._restarts: dict[str, str] = {}

    @contextmanager
    def answering(self, *, in_half: bool = False) -> Iterator[None]:
        """A block in which devices must answer by the deadline, or *in_half* of the time to it."""
        until = halfway_to(self._deadline_ns) if in_half else self._deadline_ns
        with deadline_context(until), collecting_restarts(self._restarts):
            yield

    def with_notes(
        self, compilation: Compilation, devices: Mapping[str, Device]
    ) -> tuple[Compilation, UnavailableDevices | None]:
        """*compilation* with notes on unavailable devices, restarts and copies; these devices."""
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


log = Log(__name__)

NO: Final = frozenset({"no", "false", "off", "0"})
YES: Final = frozenset({"yes", "true", "on", "1"})


def is_isolated(entry: DriverEntry, isolate: bool | None) -> bool:
    """Whether the driver of *entry* runs in a host process.

    *isolate* decides, else the knob `isolate`. By default, drivers of other distributions than
    Penstock are isolated. Raises `NotAvailable` if *isolate* asks for isolation that this system
    does not support, `InputError` for an invalid knob.
    """
    if isolate is False:
        return False
    wanted = True if isolate else isolated_names().get(entry.name)
    if wanted is None and knobs.services():
        from penstock.ipc.host_sockets import services

        wanted = entry.name in services() or None
    if wanted is None:
        wanted = source_of(entry).distribution not in {DISTRIBUTION, ""}
    if not wanted:
        return False
    reason = _unavailable(entry)
    if reason is None:
        return True
    if isolate:
        raise errors.NotAvailable(f"driver {entry.name} cannot be isolated: {reason}")
    log.warning("driver %s runs in this process: %s", entry.name, reason)
    return False


def runs_apart(entry: DriverEntry) -> bool:
    """Whether devices with `own_process` of the driver of *entry* run in a host process where the
    caller does not decide. Raises `InputError` for an invalid knob.
    """
    return isolated_names().get(entry.name, True) and _unavailable(entry) is None


def check_settings() -> None:
    """Raises `InputError` for an invalid knob `isolate`."""
    isolated_names()
    if knobs.services():
        from penstock.ipc.host_sockets import services

        services()


def isolated_names() -> dict[str, bool]:
    """Each driver that the knob `isolate` names, and if it is isolated. Raises `InputError`."""
    named = {}
    for part in filter(None, map(str.strip, knobs.isolate().split(","))):
        name, equals, word = map(str.strip, part.partition("="))
        if not name or (equals and word.lower() not in NO | YES):
            text = f"the knob isolate (PENSTOCK_ISOLATE) has {part!r}: NAME, NAME=yes or NAME=no"
            raise errors.InputError(text)
        named[name] = not equals or word.lower() in YES
    return named


def unknown_drivers(drivers: Sequence[str]) -> list[str]:
    """A sentence for each name in the knob `isolate` that matches none of *drivers*."""
    knob = f"knob isolate ({knobs.isolate.source()[1]})"
    return [
        f"{knob} names {name!r}, which no installed driver is named: nothing is isolated by it; "
        f"{_nearest(name, drivers)}"
        for name, is_isolated in isolated_names().items()
        if is_isolated and name not in drivers
    ]


def _nearest(name: str, drivers: Sequence[str]) -> str:
    from difflib import get_close_matches

    own = [driver for driver in drivers if name.startswith(driver)]
    near = own or get_close_matches(name, drivers)
    if near:
        return f"is {' or '.join(map(repr, near))} meant?"
    return f"the drivers are {', '.join(drivers) or 'none'}"


def isolated_devices(entry: DriverEntry, deadline_ns: int | None = None) -> list[Device]:
    """The devices of a driver in a host process, which is started.

    Starting may take half of the time to the deadline. A device whose process is unavailable, or
    not ready by then, becomes a `PlaceholderDevice`. A device that cannot be used becomes an
    `InvalidDevice`.
    """
    from penstock.hal import InvalidDevice
    from penstock.ipc.resilient import IsolatedDevice

    try:
        supervisor = supervisor_of(
            entry.name, str(getattr(entry, "value", "")), source_of(entry).origin
        )
        try:
            count = supervisor.connection(halfway_to(deadline_ns)).devices
        except errors.DeadObject as error:
            return [PlaceholderDevice(entry.name, supervisor, error)]
        devices: list[Device] = []
        for index in range(count):
            try:
                devices.append(IsolatedDevice(supervisor, index))
            except (errors.DeadObject, errors.MissedDeadline) as error:
                devices.append(PlaceholderDevice(entry.name, supervisor, error))
            except errors.DriverError as error:
                devices.append(InvalidDevice(entry.name, str(error)))
    except (errors.PenstockError, OSError) as error:
        return [InvalidDevice(entry.name, f"failed to load: {error}")]
    return devices


LATE: Final = (
    errors.ErrorStatus.MISSED_DEADLINE_TRANSIENT,
    errors.ErrorStatus.MISSED_DEADLINE_PERSISTENT,
)


def present(found: Found) -> Found:
    """*found*, or a `PlaceholderDevice` if its host process died or timed out during the query."""
    from penstock.ipc.resilient import IsolatedDevice

    device, info = found.device, found.info
    if info.usable or not isinstance(device, IsolatedDevice):
        return found
    late = found.status in LATE
    if device.supervisor.running and not late:
        return found
    error = (errors.MissedDeadlineTransient if late else errors.DeadObject)(info.reason)
    return replace(found, device=PlaceholderDevice(info.name, device.supervisor, error))


def supervisor_of(name: str, value: str, origin: str = BY_THE_PROGRAM) -> Supervisor:
    """The supervisor of the host process of entry point *name* = *value* of *origin*."""
    from penstock.ipc.host_sockets import Place
    from penstock.ipc.supervision import Supervisor

    place = Place(name, value, origin)
    with _lock:
        found = _supervisors.get(place)
        if found is None:
            found = _supervisors[place] = Supervisor(place)
        return found


def supervisors() -> list[Supervisor]:
    """The supervisors of all drivers that this process has isolated."""
    with _lock:
        return list(_supervisors.values())


def forgive(device: Device) -> None:
    """Lets the host process of *device* restart without backoff, if its caller kills it."""
    from penstock.ipc.resilient import IsolatedDevice

    if isinstance(device, IsolatedDevice):
        device.supervisor.succeeded()


def close_hosts() -> None:
    """Closes all connections to host processes. Isolated devices found before become unusable."""
    with _lock:
        every = list(_supervisors.values())
        _supervisors.clear()
    for supervisor in every:
        supervisor.close()


def leave_hosts() -> None:
    """Runs `close_hosts` at exit; a second interrupt ends the process, which closes them too."""
    with suppress(KeyboardInterrupt):
        close_hosts()


def _unavailable(entry: DriverEntry) -> str | None:
    if not getattr(entry, "value", ""):
        return "it has no entry point that another process could load"
    from penstock.ipc.starting import unavailable

    return unavailable()


_lock = threading.Lock()
_supervisors: dict[object, Supervisor] = {}


def _forget() -> None:
    """Clears the registry in a forked child, which lacks its parent's connections."""
    global _lock  # noqa: PLW0603  # another thread may have held the lock at the fork
    _lock = threading.Lock()
    every = list(_supervisors.values())
    _supervisors.clear()
    for supervisor in every:
        supervisor.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
atexit.register(leave_hosts)
