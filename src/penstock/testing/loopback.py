"""Devices behind messages, in this process or in a separate host process."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial

import numpy as np

from penstock.errors import DriverError
from penstock.hal import Device, Fence, ProgressEvent
from penstock.ipc import forms, wire
from penstock.ipc.client import RemoteDevice
from penstock.ipc.codec import Frame, Packer, decode_notice, error_of, failure_of
from penstock.ipc.dispatch import Dispatcher
from penstock.ipc.remote import Channel
from penstock.ipc.resilient import IsolatedDevice
from penstock.ir import ConstantPool
from penstock.runtime.isolation import supervisor_of
from penstock.testing.devices import find_devices
from penstock.testing.domains import DomainDevice
from penstock.testing.doubles import FaultyDevice
from penstock.testing.lab import LabDevice


class LoopbackDevice(RemoteDevice):
    """*device*, called through messages in this process.

    Only the bytes of a message and its handles pass between client and driver. A driver that relies
    on Python objects shared with its caller therefore behaves differently.
    """

    def __init__(self, device: Device) -> None:
        self.dispatcher = Dispatcher(device)
        super().__init__(LoopbackChannel(self.dispatcher))


class LoopbackChannel(Channel):
    """Passes frames to a dispatcher in this process, and replaces handles by equal ones."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._dropped: deque[forms.ObjectId] = deque()

    def call(self, frame: Frame) -> Frame:
        self.flush()
        reply = self._dispatcher.answer(_transferred(frame))
        return _transferred(reply)

    def drop(self, number: forms.ObjectId) -> None:
        """Queues the object for closing with the next call: a finalizer may run under the
        dispatcher's lock.
        """
        self._dropped.append(number)

    def flush(self) -> None:
        """Closes the queued objects."""
        while self._dropped:
            number = self._dropped.popleft()
            self._dispatcher.answer(Packer().frame(wire.Close(number)))


def _transferred(frame: Frame) -> Frame:
    return Frame(bytes(bytearray(frame.data)), tuple(map(_exchanged, frame.handles)))


def _exchanged(handle: object) -> object:
    """The receiver's handle: another wrapper of the same memory or flag."""
    match handle:
        case ConstantPool(view=view):
            return ConstantPool(view.toreadonly(), handle.owner, handle.kind)
        case np.ndarray():
            return handle.view()
        case _ if hasattr(handle, "error") and hasattr(handle, "wait"):
            return LoopbackFence(handle)
        case _ if callable(handle):
            return _remote_progress(handle)
    return handle


class LoopbackFence:
    """A fence of the dispatcher; its error arrives as a message."""

    def __init__(self, fence: Fence) -> None:
        self._fence = fence

    def wait(self, timeout_ns: int | None = None) -> bool:
        return self._fence.wait(timeout_ns)

    def error(self) -> DriverError | None:
        error = self._fence.error()
        failure = None if error is None else failure_of(error)
        sent = wire.Signalled(failure if isinstance(failure, wire.Failure) else None)
        notice = decode_notice(Packer().frame(sent).data)
        if not isinstance(notice, wire.Signalled) or notice.failure is None:
            return None
        received = error_of(notice.failure)
        return received if isinstance(received, DriverError) else None


def _remote_progress(callback: Callable[[ProgressEvent], None]) -> Callable[[ProgressEvent], None]:
    def report(event: ProgressEvent) -> None:
        notice = decode_notice(Packer().frame(wire.Progress(event)).data)
        if isinstance(notice, wire.Progress):
            callback(notice.event)

    return report


@contextmanager
def isolated_device(name: str, entry: str, index: int = 0) -> Iterator[IsolatedDevice]:
    """The device at *index* of the driver *name* = *entry*, in this process's host process for it.

    The host process continues after the block; `penstock.runtime.isolation.close_hosts` ends it.
    """
    with closing(IsolatedDevice(supervisor_of(name, entry), index)) as device:
        yield device


def domains() -> Device:
    """The sample driver's device with memory domains."""
    (device,) = find_devices("sample")
    return DomainDevice(device, "domains")


lab_tiles = partial(LabDevice, layout="tiles")
"""A device with its own data layout."""
lab_first_run = partial(LabDevice, mode="first_run")
"""A device that compiles at the first run."""
lab_staged = partial(LabDevice, mode="staged", uses=2)
"""A device that compiles an optimised form after some runs."""
lab_data_files = partial(LabDevice, files=(0, 3))
"""A device that caches in data files only."""


def faulty() -> Device:
    """A device without memory domains."""
    return FaultyDevice(LabDevice(files=(1, 0)), {"allocate": "always"})
