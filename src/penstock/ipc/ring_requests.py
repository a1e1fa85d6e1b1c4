"""`Ring`: executions through one ring buffer, with arguments in memory that both sides map.

The client binds a request to a number on its first run and sends only the number from then on.
Arrays in pools are passed by their location. Other arrays are copied into a staging pool of the
ring, and outputs out of it.
"""

from __future__ import annotations

import operator
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from time import perf_counter_ns
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from penstock import hal
from penstock.errors import DriverError, InvalidArgument, ResourceExhaustedTransient
from penstock.ipc import forms, ring, wire
from penstock.ipc.codec import encode
from penstock.ipc.remote import Channel, RemoteObject, lend_pool
from penstock.ipc.ring import DEFAULT_LAYOUT, REQUEST
from penstock.ipc.ring_client import Pace, RingClient
from penstock.ipc.shared_arrays import LEAST_BYTES, SharedRequest, share
from penstock.ipc.system import may_shrink
from penstock.ir import NDArray
from penstock.memory import MemoryPool, pool_of
from penstock.memory.mapping import PoolPlace


class BoundRequest:
    """A request bound to *number* once *payload* is sent; *pools* are the `id` of its memories."""

    def __init__(
        self, number: int, payload: bytes, shared: SharedRequest, request: hal.Request
    ) -> None:
        self.number, self.pools = number, tuple(map(id, shared.pools))
        self.incoming, self.outgoing = shared.incoming, shared.outgoing
        self.is_staged = bool(shared.incoming or shared.outgoing)
        self.is_bound = True
        self.kind, self.payload = ring.BIND, payload
        self._staged_inputs = self._staged_outputs = _NONE
        arguments = len(request.inputs) + len(request.outputs)
        if arguments == len(shared.incoming) + len(shared.outgoing):
            self._staged_inputs = tuple([_form(a) for a in request.inputs])
            self._staged_outputs = tuple([_form(a) for a in request.outputs])
        self._request: weakref.ref[hal.Request] | None = None
        self._inputs: tuple[_Known, ...] = ()
        self._outputs: tuple[_Known, ...] = ()
        self._pools: tuple[hal.Memory, ...] = ()

    def sent(self) -> None:
        """Whether the device's side has it."""
        self.kind, self.payload = ring.RUN, b""

    def drop(self) -> None:
        """Unbinds the request and frees the memory that arrays were copied to."""
        self.is_bound = False
        self.incoming = self.outgoing = ()

    def takes(self, request: hal.Request) -> bool:
        """Whether it is bound and can serve *request* too.

        True if all arrays of *request* lie in memory that NumPy allocated, as in the request that
        was bound, with the same types and shapes.
        """
        return (
            self.is_bound
            and not request.pools
            and _same_forms(self._staged_inputs, request.inputs)
            and _same_forms(self._staged_outputs, request.outputs)
        )

    def remember(self, request: hal.Request) -> None:
        """Makes *request* the one that `is_for` recognises by identity."""
        self._request = weakref.ref(request)
        self._inputs = tuple(map(_known, request.inputs))
        self._outputs = tuple(map(_known, request.outputs))
        self._pools = request.pools

    def is_for(self, request: hal.Request) -> bool:
        """Whether it is bound and *request* has the same arguments as the remembered request."""
        known = self._request
        if known is None or not self.is_bound:
            return False
        return known() is request or (
            _alike(self._inputs, request.inputs)
            and _alike(self._outputs, request.outputs)
            and len(request.pools) == len(self._pools)
            and all(map(operator.is_, request.pools, self._pools))
        )


_Form: TypeAlias = tuple[Any, tuple[int, ...], tuple[int, ...] | None, bool]
"""Type, shape and refined dimensions of an array that is copied, and whether it can be written."""

_NONE: Final[tuple[_Form, ...]] = ((None, (), None, False),)


def _form(argument: hal.RequestArgument) -> _Form:
    if not isinstance(argument, hal.HostMemory):
        return _NONE[0]
    array = argument.array
    return array.dtype, array.shape, argument.dimensions, bool(array.flags.writeable)


def _same_forms(known: tuple[_Form, ...], arguments: tuple[hal.RequestArgument, ...]) -> bool:
    if len(known) != len(arguments):
        return False
    for (dtype, shape, dimensions, writeable), argument in zip(known, arguments, strict=True):
        if type(argument) is not hal.HostMemory:
            return False
        array = argument.array
        flags, owner = array.flags, array.base
        if array.shape != shape or array.dtype != dtype or argument.dimensions != dimensions:
            return False
        if flags.writeable is not writeable or not flags.c_contiguous:
            return False
        # Memory that NumPy allocated lies in no pool.
        if not flags.owndata and (type(owner) is not np.ndarray or not owner.flags.owndata):
            return False
    return True


