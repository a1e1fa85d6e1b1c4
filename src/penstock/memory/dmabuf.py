"""Linux dma-bufs: allocation from a dma-heap or udmabuf, and announcing the CPU's use.

The ioctl requests and structures are those of `linux/dma-heap.h`, `linux/udmabuf.h` and
`linux/dma-buf.h`.
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
import sys
from collections.abc import Callable
from typing import Final, Protocol

HEAPS: Final = ("/dev/dma_heap/system", "/dev/dma_heap/linux,cma", "/dev/dma_heap/reserved")
UDMABUF: Final = "/dev/udmabuf"

HEAP_ALLOC: Final = 0xC0184800
UDMABUF_CREATE: Final = 0x40187542
DMA_BUF_SYNC: Final = 0x40086200

SYNC_READ: Final = 1
SYNC_WRITE: Final = 2
SYNC_END: Final = 4

UDMABUF_CLOEXEC: Final = 1

INTERRUPTIONS: Final = 100
"""Most retries of a request that a signal interrupts."""


class Kernel(Protocol):
    """System calls of dma-bufs. Tests replace it to imitate a system that has them."""

    def open(self, path: str) -> int: ...
    def close(self, fd: int) -> None: ...
    def ioctl(self, fd: int, request: int, argument: bytearray) -> int: ...


class LinuxKernel:
    """The system's calls. Each one fails on a system without dma-bufs."""

    def open(self, path: str) -> int:
        return os.open(path, os.O_RDWR | getattr(os, "O_CLOEXEC", 0))

    def close(self, fd: int) -> None:
        os.close(fd)

    def ioctl(self, fd: int, request: int, argument: bytearray) -> int:
        if sys.platform != "linux":
            raise OSError(errno.ENOTTY, "dma-bufs are Linux's")
        import fcntl

        answer: int = fcntl.ioctl(fd, request, argument)
        return answer


LINUX: Final = LinuxKernel()


def allocate(
    nbytes: int, make_memfd: Callable[[int], int], kernel: Kernel = LINUX
) -> tuple[int, str]:
    """A descriptor of at least *nbytes* zero bytes, and the kind of memory.

    The kind is "dma_heap", "udmabuf", or a "memfd" as a stand-in. *make_memfd* makes sealed memory
    for the last two. Raises the errors of *make_memfd*.
    """
    rounded = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    for heap in HEAPS:
        try:
            return _of_heap(kernel, heap, rounded), "dma_heap"
        except OSError:
            continue
    memfd = make_memfd(rounded)
    try:
        fd = _of_memfd(kernel, memfd, rounded)
    except OSError:
        return memfd, "memfd"
    kernel.close(memfd)
    return fd, "udmabuf"


def begin(fd: int, *, write: bool, kernel: Kernel = LINUX) -> bool:
    """Begins CPU access to the dma-buf *fd*; `end` must follow. False for other memory."""
    return _sync(kernel, fd, SYNC_READ | SYNC_WRITE * write)


def end(fd: int, *, write: bool, kernel: Kernel = LINUX) -> None:
    """Announces the end of the use that `begin` announced."""
    _sync(kernel, fd, SYNC_READ | SYNC_WRITE * write | SYNC_END)


def is_dma_buf(fd: int, kernel: Kernel = LINUX) -> bool:
    """Whether *fd* is a dma-buf, not a memfd or a file that stands in for one."""
    if not begin(fd, write=False, kernel=kernel):
        return False
    end(fd, write=False, kernel=kernel)
    return True


def _of_heap(kernel: Kernel, path: str, nbytes: int) -> int:
    heap = kernel.open(path)
    try:
        flags = os.O_RDWR | getattr(os, "O_CLOEXEC", 0)
        wanted = bytearray(struct.pack("=QIIQ", nbytes, 0, flags, 0))
        _ask(kernel, heap, HEAP_ALLOC, wanted)
    finally:
        kernel.close(heap)
    fd: int = struct.unpack("=QIIQ", wanted)[1]
    return fd


def _of_memfd(kernel: Kernel, memfd: int, nbytes: int) -> int:
    device = kernel.open(UDMABUF)
    try:
        wanted = bytearray(struct.pack("=IIQQ", memfd, UDMABUF_CLOEXEC, 0, nbytes))
        return _ask(kernel, device, UDMABUF_CREATE, wanted)
    finally:
        kernel.close(device)


def _sync(kernel: Kernel, fd: int, flags: int) -> bool:
    try:
        _ask(kernel, fd, DMA_BUF_SYNC, bytearray(struct.pack("=Q", flags)))
    except OSError:
        return False
    return True


def _ask(kernel: Kernel, fd: int, request: int, argument: bytearray) -> int:
    """The answer to an ioctl request, which is retried if a signal interrupts it."""
    for _ in range(INTERRUPTIONS - 1):
        try:
            return kernel.ioctl(fd, request, argument)
        except (InterruptedError, BlockingIOError):
            continue
    return kernel.ioctl(fd, request, argument)
