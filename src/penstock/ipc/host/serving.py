"""One client of a host: its calls, each in a thread of the host, and its shared buffers."""

from __future__ import annotations

import logging
import mmap
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from queue import SimpleQueue
from typing import Any, Final, NamedTuple

import numpy as np

from penstock import errors
from penstock.closing import without_frames
from penstock.hal import CancelToken, DescriptorFence, ProgressEvent, as_descriptor
from penstock.ipc import forms, wire
from penstock.ipc.codec import Descriptor, Frame, Opaque, decode_to_host, encode
from penstock.ipc.dispatch import Dispatcher, refusal
from penstock.ipc.host.waiting import ClientFence, Disconnection
from penstock.ipc.pools import mapped
from penstock.ipc.quotas import LEAST_COUNTED, NOTHING, Account, Charge, Lease
from penstock.ipc.shared_arrays import array_in
from penstock.ipc.system import FUSE_DESCRIPTOR, SHRINK, is_sealed, start_thread
from penstock.ipc.transport import Connection, Received, close_all
from penstock.ir import NDArray
from penstock.memory.mapping import OUT_OF_ROOM
from penstock.memory.sealed_file import is_write_sealed

logger: Final = logging.getLogger(__name__)

MAX_CALLS: Final = 256
"""Most calls of one client in progress at a time."""

MAX_MEMORIES: Final = 4096
"""Most memories that one client may share at a time."""

MAX_DESCRIPTORS: Final = forms.MAX_HANDLES
"""Most descriptors that the host keeps for one client at a time, for calls and their objects."""


class _Job(NamedTuple):
    ask: wire.Ask
    descriptors: list[int]
    token: CancelToken
    charge: Charge
    fences: dict[int, ClientFence]


