"""Memory pools for another process: sealed constants, and copies of pools that may shrink.

A host process maps no memory that may shrink. Files and memory without a seal against shrinking are
read and written by system calls: these fail if a file has become shorter, and do not kill the
process.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from time import perf_counter_ns
from typing import Final, NamedTuple

import numpy as np
from msgspec.structs import replace

from penstock import hal
from penstock.closing import Closing
from penstock.errors import DriverError, GeneralFailure, ResourceExhaustedTransient, WireError
from penstock.ipc.quotas import Account, SharedCharge, constant_charges
from penstock.ipc.system import LINUX_ONLY, cannot_shrink, descriptor_in, is_sealed, may_shrink
from penstock.ir import ConstantPool, NDArray
from penstock.memory import PROT_READ, PROT_WRITE, HardwareBufferHandle, MappedFd, MemoryPool
from penstock.memory.copies import CopyReceipt
from penstock.memory.mapping import HARDWARE_BUFFER, OUT_OF_ROOM, size_of
from penstock.memory.shared import sealed_fd

OWN: Final = "memory of this process alone"
READ: Final = "sealed memory (MemoryPool.sealed)"


_lock = threading.Lock()
_mapped: weakref.WeakValueDictionary[tuple[int, int, int, int, str], ConstantPool] = (
    weakref.WeakValueDictionary()
)
_equal: weakref.WeakValueDictionary[tuple[bytes, int, str], ConstantPool] = (
    weakref.WeakValueDictionary()
)


class SealedPlace(NamedTuple):
    """Immutable bytes: those of the sealed memfd *fd* from byte *offset* on."""

    fd: int
    offset: int


class _Copy(NamedTuple):
    fd: int
    receipt: CopyReceipt | None


_made: weakref.WeakKeyDictionary[ConstantPool, _Copy] = weakref.WeakKeyDictionary()


def sealed_place(pool: ConstantPool) -> SealedPlace:
    """Where the bytes of *pool* lie in a sealed memfd, valid while the pool lives.

    That is the pool's own memory if it is sealed, else a copy, made once, that `sealed_copies`
    reports. Raises `ResourceExhaustedTransient`, or `GeneralFailure` if the file behind the pool
    became shorter.
    """
    own = _place_behind(pool)
    if own is not None and is_sealed(own.fd) and size_of(own.fd) >= own.offset + pool.view.nbytes:
        return own
    with _lock:
        copy = _made.get(pool)
        if copy is None:
            began = perf_counter_ns()
            fd = sealed_fd(pool.view, "constants")
            weakref.finalize(pool, os.close, fd).atexit = False
            copy = _made[pool] = _Copy(fd, _receipt(pool, began))
        return SealedPlace(copy.fd, 0)


def sealed_copies(pools: Sequence[ConstantPool]) -> dict[int, CopyReceipt]:
    """Pools that were copied for `sealed_place`, by position in *pools*, with the reason."""
    with _lock:
        made = {at: _made.get(pool) for at, pool in enumerate(pools)}
    return {at: copy.receipt for at, copy in made.items() if copy and copy.receipt}


def _receipt(pool: ConstantPool, began_ns: int) -> CopyReceipt | None:
    """The receipt of a copy of *pool*; None for an empty pool."""
    if not (nbytes := pool.view.nbytes):
        return None
    spent = perf_counter_ns() - began_ns
    where = f"{pool.kind} memory that may still be changed" if pool.kind else OWN
    reason = f"constants lie in {where}; drivers in other processes read {READ}"
    return CopyReceipt(nbytes, "host", "sealed memory", reason, start_ns=began_ns, wall_ns=spent)


def mapped(
    fd: int, size: int, kind: str = "", account: Account | None = None, offset: int = 0
) -> ConstantPool:
    """*size* bytes of *fd* from *offset* on: mapped if the file is sealed, else copied.

    Equal sealed memory is mapped once, and charged to the first *account* while any pool uses it.
    *kind* is the sender's name of the memory. Raises `WireError` or `ResourceExhaustedTransient`.
    """
    try:
        sealed = is_sealed(fd)
        status = os.fstat(fd)
        available = status.st_size
        if not (0 <= offset <= available and 0 <= size <= available - offset):
            where = f"from byte {offset} on in a file of {available}"
            raise WireError(f"a pool of {size} bytes of constants {where}")
        if size == 0:
            return ConstantPool(memoryview(b""), None, kind)
        file = status.st_dev, status.st_ino, offset, size, kind
        if sealed and (known := _mapped.get(file)) is not None:
            return known
        with ExitStack() as unused:
            counted = None
            if account is not None:
                charge = account.memory(fd, offset + size) if sealed else account.own(size)
                counted = SharedCharge(charge)
                unused.callback(counted.drop)
            if sealed:
                pool, known = _shared(fd, size, kind, offset)
                if known is pool:
                    # The inode number is not reused while the file is mapped.
                    _mapped[file] = pool
            else:
                pool = known = ConstantPool(_read(fd, size, offset), None, kind)
            if known is pool:
                if counted is not None:
                    constant_charges[pool] = counted
                weakref.finalize(pool, unused.pop_all().close).atexit = False
    except (OSError, ValueError) as error:
        lacks_room = getattr(error, "errno", None) in OUT_OF_ROOM
        kind_of_error = ResourceExhaustedTransient if lacks_room else WireError
        raise kind_of_error(f"a pool of constants cannot be read: {error}") from None
    return known


def _shared(fd: int, size: int, kind: str, offset: int) -> tuple[ConstantPool, ConstantPool]:
    """A pool of sealed memory, and the existing pool of equal memory: the same one if it is new."""
    if sys.platform == "win32":
        raise OSError(LINUX_ONLY)
    # Before Linux 6.7 a write-sealed memfd can be mapped privately only.
    skipped = offset % mmap.ALLOCATIONGRANULARITY
    region = mmap.mmap(
        fd, size + skipped, mmap.MAP_PRIVATE, mmap.PROT_READ, offset=offset - skipped
    )
    content = memoryview(region)[skipped:]
    pool = ConstantPool(content, None, kind)
    return pool, _equal.setdefault((hashlib.sha256(content).digest(), size, kind), pool)


def _read(fd: int, size: int, offset: int) -> memoryview:
    if sys.platform == "win32":
        raise OSError(LINUX_ONLY)
    content = bytearray()
    while len(content) < size:
        chunk = os.pread(fd, min(size - len(content), 1 << 22), offset + len(content))
        if not chunk:
            raise WireError("a pool of constants ended before its size")
        content += chunk
    return memoryview(content).toreadonly()


def _place_behind(pool: ConstantPool) -> SealedPlace | None:
    """Where the bytes of *pool* lie, by its owner: a `SealedFile` or a pool's `SharedMemory`."""
    if isinstance(fd := getattr(pool.owner, "fd", None), int):
        return SealedPlace(fd, 0)
    memory = getattr(pool.owner, "memory", None)
    if not isinstance(memory, hal.Memory) or memory.size != pool.view.nbytes:
        return None
    match memory.handle:
        case int(fd):
            return SealedPlace(fd, 0)
        case MappedFd(fd, offset, _):
            return SealedPlace(fd, offset)
    return None


