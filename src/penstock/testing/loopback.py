"""`LoopbackDevice`: a device around another, with every argument and result sent through the wire's
codec.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from penstock.errors import DriverError
from penstock.hal import Device, Fence, ProgressEvent
from penstock.ipc import wire
from penstock.ipc.client import RemoteDevice
from penstock.ipc.codec import Frame, Packer, decode_notice, error_of, failure_of
from penstock.ipc.dispatch import Dispatcher
from penstock.ir import ConstantPool


class LoopbackDevice(RemoteDevice):
    """*device*, seen through messages in this process.

    Nothing but the bytes of a message, and the handles beside it, gets from one side to the other:
    what a driver does by way of Python objects shared with its caller shows up as a difference.
    """

    def __init__(self, device: Device) -> None:
        self.dispatcher = Dispatcher(device)
        super().__init__(LoopbackChannel(self.dispatcher))


class LoopbackChannel:
    """Carries frames to a dispatcher in this process, handles exchanged for equals of them."""

    copies_arrays = False

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._dropped: deque[wire.ObjectId] = deque()

    def call(self, frame: Frame) -> Frame:
        self.flush()
        reply = self._dispatcher.answer(_carried(frame))
        return _carried(reply)

    def drop(self, number: wire.ObjectId) -> None:
        """Closed with the next call: a finalizer may run in the middle of anything, under the
        dispatcher's own lock too.
        """
        self._dropped.append(number)

    def flush(self) -> None:
        """Closes what was dropped."""
        while self._dropped:
            number = self._dropped.popleft()
            self._dispatcher.answer(Packer().frame(wire.Close(number)))


def _carried(frame: Frame) -> Frame:
    return Frame(bytes(bytearray(frame.data)), tuple(map(_exchanged, frame.handles)))


def _exchanged(handle: object) -> object:
    """What the other side gets for *handle*: the same memory or flag, never the same wrapper of it."""
    match handle:
        case ConstantPool(view=view):
            return ConstantPool(view.toreadonly(), handle.owner, handle.kind)
        case np.ndarray():
            return handle.view()
        case _ if hasattr(handle, "error") and hasattr(handle, "wait"):
            return CarriedFence(handle)
        case _ if callable(handle):
            return _carried_progress(handle)
    return handle


class CarriedFence:
    """A fence of the other side: its error comes as a message."""

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


def _carried_progress(callback: Callable[[ProgressEvent], None]) -> Callable[[ProgressEvent], None]:
    def report(event: ProgressEvent) -> None:
        notice = decode_notice(Packer().frame(wire.Progress(event)).data)
        if isinstance(notice, wire.Progress):
            callback(notice.event)

    return report
