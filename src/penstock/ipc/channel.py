"""The client's end of a connection to a host: calls and their answers, from any number of threads."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import numpy as np

from penstock.errors import (
    Cancelled,
    DeadObject,
    DriverError,
    MissedDeadlineTransient,
    ResourceExhaustedTransient,
    StateError,
    WireError,
)
from penstock.hal import (
    ArgumentCopy,
    CancelToken,
    DescriptorFence,
    Fence,
    MemoryPreference,
    ProgressEvent,
    as_descriptor,
)
from penstock.ipc import wire
from penstock.ipc.codec import Descriptor, Frame, Opaque, decode_reply, decode_to_client, encode
from penstock.ipc.deadlines import StoppedProcess
from penstock.ipc.fd_checks import FUSE_DESCRIPTOR
from penstock.ipc.pools import sealed_place
from penstock.ipc.shared_arrays import ALIGNMENT, Staged, Staging, unit_of
from penstock.ipc.text import printable
from penstock.ipc.transport import Connection, Received, close_all
from penstock.ir import ConstantPool

CANCEL_POLL_NS: Final = 10_000_000
"""How often a call looks at its cancel token."""

MAX_EVENTS: Final = 1024
"""Progress events kept of a call whose thread does not come to tell them; of more the oldest go."""

CLOSED_BY_HOST: Final = "the driver's process closed the connection"

UNANSWERED: Final = "the driver did not answer before the deadline"
NOT_TAKEN: Final = "the driver's process did not take the call before the deadline"

CANCEL_GRACE_NS: Final = 1_000_000_000
"""How long a cancelled call waits for the driver to stop by itself."""


class _Waiting:
    """A call under way."""

    def __init__(self, device: int) -> None:
        self.device = device
        self.answer: wire.Answer | None = None
        self.descriptors: list[int] = []
        self.events: deque[ProgressEvent] = deque(maxlen=MAX_EVENTS)
        self.abandoned: Staged | None = None
        self.is_abandoned = False


class Session:
    """Calls over *connection*, whose host has taken this client on. Of no use after `fork`.

    The calls of one session may come from any threads. One thread at a time, of those that wait,
    reads for all: there is no thread beside them. *ended* is called once, by whoever finds that the
    host is gone. *life_fd*, which stays the caller's, becomes readable when it is. *watching* looks
    at the host until a deadline, for calls that may end early.
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
        self._calls: dict[wire.CallId, _Waiting] = {}
        self._turn = threading.Condition()
        self._reading = False
        self._gone = ""
        self._users = 0
        self._closed = False
        self._then: Callable[[], None] = lambda: None
        self._later: deque[wire.Drop | wire.Release | wire.Cancel] = deque()
        self.staging = Staging(self._lend, self._release)

    @property
    def gone(self) -> str:
        """Why nothing can be called any more; empty while it can."""
        return self._gone

    def life(self) -> int | None:
        """A descriptor, the caller's to close, that becomes readable when the host is gone; None
        where there is none. Raises `DeadObject` once the session is closed,
        `ResourceExhaustedTransient` where no descriptor is left.
        """
        with self._turn:
            if self._closed:
                raise DeadObject(self._gone)
            try:
                return None if self._life_fd is None else os.dup(self._life_fd)
            except OSError as error:
                raise ResourceExhaustedTransient(f"no descriptor for a burst: {error}") from error

    def channel(self, device: int) -> DeviceChannel:
        """The calls to one device of the host."""
        return DeviceChannel(self, device)

    def call(self, device: int, frame: Frame, unit: int = ALIGNMENT) -> Frame:
        """The answer of the device with that index, for which arrays that are copied lie at
        multiples of *unit*. Raises `DeadObject` when the host is gone, `MissedDeadlineTransient`
        when it has not answered by the frame's deadline, `Cancelled` when it does not stop soon
        after the frame's token was set, `WireError` for handles that no process can be sent.
        """
        self._enter()
        try:
            return self._asked(device, frame, unit)
        finally:
            self._exit()

    def _asked(self, device: int, frame: Frame, unit: int) -> Frame:
        self.flush(frame.deadline_ns)
        try:
            waiting, table = (
                _Waiting(device),
                _Table(self.staging, frame.handles, frame.deadline_ns, unit),
            )
        except TimeoutError:
            raise MissedDeadlineTransient(NOT_TAKEN) from None
        number = next(self._numbers)
        try:
            data = encode(wire.Ask(number, device, frame.data, tuple(table.forms)))
            self._send(number, waiting, data, table.descriptors, frame.deadline_ns)
            try:
                answer = self._wait(number, waiting, table, frame)
            except BaseException as error:
                self._abandon(number, waiting, table)
                if isinstance(error, DriverError):
                    error.copies = table.copies
                raise
            return self._answered(answer, waiting, table)
        finally:
            if not waiting.is_abandoned:
                table.give_back()

    def drop(self, device: int, number: wire.ObjectId) -> None:
        """Nobody has that object any more. It is told with the next message: a finalizer, which may
        run in the middle of anything, sends nothing.
        """
        self._later.append(wire.Drop(device, number))

    def flush(self, deadline_ns: int | None = None) -> None:
        """Sends what finalizers left to be said, as much as there is time for."""
        while self._later:
            try:
                message = self._later.popleft()
            except IndexError:
                return
            try:
                self._tell(message, (), deadline_ns)
            except TimeoutError:
                self._later.appendleft(message)
                return

    def end(self, reason: str, *, certain: bool = False) -> None:
        """Fails every call, those under way too, with `DeadObject` and *reason*: the first that was
        given, but for one that is *certain*. From any thread.
        """
        with self._turn:
            first, self._gone = not self._gone, reason if certain else self._gone or reason
            self._turn.notify_all()
            self._users += first
        if first:
            try:
                self._connection.shut()
                self._ended()
            finally:
                self._exit()

    def close(self, then: Callable[[], None] = lambda: None) -> None:
        """Ends the session; what it has is closed, and *then* called, when the calls under way have
        returned. Once.
        """
        self.end("the connection to the driver's process is closed")
        with self._turn:
            self._closed, self._then = True, then
            self._users += 1
        self._exit()

    def leave(self) -> None:
        """In a child process: closes its copies of the descriptors, and says nothing to the host."""
        self._gone = "made before a fork"
        self._connection.close()

    def _enter(self) -> None:
        """From here to `_exit` the descriptors stay open, whoever closes the session meanwhile:
        their numbers may be others' afterwards.
        """
        if self._process != os.getpid():
            raise StateError("a connection to a driver's process cannot be used after a fork")
        with self._turn:
            if self._gone:
                raise DeadObject(self._gone)
            self._users += 1

    def _exit(self) -> None:
        with self._turn:
            self._users -= 1
            last = self._closed and not self._users
        if last:
            # Answers that nobody waits for do not come any more: what they would have written to is
            # free.
            self._calls.clear()
            self._connection.close()
            self.staging.close()
            self._then()

    def _send(
        self,
        number: wire.CallId,
        waiting: _Waiting,
        data: bytes,
        descriptors: Sequence[int],
        deadline_ns: int | None,
    ) -> None:
        with self._turn:
            self._calls[number] = waiting
        try:
            self._connection.send(data, descriptors, deadline_ns)
        except BaseException as error:
            with self._turn:
                self._calls.pop(number, None)
            if isinstance(error, TimeoutError):
                raise MissedDeadlineTransient(NOT_TAKEN) from None
            if isinstance(error, EOFError):
                self.end(CLOSED_BY_HOST)
                raise DeadObject(self._gone) from None
            raise

    def _tell(
        self,
        message: wire.ToHost,
        descriptors: Sequence[int] = (),
        deadline_ns: int | None = None,
    ) -> None:
        """Sends what has no answer; a host that is gone need not know it."""
        if self._gone or self._process != os.getpid():
            return
        with suppress(EOFError):
            self._connection.send(encode(message), descriptors, deadline_ns)

    def _lend(self, number: wire.MemoryId, fd: int, size: int, deadline_ns: int | None) -> None:
        self._tell(wire.Lend(number, size), (fd,), deadline_ns)

    def _release(self, number: wire.MemoryId) -> None:
        self._later.append(wire.Release(number))

    def _wait(
        self,
        number: wire.CallId,
        waiting: _Waiting,
        table: _Table,
        frame: Frame,
    ) -> wire.Answer:
        deadline_ns = frame.deadline_ns
        stopped = None
        if frame.may_end_early and deadline_ns is not None and self._watching is not None:
            stopped = self._watching(deadline_ns)
        cancelled_ns: int | None = None
        while True:
            while waiting.events:
                table.report(waiting.events.popleft())
            if waiting.answer is not None:
                return waiting.answer
            if self._gone:
                raise DeadObject(self._gone)
            now = time.monotonic_ns()
            if deadline_ns is not None and now >= deadline_ns:
                raise MissedDeadlineTransient(UNANSWERED)
            until = deadline_ns
            if stopped is not None:
                stopped.check()
                until = stopped.next_ns
            if table.cancel is not None:
                if cancelled_ns is None and table.cancel.is_set():
                    cancelled_ns = now
                    self._cancel(number)
                if cancelled_ns is not None and now - cancelled_ns > CANCEL_GRACE_NS:
                    raise Cancelled("the cancel token was set")
                poll = now + CANCEL_POLL_NS
                until = poll if until is None else min(until, poll)
            self._read_or_wait(waiting, until)

    def _read_or_wait(self, waiting: _Waiting, until_ns: int | None) -> None:
        """Until something has come for this call, or that time: reads for everybody unless somebody
        does.
        """
        with self._turn:
            if waiting.answer is not None or waiting.events or self._gone:
                return
            if self._reading:
                left = None if until_ns is None else (until_ns - time.monotonic_ns()) / 1e9
                if left is None or left > 0:
                    self._turn.wait(left)
                return
            self._reading = True
        try:
            self._read(waiting, until_ns)
        except TimeoutError:
            return
        except EOFError:
            self.end(CLOSED_BY_HOST)
        except WireError as error:
            self.end(f"the driver's process sent what is no message: {error}")
        finally:
            with self._turn:
                self._reading = False
                self._turn.notify_all()

    def _read(self, waiting: _Waiting, until_ns: int | None) -> None:
        while not self._gone:
            self._deliver(self._connection.receive(until_ns))
            if waiting.answer is not None or waiting.events:
                return
            if until_ns is not None and time.monotonic_ns() >= until_ns:
                # What comes for others without end must not keep this call.
                return

    def _deliver(self, received: Received) -> None:
        try:
            message = decode_to_client(received.data)
            number = message.call if isinstance(message, wire.Answer | wire.Progress) else None
            waiting = None if number is None else self._calls.get(number)
            if waiting is None and isinstance(message, wire.Progress) and not received.descriptors:
                # A driver's thread may tell of it beside the answer.
                return
            if waiting is None:
                raise WireError(f"{type(message).__name__} for no call of this client")
        except BaseException:
            close_all(received.descriptors)
            raise
        with self._turn:
            if isinstance(message, wire.Progress):
                close_all(received.descriptors)
                waiting.events.append(message.event)
            else:
                assert isinstance(message, wire.Answer)
                # A session that ends takes its calls away at any time.
                self._calls.pop(message.call, None)
                if waiting.is_abandoned:
                    close_all(received.descriptors)
                    self._nobody_waits(waiting, message)
                    return
                waiting.descriptors = received.descriptors
                if not received.complete:
                    message = wire.Answer(message.call, b"")
                waiting.answer = message
            self._turn.notify_all()

    def _nobody_waits(self, waiting: _Waiting, answer: wire.Answer) -> None:
        if waiting.abandoned is not None:
            waiting.abandoned.give_back()
        match decode_reply(answer.body):
            case wire.Made(target=made) | wire.Allocated(buffer=made):
                self.drop(waiting.device, made)

    def _abandon(self, number: wire.CallId, waiting: _Waiting, table: _Table) -> None:
        """The host may still write to the call's memory: it is used again when the answer has come."""
        with self._turn:
            if waiting.answer is not None or self._gone:
                close_all(waiting.descriptors)
                self._calls.pop(number, None)
                return
            waiting.abandoned, waiting.is_abandoned = table.staged, True
        self._cancel(number)

    def _cancel(self, number: wire.CallId) -> None:
        """Tells the host at once, where it takes anything, else as soon as it does."""
        self._later.append(wire.Cancel(number))
        self.flush(time.monotonic_ns())

    def _answered(self, answer: wire.Answer, waiting: _Waiting, table: _Table) -> Frame:
        try:
            if not answer.body:
                raise ResourceExhaustedTransient("no descriptor was left for the driver's answer")
            handles = tuple(self._handle(form, waiting.descriptors) for form in answer.handles)
        except WireError as error:
            self.end(f"the driver's process sent what is no message: {error}")
            raise DeadObject(self._gone) from None
        finally:
            close_all(waiting.descriptors)
        if answer.failed:
            if table.staged is not None:
                # The host may not have that memory, or not all of it.
                table.staged.discard()
            return Frame(answer.body, handles, None, table.copies)
        handles = table.returned(handles)
        return Frame(answer.body, handles, None, table.copies)

    def _handle(self, form: wire.HandleForm, descriptors: Sequence[int]) -> object:
        if isinstance(form, wire.FenceForm) and 0 <= form.place < len(descriptors):
            if descriptors[form.place] < 0:
                raise WireError(FUSE_DESCRIPTOR)
            return _HostFence(descriptors[form.place])
        raise WireError(f"a {type(form).__name__} in an answer")