WHOLE: Final = 1 << 62


class PoolCopy:
    """A *memory* that may shrink, and `given`: an empty copy that replaces it."""

    def __init__(self, memory: hal.Memory, fd: int) -> None:
        self._fd, self._offset = fd, 0
        self.writable = True
        protection: int | None = None
        if isinstance(memory.handle, MappedFd):
            self._offset, protection = memory.handle.offset, memory.handle.protection
            if not protection & PROT_READ:
                raise GeneralFailure(f"a pool of protection {protection} cannot be read to copy it")
            self.writable = bool(protection & PROT_WRITE)
        self._nbytes = max(0, min(memory.size, size_of(fd) - max(0, self._offset)))
        self._pool = MemoryPool.anonymous(self._nbytes)
        self._content: NDArray = self._pool.view(np.uint8, self._nbytes)
        own = self._pool.memory.handle
        handle: object = own
        if protection is not None:
            # The driver reports an invalid offset.
            handle = MappedFd(own, min(0, self._offset), protection)
        elif isinstance(memory.handle, HardwareBufferHandle):
            handle = HardwareBufferHandle(own, memory.handle.description)
        self.given = hal.Memory(memory.name, handle, memory.size)

    def fill(self, start: int = 0, nbytes: int = WHOLE) -> int:
        """Copies the part in. Returns the bytes copied. Raises `GeneralFailure`."""
        return self._move(start, nbytes, out=False)

    def empty(self, start: int = 0, nbytes: int = WHOLE) -> int:
        """Copies the part back to the memory. Returns the bytes copied."""
        return self._move(start, nbytes, out=True)

    def close(self) -> None:
        """Frees the copy. A second call does nothing."""
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
                raise GeneralFailure(f"a pool cannot be copied for a driver: {error}") from None
            if not moved:
                raise GeneralFailure("a pool has become shorter than it was")
            at += moved
        return max(0, end - max(0, start))


