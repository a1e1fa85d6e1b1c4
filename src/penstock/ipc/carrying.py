"""Pools that may shrink, as copies that cannot: a driver's process maps nothing else.

What lies in a file, or in memory that is not sealed against shrinking, is read and written here by
system calls, which fail where a file has become shorter, and do not end the process.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable
from time import perf_counter_ns
from typing import Final, NamedTuple

import numpy as np
from msgspec.structs import replace

from penstock.closing import Closing
from penstock.errors import DriverError, GeneralFailure
from penstock.hal import (
    ArgumentCopy,
    CarriedResult,
    Fence,
    HostMemory,
    Memory,
    PoolArgument,
    Request,
    RequestArgument,
)
from penstock.ipc.fd_checks import cannot_shrink, descriptor_in, may_shrink
from penstock.ipc.linux import LINUX_ONLY
from penstock.ir import NDArray
from penstock.memory import PROT_READ, PROT_WRITE, HardwareBufferHandle, MappedFd, MemoryPool
from penstock.memory.mapping import HARDWARE_BUFFER, size_of

WHOLE: Final = 1 << 62


class Twin:
    """A *memory* that may shrink, and a copy of it, as yet empty, that is given in its place:
    `given`.
    """

    def __init__(self, memory: Memory, fd: int) -> None:
        self._fd, self._offset = fd, 0
        self.writable = True
        protection: int | None = None
        if isinstance(memory.handle, MappedFd):
            self._offset, protection = memory.handle.offset, memory.handle.protection
            if not protection & PROT_READ:
                raise GeneralFailure(
                    f"a pool of protection {protection} cannot be read, nor copied for a driver's process"
                )
            self.writable = bool(protection & PROT_WRITE)
        self._nbytes = max(0, min(memory.size, size_of(fd) - max(0, self._offset)))
        self._pool = MemoryPool.anonymous(self._nbytes)
        self._content: NDArray = self._pool.view(np.uint8, self._nbytes)
        own = self._pool.memory.handle
        handle: object = own
        if protection is not None:
            # Where the place is senseless, the driver says so.
            handle = MappedFd(own, min(0, self._offset), protection)
        elif isinstance(memory.handle, HardwareBufferHandle):
            handle = HardwareBufferHandle(own, memory.handle.description)
        self.given = Memory(memory.name, handle, memory.size)

    def fill(self, start: int = 0, nbytes: int = WHOLE) -> int:
        """Copies that part in, and gives how much of it there was; raises `GeneralFailure`."""
        return self._move(start, nbytes, out=False)

    def empty(self, start: int = 0, nbytes: int = WHOLE) -> int:
        """Copies that part out, likewise."""
        return self._move(start, nbytes, out=True)

    def close(self) -> None:
        """Gives back the copy; twice is harmless."""
        self._content = np.empty(0, np.uint8)
        self._pool.close()

    def _move(self, start: int, nbytes: int, *, out: bool) -> int:
        if sys.platform != "linux":
            raise OSError(LINUX_ONLY)
        if self._offset < 0:
            return 0
        at, end = max(0, start), min(self._nbytes, start + nbytes)
        while at < end:
            part = [self._content[at:end].data]
            try:
                if out:
                    moved = os.pwritev(self._fd, part, self._offset + at)
                else:
                    moved = os.preadv(self._fd, part, self._offset + at)
            except OSError as error:
                raise GeneralFailure(
                    f"what a driver's process gets of a pool, or wrote to it, cannot be copied: {error}"
                ) from None
            if not moved:
                raise GeneralFailure("a pool has become shorter than it was")
            at += moved
        return max(0, end - max(0, start))


class _Copied(NamedTuple):
    position: int
    twin: Twin
    start: int
    nbytes: int


class Carried(Closing):
    """A request as a driver's process gets it: `request`. Pools that may shrink are copies there,
    which are made now and copied home by `finish`; `copies` tells of both. Without *copies* it is
    *request* as it is.

    Raises `GeneralFailure` for a pool that cannot be read, `ResourceExhaustedTransient` where there
    is no room.
    """

    def __init__(self, request: Request, *, copies: bool = True) -> None:
        self.request = request
        self.copies: list[ArgumentCopy] = []
        self._twins: list[Twin] = []
        self._written: list[_Copied] = []
        if not copies or not any(map(may_shrink, request.pools)):
            return
        try:
            self._carry(request)
        except BaseException:
            self.close()
            raise

    def finish(self) -> None:
        """Copies home what the driver wrote. Raises `GeneralFailure` where it cannot be written."""
        for position, twin, start, nbytes in self._written:
            began = perf_counter_ns()
            moved = twin.empty(start, nbytes)
            self._note(position, moved, began, out=True)

    def close(self) -> None:
        """Gives back the copies; twice is harmless."""
        for twin in self._twins:
            twin.close()

    @property
    def is_plain(self) -> bool:
        """Whether nothing had to be copied."""
        return not self._twins

    def _carry(self, request: Request) -> None:
        twins: dict[int, Twin] = {}
        pools = list(request.pools)
        for number, memory in enumerate(request.pools):
            if (twin := twin_of(memory)) is not None:
                self._twins.append(twin)
                twins[number], pools[number] = twin, twin.given
        for out, arguments in ((False, request.inputs), (True, request.outputs)):
            for position, argument in enumerate(arguments):
                self._copy(position, argument, request, twins, out=out)
        self.request = Request(request.inputs, request.outputs, tuple(pools))

    def _copy(
        self,
        position: int,
        argument: RequestArgument,
        request: Request,
        twins: dict[int, Twin],
        *,
        out: bool,
    ) -> None:
        if not isinstance(argument, PoolArgument):
            return
        place = argument.location
        twin = twins.get(place.pool)
        if twin is None:
            return
        start, nbytes = place.offset, place.length
        if request.pools[place.pool].name == HARDWARE_BUFFER:
            # Its place in the request is empty: all of an image is the value.
            start, nbytes = 0, WHOLE
        if out and not twin.writable:
            raise GeneralFailure(f"output {position} lies in a pool that cannot be written")
        if out:
            self._written.append(_Copied(position, twin, start, nbytes))
        if not out or not argument.dimensions:
            # What an output of unknown size leaves unwritten stays as it was.
            began = perf_counter_ns()
            self._note(position, twin.fill(start, nbytes), began, out=out)

    def _note(self, position: int, nbytes: int, began: int, *, out: bool) -> None:
        took = perf_counter_ns() - began
        self.copies.append(ArgumentCopy(position, out, nbytes, began, took))


class CarriedFence:
    """*fence*, with what was written copied home before anybody learns that it has signalled. What
    it tells of copies of arrays is of those of *request*; `incidents` are what else happened, in
    words, `before` copies for runs that failed then.
    """

    def __init__(self, fence: Fence, request: Request, carried: Carried | None = None) -> None:
        self._fence, self._request = fence, request
        self.incidents: tuple[str, ...] = ()
        self.before: tuple[ArgumentCopy, ...] = ()
        self._carried = self._kept = carried
        self._error: DriverError | None = None
        self._lock = threading.Lock()

    def wait(self, timeout_ns: int | None = None) -> bool:
        if not self._fence.wait(timeout_ns):
            return False
        with self._lock:
            carried, self._carried = self._carried, None
            if carried is not None:
                self._error = self._fence.error()
                with carried:
                    if self._error is None:
                        try:
                            carried.finish()
                        except DriverError as error:
                            self._error = error
        return True

    def error(self) -> DriverError | None:
        if not self.wait(0):
            return None
        return self._fence.error() if self._kept is None else self._error

    @property
    def result(self) -> CarriedResult:
        """What was copied for the run, all of it once the fence has signalled, and what happened."""
        copies = of_arguments(getattr(self._fence, "copies", ()), self._request)
        if self._kept is not None:
            copies = (*self._kept.copies, *copies)
        copies = (*self.before, *copies)
        return CarriedResult(copies=copies, incidents=self.incidents)


def carried_fence(fence: Fence, carried: Carried, request: Request) -> Fence:
    """*fence*, which tells what was copied for the run of *request*, where anything was."""
    if carried.is_plain and not hasattr(fence, "copies"):
        return fence
    return CarriedFence(fence, request, None if carried.is_plain else carried)


def of_arguments(copies: Iterable[ArgumentCopy], request: Request) -> tuple[ArgumentCopy, ...]:
    """*copies* of the arrays of *request*, by their numbers, as copies of its arguments."""
    arguments = [
        place
        for given in (request.inputs, request.outputs)
        for place, argument in enumerate(given)
        if isinstance(argument, HostMemory)
    ]
    return tuple(replace(copy, argument=arguments[copy.argument]) for copy in copies)


def twin_of(memory: Memory) -> Twin | None:
    """What is given in the place of *memory*; None for one that may be given itself."""
    fd = descriptor_in(memory)
    return None if fd is None or cannot_shrink(fd) else Twin(memory, fd)
