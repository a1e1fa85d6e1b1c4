"""Executable memory: written first, then executable, never both at once.

Linux maps pages for writing and changes them. Windows does the same with `VirtualAlloc` and
`VirtualProtect`. macOS on Apple's processors lets a thread either write to or execute pages that
were mapped with MAP_JIT. Only Linux was run (docs/platforms.md).
"""

from __future__ import annotations

import ctypes
import errno
import functools
import mmap
import platform
import sys
import weakref
from collections.abc import Callable
from typing import Any, Final, Protocol

from penstock.errors import GeneralFailure, ResourceExhaustedTransient
from penstock.ir import NDArray

READ, WRITE, EXECUTE = 1, 2, 4
MAP_PRIVATE: Final = 2
MAP_ANONYMOUS: Final = 0x20
MAP_ANONYMOUS_APPLE: Final = 0x1000
MAP_JIT: Final = 0x800

MEM_COMMIT_AND_RESERVE: Final = 0x3000
MEM_RELEASE: Final = 0x8000
PAGE_READONLY, PAGE_READWRITE, PAGE_EXECUTE_READ = 0x02, 0x04, 0x20

FAILED: Final = ctypes.c_void_p(-1).value


class Backend(Protocol):
    """How one system does it. Addresses and sizes are those of whole pages."""

    def map(self, size: int) -> int:
        """The address of *size* new bytes, which can be written; raises `OSError`."""
        ...

    def fill(self, address: int, content: NDArray) -> None:
        """Copies *content* there."""
        ...

    def seal(self, address: int, code: int, size: int) -> None:
        """Makes the first *code* bytes executable, and all *size* bytes unwritable; raises
        `OSError`.
        """
        ...

    def unmap(self, address: int, size: int) -> None:
        """Gives the pages back."""
        ...


def page_size() -> int:
    """The bytes of a page of this system: parts of it cannot be protected differently."""
    return mmap.PAGESIZE


class Executable:
    """*content*, whose first *code* bytes are code, in memory of its own.

    *contents* gets the address and returns the bytes for it. Raises `ResourceExhaustedTransient`
    if the system has no memory, `GeneralFailure` if it does not allow executable memory.
    """

    def __init__(
        self,
        size: int,
        code: int,
        contents: Callable[[int], NDArray],
        backend: Backend | None = None,
    ) -> None:
        chosen = backend or backend_here()
        try:
            self.address = chosen.map(size)
        except OSError as error:
            raise _refused(error, size) from error
        self.size = size
        self._unmap = weakref.finalize(self, chosen.unmap, self.address, size)
        # At the end of the program, threads may still wait in the code.
        self._unmap.atexit = False
        try:
            chosen.fill(self.address, contents(self.address))
            chosen.seal(self.address, code, size)
        except OSError as error:
            self.close()
            raise _refused(error, size) from error
        except BaseException:
            self.close()
            raise

    @property
    def is_open(self) -> bool:
        """Whether it is mapped."""
        return self._unmap.alive

    def close(self) -> None:
        """Unmaps it, once: a further call does nothing."""
        self._unmap()


def _refused(error: OSError, size: int) -> Exception:
    if error.errno == errno.ENOMEM:
        return ResourceExhaustedTransient(f"no memory is left for {size} bytes of code: {error}")
    return GeneralFailure(f"the system does not allow executable memory: {error}")


class _Posix:
    """mmap and mprotect."""

    flags: int = MAP_PRIVATE | MAP_ANONYMOUS

    def __init__(self) -> None:
        library = ctypes.CDLL(None, use_errno=True)
        self._mmap, self._munmap, self._mprotect = library.mmap, library.munmap, library.mprotect
        self._mmap.restype = ctypes.c_void_p
        self._mmap.argtypes = [
            ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_ssize_t,
        ]  # fmt: skip
        self._munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        self._mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

    def map(self, size: int, protection: int = READ | WRITE) -> int:
        address = self._mmap(None, size, protection, self.flags, -1, 0)
        if address in {None, FAILED}:
            raise _error()
        return int(address)

    def fill(self, address: int, content: NDArray) -> None:
        ctypes.memmove(address, content.ctypes.data, content.nbytes)

    def seal(self, address: int, code: int, size: int) -> None:
        # On aarch64, Linux makes the instruction cache agree when it first maps a page executable.
        for start, end, protection in ((0, code, READ | EXECUTE), (code, size, READ)):
            if end > start and self._mprotect(address + start, end - start, protection):
                raise _error()

    def unmap(self, address: int, size: int) -> None:
        self._munmap(address, size)


