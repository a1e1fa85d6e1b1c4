"""The caller's arrays in memory that a host process can map.

`Staging` serves calls by message: an array in a memory pool is passed by its location, any other is
copied into a pool of the connection. `lend` and `Borrower` do the same for requests of rings.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from penstock import hal
from penstock.errors import InvalidArgument, WireError
from penstock.ipc import forms
from penstock.ipc.system import SHRINK, is_sealed
from penstock.ir import DataLocation, DType, NDArray
from penstock.ir.types import dtype_of
from penstock.memory import MemoryPool, pool_of
from penstock.memory.mapping import region_behind

ALIGNMENT: Final = 64
"""Alignment and padding of each array (NNAPI section 5.3) unless a device prefers more."""

MOST_ALIGNMENT: Final = 4096
"""The highest alignment possible: memory begins at a page."""

LEAST_BYTES: Final = 1 << 16
MOST_FREE: Final = 4
"""Most pools kept for later calls."""

Lender = Callable[[int, int, int, int | None], None]
"""Shares memory: number, descriptor, size, deadline. Raises `TimeoutError` at the deadline."""


def unit_of(preference: hal.MemoryPreference) -> int:
    """The alignment and padding of arrays for a device of that *preference*, bounded."""
    wanted = max(preference.alignment, preference.padding, ALIGNMENT)
    return wanted if wanted <= MOST_ALIGNMENT and not wanted & (wanted - 1) else MOST_ALIGNMENT


class _Pool(NamedTuple):
    number: forms.MemoryId
    pool: MemoryPool
    content: NDArray


class Staging:
    """The shared memory of one connection. Thread-safe.

    An array in a memory pool is shared once and then passed by its location. Any other array is
    copied into a pool of this object. *lend* and *release* send messages.
    """

    def __init__(self, lend: Lender, release: Callable[[forms.MemoryId], None]) -> None:
        self._lend, self._release = lend, release
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._free: list[_Pool] = []
        # The number of a memory that is shared, and the byte at which its pool begins.
        self._known: dict[int, tuple[forms.MemoryId, int]] = {}
        self._closed = False

    def stage(
        self, arrays: Sequence[NDArray], deadline_ns: int | None = None, unit: int = ALIGNMENT
    ) -> Staged:
        """Places *arrays* in shared memory, copied ones at multiples of *unit* bytes.

        Raises `WireError` for an array that cannot be an operand, `TimeoutError` if sharing misses
        the deadline.
        """
        return Staged(self, arrays, deadline_ns, unit)

    def close(self) -> None:
        """Closes the pools; pools in use are closed when they are returned."""
        with self._lock:
            free, self._free = self._free, []
            self._closed = True
        for kept in free:
            kept.pool.close()

    def take(self, nbytes: int, deadline_ns: int | None = None) -> _Pool:
        """A free pool of at least *nbytes* bytes."""
        with self._lock:
            most = 8 * max(nbytes, LEAST_BYTES)
            fitting = [p for p in self._free if nbytes <= p.pool.nbytes <= most]
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
        """Returns the pool for the next call."""
        with self._lock:
            self._free.append(pool)
            full = self._closed or len(self._free) > MOST_FREE
            dropped = self._free.pop(0) if full else None
        if dropped is not None:
            self.discard(dropped)

    def number_of(
        self, array: NDArray, deadline_ns: int | None = None
    ) -> tuple[forms.MemoryId, int] | None:
        """The number of the pool that *array* lies in, and its offset there."""
        # The other side views the place as its type, so an engine needs it aligned.
        place = pool_of(array) if array.flags.aligned else None
        region = None if place is None else region_behind(array)
        if place is None or region is None:
            return None
        with self._lock:
            shared = self._known.get(id(region))
            if shared is None:
                if (found := _shareable(place.memory)) is None:
                    return None
                fd, begin = found
                shared = number, _ = next(self._numbers), begin
                self._lend(number, fd, begin + place.memory.size, deadline_ns)
                self._known[id(region)] = shared
                weakref.finalize(region, self._forget, id(region), number).atexit = False
        return shared[0], shared[1] + place.offset

    def doubt(self, number: forms.MemoryId) -> None:
        """The other side may have had no room for that memory: the next call shares it again."""
        with self._lock:
            regions = [region for region, (known, _) in self._known.items() if known == number]
            for region in regions:
                del self._known[region]
        if regions:
            self._release(number)

    def discard(self, pool: _Pool) -> None:
        """No call has it again."""
        self._release(pool.number)
        pool.pool.close()

    def _forget(self, region: int, number: forms.MemoryId) -> None:
        self._known.pop(region, None)
        self._release(number)


class Staged:
    """The arrays of one call. *copies* lists what was copied, by the number of the array."""

    def __init__(
        self, staging: Staging, arrays: Sequence[NDArray], deadline_ns: int | None, unit: int
    ) -> None:
        self._staging, self._arrays = staging, arrays
        self._pool: _Pool | None = None
        self._copied: list[tuple[int, int]] = []
        self.forms: list[forms.ArrayForm] = []
        self.copies: list[hal.ArgumentCopy] = []
        try:
            self._place(deadline_ns, unit)
        except BaseException:
            self.give_back()
            raise

    def _place(self, deadline_ns: int | None, unit: int) -> None:
        """Places every array in a pool, and copies in those that will be read there."""
        needed, places = 0, []
        for array in self._arrays:
            check(array)
            known = self._staging.number_of(array, deadline_ns)
            places.append((known, needed))
            if known is None:
                needed += array.nbytes + -array.nbytes % unit
        if needed or any(known is None for known, _ in places):
            self._pool = self._staging.take(needed, deadline_ns)
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
            self.forms.append(forms.ArrayForm(number, offset, kind, array.shape, writable))

    @property
    def writes(self) -> bool:
        """Whether outputs have to be copied back."""
        return bool(self._copied)

    def copy_back(self) -> None:
        """Copies the outputs back into the arrays."""
        for index, at in self._copied:
            array = self._arrays[index]
            self._copy(index, array, self._content(array, at), out=True)

    def give_back(self) -> None:
        """Returns the memory for the next call. A second call does nothing."""
        pool, self._pool = self._pool, None
        if pool is not None:
            self._staging.put_back(pool)

    def discard(self) -> None:
        """Excludes memory from reuse that the other side may not have. May be repeated."""
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
        self.copies.append(hal.ArgumentCopy(index, out, source.nbytes, began, spent))


def check(array: NDArray) -> None:
    """Raises `WireError` for an array that cannot be an operand."""
    kind = dtype_of(array.dtype)
    if kind is None or array.dtype.hasobject or kind.numpy != array.dtype:
        raise WireError(f"an array of {array.dtype} cannot be sent")
    if not array.flags.c_contiguous:
        raise WireError("an array that is not C-contiguous cannot be sent")


def _shareable(memory: hal.Memory) -> tuple[int, int] | None:
    """The descriptor that shares *memory*, and its offset there; None if it may shrink."""
    match memory.name, memory.handle:
        case "ashmem", int(fd):
            return fd, 0
        case "mmap_fd", (int(fd), int(offset), _):
            return (fd, offset) if is_sealed(fd, SHRINK) else None
        case "hardware_buffer_blob", (int(fd), _):
            return (fd, 0) if is_sealed(fd, SHRINK) else None
    return None


MAX_STAGED_BYTES: Final = 1 << 40
"""Most bytes that one request may stage: larger sizes are mistakes."""

SharedArgument: TypeAlias = hal.PoolArgument | hal.TokenArgument | forms.LentForm | hal.NoValue


class StagedArgument(NamedTuple):
    """Argument *position* of the inputs or the outputs, and its place in the staging pool."""

    position: int
    view: NDArray


class SharedRequest(NamedTuple):
    """A request in *pools*. *incoming* is copied in before a run, *outgoing* out after it."""

    inputs: tuple[SharedArgument, ...]
    outputs: tuple[SharedArgument, ...]
    pools: tuple[hal.Memory, ...]
    incoming: tuple[StagedArgument, ...] = ()
    outgoing: tuple[StagedArgument, ...] = ()


PlaceOf: TypeAlias = Callable[[NDArray], Any]
"""As `penstock.memory.pool_of`: (memory, offset) of the live pool of an array, or None."""

PoolFor: TypeAlias = Callable[[int], MemoryPool]
"""Returns a pool of at least that many bytes, for arrays that lie in none."""


def share(
    request: hal.Request, place_of: PlaceOf, pool_for: PoolFor, unit: int = ALIGNMENT
) -> SharedRequest:
    """*request* with every `HostMemory` by location.

    Staged arrays lie at multiples of *unit* bytes in *pool_for*. Nothing is copied yet. Raises
    `InvalidArgument` for a pool that *request* lacks, and for arrays that are not C-contiguous,
    have Python objects, or are read-only outputs.
    """
    pools = list(request.pools)
    waiting: list[tuple[bool, int, NDArray, tuple[int, ...] | None, int]] = []
    total = 0
    sides: list[list[SharedArgument]] = [[], []]
    for is_output, arguments in ((False, request.inputs), (True, request.outputs)):
        side = sides[is_output]
        for position, argument in enumerate(arguments):
            what = f"{'output' if is_output else 'input'} {position}"
            if not isinstance(argument, hal.HostMemory):
                # The pools of the request's arrays follow its own.
                number = argument.location.pool if isinstance(argument, hal.PoolArgument) else None
                if number is not None and not 0 <= number < len(request.pools):
                    raise InvalidArgument(f"{what}: pool {number} of {len(request.pools)}")
                side.append(argument)
                continue
            array, dimensions = argument.array, argument.dimensions
            _check(array, what, is_output=is_output)
            place = place_of(array)
            if place is None:
                waiting.append((is_output, position, array, dimensions, total))
                total += array.nbytes + -array.nbytes % unit
                side.append(hal.NoValue())
            else:
                pool = _number(pools, place.memory)
                side.append(_form(array, dimensions, pool, place.offset))
    copies: list[list[StagedArgument]] = [[], []]
    if waiting:
        if total > MAX_STAGED_BYTES:
            raise InvalidArgument(f"a request whose arrays take {total} bytes outside of pools")
        staging = pool_for(max(1, total))
        pool = len(pools)
        pools.append(staging.memory)
        for is_output, position, array, dimensions, offset in waiting:
            sides[is_output][position] = _form(array, dimensions, pool, offset)
            view = staging.view(array.dtype, array.shape, offset)
            copies[is_output].append(StagedArgument(position, view))
    (inputs, outputs), (incoming, outgoing) = sides, copies
    return SharedRequest(
        tuple(inputs), tuple(outputs), tuple(pools), tuple(incoming), tuple(outgoing)
    )


class Borrower:
    """The device's side of shared arrays. *regions* return the bytes of each pool, called once."""

    def __init__(self, regions: Sequence[Callable[[], NDArray]]) -> None:
        self._regions = regions
        self._mapped: dict[int, NDArray] = {}

    def argument(self, form: SharedArgument, *, writeable: bool) -> hal.RequestArgument:
        """The argument of *form*. Raises `WireError` if invalid, and the errors of mapping."""
        if not isinstance(form, forms.LentForm):
            return form
        dtype = shared_dtype(form.dtype)
        if dtype is None:
            raise WireError(f"a lent array of the type {form.dtype[:40]!r}")
        pool, shape, length = form.location.pool, form.shape, form.location.length
        if length != math.prod(shape) * dtype.itemsize:
            raise WireError(f"a lent array of {dtype.name} and shape {shape} in {length} bytes")
        if not 0 <= pool < len(self._regions):
            raise WireError(f"pool {pool} of {len(self._regions)} for a lent array")
        if pool not in self._mapped:
            self._mapped[pool] = self._regions[pool]()
        place = self._mapped[pool], form.location.offset
        return hal.HostMemory(array_in(*place, dtype, shape, writeable), form.dimensions)


