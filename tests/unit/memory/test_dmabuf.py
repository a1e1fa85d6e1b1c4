"""dma-bufs of a system that has them, played by memfds; what is asked of the kernel is what its headers say."""

from __future__ import annotations

import errno
import os
import struct
import sys
from dataclasses import dataclass, field

import pytest

from penstock.memory import HardwareBuffer, dmabuf, map_memory
from penstock.testing.resources import Resources

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="dma-bufs are Linux's")


@dataclass
class PlayedKernel:
    """A system with the devices *present*; *failures* are the errors of the next calls, by name."""

    present: tuple[str, ...] = ()
    failures: dict[str, list[int]] = field(default_factory=dict)
    synced: list[int] = field(default_factory=list)
    asked: list[tuple[str, int]] = field(default_factory=list)
    _devices: dict[int, str] = field(default_factory=dict)
    _buffers: set[int] = field(default_factory=set)

    def open(self, path: str) -> int:
        if path not in self.present:
            raise FileNotFoundError(errno.ENOENT, "no such device", path)
        fd = os.memfd_create("device")
        self._devices[fd] = path
        return fd

    def close(self, fd: int) -> None:
        self._devices.pop(fd, None)
        os.close(fd)

    def ioctl(self, fd: int, request: int, argument: bytearray) -> int:
        self._fail("ioctl")
        if request == dmabuf.DMA_BUF_SYNC:
            self._fail("sync")
            self.synced.append(struct.unpack("=Q", argument)[0])
            return 0
        path = self._devices[fd]
        if request == dmabuf.HEAP_ALLOC and path.startswith("/dev/dma_heap/"):
            length, _, flags, heap = struct.unpack("=QIIQ", argument)
            assert (flags, heap) == (os.O_RDWR | os.O_CLOEXEC, 0)
            made = self._made(length)
            argument[:] = struct.pack("=QIIQ", length, made, flags, heap)
            return 0
        assert request == dmabuf.UDMABUF_CREATE
        memfd, flags, offset, size = struct.unpack("=IIQQ", argument)
        assert (flags, offset) == (1, 0)
        assert os.fstat(memfd).st_size == size
        self.asked.append((path, size))
        return os.dup(memfd)

    def _made(self, length: int) -> int:
        fd = os.memfd_create("buffer")
        os.ftruncate(fd, length)
        return fd

    def _fail(self, name: str) -> None:
        waiting = self.failures.get(name)
        if waiting:
            number = waiting.pop(0)
            raise OSError(number, os.strerror(number))


def memfd(nbytes: int) -> int:
    fd = os.memfd_create("stand-in")
    os.ftruncate(fd, nbytes)
    return fd


def test_the_first_heap_that_opens_gives_the_buffer() -> None:
    with Resources.unchanged("an allocation"):
        kernel = PlayedKernel(("/dev/dma_heap/linux,cma", dmabuf.UDMABUF))
        fd, backing = dmabuf.allocate(5000, memfd, kernel)
        assert backing == "dma_heap"
        assert os.fstat(fd).st_size == 8192
        os.close(fd)


def test_without_heaps_udmabuf_makes_one_of_a_memfd() -> None:
    with Resources.unchanged("an allocation"):
        kernel = PlayedKernel((dmabuf.UDMABUF,))
        fd, backing = dmabuf.allocate(1, memfd, kernel)
        assert backing == "udmabuf"
        assert kernel.asked == [(dmabuf.UDMABUF, 4096)]
        os.close(fd)


@pytest.mark.parametrize("present", [(), (dmabuf.UDMABUF,), (dmabuf.HEAPS[0], dmabuf.UDMABUF)])
def test_where_nothing_gives_one_a_memfd_stands_in(present: tuple[str, ...]) -> None:
    with Resources.unchanged("an allocation"):
        kernel = PlayedKernel(present, {"ioctl": [errno.ENOMEM] * 9})
        fd, backing = dmabuf.allocate(100, memfd, kernel)
        assert backing == "memfd"
        assert os.fstat(fd).st_size == 4096
        os.close(fd)


def test_the_use_by_the_cpu_is_announced_and_ended() -> None:
    kernel = PlayedKernel()
    assert dmabuf.begin(0, write=True, kernel=kernel)
    dmabuf.end(0, write=True, kernel=kernel)
    assert dmabuf.begin(0, write=False, kernel=kernel)
    dmabuf.end(0, write=False, kernel=kernel)
    # linux/dma-buf.h: READ 1, WRITE 2, END 4.
    assert kernel.synced == [3, 7, 1, 5]


def test_an_announcement_that_a_signal_interrupts_is_made_again() -> None:
    kernel = PlayedKernel(failures={"sync": [errno.EINTR, errno.EAGAIN]})
    assert dmabuf.begin(0, write=True, kernel=kernel)
    assert kernel.synced == [3]


def test_what_is_no_dma_buf_needs_no_announcement() -> None:
    kernel = PlayedKernel(failures={"sync": [errno.ENOTTY] * 2})
    assert not dmabuf.begin(0, write=True, kernel=kernel)
    assert not dmabuf.is_dma_buf(0, kernel)
    assert dmabuf.is_dma_buf(0, kernel)
    with HardwareBuffer.allocate(8) as buffer:
        assert buffer.is_dma_buf == (buffer.backing != "memfd")


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> PlayedKernel:
    """A kernel to which every descriptor is a dma-buf."""
    kernel = PlayedKernel()
    begin, end = dmabuf.begin, dmabuf.end
    monkeypatch.setattr(dmabuf, "begin", lambda fd, *, write: begin(fd, write=write, kernel=kernel))
    monkeypatch.setattr(dmabuf, "end", lambda fd, *, write: end(fd, write=write, kernel=kernel))
    return kernel


def test_a_driver_that_maps_a_dma_buf_announces_it_until_it_closes_the_mapping(
    played: PlayedKernel,
) -> None:
    with HardwareBuffer.allocate(8) as buffer, Resources.unchanged("a mapping"):
        mapping = map_memory(buffer.memory)
        assert played.synced == [3]
        mapping.close()
        mapping.close()
        assert played.synced == [3, 7]
        del mapping


def test_a_mapping_that_is_forgotten_ends_its_announcement(played: PlayedKernel) -> None:
    with HardwareBuffer.allocate(8) as buffer, Resources.unchanged("a mapping"):
        map_memory(buffer.memory)
    assert played.synced == [3, 7]


def test_a_lock_is_an_announcement(played: PlayedKernel) -> None:
    with HardwareBuffer.allocate(8) as buffer:
        with buffer.lock(write=True):
            assert played.synced == [3]
        with buffer.lock():
            assert played.synced == [3, 7, 1]
    assert played.synced == [3, 7, 1, 5]
