"""`RingBurst`: a burst on a device in another process, whose calls go through a ring in shared memory.

What a call is given is bound on the device's side the first time, and from then on sent as a number. Arrays in pools
go by their places, the others are copied into a pool of the binding, and out of it again.
"""

from __future__ import annotations

import operator
import threading
import weakref
from collections import OrderedDict
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from penstock.errors import (
    ClosedError,
    DriverError,
    GeneralFailure,
    InvalidArgument,
    ResourceExhaustedTransient,
)
from penstock.hal import (
    ArgumentCopy,
    CarriedResult,
    ExecutionConfig,
    ExecutionResult,
    HostMemory,
    Memory,
    Request,
    RequestArgument,
)
from penstock.ipc import ring, wire
from penstock.ipc.codec import encode
from penstock.ipc.lending import Lent, lend
from penstock.ipc.ring import DEFAULT_LAYOUT, REQUEST, Layout, Region
from penstock.ipc.ring_client import RingClient
from penstock.ipc.staging import ALIGNMENT
from penstock.ipc.steady import steady_place
from penstock.ipc.transport import close_all
from penstock.ipc.wakeup import Doorbell
from penstock.ir import NDArray
from penstock.memory import pool_of

if TYPE_CHECKING:
    from penstock.ipc.client import RemoteObject, RemotePreparedModel

MOST_BOUND: Final = 16
"""Requests that a burst keeps bound on the device's side; the one unused for longest goes first."""


class RingBurst:
    """A `Burst`. Made by `RemotePreparedModel.configure_burst` where the channel says how the device's death shows: by
    *life_fd*, which is the burst's.
    """

    def __init__(
        self, prepared: RemotePreparedModel, life_fd: int, deadline_ns: int | None = None
    ) -> None:
        self._prepared = prepared
        self._running = threading.Lock()
        self._bound: OrderedDict[Any, _Bound] = OrderedDict()
        self._latest: _Bound | None = None
        self._free = list(range(MOST_BOUND))
        self._pools: dict[int, tuple[Memory, RemoteObject]] = {}
        self._ring, remote = _opened(prepared, DEFAULT_LAYOUT, life_fd, deadline_ns)
        self._remote: RemoteObject | None = remote

    def execute(self, request: Request, config: ExecutionConfig) -> ExecutionResult:
        """As `Burst.execute`, and `ClosedError` after `close`.

        After `MissedDeadline*` or `Cancelled` the device may still be writing the outputs that lie in pools, until
        the next call of this burst has returned.
        """
        if not self._running.acquire(blocking=False):
            raise GeneralFailure("this burst is executing already")
        try:
            bound = self._latest
            if bound is None or not bound.is_for(request):
                bound = self._find(request, config)
                if bound is None:
                    return self._prepared.execute(request, config)
                self._latest = bound
            if bound.is_staged:
                return self._staged(bound, request, config)
            result = self._ring.call(bound.kind, bound.number, config, bound.payload)
            bound.sent()
            return result
        finally:
            self._running.release()

    @property
    def broken(self) -> bool:
        """Whether the ring is of no use any more: the device's process is gone, or breaks the rules."""
        return self._ring.broken is not None

    def ping(self) -> None:
        """One empty request and its answer: the way there and back alone."""
        with self._running:
            self._ring.call(ring.EMPTY)

    def close(self) -> None:
        """Twice is harmless. A run under way elsewhere ends first."""
        with self._running:
            if self._remote is None:
                return
            remote, self._remote = self._remote, None
            for bound in self._bound.values():
                bound.close()
            self._bound.clear()
            self._latest = None
            inherited = self._ring.is_inherited
            self._ring.close()
            if inherited:
                return
            remote.close()
            for _, pool in self._pools.values():
                pool.close()
            self._pools.clear()

    def _staged(self, bound: _Bound, request: Request, config: ExecutionConfig) -> ExecutionResult:
        """As `execute`, with copies of what does not lie in pools; the result tells of them."""
        lent, copies = bound.lent, []
        for position, view in lent.incoming:
            array = _array(request.inputs[position])
            copies.append(_copied(position, view, array, out=False))
        try:
            result = self._ring.call(bound.kind, bound.number, config, bound.payload)
        except DriverError as error:
            error.copies = tuple(copies)
            raise
        bound.sent()
        for position, view in lent.outgoing:
            array = _array(request.outputs[position])
            copies.append(_copied(position, array, view, out=True))
        return CarriedResult(result.output_shapes, result.timing, tuple(copies))

    def _find(self, request: Request, config: ExecutionConfig) -> _Bound | None:
        """The binding of *request*, made now if there is none; None for one that no ring can carry."""
        if self._remote is None:
            raise ClosedError("burst used after close()")
        key = _key(request)
        bound = self._bound.get(key)
        if bound is not None:
            self._bound.move_to_end(key)
            bound.remember(request)
            return bound
        if not self._free:
            self._forget(self._bound.popitem(last=False)[1], config)
        unit: int = getattr(self._prepared.channel, "unit", ALIGNMENT)
        lent = lend(request, steady_place, unit)
        try:
            payload = self._encoded(lent, config.deadline_ns)
            if payload is None:
                _close_staging(lent)
                return None
        except BaseException:
            _close_staging(lent)
            raise
        bound = self._bound[key] = _Bound(self._free.pop(), payload, lent, request)
        return bound

    def _encoded(self, lent: Lent, deadline_ns: int | None) -> bytes | None:
        """What binds *lent*; None where a pool cannot be lent, or it is too long for a slot."""
        try:
            pools = tuple([self._lent(m, deadline_ns) for m in lent.pools])
        except (InvalidArgument, ResourceExhaustedTransient):
            return None
        payload = encode(wire.RingRequest(lent.inputs, lent.outputs, pools))
        return payload if len(payload) <= DEFAULT_LAYOUT.slot_bytes - REQUEST.size else None

    def _lent(self, memory: Memory, deadline_ns: int | None) -> wire.ObjectId:
        """The number of *memory* on the device's side, which is told of it if it does not know it."""
        known = self._pools.get(id(memory))
        if known is None:
            from penstock.ipc.client import lend_pool

            made = lend_pool(self._prepared.channel, memory, deadline_ns)
            known = self._pools[id(memory)] = memory, made
        return known[1].number

    def _forget(self, bound: _Bound, config: ExecutionConfig) -> None:
        """Makes room on both sides, for pools too that no other binding uses."""
        self._free.append(bound.number)
        try:
            self._ring.call(ring.UNBIND, bound.number, config)
        finally:
            bound.close()
            used = {id(m) for b in self._bound.values() for m in b.lent.pools}
            for key in self._pools.keys() - used:
                # Its finalizer tells the other side, for which nobody waits.
                del self._pools[key]


