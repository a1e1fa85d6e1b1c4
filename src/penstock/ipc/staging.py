"""Shared memory for arrays of the caller that go to another process, and which memory that process
has already.
"""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

from penstock.errors import WireError
from penstock.hal import ArgumentCopy, Memory, MemoryPreference
from penstock.ipc import wire
from penstock.ipc.linux import SHRINK, is_sealed
from penstock.ir import NDArray
from penstock.ir.types import dtype_of
from penstock.memory import MemoryPool, pool_of
from penstock.memory.regions import region_of

ALIGNMENT: Final = 64
"""Bytes that each array begins at a multiple of, and is padded to (NNAPI section 5.3), for a device
that prefers no more.
"""

MOST_ALIGNMENT: Final = 4096
"""More is not to be had: memory begins with a page."""

LEAST_BYTES: Final = 1 << 16
MOST_FREE: Final = 4
"""Pools kept for the next calls."""

Lender = Callable[[int, int, int, int | None], None]
"""Tells the other side that it has memory: number, descriptor, size; raises `TimeoutError` at a
deadline.
"""


def unit_of(preference: MemoryPreference) -> int:
    """What arrays for a device of that *preference*, which a hostile one may have told, begin at
    multiples of, and are padded to.
    """
    wanted = max(preference.alignment, preference.padding, ALIGNMENT)
    return wanted if wanted <= MOST_ALIGNMENT and not wanted & (wanted - 1) else MOST_ALIGNMENT


class _Pool(NamedTuple):
    number: wire.MemoryId
    pool: MemoryPool
    content: NDArray


class _Lent(NamedTuple):
    """Memory of the caller that the other side has, by its *number*: a pool lies there from byte
    *begin* on.
    """

    number: wire.MemoryId
    begin: int


class Staging:
    """The shared memory of one connection.

    An array that lies in a memory pool goes as the pool's descriptor, once, and as a place in it
    afterwards; any other is copied into a pool of this object's own. *lend* and *release* tell the
    other side. Thread-safe.
    """

    def __init__(self, lend: Lender, release: Callable[[wire.MemoryId], None]) -> None:
        self._lend, self._release = lend, release
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._free: list[_Pool] = []
        self._known: dict[int, _Lent] = {}
        self._closed = False

    def stage(
        self, arrays: Sequence[NDArray], deadline_ns: int | None = None, unit: int = ALIGNMENT
    ) -> Staged:
        """*arrays* as the other side finds them, those that are copied at multiples of *unit*
        bytes. Raises `WireError` for an array that no operand has, `TimeoutError` where it has not
        been told of the memory by the deadline.
        """
        staged = Staged(self, arrays, deadline_ns, unit)
        try:
            staged.place()
        except BaseException:
            staged.give_back()
            raise
        return staged

    def close(self) -> None:
        """Closes the pools; those in use are closed when they come back."""
        with self._lock:
            free, self._free = self._free, []
            self._closed = True
        for kept in free:
            kept.pool.close()

    def take(self, nbytes: int, deadline_ns: int | None = None) -> _Pool:
        """A pool of *nbytes* bytes at least, that nobody else has."""
        with self._lock:
            fitting = [
                p for p in self._free if nbytes <= p.pool.nbytes <= 8 * max(nbytes, LEAST_BYTES)
            ]
            if fitting:
                best = min(fitting, key=lambda p: p.pool.nbytes)
                self._free.remove(best)
                return best
        pool = MemoryPool.anonymous(max(nbytes + -nbytes % 4096, LEAST_BYTES))
        number = next(self._numbers)
        try:
            self._lend(number, pool.memory.handle, pool.nbytes, deadline_ns)
        except BaseException:
            pool.close()
            raise
        return _Pool(number, pool, pool.view(np.uint8, pool.nbytes))

    def put_back(self, pool: _Pool) -> None:
        """The next call may have it."""
        with self._lock:
            self._free.append(pool)
            full = self._closed or len(self._free) > MOST_FREE
            dropped = self._free.pop(0) if full else None
        if dropped is not None:
            self._drop(dropped.number)
            dropped.pool.close()

    def number_of(
        self, array: NDArray, deadline_ns: int | None = None
    ) -> tuple[wire.MemoryId, int] | None:
        """The number of the pool that *array* lies in, and the byte at which it does."""
        # The other side views a place as its type, for which an engine needs it aligned.
        place = pool_of(array) if array.flags.aligned else None
        if place is None:
            return None
        region = region_of(array)
        if region is None:
            return None
        with self._lock:
            lent = self._known.get(id(region))
            if lent is None:
                lendable = _lendable(place.memory)
                if lendable is None:
                    return None
                fd, begin = lendable
                lent = _Lent(next(self._numbers), begin)
                self._lend(lent.number, fd, begin + place.memory.size, deadline_ns)
                self._known[id(region)] = lent
                weakref.finalize(region, self._forget, id(region), lent.number).atexit = False
        return lent.number, lent.begin + place.offset

    def doubt(self, number: wire.MemoryId) -> None:
        """The other side may have had no room for that memory: the next call lends it anew."""
        with self._lock:
            regions = [region for region, lent in self._known.items() if lent.number == number]
            for region in regions:
                del self._known[region]
        if regions:
            self._drop(number)

    def discard(self, pool: _Pool) -> None:
        """No call has it again."""
        self._drop(pool.number)
        pool.pool.close()

    def _forget(self, region: int, number: wire.MemoryId) -> None:
        self._known.pop(region, None)
        self._drop(number)

    def _drop(self, number: wire.MemoryId) -> None:
        self._release(number)