class _AppleIntel(_Posix):
    flags = MAP_PRIVATE | MAP_ANONYMOUS_APPLE


class _Apple(_AppleIntel):
    """Apple's processors: pages are executable from the first, and a thread switches for itself
    whether it writes to such pages or executes them.
    """

    flags = MAP_PRIVATE | MAP_ANONYMOUS_APPLE | MAP_JIT

    def __init__(self) -> None:
        super().__init__()
        library = ctypes.CDLL(None)
        self._protect = library.pthread_jit_write_protect_np
        self._protect.argtypes, self._protect.restype = [ctypes.c_int], None
        self._flush = library.sys_icache_invalidate
        self._flush.argtypes, self._flush.restype = [ctypes.c_void_p, ctypes.c_size_t], None

    def map(self, size: int, protection: int = READ | WRITE | EXECUTE) -> int:
        return super().map(size, protection)

    def fill(self, address: int, content: NDArray) -> None:
        self._protect(0)
        try:
            super().fill(address, content)
        finally:
            self._protect(1)

    def seal(self, address: int, code: int, size: int) -> None:
        # Pages of MAP_JIT stay as they are: no thread can write to them any longer.
        del size
        self._flush(address, code)


class _Windows:
    """VirtualAlloc and VirtualProtect."""

    def __init__(self) -> None:
        kernel: Any = ctypes
        self._kernel = kernel.WinDLL("kernel32", use_last_error=True)
        self._last_error, self._named = kernel.get_last_error, kernel.WinError
        self._kernel.VirtualAlloc.restype = ctypes.c_void_p
        self._kernel.VirtualAlloc.argtypes = [
            ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint32, ctypes.c_uint32,
        ]  # fmt: skip
        self._kernel.VirtualProtect.argtypes = [
            ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint32, ctypes.c_void_p,
        ]  # fmt: skip
        self._kernel.VirtualFree.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint32]
        self._kernel.GetCurrentProcess.restype = ctypes.c_void_p
        self._kernel.FlushInstructionCache.argtypes = [
            ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t,
        ]  # fmt: skip

    def _error(self) -> OSError:
        error: OSError = self._named(self._last_error())
        return error

    def map(self, size: int) -> int:
        address = self._kernel.VirtualAlloc(None, size, MEM_COMMIT_AND_RESERVE, PAGE_READWRITE)
        if not address:
            raise self._error()
        return int(address)

    def fill(self, address: int, content: NDArray) -> None:
        ctypes.memmove(address, content.ctypes.data, content.nbytes)

    def seal(self, address: int, code: int, size: int) -> None:
        old = ctypes.c_uint32()
        for start, end, kind in ((0, code, PAGE_EXECUTE_READ), (code, size, PAGE_READONLY)):
            given = address + start, end - start, kind, ctypes.byref(old)
            if end > start and not self._kernel.VirtualProtect(*given):
                raise self._error()
        self._kernel.FlushInstructionCache(self._kernel.GetCurrentProcess(), address, code)

    def unmap(self, address: int, size: int) -> None:
        del size
        self._kernel.VirtualFree(address, 0, MEM_RELEASE)


def _error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, errno.errorcode.get(number, "unknown error"))


@functools.cache
def backend_here() -> Backend:
    """The backend of this system."""
    if sys.platform == "win32":
        return _Windows()
    if sys.platform == "darwin":
        return _Apple() if platform.machine() == "arm64" else _AppleIntel()
    return _Posix()
