"""Pools of constants as sealed descriptors, and back."""

from __future__ import annotations

import hashlib
import mmap
import os
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from penstock.errors import ResourceExhaustedTransient, WireError
from penstock.ipc.linux import LINUX_ONLY
from penstock.ir import ConstantPool
from penstock.memory.regions import OUT_OF_ROOM

if TYPE_CHECKING:
    from penstock.ipc.account import Account, Charge


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
_mapped: weakref.WeakValueDictionary[tuple[int, int, int, str], ConstantPool] = (
    weakref.WeakValueDictionary()
)
_equal: weakref.WeakValueDictionary[tuple[bytes, int, str], ConstantPool] = (
    weakref.WeakValueDictionary()
)
_counted: weakref.WeakKeyDictionary[ConstantPool, _Counted] = weakref.WeakKeyDictionary()
_made: weakref.WeakKeyDictionary[ConstantPool, int] = weakref.WeakKeyDictionary()


def descriptor_of(pool: ConstantPool) -> int:
    """A sealed memfd that begins with the bytes of *pool*; it is good for as long as the pool lives.

    That of the file that the model was read from, where it was read into one; else a copy, made once. Raises
    `ResourceExhaustedTransient` when there is no room for one.
    """
    own = getattr(pool.owner, "fd", None)
    if isinstance(own, int) and is_sealed(own) and _is_whole(pool, own):
        return own
    with _lock:
        fd = _made.get(pool)
        if fd is None:
            fd = _made[pool] = _sealed_copy(pool.view)
            weakref.finalize(pool, os.close, fd).atexit = False
        return fd


def sealed_copies(pools: Sequence[ConstantPool]) -> frozenset[int]:
    """Those of *pools*, by position, that have been copied for `descriptor_of`."""
    with _lock:
        return frozenset(at for at, pool in enumerate(pools) if pool in _made)


def mapped(fd: int, size: int, kind: str = "", account: Account | None = None) -> ConstantPool:
    """The first *size* bytes of *fd*, which nobody can change afterwards: mapped where it is sealed, else a copy. Sealed
    memory of equal content is mapped once, whoever it comes from, and counted in the *account* that was first, for as long
    as anybody has it. *kind* is the sender's name of the memory.

    Raises `WireError` where it is no memory, or has not as many bytes, `ResourceExhaustedTransient` where there is no room.
    """
    try:
        available = os.fstat(fd).st_size
    except OSError as error:
        raise WireError(f"a pool of constants cannot be read: {error}") from None
    if not 0 <= size <= available:
        raise WireError(f"a pool of {size} bytes of constants in a file of {available}")
    if size == 0:
        return ConstantPool(memoryview(b""), None, kind)
    try:
        sealed = is_sealed(fd)
        status = os.fstat(fd)
        file = status.st_dev, status.st_ino, size, kind
        if sealed and (known := _mapped.get(file)) is not None:
            return known
        with ExitStack() as unused:
            counted = None
            if account is not None:
                charge = account.memory(fd, size) if sealed else account.own(size)
                counted = _Counted(charge)
                unused.callback(counted.drop)
            if sealed:
                pool, known = _shared(fd, size, kind)
                if known is pool:
                    # No other file has this number while it is mapped.
                    _mapped[file] = pool
            else:
                pool = known = ConstantPool(_read(fd, size), None, kind)
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
    """Lets *pool* count, where it does, until what is given is called, also where nothing maps it any more."""
    counted = _counted.get(pool)
    if counted is None:
        return lambda: None
    counted.hold()
    return counted.drop


def _shared(fd: int, size: int, kind: str) -> tuple[ConstantPool, ConstantPool]:
    """A new pool of sealed memory, and the one of equal content that there is: itself, where there was none."""
    if sys.platform == "win32":
        raise OSError(LINUX_ONLY)
    # Before Linux 6.7 a write-sealed memfd can be mapped privately only.
    region = mmap.mmap(fd, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
    pool = ConstantPool(memoryview(region), None, kind)
    return pool, _equal.setdefault((hashlib.sha256(region).digest(), size, kind), pool)


def _read(fd: int, size: int) -> memoryview:
    if sys.platform == "win32":
        raise OSError(LINUX_ONLY)
    content = bytearray()
    while len(content) < size:
        chunk = os.pread(fd, min(size - len(content), 1 << 22), len(content))
        if not chunk:
            raise WireError("a pool of constants ended before its size")
        content += chunk
    return memoryview(content).toreadonly()


def _is_whole(pool: ConstantPool, fd: int) -> bool:
    return os.fstat(fd).st_size == pool.view.nbytes


if sys.platform == "linux":
    import fcntl

    SHRINK: Final = fcntl.F_SEAL_SHRINK
    SEALS: Final = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW

    def is_sealed(fd: int, seals: int = SEALS) -> bool:
        """Whether nobody can change *fd* in the ways that *seals* name: all of them, unless told. Memory of huge pages never
        is: those that its owner punches out may not be there when it is read.
        """
        try:
            held = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
            return held & seals == seals and os.fstatvfs(fd).f_bsize <= mmap.PAGESIZE
        except (OSError, OverflowError, ValueError):
            return False

    def may_grow(fd: int) -> bool:
        """Whether *fd* is memory that somebody can make longer."""
        try:
            return not fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_GROW
        except (OSError, OverflowError, ValueError):
            return False

    def _sealed_copy(content: memoryview) -> int:
        try:
            fd = os.memfd_create("penstock-constants", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError as error:
            raise ResourceExhaustedTransient(f"no room for a pool of constants: {error}") from error
        try:
            rest = content.cast("B")
            while rest.nbytes:
                rest = rest[os.write(fd, rest[: 1 << 26]) :]
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS | fcntl.F_SEAL_SEAL)
        except BaseException as error:
            os.close(fd)
            if isinstance(error, OSError):
                told = f"no room for a pool of constants: {error}"
                raise ResourceExhaustedTransient(told) from error
            raise
        return fd

else:
    SHRINK: Final = 0
    SEALS: Final = 0

    def is_sealed(fd: int, seals: int = SEALS) -> bool:  # noqa: ARG001  # as where there are seals
        """Whether nobody can change *fd* in the ways that *seals* name: never, without seals."""
        return False

    def may_grow(fd: int) -> bool:  # noqa: ARG001  # as where there are seals
        """Whether *fd* is memory that somebody can make longer, as far as seals tell."""
        return False

    def _sealed_copy(content: memoryview) -> int:  # noqa: ARG001  # as where there are seals
        raise ResourceExhaustedTransient("this system has no memory that can be sealed")