class Staged:
    """The arrays of one call. *copies* says what was copied, by the number of the array."""

    def __init__(
        self,
        staging: Staging,
        arrays: Sequence[NDArray],
        deadline_ns: int | None = None,
        unit: int = ALIGNMENT,
    ) -> None:
        self._deadline_ns, self._unit = deadline_ns, unit
        self._staging, self._arrays = staging, arrays
        self._pool: _Pool | None = None
        self._copied: list[tuple[int, int]] = []
        self.forms: list[wire.ArrayForm] = []
        self.copies: list[ArgumentCopy] = []

    def place(self) -> None:
        """Finds a place for every array, and copies in what will be read there."""
        needed, places = 0, []
        for array in self._arrays:
            check(array)
            known = self._staging.number_of(array, self._deadline_ns)
            places.append((known, needed))
            if known is None:
                needed += array.nbytes + -array.nbytes % self._unit
        if needed or any(known is None for known, _ in places):
            self._pool = self._staging.take(needed, self._deadline_ns)
        for index, (array, (known, at)) in enumerate(zip(self._arrays, places, strict=True)):
            writable = bool(array.flags.writeable)
            if known is not None:
                number, offset = known
            else:
                assert self._pool is not None
                number, offset = self._pool.number, at
                if writable:
                    self._copied.append((index, at))
                else:
                    self._copy(index, self._content(array, at), array, out=False)
            kind = dtype_of(array.dtype)
            assert kind is not None
            self.forms.append(wire.ArrayForm(number, offset, kind, array.shape, writable))

    def copy_back(self) -> None:
        """Copies what was written there into the arrays."""
        for index, at in self._copied:
            array = self._arrays[index]
            self._copy(index, array, self._content(array, at), out=True)

    def give_back(self) -> None:
        """Lets the next call have the memory; twice is harmless."""
        pool, self._pool = self._pool, None
        if pool is not None:
            self._staging.put_back(pool)

    def discard(self) -> None:
        """Lets no other call have memory that the other side may not have; twice is harmless."""
        pool, self._pool = self._pool, None
        if pool is not None:
            self._staging.discard(pool)
        for form in self.forms:
            self._staging.doubt(form.memory)

    def _content(self, array: NDArray, at: int) -> NDArray:
        assert self._pool is not None
        content: NDArray = self._pool.content[at : at + array.nbytes]
        return content.view(array.dtype).reshape(array.shape)

    def _copy(self, index: int, destination: NDArray, source: NDArray, *, out: bool) -> None:
        began = time.perf_counter_ns()
        np.copyto(destination, source)
        spent = time.perf_counter_ns() - began
        self.copies.append(ArgumentCopy(index, out, source.nbytes, began, spent))


def check(array: NDArray) -> None:
    """Raises `WireError` for an array that no operand has."""
    kind = dtype_of(array.dtype)
    if kind is None or array.dtype.hasobject or kind.numpy != array.dtype:
        raise WireError(f"an array of {array.dtype} cannot be sent")
    if not array.flags.c_contiguous:
        raise WireError("an array that is not C-contiguous cannot be sent")


def _lendable(memory: Memory) -> tuple[int, int] | None:
    """The descriptor by which all of *memory* is lent, and where in it the memory begins; None for
    what may shrink while another process reads it.
    """
    match memory.name, memory.handle:
        case "ashmem", int(fd):
            return fd, 0
        case "mmap_fd", (int(fd), int(offset), _):
            return (fd, offset) if is_sealed(fd, SHRINK) else None
        case "hardware_buffer_blob", (int(fd), _):
            return (fd, 0) if is_sealed(fd, SHRINK) else None
    return None