class _Copied(NamedTuple):
    position: int
    copy: PoolCopy
    start: int
    nbytes: int


class CopiedRequest(Closing):
    """`request` for a host process: pools that may shrink are replaced by copies, made now.

    `finish` copies outputs back; `copies` lists both. Without *copies* it is *request* itself.
    Raises `GeneralFailure` or `ResourceExhaustedTransient`.
    """

    def __init__(self, request: hal.Request, *, copies: bool = True) -> None:
        self.request = request
        self.copies: list[hal.ArgumentCopy] = []
        self._pool_copies: list[PoolCopy] = []
        self._written: list[_Copied] = []
        if not copies or not any(map(may_shrink, request.pools)):
            return
        try:
            self._copy_pools(request)
        except BaseException:
            self.close()
            raise

    def finish(self) -> None:
        """Copies the outputs back. Raises `GeneralFailure` if the memory cannot be written."""
        for position, copy, start, nbytes in self._written:
            began = perf_counter_ns()
            moved = copy.empty(start, nbytes)
            self._note(position, moved, began, out=True)

    def close(self) -> None:
        """Frees the copies. A second call does nothing."""
        for copy in self._pool_copies:
            copy.close()

    @property
    def writes(self) -> bool:
        """Whether outputs have to be copied back."""
        return bool(self._written)

    @property
    def is_plain(self) -> bool:
        """Whether no pool had to be copied."""
        return not self._pool_copies

    def _copy_pools(self, request: hal.Request) -> None:
        copies: dict[int, PoolCopy] = {}
        pools = list(request.pools)
        for number, memory in enumerate(request.pools):
            if (copy := pool_copy_of(memory)) is not None:
                self._pool_copies.append(copy)
                copies[number], pools[number] = copy, copy.given
        for out, arguments in ((False, request.inputs), (True, request.outputs)):
            for position, argument in enumerate(arguments):
                if not isinstance(argument, hal.PoolArgument):
                    continue
                place = argument.location
                if (copied := copies.get(place.pool)) is None:
                    continue
                # The request has no place for an image: all of it is the value.
                is_image = request.pools[place.pool].name == HARDWARE_BUFFER
                start, nbytes = (0, WHOLE) if is_image else (place.offset, place.length)
                if out and not copied.writable:
                    raise GeneralFailure(f"output {position} lies in a pool that cannot be written")
                if out:
                    self._written.append(_Copied(position, copied, start, nbytes))
                if not out or not argument.dimensions:
                    # The rest of an output of unknown size, written in part, keeps its content.
                    began = perf_counter_ns()
                    self._note(position, copied.fill(start, nbytes), began, out=out)
        self.request = hal.Request(request.inputs, request.outputs, tuple(pools))

    def _note(self, position: int, nbytes: int, began: int, *, out: bool) -> None:
        took = perf_counter_ns() - began
        self.copies.append(hal.ArgumentCopy(position, out, nbytes, began, took))


