"""Requests that a client has bound to a ring, on the device's side, and the pools that they use."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeAlias

import msgspec

from penstock.errors import InvalidArgument, WireError
from penstock.hal import Memory, PoolArgument, ProvenRequest, Request, TokenArgument
from penstock.ipc import wire
from penstock.ipc.account import Charge
from penstock.ipc.codec import check_rank
from penstock.ipc.lending import Borrower
from penstock.ir import NDArray
from penstock.memory import HardwareBufferHandle, MappedFd, map_memory


class LentPool:
    """A memory that a client has made known, with a descriptor of its own. Mapped at most once, for
    every request.
    """

    def __init__(self, memory: Memory) -> None:
        """Duplicates the descriptor of *memory*; raises `InvalidArgument` for a memory that has
        none.
        """
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
            self.memory = Memory(memory.name, handle, memory.size)
            self._region: NDArray | None = None
            self._lock = threading.Lock()
            self._bindings: weakref.WeakSet[Binding] = weakref.WeakSet()
            self._closed = False
            self._close = weakref.finalize(self, os.close, fd)
        except BaseException:
            os.close(fd)
            raise

    def region(self) -> NDArray:
        """Its bytes; raises `GeneralFailure` where it cannot be mapped."""
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
        """Releases the requests that use it; one that runs keeps the memory until its run ends."""
        with self._lock:
            self._closed = True
            bindings = list(self._bindings)
            self._bindings.clear()
        for binding in bindings:
            binding.release()


FindPool: TypeAlias = Callable[[wire.ObjectId], LentPool]

ChargeMemory: TypeAlias = Callable[[Memory], Charge]


class Binding:
    """A request to *target* that its client runs by number. It counts the pools that the driver
    maps for it by *charge*, and keeps them until it is released: by its ring, or by a pool that is
    closed.

    Raises `InvalidArgument` for a form that makes no sense, and what mapping its pools raises.
    """

    def __init__(self, payload: bytes, find: FindPool, charge: ChargeMemory) -> None:
        try:
            form = _REQUESTS.decode(payload)
            pools = [find(number) for number in form.pools]
            borrow = Borrower([pool.region for pool in pools])
            inputs = tuple([_argument(a, borrow, writeable=False) for a in form.inputs])
            outputs = tuple([_argument(a, borrow, writeable=True) for a in form.outputs])
        except (msgspec.MsgspecError, WireError, ValueError, RecursionError) as error:
            raise InvalidArgument(f"a request to bind that makes no sense: {error}") from error
        every = (*inputs, *outputs)
        named = any(isinstance(a, PoolArgument) for a in every)
        memories = tuple([p.memory for p in pools]) if named else ()
        self.target = form.target
        self.tokens = tuple(a.token for a in every if isinstance(a, TokenArgument))
        self.request: Request | None = Request(inputs, outputs, memories)
        self._pools = tuple(pools)
        self._charges = _counted(memories, charge)
        self._lock = threading.Lock()
        try:
            for pool in pools:
                pool.used_by(self)
        except BaseException:
            self.release()
            raise

    def prove(self, request: Request) -> None:
        """Drivers need not look at *request* again: the same arguments, which nobody else can
        change, were accepted.
        """
        proven = ProvenRequest(request.inputs, request.outputs, request.pools)
        with self._lock:
            if self.request is request:
                self.request = proven

    def release(self) -> None:
        """Lets go of the request, of its pools, and of what counts for them; twice is harmless."""
        with self._lock:
            self.request, self._pools = None, ()
            charges, self._charges = self._charges, []
        for charge in charges:
            charge.release()


def _counted(memories: Iterable[Memory], charge: ChargeMemory) -> list[Charge]:
    charges: list[Charge] = []
    try:
        charges.extend(charge(memory) for memory in memories)
    except BaseException:
        for each in charges:
            each.release()
        raise
    return charges


def _argument(form: Any, borrow: Borrower, *, writeable: bool) -> Any:
    check_rank(getattr(form, "dimensions", None))
    return borrow(form, writeable=writeable) if isinstance(form, wire.LentForm) else form


_REQUESTS: Final = msgspec.msgpack.Decoder(wire.RingRequest)