_Known: TypeAlias = tuple[Any, tuple[int, ...], tuple[int, ...] | None]
"""An argument to compare others with. Arrays are weak references, so that they can be freed."""


def key_of(target: int, request: hal.Request) -> tuple[Any, ...]:
    """Key of the requests to *target* that can share a binding: places and shapes, not contents.

    Memory is identified by `id`: drop the key when the memory is freed.
    """
    return (
        target,
        tuple(map(_part, request.inputs)),
        tuple(map(_part, request.outputs)),
        tuple(map(id, request.pools)),
    )


def _known(argument: hal.RequestArgument) -> _Known:
    if isinstance(argument, hal.HostMemory):
        return weakref.ref(argument.array), argument.array.shape, argument.dimensions
    return argument, (), None


def _alike(known: tuple[_Known, ...], arguments: tuple[hal.RequestArgument, ...]) -> bool:
    if len(known) != len(arguments):
        return False
    for (value, shape, dimensions), argument in zip(known, arguments, strict=True):
        if type(argument) is hal.HostMemory:
            array = argument.array
            if type(value) is not weakref.ref or value() is not array or array.shape != shape:
                return False
            if argument.dimensions != dimensions:
                return False
        elif value is not argument:
            return False
    return True


def _part(argument: hal.RequestArgument) -> Any:
    if not isinstance(argument, hal.HostMemory):
        return argument
    array = argument.array
    place, flags = pool_of(array), array.flags
    lies = None if place is None else (id(place.memory), place.offset)
    kept = flags.c_contiguous, flags.writeable
    return lies, array.dtype, array.shape, argument.dimensions, kept


MOST_BOUND: Final = 32
"""Most requests that a ring keeps bound. The least recently used is evicted."""

PAGE: Final = 4096


class _SharedPool(NamedTuple):
    """A memory that the device's side has as *pool*; *watch* finalizes it with the memory."""

    pool: RemoteObject
    watch: weakref.finalize[..., Any]

    def is_of(self, memory: hal.Memory) -> bool:
        """Whether this is *memory*, and not a later object with the same `id`."""
        found = self.watch.peek()
        return found is not None and found[0] is memory

    def close(self) -> None:
        """Asks the device's side, with the next message, to release the memory."""
        self.watch.detach()
        self.pool.forget()


