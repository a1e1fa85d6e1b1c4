"""The device's side of a ring: the thread that executes a client's bound requests."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from time import monotonic_ns
from typing import Any, Final, TypeAlias

import msgspec
from msgspec.structs import replace

from penstock import hal
from penstock.errors import Cancelled, GeneralFailure, InvalidArgument, WireError
from penstock.ipc import forms, ring, wire
from penstock.ipc.codec import encode, failure_of
from penstock.ipc.quotas import NOTHING, Charge
from penstock.ipc.ring import ANSWER, REQUEST, Doorbell, Heard, Layout, Listener, Region, Watch
from penstock.ipc.shared_arrays import Borrower
from penstock.ipc.system import start_thread
from penstock.ir import NDArray
from penstock.memory import HardwareBufferHandle, MappedFd, map_memory


class LentPool:
    """Memory of a client, shared by a descriptor. Mapped once for all requests."""

    def __init__(self, memory: hal.Memory) -> None:
        """Duplicates the descriptor of *memory*; raises `InvalidArgument` if it has none."""
        match memory.handle:
            case MappedFd(fd, offset, protection):
                handle: Any = MappedFd(fd := os.dup(fd), offset, protection)
            case HardwareBufferHandle(fd, description):
                handle = HardwareBufferHandle(fd := os.dup(fd), description)
            case int(fd):
                handle = fd = os.dup(fd)
            case _:
                raise InvalidArgument(f"a {memory.name} memory without a descriptor cannot be lent")
        try:
            self.memory = hal.Memory(memory.name, handle, memory.size)
            self._region: NDArray | None = None
            self._lock = threading.Lock()
            self._bindings: weakref.WeakSet[Binding] = weakref.WeakSet()
            self._closed = False
            self._close = weakref.finalize(self, os.close, fd)
        except BaseException:
            os.close(fd)
            raise

    def region(self) -> NDArray:
        """The mapped bytes. Raises `GeneralFailure` if the memory cannot be mapped."""
        with self._lock:
            if self._region is None:
                self._region = map_memory(self.memory).array
            return self._region

    def used_by(self, binding: Binding) -> None:
        """Closing it releases *binding*. Raises `InvalidArgument` after `close`."""
        with self._lock:
            if self._closed:
                raise InvalidArgument("a lent pool that is closed cannot be bound")
            self._bindings.add(binding)

    def close(self) -> None:
        """Releases the requests that use the memory. A run keeps it until the run ends."""
        with self._lock:
            self._closed = True
            bindings = list(self._bindings)
            self._bindings.clear()
        for binding in bindings:
            binding.release()


FindPool: TypeAlias = Callable[[forms.ObjectId], LentPool]

ChargeMemory: TypeAlias = Callable[[hal.Memory], Charge]


class Binding:
    """A request to *target* that the client runs by number.

    Until its ring or one of its pools is closed, it keeps the pools and charges what the driver
    maps by *charge*. Raises `InvalidArgument`, and the errors of mapping.
    """

    def __init__(self, payload: bytes, find: FindPool, charge: ChargeMemory) -> None:
        try:
            form = _REQUESTS.decode(payload)
            pools = [find(number) for number in form.pools]
            borrow = Borrower([pool.region for pool in pools])
            inputs = tuple([borrow.argument(a, writeable=False) for a in form.inputs])
            outputs = tuple([borrow.argument(a, writeable=True) for a in form.outputs])
        except (msgspec.MsgspecError, WireError, ValueError, RecursionError) as error:
            raise InvalidArgument(f"a malformed request to bind: {error}") from error
        every = (*inputs, *outputs)
        named = any(isinstance(a, hal.PoolArgument) for a in every)
        memories = tuple([p.memory for p in pools]) if named else ()
        self.target = form.target
        self.tokens = tuple(a.token for a in every if isinstance(a, hal.TokenArgument))
        self.request: hal.Request | None = hal.Request(inputs, outputs, memories)
        self._pools = tuple(pools)
        self._charges: list[Charge] = []
        self._lock = threading.Lock()
        try:
            self._charges.extend(charge(memory) for memory in memories)
            for pool in pools:
                pool.used_by(self)
        except BaseException:
            self.release()
            raise

    def prove(self, request: hal.Request) -> None:
        """Lets drivers skip validation of *request*, which was accepted and cannot be changed."""
        proven = hal.ProvenRequest(request.inputs, request.outputs, request.pools)
        with self._lock:
            if self.request is request:
                self.request = proven

    def release(self) -> None:
        """Releases the request, its pools and its charges. A second call does nothing."""
        with self._lock:
            self.request, self._pools = None, ()
            charges, self._charges = self._charges, []
        for charge in charges:
            charge.release()


_REQUESTS: Final = msgspec.msgpack.Decoder(wire.RingRequest)


MAX_BOUND: Final = 64
"""Most bound requests of one ring."""

NEVER: Final = 1 << 64
"""The number of a request that no word cancels."""

MAX_MESSAGE: Final = 512
"""Most characters of an error's message, which may be cut to fit into a slot."""

