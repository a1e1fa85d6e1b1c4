"""The client's end of a connection to a host process, for calls from any number of threads."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

import numpy as np

from penstock import errors, hal
from penstock.hal.fence import is_fence
from penstock.ipc import forms, wire
from penstock.ipc.codec import Descriptor, Frame, Opaque, decode_reply, decode_to_client, encode
from penstock.ipc.deadlines import StoppedProcess
from penstock.ipc.pools import CopyingFence, sealed_place
from penstock.ipc.remote import Channel
from penstock.ipc.shared_arrays import ALIGNMENT, Staged, Staging, unit_of
from penstock.ipc.system import FUSE_DESCRIPTOR, is_open
from penstock.ipc.transport import Connection, Received, close_all
from penstock.ir import ConstantPool
from penstock.logs import printable

CANCEL_POLL_NS: Final = 10_000_000
"""How often a call checks its cancel token."""

MAX_EVENTS: Final = 1024
"""Progress events kept for a call until its thread reports them; the oldest are dropped first."""

CLOSED_BY_HOST: Final = "the driver's process closed the connection"

UNANSWERED: Final = "the driver did not answer before the deadline"
NOT_TAKEN: Final = "the driver's process did not take the call before the deadline"

CANCEL_GRACE_NS: Final = 1_000_000_000
"""Nanoseconds a cancelled call waits for the driver to stop."""


class Session:
    """Calls from any thread over *connection*, whose host has accepted this client.

    Unusable after `fork`. One of the waiting threads reads for all of them. *ended* is called once,
    when the host has ended. *life_fd*, which the caller owns, becomes readable then. *watching*
    checks the host during calls that may end early.
    """

    def __init__(
        self,
        connection: Connection,
        ended: Callable[[], None] = lambda: None,
        life_fd: int | None = None,
        watching: Callable[[int], StoppedProcess] | None = None,
    ) -> None:
        self._connection, self._ended, self._watching = connection, ended, watching
        self._life_fd = life_fd
        self._process = os.getpid()
        self._numbers = itertools.count(1)
        self._calls: dict[forms.CallId, _Call] = {}
        self._changed = threading.Condition()
        self._reading = False
        self.end_reason = ""
        """Why no call is possible any more; empty while the host is available."""
        self._users = 0
        self._closed = False
        self._then: Callable[[], None] = lambda: None
        self._later: deque[wire.Drop | wire.Release | wire.Cancel] = deque()
        self.staging = Staging(
            lambda number, fd, size, end_ns: self._notify(wire.Lend(number, size), (fd,), end_ns),
            lambda number: self._later.append(wire.Release(number)),
        )

    def exit_fd(self) -> int | None:
        """See `Channel.exit_fd`. Raises `DeadObject` once closed, `ResourceExhaustedTransient`."""
        with self._changed:
            if self._closed:
                raise errors.DeadObject(self.end_reason)
            try:
                return None if self._life_fd is None else os.dup(self._life_fd)
            except OSError as error:
                why = f"no descriptor for a burst: {error}"
                raise errors.ResourceExhaustedTransient(why) from error

    def channel(self, device: int) -> DeviceChannel:
        return DeviceChannel(self, device)

    def call(self, device: int, frame: Frame, unit: int = ALIGNMENT) -> Frame:
        """The answer of the device with that index. Copied arrays lie at multiples of *unit*.

        Raises `DeadObject`, `MissedDeadlineTransient` at the frame's deadline, `Cancelled` soon
        after its token was set, `WireError` for handles that cannot be sent.
        """
        with self._using():
            return self._call(device, frame, unit)

    def _call(self, device: int, frame: Frame, unit: int) -> Frame:
        deadline_ns = frame.deadline_ns
        self.flush(deadline_ns)
        try:
            call = _Call(next(self._numbers), device, self.staging, frame, unit)
        except TimeoutError:
            raise errors.MissedDeadlineTransient(NOT_TAKEN) from None
        try:
            self._send(call, frame.data, deadline_ns)
            try:
                answer = self._wait(call, frame)
            except BaseException as error:
                self._abandon(call)
                if isinstance(error, errors.DriverError):
                    error.copies = call.copies
                raise
            return self._answered(answer, call)
        finally:
            if not call.is_abandoned:
                call.give_back()

    def drop(self, device: int, number: forms.ObjectId) -> None:
        """See `Channel.drop`: the object is closed with the next message."""
        self._later.append(wire.Drop(device, number))

    def flush(self, deadline_ns: int | None = None) -> None:
        """Sends the messages that finalizers queued, as far as time allows."""
        while self._later:
            try:
                message = self._later.popleft()
            except IndexError:
                return
            try:
                self._notify(message, (), deadline_ns)
            except TimeoutError:
                self._later.appendleft(message)
                return

    def end(self, reason: str, *, certain: bool = False) -> None:
        """Fails every call with `DeadObject` and the first *reason*, or one that is *certain*."""
        with self._changed:
            first, self.end_reason = (
                not self.end_reason,
                reason if certain else self.end_reason or reason,
            )
            self._changed.notify_all()
            self._users += first
        if first:
            try:
                self._connection.shut()
                self._ended()
            finally:
                self._exit()

    def close(self, then: Callable[[], None] = lambda: None) -> None:
        """Ends the session; calls *then* once the current calls have returned. Call it once."""
        self.end("the connection to the driver's process is closed")
        with self._changed:
            self._closed, self._then = True, then
            self._users += 1
        self._exit()

    def leave(self) -> None:
        """In a child process: closes the inherited descriptors, and sends nothing."""
        self.end_reason = "made before a fork"
        self._connection.close()

    @contextmanager
    def _using(self) -> Iterator[None]:
        """Keeps the descriptors open: after a close their numbers may be reused."""
        if self._process != os.getpid():
            raise errors.StateError("a connection to a driver cannot be used after a fork")
        with self._changed:
            if self.end_reason:
                raise errors.DeadObject(self.end_reason)
            self._users += 1
        try:
            yield
        finally:
            self._exit()

    def _exit(self) -> None:
        with self._changed:
            self._users -= 1
            last = self._closed and not self._users
        if last:
            # Abandoned calls get no answers any more: their memory is free.
            self._calls.clear()
            self._connection.close()
            self.staging.close()
            self._then()

    def _send(self, call: _Call, body: bytes, deadline_ns: int | None) -> None:
        data = encode(wire.Ask(call.number, call.device, body, tuple(call.forms)))
        with self._changed:
            self._calls[call.number] = call
        try:
            self._connection.send(data, call.descriptors, deadline_ns)
        except BaseException as error:
            with self._changed:
                self._calls.pop(call.number, None)
            if isinstance(error, TimeoutError):
                raise errors.MissedDeadlineTransient(NOT_TAKEN) from None
            if isinstance(error, EOFError):
                self.end(CLOSED_BY_HOST)
                raise errors.DeadObject(self.end_reason) from None
            raise

    def _notify(
        self, message: wire.ToHost, descriptors: Sequence[int] = (), deadline_ns: int | None = None
    ) -> None:
        if self.end_reason or self._process != os.getpid():
            return
        with suppress(EOFError):
            self._connection.send(encode(message), descriptors, deadline_ns)

    def _wait(self, call: _Call, frame: Frame) -> wire.Answer:
        deadline_ns, cancel = frame.deadline_ns, call.cancel
        stopped = None
        if frame.may_end_early and deadline_ns is not None and self._watching is not None:
            stopped = self._watching(deadline_ns)
        cancelled_ns: int | None = None
        while True:
            while call.events:
                call.report(call.events.popleft())
            if call.answer is not None:
                return call.answer
            if self.end_reason:
                raise errors.DeadObject(self.end_reason)
            now = time.monotonic_ns()
            if deadline_ns is not None and now >= deadline_ns:
                raise errors.MissedDeadlineTransient(UNANSWERED)
            until = deadline_ns
            if stopped is not None:
                stopped.check()
                until = stopped.next_ns
            if cancel is not None:
                if cancelled_ns is None and cancel.is_set():
                    cancelled_ns = now
                    self._cancel(call.number)
                if cancelled_ns is not None and now - cancelled_ns > CANCEL_GRACE_NS:
                    raise errors.Cancelled("the cancel token was set")
                poll = now + CANCEL_POLL_NS
                until = poll if until is None else min(until, poll)
            self._read_or_wait(call, until)

    def _read_or_wait(self, call: _Call, until_ns: int | None) -> None:
        with self._changed:
            if call.answer is not None or call.events or self.end_reason:
                return
            if self._reading:
                left = None if until_ns is None else (until_ns - time.monotonic_ns()) / 1e9
                if left is None or left > 0:
                    self._changed.wait(left)
                return
            self._reading = True
        try:
            self._read(call, until_ns)
        except TimeoutError:
            return
        except EOFError:
            self.end(CLOSED_BY_HOST)
        except errors.WireError as error:
            self.end(f"the driver's process sent what is no message: {error}")
        finally:
            with self._changed:
                self._reading = False
                self._changed.notify_all()

    def _read(self, call: _Call, until_ns: int | None) -> None:
        while not self.end_reason:
            self._deliver(self._connection.receive(until_ns))
            # This call must not wait for messages of other calls, however many.
            is_over = until_ns is not None and time.monotonic_ns() >= until_ns
            if call.answer is not None or call.events or is_over:
                return

    def _deliver(self, received: Received) -> None:
        try:
            message = decode_to_client(received.data)
            number = message.call if isinstance(message, wire.Answer | wire.Progress) else None
            call = None if number is None else self._calls.get(number)
            if call is None and isinstance(message, wire.Progress) and not received.descriptors:
                # A thread of the driver may report progress while the answer is sent.
                return
            if call is None:
                raise errors.WireError(f"{type(message).__name__} for no call of this client")
        except BaseException:
            close_all(received.descriptors)
            raise
        with self._changed:
            if isinstance(message, wire.Progress):
                close_all(received.descriptors)
                call.events.append(message.event)
            else:
                assert isinstance(message, wire.Answer)
                # The end of the session may clear its calls at any time.
                self._calls.pop(message.call, None)
                if call.is_abandoned:
                    close_all(received.descriptors)
                    call.give_back()
                    match decode_reply(message.body):
                        case wire.Made(target=made) | wire.Allocated(buffer=made):
                            self.drop(call.device, made)
                    return
                call.received = received.descriptors
                if not received.complete:
                    message = wire.Answer(message.call, b"")
                call.answer = message
            self._changed.notify_all()

    def _abandon(self, call: _Call) -> None:
        """Stops waiting. The host may write to the call's memory until the answer has arrived."""
        with self._changed:
            if call.answer is not None or self.end_reason:
                close_all(call.received)
                self._calls.pop(call.number, None)
                return
            call.is_abandoned = True
        self._cancel(call.number)

    def _cancel(self, number: forms.CallId) -> None:
        """Cancels the call on the host's side, now or as soon as the host receives anything."""
        self._later.append(wire.Cancel(number))
        self.flush(time.monotonic_ns())

    def _answered(self, answer: wire.Answer, call: _Call) -> Frame:
        try:
            if not answer.body:
                why = "no descriptor was left for the driver's answer"
                raise errors.ResourceExhaustedTransient(why)
            handles: tuple[object, ...] = tuple(_fence(f, call.received) for f in answer.handles)
        except errors.WireError as error:
            self.end(f"the driver's process sent what is no message: {error}")
            raise errors.DeadObject(self.end_reason) from None
        finally:
            close_all(call.received)
        if not answer.failed:
            handles = call.returned(handles)
        elif call.staged is not None:
            # The host may lack that memory, or part of it.
            call.staged.discard()
        return Frame(answer.body, handles, None, call.copies)