class Ring:
    """One ring to the device behind *channel*, for one thread at a time. It shares a memory while a
    bound request uses it and this process keeps it.
    """

    def __init__(self, channel: Channel, client: RingClient, remote: RemoteObject) -> None:
        self._channel, self.client, self._remote = channel, client, remote
        self._bound: OrderedDict[Any, BoundRequest] = OrderedDict()
        self._latest: dict[int, BoundRequest] = {}
        self._free = list(range(MOST_BOUND))
        self._pools: dict[int, _SharedPool] = {}
        # Shared memory that this process has freed. Finalizers append to it.
        self._freed: deque[int] = deque()
        self._staging: MemoryPool | None = None
        self.idle_since = 0.0

    def bind(
        self,
        target: int,
        request: hal.Request,
        deadline_ns: int | None = None,
        is_lasting: Callable[[hal.Memory], bool] = lambda _: True,
    ) -> BoundRequest | None:
        """The binding of *request* to *target*, created by the deadline if there is none.

        None if no ring can carry the request: it is too long, or its memory cannot be shared or is
        not *is_lasting*. Raises `InvalidArgument` for an array that no other process can access.
        """
        if self._freed:
            self._sweep()
        latest = self._latest.get(target)
        if latest is not None and latest.takes(request):
            return latest
        key = key_of(target, request)
        bound = self._bound.get(key)
        if bound is not None:
            self._bound.move_to_end(key)
            self._latest[target] = bound
            return bound
        if not self._free:
            self._drop(next(iter(self._bound)))
        shared = share(request, self._place_of, self._staged_in, self._channel.unit)
        staging = None if self._staging is None else self._staging.memory
        for memory in shared.pools:
            known = id(memory) in self._pools or memory is staging
            if not known and not is_lasting(memory):
                return None
        try:
            pools = tuple([self._number(memory, deadline_ns) for memory in shared.pools])
        except (InvalidArgument, ResourceExhaustedTransient):
            self._release_unused()
            return None
        payload = encode(wire.RingRequest(target, shared.inputs, shared.outputs, pools))
        if len(payload) > DEFAULT_LAYOUT.slot_bytes - REQUEST.size:
            self._release_unused()
            return None
        made = BoundRequest(self._free.pop(), payload, shared, request)
        self._bound[key] = self._latest[target] = made
        return made

    def run(
        self, bound: BoundRequest, request: hal.Request, config: hal.ExecutionConfig, pace: Pace
    ) -> hal.ExecutionResult:
        """Executes *request* by its binding *bound*; *pace* is that of its prepared model.

        The result lists the copies that were made, and so does an error. Raises what
        `RingClient.call` raises.
        """
        copies: list[hal.ArgumentCopy] = []
        for position, view in bound.incoming:
            copies.append(_copied(position, view, _array(request.inputs[position]), out=False))
        try:
            result = self.client.call(bound.kind, bound.number, config, bound.payload, pace)
        except BaseException as error:
            self._failed(bound, error)
            if isinstance(error, DriverError):
                error.copies = (*copies, *error.copies)
            raise
        bound.sent()
        if not bound.is_staged:
            return result
        for position, view in bound.outgoing:
            copies.append(_copied(position, _array(request.outputs[position]), view, out=True))
        copies += result.copies
        return hal.RemoteResult(result.output_shapes, result.timing, tuple(copies))

    def forget(self, target: int) -> None:
        """Drops the bindings to *target*, which is closed."""
        for key in [key for key in self._bound if key[0] == target]:
            self._drop(key)

    def close(self) -> None:
        """Releases everything. A child made by `fork` only closes its copies."""
        self.client.close()
        self._bound.clear()
        self._latest.clear()
        self._staging = None
        shared, self._pools = self._pools, {}
        for each in shared.values():
            each.close()
        if not self.client.is_inherited:
            self._remote.forget()

    def _failed(self, bound: BoundRequest, error: BaseException) -> None:
        """After a call failed: drops the state that the failure may have invalidated."""
        if self.client.broken is not None:
            # A ring shows that a process ended before the connection does. A process that breaks
            # the protocol has to end.
            self._channel.end(str(error))
            return
        behind = self.client.is_behind
        if bound.kind == ring.BIND or (behind and bound.is_staged):
            # The device's side may have been unable to map it, or may still write to it.
            for key in [key for key, each in self._bound.items() if each is bound]:
                self._drop(key)
            if bound.is_staged:
                self._drop_staging()

    def _place_of(self, array: NDArray) -> PoolPlace | None:
        """Place of *array* in a pool that cannot shrink, if the address is aligned for its type."""
        place = pool_of(array) if array.flags.aligned else None
        if place is None or id(place.memory) in self._pools or not may_shrink(place.memory):
            return place
        return None

    def _staged_in(self, nbytes: int) -> MemoryPool:
        """The staging pool for copied arrays, of at least *nbytes*."""
        if self._staging is None or self._staging.nbytes < nbytes:
            self._drop_staging()
            size = max(nbytes + -nbytes % PAGE, LEAST_BYTES)
            self._staging = MemoryPool.anonymous(size)
        return self._staging

    def _drop_staging(self) -> None:
        staging, self._staging = self._staging, None
        if staging is None:
            return
        self._freed.append(id(staging.memory))
        self._sweep()
        staging.close()

    def _number(self, memory: hal.Memory, deadline_ns: int | None) -> forms.ObjectId:
        """The number of *memory* on the device's side. Shares the memory first if necessary."""
        known = self._pools.get(id(memory))
        if known is None or not known.is_of(memory):
            pool = lend_pool(self._channel, memory, deadline_ns)
            watch = weakref.finalize(memory, _freed, self._freed, id(memory), pool.forget)
            watch.atexit = False
            known = self._pools[id(memory)] = _SharedPool(pool, watch)
        return known.pool.number

    def _sweep(self) -> None:
        """Drops the bindings to memory that was freed."""
        freed = set()
        while self._freed:
            freed.add(self._freed.popleft())
        for key in [key for key, each in self._bound.items() if not freed.isdisjoint(each.pools)]:
            self._drop(key)
        self._release(freed)

    def _drop(self, key: Any) -> None:
        """Frees the number of a binding, and its pools that no other binding uses."""
        bound = self._bound.pop(key)
        if self._latest.get(key[0]) is bound:
            del self._latest[key[0]]
        self._free.append(bound.number)
        bound.drop()
        self._release_unused()

    def _release_unused(self) -> None:
        used = {number for bound in self._bound.values() for number in bound.pools}
        if self._staging is not None:
            used.add(id(self._staging.memory))
        self._release(self._pools.keys() - used)

    def _release(self, memories: Iterable[int]) -> None:
        for number in memories:
            known = self._pools.pop(number, None)
            if known is not None:
                known.close()


def _freed(freed: deque[int], number: int, forget: Callable[[], None]) -> None:
    """A finalizer: the memory is freed here, so the device's side can release it."""
    freed.append(number)
    forget()


def _array(argument: hal.RequestArgument) -> NDArray:
    if not isinstance(argument, hal.HostMemory):
        raise InvalidArgument(f"a {type(argument).__name__} for an array")
    return argument.array


def _copied(position: int, destination: NDArray, source: NDArray, *, out: bool) -> hal.ArgumentCopy:
    began = perf_counter_ns()
    destination[...] = source
    return hal.ArgumentCopy(position, out, source.nbytes, began, perf_counter_ns() - began)