MOST_FALSE_ALARMS: Final = 10_000
"""Most consecutive times that a client may ring without a request."""

CLOSING_SECONDS: Final = 1.0
"""Seconds that closing waits for a run in progress; the thread ends after that run in any case."""

LINGER_SHARE: Final = 16
"""The part of a long run's time for which the thread spins for the next request."""

MOST_LINGER_NS: Final = 1_000_000

_spinning: Final = threading.Lock()
"""Only one thread of a process spins for requests at a time: more would slow each other down."""

logger: Final = logging.getLogger(__name__)


Executor: TypeAlias = tuple[Callable[[hal.Request, hal.ExecutionConfig], hal.ExecutionResult], bool]
"""The object that executes requests, and whether a run may be slow whatever its size."""

FindExecutor: TypeAlias = Callable[[forms.ObjectId], Executor]
"""Looks up a prepared model or burst by number. Raises `InvalidArgument` for other numbers."""

UseTokens: TypeAlias = Callable[[tuple[int, ...]], AbstractContextManager[None]]
"""Keeps buffers open during a run. Raises `InvalidArgument` for another client's buffers."""


class RingCancel(hal.CancelToken):
    """A token that a shared word sets (unless *number* is `NEVER`), or that *is_over* sets."""

    __slots__ = ("_is_over", "_number", "_words")

    def __init__(
        self, words: memoryview, number: int, is_over: Callable[[], bool] = lambda: False
    ) -> None:
        # Without an event: each run would create one.
        self._words, self._number, self._is_over = words, number, is_over

    def set(self) -> None:
        """As if the client had."""
        self._number = 0

    def is_set(self) -> bool:
        try:
            return self._is_over() or bool(self._words[ring.CANCELLED] >= self._number)
        except ValueError:
            # The ring has ended, and with it the run.
            return True

    def check(self) -> None:
        if self.is_set():
            raise Cancelled("the cancel token was set")


