"""Pools of constants as sealed descriptors, and back."""

from __future__ import annotations

import hashlib
import mmap
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.errors import ResourceExhaustedTransient, WireError
from penstock.hal import Memory
from penstock.ipc.linux import LINUX_ONLY, is_sealed
from penstock.ir import ConstantPool
from penstock.memory.copies import CopyReceipt
from penstock.memory.mapping import MappedFd
from penstock.memory.regions import OUT_OF_ROOM
from penstock.memory.shared import sealed_fd

if TYPE_CHECKING:
    from penstock.ipc.account import Account, Charge


OWN: Final = "memory of this process alone"
READ: Final = "sealed memory (MemoryPool.sealed)"


class _Counted:
    """A charge that several hold: it is released by the last."""

    def __init__(self, charge: Charge) -> None:
        self._charge, self._holders = charge, 1
        self._lock = threading.RLock()

    def hold(self) -> None:
        with self._lock:
            self._holders += 1

    def drop(self) -> None:
        # A finalizer may call it in the middle of anything: of `hold` in the same thread, too.
        with self._lock:
            self._holders -= 1
            last = not self._holders
        if last:
            self._charge.release()


_lock = threading.Lock()
_mapped: weakref.WeakValueDictionary[tuple[int, int, int, int, str], ConstantPool] = (
    weakref.WeakValueDictionary()
)
_equal: weakref.WeakValueDictionary[tuple[bytes, int, str], ConstantPool] = (
    weakref.WeakValueDictionary()
)
_counted: weakref.WeakKeyDictionary[ConstantPool, _Counted] = weakref.WeakKeyDictionary()


class SealedPlace(NamedTuple):
    """Bytes that nobody can change any more: those of the memfd *fd* from byte *offset* on."""

    fd: int
    offset: int


class _Copy(NamedTuple):
    fd: int
    receipt: CopyReceipt | None


_made: weakref.WeakKeyDictionary[ConstantPool, _Copy] = weakref.WeakKeyDictionary()


def sealed_place(pool: ConstantPool) -> SealedPlace:
    """Where the bytes of *pool* lie in a memfd that is sealed against writing, shrinking and
    growing; it is good for as long as the pool lives.

    Memory that is sealed so is given as it is: the file that the model was read into, or a memfd
    that the caller sealed. Of any other a sealed copy is made, once, which `sealed_copies` tells.
    Raises `ResourceExhaustedTransient` where there is no room for it, and `GeneralFailure` where
    the file behind the pool has become shorter.
    """
    own = _place_behind(pool)
    if own is not None and is_sealed(own.fd) and _is_inside(pool, own):
        return own
    with _lock:
        copy = _made.get(pool)
        if copy is None:
            began = time.perf_counter_ns()
            fd = sealed_fd(pool.view, "constants")
            weakref.finalize(pool, os.close, fd).atexit = False
            copy = _made[pool] = _Copy(fd, _told(pool, began))
        return SealedPlace(copy.fd, 0)


def sealed_copies(pools: Sequence[ConstantPool]) -> dict[int, CopyReceipt]:
    """Those of *pools*, by position, that were copied for `sealed_place`, and why."""
    with _lock:
        made = {at: _made.get(pool) for at, pool in enumerate(pools)}
    return {at: copy.receipt for at, copy in made.items() if copy and copy.receipt}


def _told(pool: ConstantPool, began_ns: int) -> CopyReceipt | None:
    """The receipt of a copy of *pool*; None where it holds nothing."""
    if not pool.view.nbytes:
        return None
    spent = time.perf_counter_ns() - began_ns
    where = f"{pool.kind} memory that may still be changed" if pool.kind else OWN
    reason = f"constants lie in {where}; drivers in other processes read {READ}"
    return CopyReceipt(
        pool.view.nbytes, "host", "sealed memory", reason, start_ns=began_ns, wall_ns=spent
    )


def mapped(
    fd: int, size: int, kind: str = "", account: Account | None = None, offset: int = 0
) -> ConstantPool:
    """The *size* bytes of *fd* from byte *offset* on, which nobody can change afterwards: mapped
    where it is sealed, else a copy. Sealed memory of equal content is mapped once, whoever it comes
    from, and counted in the *account* that was first, for as long as anybody has it. *kind* is the
    sender's name of the memory.

    Raises `WireError` where it is no memory, or has not as many bytes, `ResourceExhaustedTransient`
    where there is no room.
    """
    try:
        available = os.fstat(fd).st_size
    except OSError as error:
        raise WireError(f"a pool of constants cannot be read: {error}") from None
    if not (0 <= offset <= available and 0 <= size <= available - offset):
        raise WireError(
            f"a pool of {size} bytes of constants from byte {offset} on in a file of {available}"
        )
    if size == 0:
        return ConstantPool(memoryview(b""), None, kind)
    try:
        sealed = is_sealed(fd)
        status = os.fstat(fd)
        file = status.st_dev, status.st_ino, offset, size, kind
        if sealed and (known := _mapped.get(file)) is not None:
            return known
        with ExitStack() as unused:
            counted = None
            if account is not None:
                charge = account.memory(fd, offset + size) if sealed else account.own(size)
                counted = _Counted(charge)
                unused.callback(counted.drop)
            if sealed:
                pool, known = _shared(fd, size, kind, offset)
                if known is pool:
                    # No other file has this number while it is mapped.
                    _mapped[file] = pool
            else:
                pool = known = ConstantPool(_read(fd, size, offset), None, kind)
            if known is pool:
                if counted is not None:
                    _counted[pool] = counted
                weakref.finalize(pool, unused.pop_all().close).atexit = False
    except (OSError, ValueError) as error:
        told = f"a pool of constants cannot be read: {error}"
        if getattr(error, "errno", None) in OUT_OF_ROOM:
            raise ResourceExhaustedTransient(told) from None
        raise WireError(told) from None
    return known


def hold(pool: ConstantPool) -> Callable[[], None]:
    """Lets *pool* count, where it does, until what is given is called, also where nothing maps it
    any more.
    """
    counted = _counted.get(pool)
    if counted is None:
        return lambda: None
    counted.hold()
    return counted.drop


def _shared(fd: int, size: int, kind: str, offset: int) -> tuple[ConstantPool, ConstantPool]:
    """A new pool of sealed memory, and the one of equal content that there is: itself, where there
    was none.
    """
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
    """Where the owner of *pool* says that its bytes lie: a `SealedFile`, or the `SharedMemory` of a
    memory pool.
    """
    if isinstance(fd := getattr(pool.owner, "fd", None), int):
        return SealedPlace(fd, 0)
    memory = getattr(pool.owner, "memory", None)
    if not isinstance(memory, Memory) or memory.size != pool.view.nbytes:
        return None
    match memory.handle:
        case int(fd):
            return SealedPlace(fd, 0)
        case MappedFd(fd, offset, _):
            return SealedPlace(fd, offset)
    return None


def _is_inside(pool: ConstantPool, place: SealedPlace) -> bool:
    return os.fstat(place.fd).st_size >= place.offset + pool.view.nbytes
