"""dma-bufs of a system that has them, played by memfds; what is asked of the kernel is what its
headers say.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import struct
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from penstock.errors import ResourceExhaustedTransient
from penstock.memory import HardwareBuffer, dmabuf, map_memory
from penstock.memory.shared import anonymous_fd
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
def test_memfd_replaces_a_dma_buf_that_cannot_be_allocated(present: tuple[str, ...]) -> None:
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


def test_memfd_needs_no_sync_call() -> None:
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


HEAP: Final = "/dev/dma_heap/system"
ALLOCATE, CREATE, SYNC = 0xC0184800, 0x40187542, 0x40086200
"""As `asm-generic/ioctl.h` puts them together, for x86-64 and for aarch64: direction, size of the
structure, type, number.
"""

HEADERS: Final = [
    ("dma-heap.h", "DMA_HEAP_IOCTL_ALLOC", "dma_heap_allocation_data", ALLOCATE, "=QIIQ"),
    ("udmabuf.h", "UDMABUF_CREATE", "udmabuf_create", CREATE, "=IIQQ"),
    ("dma-buf.h", "DMA_BUF_IOCTL_SYNC", "dma_buf_sync", SYNC, "=Q"),
]


@pytest.mark.parametrize(("header", "name", "structure", "number", "layout"), HEADERS)
def test_the_requests_are_those_of_the_kernels_headers(
    header: str, name: str, structure: str, number: int, layout: str
) -> None:
    assert {dmabuf.HEAP_ALLOC: 24, dmabuf.UDMABUF_CREATE: 24, dmabuf.DMA_BUF_SYNC: 8}[
        number
    ] == struct.calcsize(layout)
    path = Path("/usr/include/linux") / header
    if not path.exists():
        pytest.skip(f"{path} is not installed")
    text = re.sub(r"/\*.*?\*/|\\\n", " ", path.read_text(), flags=re.DOTALL)
    found = re.search(rf"#define {name}\s+(_IOWR?)\(([^,]+),([^,]+),\s*struct {structure}\)", text)
    assert found is not None
    macro, kind, place = found.group(1), found.group(2).strip(), int(found.group(3), 0)
    if not kind.startswith("'"):
        # Defined there.
        kind = re.search(rf"#define {kind}\s+('.')", text).group(1)  # type: ignore[union-attr]
    body = re.search(rf"struct {structure} {{(.*?)}};", text, re.DOTALL).group(1)  # type: ignore[union-attr]
    letters = {"__u64": "Q", "__u32": "I"}
    fields = "=" + "".join(letters[t] for t in re.findall(r"(__u\d+)\s+\w+;", body))
    assert fields == layout
    direction = {"_IOW": 1, "_IOWR": 3}[macro]
    size = struct.calcsize(fields)
    assert direction << 30 | size << 16 | ord(kind[1]) << 8 | place == number


class Calls:
    """The system's own calls, answered by *answers* in turn: a number, or an error."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: int) -> None:
        self.said: list[Any] = []
        self._answers = list(answers)
        self._nodes: set[int] = set()
        self._close, self._dup = os.close, os.dup
        monkeypatch.setattr(os, "open", self._opened)
        monkeypatch.setattr(os, "close", self._closed)
        monkeypatch.setattr(fcntl, "ioctl", self._asked)

    def _opened(self, path: str, flags: int) -> int:
        self.said.append(("open", path, flags))
        self._answer()
        fd = self._dup(0)
        self._nodes.add(fd)
        return fd

    def _closed(self, fd: int) -> None:
        if fd in self._nodes:
            self._nodes.discard(fd)
            self.said.append("close")
        self._close(fd)

    def _asked(self, fd: int, request: int, argument: bytearray) -> int:
        self.said.append((request, bytes(argument)))
        made = self._answer()
        if request == ALLOCATE:
            argument[8:12] = made.to_bytes(4, "little")
        return made

    def _answer(self) -> int:
        answer = self._answers.pop(0)
        if answer < 0:
            raise OSError(-answer, os.strerror(-answer))
        return answer