class DeviceChannel(Channel):
    """The `Channel` of one device of a host."""

    copies_arrays = True

    def __init__(self, session: Session, device: int) -> None:
        self.session, self._device = session, device

    def prefer(self, preference: hal.MemoryPreference) -> None:
        self.unit = unit_of(preference)

    @property
    def end_reason(self) -> str:
        return self.session.end_reason

    def end(self, reason: str) -> None:
        self.session.end(reason)

    def exit_fd(self) -> int | None:
        return self.session.exit_fd()

    def call(self, frame: Frame) -> Frame:
        return self.session.call(self._device, frame, self.unit)

    def drop(self, number: forms.ObjectId) -> None:
        self.session.drop(self._device, number)


class _Call:
    """A call in progress: its handles as forms and descriptors, and what has been received for it.

    Arrays are copied to shared memory.
    """

    def __init__(
        self, number: forms.CallId, device: int, staging: Staging, frame: Frame, unit: int
    ) -> None:
        self.number, self.device = number, device
        self.answer: wire.Answer | None = None
        self.received: list[int] = []
        self.events: deque[hal.ProgressEvent] = deque(maxlen=MAX_EVENTS)
        self.is_abandoned = False
        self.forms: list[forms.HandleForm] = []
        self.descriptors: list[int] = []
        self.cancel: hal.CancelToken | None = None
        self.staged: Staged | None = None
        self._progress: Any = None
        self._fences: list[hal.DescriptorFence] = []
        handles = frame.handles
        arrays = [h for h in handles if isinstance(h, np.ndarray)]
        if arrays:
            self.staged = staging.stage(arrays, frame.deadline_ns, unit)
        placed = iter(self.staged.forms if self.staged is not None else ())
        try:
            for handle in handles:
                is_array = isinstance(handle, np.ndarray)
                self.forms.append(next(placed) if is_array else self._form(handle))
        except BaseException:
            self.give_back()
            raise

    @property
    def copies(self) -> tuple[hal.ArgumentCopy, ...]:
        return () if self.staged is None else tuple(self.staged.copies)

    def report(self, event: hal.ProgressEvent) -> None:
        """Calls the call's progress callback. Its errors propagate."""
        if self._progress is not None:
            self._progress(event)

    def returned(self, handles: tuple[object, ...]) -> tuple[object, ...]:
        """The answer's handles. Copies outputs back now, or once its fence has signalled."""
        staged = self.staged
        if staged is None:
            return handles
        for at, fence in enumerate(handles):
            if isinstance(fence, hal.DescriptorFence):
                self.staged = None
                back = staged.copy_back if staged.writes else None
                late = CopyingFence(fence, staged.copies, back, staged.give_back)
                return (*handles[:at], late, *handles[at + 1 :])
        staged.copy_back()
        return handles

    def give_back(self) -> None:
        if self.staged is not None:
            self.staged.give_back()

    def _form(self, handle: object) -> forms.HandleForm:
        match handle:
            case Descriptor(fd):
                return forms.DescriptorForm(self._place(fd) if is_open(fd) else None)
            case ConstantPool(view=view):
                fd, offset = sealed_place(handle)
                return forms.ConstantsForm(self._place(fd), view.nbytes, handle.kind, offset)
            case hal.CancelToken():
                self.cancel = handle
                return forms.CancelForm(handle.is_set())
            case Opaque():
                return forms.ValueForm()
        if is_fence(handle):
            fence: Any = handle
            try:
                descriptor = hal.as_descriptor(fence)
            except OSError as error:
                why = f"no descriptor for a fence: {error}"
                raise errors.ResourceExhaustedTransient(why) from error
            # Keeps the descriptor open until the call has been sent.
            self._fences.append(descriptor)
            return forms.FenceForm(self._place(descriptor.fileno()))
        if callable(handle):
            self._progress = handle
            return forms.ReportForm()
        raise errors.WireError(f"a {type(handle).__name__} cannot be sent to another process")

    def _place(self, fd: int) -> int:
        self.descriptors.append(fd)
        return len(self.descriptors) - 1


def _fence(form: forms.HandleForm, descriptors: Sequence[int]) -> _HostFence:
    """The fence of an answer, whose handles must be fences."""
    if not isinstance(form, forms.FenceForm) or not 0 <= form.place < len(descriptors):
        raise errors.WireError(f"a {type(form).__name__} in an answer")
    if descriptors[form.place] < 0:
        raise errors.WireError(FUSE_DESCRIPTOR)
    return _HostFence(descriptors[form.place])


class _HostFence(hal.DescriptorFence):
    """A fence of a host. The text of its error contains no terminal commands."""

    def error(self) -> errors.DriverError | None:
        error = super().error()
        return None if error is None else type(error)(printable(str(error)))