class DeviceChannel:
    """The `Channel` of one device of a host."""

    copies_arrays = True

    def __init__(self, session: Session, device: int) -> None:
        self.session, self._device = session, device
        self.unit = ALIGNMENT

    def prefer(self, preference: MemoryPreference) -> None:
        """Arrays that are copied for the device lie as it prefers."""
        self.unit = unit_of(preference)

    @property
    def gone(self) -> str:
        """See `Session.gone`."""
        return self.session.gone

    def end(self, reason: str) -> None:
        """See `Session.end`."""
        self.session.end(reason)

    def life(self) -> int | None:
        """See `Session.life`."""
        return self.session.life()

    def call(self, frame: Frame) -> Frame:
        return self.session.call(self._device, frame, self.unit)

    def drop(self, number: wire.ObjectId) -> None:
        """See `Session.drop`."""
        self.session.drop(self._device, number)


class _Table:
    """The handles of one call as forms and descriptors; what is copied goes through shared memory."""

    def __init__(
        self,
        staging: Staging,
        handles: Sequence[object],
        deadline_ns: int | None,
        unit: int,
    ) -> None:
        self.forms: list[wire.HandleForm] = []
        self.descriptors: list[int] = []
        self.cancel: CancelToken | None = None
        self.staged: Staged | None = None
        self._progress: Any = None
        self._fences: list[DescriptorFence] = []
        arrays = [h for h in handles if isinstance(h, np.ndarray)]
        if arrays:
            self.staged = staging.stage(arrays, deadline_ns, unit)
        placed = iter(self.staged.forms if self.staged is not None else ())
        try:
            for handle in handles:
                if isinstance(handle, np.ndarray):
                    self.forms.append(next(placed))
                else:
                    self.forms.append(self._form(handle))
        except BaseException:
            self.give_back()
            raise

    @property
    def copies(self) -> tuple[Any, ...]:
        return () if self.staged is None else tuple(self.staged.copies)

    def report(self, event: ProgressEvent) -> None:
        """Tells the call's callback, whose errors are its own affair."""
        if self._progress is not None:
            self._progress(event)

    def returned(self, handles: tuple[object, ...]) -> tuple[object, ...]:
        """The handles of the answer, with what was written for this call copied home first."""
        staged = self.staged
        if staged is None:
            return handles
        fences = [h for h in handles if isinstance(h, DescriptorFence)]
        if fences:
            self.staged = None
            kept = _CopyingFence(fences[0], staged)
            return tuple(kept if h is fences[0] else h for h in handles)
        staged.copy_back()
        return handles

    def give_back(self) -> None:
        if self.staged is not None:
            self.staged.give_back()

    def _form(self, handle: object) -> wire.HandleForm:
        match handle:
            case Descriptor(fd):
                return wire.DescriptorForm(self._place(fd) if _is_open(fd) else None)
            case ConstantPool(view=view):
                fd, offset = sealed_place(handle)
                return wire.ConstantsForm(self._place(fd), view.nbytes, handle.kind, offset)
            case CancelToken():
                self.cancel = handle
                return wire.CancelForm(handle.is_set())
            case Opaque():
                return wire.ValueForm()
        if callable(getattr(handle, "wait", None)) and callable(getattr(handle, "error", None)):
            fence: Any = handle
            try:
                descriptor = as_descriptor(fence)
            except OSError as error:
                raise ResourceExhaustedTransient(f"no descriptor for a fence: {error}") from error
            # It is open until the call has been sent.
            self._fences.append(descriptor)
            return wire.FenceForm(self._place(descriptor.fileno()))
        if callable(handle):
            self._progress = handle
            return wire.ReportForm()
        raise WireError(f"a {type(handle).__name__} cannot be sent to another process")

    def _place(self, fd: int) -> int:
        self.descriptors.append(fd)
        return len(self.descriptors) - 1


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except (OSError, OverflowError):
        return False
    return True


class _HostFence(DescriptorFence):
    """A fence of a host: what it says commands no terminal."""

    def error(self) -> DriverError | None:
        error = super().error()
        return None if error is None else type(error)(printable(str(error)))


class _CopyingFence:
    """A fence whose outputs are copied home when it has signalled, before anybody learns of it."""

    def __init__(self, fence: DescriptorFence, staged: Staged) -> None:
        self._fence: Fence = fence
        self._staged: Staged | None = staged
        self._copied = staged.copies
        self._lock = threading.Lock()

    @property
    def copies(self) -> tuple[ArgumentCopy, ...]:
        """What was copied for the call so far, of each array among its handles by its number."""
        return tuple(self._copied)

    def wait(self, timeout_ns: int | None = None) -> bool:
        if not self._fence.wait(timeout_ns):
            return False
        with self._lock:
            staged, self._staged = self._staged, None
            if staged is not None:
                if self._fence.error() is None:
                    staged.copy_back()
                staged.give_back()
        return True

    def error(self) -> DriverError | None:
        return self._fence.error() if self.wait(0) else None