NODE: Final = os.O_RDWR | os.O_CLOEXEC


def test_a_heap_is_asked_by_these_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = os.memfd_create("buffer")
    calls = Calls(monkeypatch, 0, -errno.EINTR, -errno.EAGAIN, buffer)
    assert dmabuf.allocate(5000, memfd) == (buffer, "dma_heap")
    wanted = bytes.fromhex("0020000000000000 00000000 02000800 0000000000000000")
    assert calls.said == [("open", HEAP, NODE), *[(ALLOCATE, wanted)] * 3, "close"]
    os.close(buffer)


@pytest.mark.parametrize(
    "refusal", [errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENODEV, errno.EMFILE]
)
@pytest.mark.parametrize("answer", ["a buffer", "no room", "always interrupted"])
def test_udmabuf_is_asked_where_no_heap_opens(
    monkeypatch: pytest.MonkeyPatch, refusal: int, answer: str
) -> None:
    memory: list[int] = []

    def make(nbytes: int) -> int:
        memory.append(anonymous_fd(nbytes, "hardware-buffer"))
        seals = fcntl.fcntl(memory[0], fcntl.F_GET_SEALS)
        # What the driver wants, and what it refuses.
        assert seals & fcntl.F_SEAL_SHRINK
        assert not seals & fcntl.F_SEAL_WRITE
        return memory[0]

    made = os.memfd_create("buffer")
    times = dmabuf.INTERRUPTIONS if answer == "always interrupted" else 1
    last = {"a buffer": made, "no room": -errno.EINVAL, "always interrupted": -errno.EINTR}[answer]
    calls = Calls(monkeypatch, *[-refusal] * len(dmabuf.HEAPS), 0, *[last] * times)
    fd, backing = dmabuf.allocate(1, make)
    (number,) = memory
    wanted = struct.pack("<II", number, 1) + bytes(8) + bytes.fromhex("0010000000000000")
    opened = [("open", path, NODE) for path in (*dmabuf.HEAPS, dmabuf.UDMABUF)]
    assert calls.said == [*opened, *[(CREATE, wanted)] * times, "close"]
    if answer == "a buffer":
        assert (fd, backing) == (made, "udmabuf")
        with pytest.raises(OSError, match="Bad file"):
            os.fstat(number)
    else:
        assert (fd, backing) == (number, "memfd")
        os.close(number)
    os.close(made)


def test_memfd_replaces_a_missing_dma_heap(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(monkeypatch, *[-errno.ENOENT] * len(dmabuf.HEAPS), -errno.EACCES)
    fd, backing = dmabuf.allocate(1, memfd)
    assert backing == "memfd"
    assert len(calls.said) == len(dmabuf.HEAPS) + 1
    os.close(fd)


@pytest.mark.parametrize("write", [False, True])
def test_cpu_access_is_bracketed_by_sync_ioctls(
    monkeypatch: pytest.MonkeyPatch, write: bool
) -> None:
    with HardwareBuffer.allocate(8) as buffer:
        calls = Calls(monkeypatch, 0, -errno.EINTR, 0)
        with buffer.lock(write=write) as content:
            assert content.flags.writeable == write
            begun = list(calls.said)
        flags = 3 if write else 1
        assert begun == [(SYNC, flags.to_bytes(8, "little"))]
        assert calls.said == begun + [(SYNC, (flags | 4).to_bytes(8, "little"))] * 2


def test_without_a_descriptor_an_announcement_is_taken_back(
    played: PlayedKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with HardwareBuffer.allocate(8) as buffer, monkeypatch.context() as patch:
        patch.setattr(os, "dup", refuse)
        with (
            pytest.raises(
                ResourceExhaustedTransient, match="no descriptor for the use of a dma-buf"
            ),
            buffer.lock(write=True),
        ):
            pass
    assert played.synced == [3, 7]