class RingServer:
    """Serves a ring.

    For each run *executor* looks up the object that executes it, and *find* the shared pools. The
    caller keeps ownership of the three descriptors. The thread ends with `close`, which cancels
    long runs, or if the client breaks the protocol. *ended* is called last. Memory that a driver
    maps is charged by *charge*.
    """

    def __init__(
        self,
        executor: FindExecutor,
        find: FindPool,
        memory_fd: int,
        to_device_fd: int,
        to_client_fd: int,
        layout: Layout,
        spin_ns: int | None = None,
        using: UseTokens | None = None,
        ended: Callable[[], object] = lambda: None,
        charge: ChargeMemory = lambda _: NOTHING,
    ) -> None:
        self._executor, self._find, self._using, self._at_end = executor, find, using, ended
        self._charge = charge
        self._region = Region(memory_fd, layout)
        self._heard = Doorbell(os.dup(to_device_fd), -1)
        self._stop = Doorbell.create()
        self._rung = Doorbell(-1, os.dup(to_client_fd))
        budget = ring.spin_budget_ns() if spin_ns is None else spin_ns
        listener = Listener(self._heard, self._stop.listen_fd)
        self._watch = Watch(self._region, ring.REQUESTED, ring.SERVER_WAITS, listener, budget)
        self._bound: dict[int, Binding] = {}
        self._config_of: tuple[tuple[int, ...], hal.ExecutionConfig] = ((), hal.ExecutionConfig())
        self._linger = self._took_ns = 0
        self._closed = False
        self._ending = threading.Lock()
        self._thread = 0
        self._ended = threading.Event()
        try:
            start_thread(self._serve)
        except BaseException:
            self._release()
            raise

    def close(self) -> None:
        """Ends the thread after the current run, if there is one. A second call does nothing."""
        with self._ending:
            if not self._closed:
                self._closed = True
                self._stop.ring()
        if self._thread != threading.get_ident():
            self._ended.wait(CLOSING_SECONDS)

    def _serve(self) -> None:
        self._thread = threading.get_ident()
        served = alarms = 0
        layout, region = self._region.layout, self._region
        try:
            while not self._closed:
                value, heard = self._await(served)
                newest = ring.due(value, served, served + layout.slots, "request")
                alarms = alarms + 1 if heard == "rung" and newest == served else 0
                if alarms > MOST_FALSE_ALARMS:
                    raise WireError("it rings without a request")
                if heard == "dead" and newest == served:
                    # The client is about to close the ring, or has ended.
                    break
                while served < newest and not self._closed:
                    served += 1
                    self._answer(served)
                    ring.publish(
                        region, self._watch, ring.ANSWERED, served, ring.CLIENT_WAITS, self._rung
                    )
        except (WireError, OSError) as error:
            logger.warning("a client's ring is closed: %s", error)
        except BaseException:  # it would end this thread without a trace
            logger.exception("a client's ring is closed")
        finally:
            self._end()

    def _await(self, served: int) -> tuple[int, Heard]:
        """The word of requests, after a while or once it is not *served*, and the bell's event."""
        watch = self._watch
        if self._linger and watch.spin_ns and _spinning.acquire(blocking=False):
            try:
                further_ns = min(self._took_ns // LINGER_SHARE, MOST_LINGER_NS)
                value = watch.spin(served, max(watch.spin_ns, further_ns))
            finally:
                _spinning.release()
            if value != served:
                return value, "nothing"
        return watch.sleep(served, None)

    def _answer(self, number: int) -> None:
        """Performs request *number*, writes its answer. `WireError` if it breaks the protocol."""
        began, region = monotonic_ns(), self._region
        at, slot_bytes = region.layout.request_at(number), region.layout.slot_bytes
        given, kind, bound, deadline_ns, loop_ns, flags, nbytes = REQUEST.unpack_from(
            region.data, at
        )
        if given != number or nbytes > slot_bytes - REQUEST.size or flags >= ring.MAX_FLAGS:
            what = f"request {given} in the place of {number}, {nbytes} bytes, flags {flags}"
            raise _ProtocolBroken(what)
        self._linger = flags & ring.LINGER
        answer_at = at + slot_bytes
        if kind == ring.EMPTY:
            ANSWER.pack_into(region.data, answer_at, number, ring.EMPTY, 0, -1, -1, 0)
            return
        try:
            if kind == ring.RUN:
                binding = self._bound.get(bound)
                request = None if binding is None else binding.request
            elif kind == ring.BIND:
                binding = self._bind(bound, region.payload(at + REQUEST.size, nbytes))
                request = binding.request
            else:
                raise _ProtocolBroken(f"a request of kind {kind}")
            if binding is None or request is None:
                raise InvalidArgument(f"no request {bound} is bound to this ring")
            execute, loops = self._executor(binding.target)
            config = self._config(number, deadline_ns, loop_ns, flags, loops=loops)
            if binding.tokens and self._using is not None:
                with self._using(binding.tokens):
                    result = execute(request, config)
            else:
                result = execute(request, config)
            if type(request) is hal.Request:
                binding.prove(request)
            timing = result.timing
            if not (result.output_shapes or timing.operations or result.copies):
                device_ns = -1 if timing.on_device_ns is None else timing.on_device_ns
                driver_ns = -1 if timing.in_driver_ns is None else timing.in_driver_ns
                self._took_ns = took_ns = monotonic_ns() - began
                fields = number, ring.DONE, took_ns, device_ns, driver_ns, 0
                ANSWER.pack_into(region.data, answer_at, *fields)
                return
            payload, room = encode(wire.Executed(result)), slot_bytes - ANSWER.size
            if len(payload) > room and result.copies:
                folded = tuple(_folded(result.copies))
                payload = encode(wire.Executed(replace(result, copies=folded)))
            if len(payload) > room:
                raise GeneralFailure(f"an answer of {len(payload)} bytes; {room} have a place")
        except _ProtocolBroken:
            raise
        except BaseException as error:  # noqa: BLE001  # whatever a driver raises becomes an answer
            failure = failure_of(error)
            payload = encode(failure)
            if len(payload) > slot_bytes - ANSWER.size and isinstance(failure, wire.Failure):
                payload = encode(replace(failure, copies=()))
            if len(payload) > slot_bytes - ANSWER.size:
                message = f"{failure.message[:MAX_MESSAGE]} [...]"
                payload = encode(failure_of(GeneralFailure(message)))
        self._took_ns = took_ns = monotonic_ns() - began
        ANSWER.pack_into(region.data, answer_at, number, ring.REPLY, took_ns, -1, -1, len(payload))
        start = answer_at + ANSWER.size
        region.data[start : start + len(payload)] = payload

    def _config(
        self, number: int, deadline_ns: int, loop_ns: int, flags: int, *, loops: bool
    ) -> hal.ExecutionConfig:
        """The configuration of a request; one without a deadline or a token is used again."""
        flags &= ~ring.LINGER
        stoppable = bool(flags & ring.STOPPABLE)
        is_plain = not (deadline_ns or stoppable or loops)
        key, config = self._config_of
        if is_plain and key == (loop_ns, flags):
            return config
        if (priority := flags >> ring.PRIORITY_SHIFT) >= len(hal.PRIORITIES):
            raise _ProtocolBroken(f"priority {priority}")
        cancel = None
        if stoppable or loops:
            last = number if stoppable else NEVER
            cancel = RingCancel(self._region.words, last, lambda: self._closed)
        config = hal.ExecutionConfig(
            deadline_ns=deadline_ns or None,
            loop_timeout_ns=loop_ns or None,
            measure=bool(flags & ring.MEASURE),
            priority=hal.PRIORITIES[priority],
            cancel=cancel,
        )
        if is_plain:
            self._config_of = (loop_ns, flags), config
        return config

    def _bind(self, bound: int, payload: bytes) -> Binding:
        """Binds the request. Raises `InvalidArgument`, and the errors of mapping its pools."""
        if bound >= MAX_BOUND:
            raise InvalidArgument(f"bound request {bound}; a ring has {MAX_BOUND}")
        if (before := self._bound.pop(bound, None)) is not None:
            before.release()
        made = self._bound[bound] = Binding(payload, self._find, self._charge)
        return made

    def _end(self) -> None:
        with self._ending:
            self._closed = True
        while self._bound:
            self._bound.popitem()[1].release()
        try:
            self._region.words[ring.ANSWERED] = ring.CLOSED
            self._rung.ring()
        except OSError as error:
            logger.warning("a client gets no notice that its ring is closed: %s", error)
        finally:
            try:
                self._release()
            finally:
                self._at_end()
                self._ended.set()

    def _release(self) -> None:
        for bell in (self._heard, self._rung, self._stop):
            bell.close()
        self._region.close()


class _ProtocolBroken(WireError):
    """The client broke the protocol; the ring accepts no more of its requests."""


def _folded(copies: Sequence[hal.ArgumentCopy]) -> Iterator[hal.ArgumentCopy]:
    """One copy for those of all inputs, and one for those of all outputs: an answer must fit into
    its slot.
    """
    for out in (False, True):
        if same := [copy for copy in copies if copy.out == out]:
            nbytes, wall_ns = sum(c.nbytes for c in same), sum(c.wall_ns for c in same)
            yield replace(same[0], nbytes=nbytes, wall_ns=wall_ns)