def array_in(
    memory: NDArray, offset: int, dtype: np.dtype[Any], shape: tuple[int, ...], writeable: bool
) -> NDArray:
    """The array at byte *offset* of *memory*. Raises `WireError` if it is not inside."""
    nbytes = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or offset < 0 or offset + nbytes > memory.nbytes:
        raise WireError(f"an array of shape {shape}: {nbytes} bytes at {offset} of {memory.nbytes}")
    try:
        array: NDArray = memory[offset : offset + nbytes].view(dtype).reshape(shape)
    except (ValueError, OverflowError) as error:
        raise WireError(f"an array of the shape {shape}: {error}") from None
    if not writeable:
        array.flags.writeable = False
    return array


def _form(
    array: NDArray, dimensions: tuple[int, ...] | None, pool: int, offset: int
) -> forms.LentForm:
    location = DataLocation(pool, offset, array.nbytes)
    return forms.LentForm(location, array.dtype.name, array.shape, dimensions)


def _check(array: NDArray, what: str, *, is_output: bool) -> None:
    if shared_dtype(array.dtype.name) is None:
        raise InvalidArgument(f"{what}: an array of {array.dtype} cannot be shared")
    if not array.flags.c_contiguous:
        raise InvalidArgument(f"{what}: host memory must be C-contiguous")
    if is_output and not array.flags.writeable:
        raise InvalidArgument(f"{what}: host memory of an output must be writeable")


def _number(pools: list[hal.Memory], memory: hal.Memory) -> int:
    for number, known in enumerate(pools):
        if known is memory:
            return number
    pools.append(memory)
    return len(pools) - 1


KINDS: Final = {kind.value: kind for kind in DType if kind.bits is not None}


def shared_dtype(name: str) -> np.dtype[Any] | None:
    """The element type of that name, if it is an operand's; None if it cannot be shared.

    NumPy's own types load no other library.
    """
    kind = KINDS.get(name)
    return None if kind is None or kind.numpy.hasobject else kind.numpy