class _Bound:
    """A request that the device's side knows as *number*, once *payload* has been sent."""

    def __init__(self, number: int, payload: bytes, lent: Lent, request: Request) -> None:
        self.number, self.lent = number, lent
        self.is_staged = bool(lent.incoming or lent.outgoing)
        self.kind, self.payload = ring.BIND, payload
        self.remember(request)

    def sent(self) -> None:
        """The device's side has it."""
        self.kind, self.payload = ring.RUN, b""

    def remember(self, request: Request) -> None:
        """Takes *request* for the one that `is_for` knows at a look."""
        self._request = weakref.ref(request)
        self._inputs = tuple(map(_known, request.inputs))
        self._outputs = tuple(map(_known, request.outputs))
        self._pools = request.pools

    def is_for(self, request: Request) -> bool:
        """Whether *request* is surely of the arguments of the one remembered; arrays are the same objects."""
        return self._request() is request or (
            _alike(self._inputs, request.inputs)
            and _alike(self._outputs, request.outputs)
            and (request.pools is self._pools or _identical(request.pools, self._pools))
        )

    def close(self) -> None:
        _close_staging(self.lent)


_Known: TypeAlias = tuple[Any, tuple[int, ...], tuple[int, ...] | None]
"""An argument to compare others with: an array's are weak, so that it may go."""


def _known(argument: RequestArgument) -> _Known:
    if isinstance(argument, HostMemory):
        return weakref.ref(argument.array), argument.array.shape, argument.dimensions
    return argument, (), None


def _alike(known: tuple[_Known, ...], arguments: tuple[RequestArgument, ...]) -> bool:
    if len(known) != len(arguments):
        return False
    for (value, shape, dimensions), argument in zip(known, arguments, strict=True):
        if type(argument) is HostMemory:
            array = argument.array
            if type(value) is not weakref.ref or value() is not array or array.shape != shape:
                return False
            if argument.dimensions != dimensions:
                return False
        elif value is not argument:
            return False
    return True


def _identical(pools: tuple[Memory, ...], others: tuple[Memory, ...]) -> bool:
    return len(pools) == len(others) and all(map(operator.is_, pools, others))


def _key(request: Request) -> tuple[Any, ...]:
    """What two requests share that may use one binding: places and shapes, not contents."""
    return (
        tuple(map(_part, request.inputs)),
        tuple(map(_part, request.outputs)),
        tuple(map(id, request.pools)),
    )


def _part(argument: RequestArgument) -> Any:
    if not isinstance(argument, HostMemory):
        return argument
    array = argument.array
    place, flags = pool_of(array), array.flags
    lies = None if place is None else (id(place.memory), place.offset)
    kept = flags.c_contiguous, flags.writeable
    return lies, array.dtype, array.shape, argument.dimensions, kept


def _array(argument: RequestArgument) -> NDArray:
    if not isinstance(argument, HostMemory):
        raise InvalidArgument(f"a {type(argument).__name__} for an array")
    return argument.array


def _copied(position: int, destination: NDArray, source: NDArray, *, out: bool) -> ArgumentCopy:
    began = perf_counter_ns()
    destination[...] = source
    return ArgumentCopy(position, out, source.nbytes, began, perf_counter_ns() - began)


def _close_staging(lent: Lent) -> None:
    if lent.staging is not None:
        lent.staging.close()


def _opened(
    prepared: RemotePreparedModel, layout: Layout, life_fd: int, deadline_ns: int | None
) -> tuple[RingClient, RemoteObject]:
    from penstock.ipc.client import open_ring

    descriptors = [life_fd]
    try:
        fd = ring.create_region(layout)
        descriptors.append(fd)
        region = Region(fd, layout)
        to_device, to_client = Doorbell.create(), Doorbell.create()
        bells = to_device.listen_fd, to_client.ring_fd
        remote = open_ring(prepared, fd, *bells, layout, deadline_ns)
        descriptors.remove(life_fd)
    finally:
        close_all(descriptors)
    return RingClient(region, to_device, to_client, life_fd), remote