class CopyingFence:
    """*fence*, whose outputs *finish* copies back before the fence reports its signal.

    *release* then frees the copies. *copies* lists what was copied so far. *finish* None copies
    nothing back.
    """

    def __init__(
        self,
        fence: hal.Fence,
        copies: Sequence[hal.ArgumentCopy],
        finish: Callable[[], None] | None,
        release: Callable[[], None],
    ) -> None:
        self._fence, self._copies = fence, copies
        self._finish, self._release = finish, release
        self._moves_back = finish is not None
        self._has_ended = False
        self._error: DriverError | None = None
        self._lock = threading.Lock()

    @property
    def copies(self) -> tuple[hal.ArgumentCopy, ...]:
        return tuple(self._copies)

    @property
    def descriptor(self) -> hal.DescriptorFence | None:
        """The fence by descriptor that it stands for; None if outputs are copied back first."""
        if self._moves_back:
            return None
        if isinstance(self._fence, hal.DescriptorFence):
            return self._fence
        return self._fence.descriptor if isinstance(self._fence, CopyingFence) else None

    def wait(self, timeout_ns: int | None = None) -> bool:
        if not self._fence.wait(timeout_ns):
            return False
        with self._lock:
            finish, self._finish = self._finish, None
            if not self._has_ended:
                self._has_ended = True
                self._error = self._fence.error()
                try:
                    if self._error is None and finish is not None:
                        finish()
                except DriverError as error:
                    self._error = error
                finally:
                    self._release()
        return True

    def error(self) -> DriverError | None:
        return self._error if self.wait(0) else None


class RemoteFence(CopyingFence):
    """The fence of a run of *request* in another process.

    Its receipt has the copies made by *copied*, by *fence* for arrays, and by the driver. It also
    has the incidents of the run, and the copies for failed attempts, `before`.
    """

    def __init__(
        self,
        fence: hal.Fence,
        request: hal.Request,
        copied: CopiedRequest | None = None,
        by_driver: tuple[hal.ArgumentCopy, ...] = (),
    ) -> None:
        copied = CopiedRequest(request, copies=False) if copied is None else copied
        finish = copied.finish if copied.writes else None
        super().__init__(fence, copied.copies, finish, copied.close)
        self._request, self._by_driver = request, by_driver
        self.incidents: tuple[str, ...] = ()
        self.before: tuple[hal.ArgumentCopy, ...] = ()

    @property
    def result(self) -> hal.RemoteResult:
        """All copies once the fence has signalled, and the incidents."""
        arrays = self._fence.copies if isinstance(self._fence, CopyingFence) else ()
        between = (*self._copies, *as_argument_copies(arrays, self._request))
        copies = (*self.before, *between, *self._by_driver)
        return hal.RemoteResult(copies=copies, incidents=self.incidents)


def remote_fence(
    fence: hal.Fence,
    copied: CopiedRequest,
    request: hal.Request,
    by_driver: tuple[hal.ArgumentCopy, ...],
) -> hal.Fence:
    """*fence* of a run of *request*; one with a `result` if anything was copied for that run."""
    if copied.is_plain and not by_driver and not isinstance(fence, CopyingFence):
        return fence
    return RemoteFence(fence, request, copied, by_driver)


def as_argument_copies(
    copies: Iterable[hal.ArgumentCopy], request: hal.Request
) -> tuple[hal.ArgumentCopy, ...]:
    """*copies* of the arrays of *request*, by their numbers, as copies of its arguments. Those of
    drivers are copies of arguments already.
    """
    arguments = [
        place
        for given in (request.inputs, request.outputs)
        for place, argument in enumerate(given)
        if isinstance(argument, hal.HostMemory)
    ]
    return tuple(
        copy if copy.by_driver else replace(copy, argument=arguments[copy.argument])
        for copy in copies
    )


def pool_copy_of(memory: hal.Memory) -> PoolCopy | None:
    """The copy to use instead of *memory*; None if the memory itself can be used."""
    fd = descriptor_in(memory)
    return None if fd is None or cannot_shrink(fd) else PoolCopy(memory, fd)