class Client:
    """Serves one accepted client with a dispatcher for each device.

    One thread reads the next message, passes the reading to another thread, and makes the call
    itself. No call waits for another, and none changes threads.
    """

    def __init__(
        self,
        connection: Connection,
        dispatchers: Sequence[Dispatcher],
        ended: Callable[[], None],
        account: Account | None = None,
    ) -> None:
        """*account* is charged for the memory that the host keeps and maps for the client."""
        self._connection, self._dispatchers, self._ended = connection, dispatchers, ended
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        self._threads = 0
        self._idle = 0
        self._over = False
        self._calls: dict[forms.CallId, CancelToken] = {}
        self._tokens: set[CancelToken] = set()
        self._memories: dict[forms.MemoryId, NDArray | errors.WireError | errors.DriverError] = {}
        self._disconnection = Disconnection()
        self._descriptors = 0
        self._lends_too_much = False
        self._dropped: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._closing = False
        self._account, self._message = account, NOTHING
        if account is not None:
            connection.expect = self._expect

    def start(self) -> None:
        """Starts the client's threads."""
        with self._lock:
            self._begin_thread()

    def _begin_thread(self) -> None:
        """Starts another thread. Raises `RuntimeError` if there is no room for one."""
        start_thread(self._work)
        self._threads += 1
        self._idle += 1

    def _work(self) -> None:
        try:
            while (job := self._next()) is not None:
                self._perform(job)
                with self._lock:
                    self._idle += 1
        except BaseException:  # it would end this thread without a trace
            # For example, no memory for an answer. A client that sees the disconnection does not
            # wait.
            with suppress(MemoryError, RuntimeError, OSError):
                logger.exception("a call could not be answered")
            self.finish()
        finally:
            self._end_thread()

    def finish(self) -> None:
        """Accepts no more calls and cancels those that run. Callable from any thread."""
        with self._lock:
            over, self._over = self._over, True
        self._connection.shut()
        self._disconnection.record()
        with self._lock:
            tokens = list(self._tokens)
        for token in tokens:
            token.set()
        if not over:
            self._ended()

    def _end_thread(self) -> None:
        with self._lock:
            self._threads -= 1
            last = not self._threads
        if last:
            self._dropped.put(None)
            if not self._closing:
                self._close()
            for dispatcher in self._dispatchers:
                dispatcher.objects.close()
            self._memories.clear()
            self._message.release()
            self._connection.close()

    def _next(self) -> _Job | None:
        """The next call, which this thread makes; None once the client has disconnected."""
        with self._turn:
            while not self._over:
                try:
                    job = self._take(self._connection.receive())
                except (EOFError, errors.WireError) as error:
                    if isinstance(error, errors.WireError):
                        logger.warning("disconnected a client: %s", error)
                    self.finish()
                    break
                if job is not None:
                    with self._lock:
                        self._idle -= 1
                        if not self._idle:
                            # Without room for another thread, this one makes the call and then
                            # reads on.
                            with suppress(RuntimeError, MemoryError):
                                self._begin_thread()
                    return job
        return None

    def _take(self, received: Received) -> _Job | None:
        """The received call; other messages are handled here: None. Raises `WireError`."""
        charge, self._message = self._message, NOTHING
        with ExitStack() as undone:
            undone.callback(close_all, received.descriptors)
            undone.callback(charge.release)
            message = decode_to_host(received.data)
            if isinstance(message, wire.Ask):
                job = self._accept(message, received, charge)
                undone.pop_all()
                return job
            if isinstance(message, wire.Lend):
                self._borrow(message, received)
            elif received.descriptors:
                raise errors.WireError(f"descriptors beside {type(message).__name__}")
            elif isinstance(message, wire.Cancel):
                if (token := self._calls.get(message.call)) is not None:
                    token.set()
            elif isinstance(message, wire.Release):
                self._memories.pop(message.memory, None)
            elif isinstance(message, wire.Drop):
                self._drop(message)
            else:
                raise errors.WireError(f"{type(message).__name__} from a client that was welcomed")
        return None

    def _expect(self, nbytes: int) -> None:
        try:
            self._message = self._count(nbytes)
        except errors.ResourceExhaustedTransient as error:
            raise errors.WireError(str(error)) from None

    def _count(self, nbytes: int) -> Charge:
        return NOTHING if self._account is None else self._account.own(nbytes)

    def _accept(self, ask: wire.Ask, received: Received, charge: Charge) -> _Job | None:
        if ask.call in self._calls:
            raise errors.WireError(f"two calls have the number {ask.call}")
        try:
            self._check_room(received)
            if charge is NOTHING and len(received.data) > LEAST_COUNTED:
                charge = self._count(len(received.data))
        except errors.ResourceExhaustedTransient as error:
            charge.release()
            close_all(received.descriptors)
            self._answer(ask.call, refusal(error))
            return None
        token = CancelToken()
        self._calls[ask.call] = token
        with self._lock:
            self._tokens.add(token)
            self._descriptors += len(received.descriptors)
            if self._over:
                token.set()
        return _Job(ask, received.descriptors, token, charge, {})

    def _check_room(self, received: Received) -> None:
        reason = ""
        if not received.complete:
            reason = "the driver's process has no descriptor left"
        elif len(self._calls) >= MAX_CALLS:
            reason = f"a client may make {MAX_CALLS} calls at a time"
        elif self._descriptors + len(received.descriptors) > MAX_DESCRIPTORS:
            reason = f"a client may have {MAX_DESCRIPTORS} descriptors in calls at a time"
        if reason:
            raise errors.ResourceExhaustedTransient(reason)

    def _borrow(self, lend: wire.Lend, received: Received) -> None:
        if lend.memory in self._memories:
            raise errors.WireError(f"memory {lend.memory} is lent twice")
        if len(self._memories) >= MAX_MEMORIES:
            self._lends_too_much = True
            return
        try:
            if not received.complete:
                raise errors.ResourceExhaustedTransient(
                    "the driver's process had no descriptor left for memory that was lent"
                )
            if len(received.descriptors) != 1:
                raise errors.WireError("memory is lent with one descriptor")
            if received.descriptors[0] < 0:
                raise errors.WireError(FUSE_DESCRIPTOR)
            self._memories[lend.memory] = _mapped(received.descriptors[0], lend.size, self._account)
        except (errors.WireError, errors.DriverError) as error:
            # Without its traceback, whose frames keep this client.
            self._memories[lend.memory] = without_frames(error)

    def _drop(self, drop: wire.Drop) -> None:
        if not 0 <= drop.device < len(self._dispatchers):
            raise errors.WireError(f"no device has the index {drop.device}")
        if drop.target == forms.DEVICE:
            return
        close = self._dispatchers[drop.device].objects.detach(drop.target)
        if close is None:
            return
        # A driver's `close` may be slow: one separate thread runs it, and no other thread waits.
        self._dropped.put(close)
        if not self._closing:
            # Without room for a thread, the next drop starts it.
            with suppress(RuntimeError, MemoryError):
                start_thread(self._close)
                self._closing = True

    def _close(self) -> None:
        while (close := self._dropped.get()) is not None:
            close()

    def _perform(self, job: _Job) -> None:
        ask = job.ask

        def release() -> None:
            """Returns the resources of the call and of the work it continues in the background."""
            close_all(job.descriptors)
            with self._lock:
                self._tokens.discard(job.token)
                self._descriptors -= len(job.descriptors)

        lease = Lease(release, self._account)
        try:
            try:
                if not 0 <= ask.device < len(self._dispatchers):
                    raise errors.WireError(f"no device has the index {ask.device}")
                handles = tuple(self._handle(form, job) for form in ask.handles)
            except errors.WireError as error:
                reply = refusal(errors.InvalidArgument(str(error)))
            except (errors.PenstockError, OSError) as error:
                reply = refusal(error)
            else:
                frame = Frame(ask.body, handles)
                try:
                    reply = self._dispatchers[ask.device].answer(frame, lease, job.token)
                # Sys.exit() in a driver, say: a thread would end in silence.
                except BaseException as error:  # noqa: BLE001
                    reply = refusal(error)
                del frame
                del handles
            # A client that has the answer may reuse the number.
            self._calls.pop(ask.call, None)
            self._answer(ask.call, reply)
        finally:
            job.fences.clear()
            job.charge.release()
            if not lease.kept:
                lease.close()

    def _answer(self, call: forms.CallId, reply: Frame) -> None:
        handles: list[forms.HandleForm] = []
        fences: list[DescriptorFence] = []
        try:
            for handle in reply.handles:
                fence: Any = handle
                handles.append(forms.FenceForm(len(fences)))
                fences.append(as_descriptor(fence))
        except (errors.PenstockError, OSError) as error:
            why = f"no descriptor for the call's fence: {error}"
            self._answer(call, refusal(errors.ResourceExhaustedTransient(why)))
            return
        answer = wire.Answer(call, reply.data, tuple(handles), reply.failed)
        try:
            self._connection.send(encode(answer), [f.fileno() for f in fences])
        except EOFError:
            pass
        except (errors.DriverError, errors.WireError) as error:
            self._answer(call, refusal(error))

    def _handle(self, form: forms.HandleForm, job: _Job) -> object:
        match form:
            case forms.DescriptorForm(place=place):
                # A cache file that is not accepted counts as one that was not open. The model is
                # prepared all the same, without its cache files.
                return Descriptor(-1 if place is None else self._descriptor(job, place))
            case forms.ConstantsForm(place=place, size=size, kind=kind, offset=offset):
                return mapped(self._taken(job, place), size, kind, self._account, offset)
            case forms.ArrayForm():
                return self._array(form)
            case forms.CancelForm(is_set=is_set):
                if is_set:
                    job.token.set()
                return job.token
            case forms.ReportForm():
                return lambda event: self._report(job.ask.call, event)
            case forms.FenceForm(place=place):
                # One for each descriptor: each keeps a duplicate.
                fence = job.fences.get(place)
                if fence is None:
                    fence = ClientFence(self._taken(job, place), self._disconnection)
                    job.fences[place] = fence
                return fence
            case forms.ValueForm():
                return Opaque(None)
        raise errors.WireError(f"a {type(form).__name__} in a call")

    def _descriptor(self, job: _Job, place: int) -> int:
        if not 0 <= place < len(job.descriptors):
            raise errors.WireError(f"descriptor {place} of {len(job.descriptors)}")
        return job.descriptors[place]

    def _taken(self, job: _Job, place: int) -> int:
        fd = self._descriptor(job, place)
        if fd < 0:
            raise errors.WireError(FUSE_DESCRIPTOR)
        return fd

    def _array(self, form: forms.ArrayForm) -> NDArray:
        memory = self._memories.get(form.memory)
        if memory is None and self._lends_too_much:
            why = f"memory {form.memory} was not lent, or beyond the {MAX_MEMORIES} at a time"
            raise errors.ResourceExhaustedTransient(why)
        if memory is None:
            raise errors.WireError(f"memory {form.memory} was not lent")
        if isinstance(memory, errors.WireError | errors.DriverError):
            raise type(memory)(str(memory))
        dtype = form.dtype.numpy
        if dtype.hasobject or len(form.shape) > 32 or form.offset % dtype.alignment:
            what = f"an array of {form.dtype.value} and shape {form.shape} at {form.offset}"
            raise errors.WireError(f"{what} cannot be viewed")
        return array_in(memory, form.offset, dtype, form.shape, form.writable)

    def _report(self, call: forms.CallId, event: ProgressEvent) -> None:
        # A client that does not read must not block the driver, which may hold locks others wait
        # for.
        with suppress(EOFError, TimeoutError):
            self._connection.send(
                encode(wire.Progress(event, call)), deadline_ns=time.monotonic_ns()
            )


def _mapped(fd: int, size: int, account: Account | None) -> NDArray:
    """*size* bytes of a memory that cannot shrink: a truncated mapping would kill this process."""
    charge = NOTHING
    try:
        available = os.fstat(fd).st_size
        if not 0 < size <= available:
            raise errors.WireError(f"{size} bytes are lent of a memory that has {available}")
        if not is_sealed(fd, SHRINK):
            raise errors.WireError("memory that may shrink cannot be lent")
        if account is not None:
            charge = account.memory(fd, size)
        # Before Linux 6.7, a file that is sealed against writing can only be mapped privately.
        access = mmap.ACCESS_COPY if is_write_sealed(fd) else mmap.ACCESS_WRITE
        region = mmap.mmap(fd, size, access=access)
    except (OSError, ValueError) as error:
        charge.release()
        if getattr(error, "errno", None) not in OUT_OF_ROOM:
            raise errors.WireError(f"memory that is lent cannot be mapped: {error}") from None
        raise errors.ResourceExhaustedTransient(
            f"the driver's process has no room for memory that is lent: {error}"
        ) from None
    # Runs that use it keep it, even if its owner withdraws it.
    weakref.finalize(region, charge.release).atexit = False
    array: NDArray = np.frombuffer(region, np.uint8)
    if is_write_sealed(fd):
        array.flags.writeable = False
    return array
