"""A Linux camera (V4L2) whose buffers are dma-bufs, filled in turn.

Requests and structures are those of `linux/videodev2.h`.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Callable

QUERYCAP = 0x80685600
S_FMT = 0xC0D05605
REQBUFS = 0xC0145608
QBUF = 0xC058560F
EXPBUF = 0xC0405610
DQBUF = 0xC0585611
STREAMON = 0x40045612
STREAMOFF = 0x40045613

CAPTURE = 1
MMAP = 1
STREAMING = 0x04000000
VIDEO_CAPTURE = 0x00000001
FORMATS = {b"RGB3": 3, b"YUYV": 2}
"""Supported pixel formats, with the bytes of one pixel."""

BUFFER = "=IIIII4x16x16xIIQIII4x"
"""struct v4l2_buffer of a 64-bit system: index, type, bytes used, flags, field, ..., sequence,
memory, place, length, ...
"""

Ioctl = Callable[[int, int, bytearray], int]


class Camera:
    """Opens the camera at *path*. Raises `OSError` without dma-bufs in a supported format."""

    def __init__(
        self, path: str, width: int, height: int, count: int = 4, ioctl: Ioctl = fcntl.ioctl
    ) -> None:
        self._ioctl = ioctl
        self.descriptors: list[int] = []
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._check()
            self.width, self.height, self.channels = self._agree(width, height)
            self.count = self._allocate(count)
            for index in range(self.count):
                self.descriptors.append(self._export(index))
                self.give_back(index)
            self._ask(STREAMON, struct.pack("=I", CAPTURE))
        except BaseException:
            self.close()
            raise

    def capture(self) -> tuple[int, int]:
        """The number of the buffer with the next picture, and the picture's sequence number."""
        filled = self._ask(DQBUF, struct.pack(BUFFER, 0, CAPTURE, 0, 0, 0, 0, MMAP, 0, 0, 0, 0))
        fields = struct.unpack(BUFFER, filled)
        return fields[0], fields[5]

    def give_back(self, index: int) -> None:
        """Returns that buffer to the camera, which may fill it again."""
        self._ask(QBUF, struct.pack(BUFFER, index, CAPTURE, 0, 0, 0, 0, MMAP, 0, 0, 0, 0))

    def close(self) -> None:
        """Stops the camera. Processes that hold a buffer may keep it."""
        for fd in (*self.descriptors, self._fd):
            os.close(fd)
        self.descriptors.clear()

    def _check(self) -> None:
        told = self._ask(QUERYCAP, bytes(104))
        capabilities = struct.unpack_from("=I", told, 88)[0]
        if capabilities & (VIDEO_CAPTURE | STREAMING) != VIDEO_CAPTURE | STREAMING:
            raise OSError("the device captures no streams of pictures")

    def _agree(self, width: int, height: int) -> tuple[int, int, int]:
        for name, channels in FORMATS.items():
            wanted = struct.pack("=I4xII4sI", CAPTURE, width, height, name, 1).ljust(208, b"\0")
            given = self._ask(S_FMT, wanted)
            _, w, h, format_, _, row = struct.unpack_from("=I4xII4sII", given)
            if format_ == name and row in {0, w * channels}:
                return w, h, channels
        raise OSError("the camera gives neither RGB3 nor YUYV with rows side by side")

    def _allocate(self, count: int) -> int:
        given = self._ask(REQBUFS, struct.pack("=IIIIB3x", count, CAPTURE, MMAP, 0, 0))
        made: int = struct.unpack_from("=I", given)[0]
        return made

    def _export(self, index: int) -> int:
        wanted = struct.pack("=IIIIi44x", CAPTURE, index, 0, os.O_RDWR | os.O_CLOEXEC, -1)
        fd: int = struct.unpack_from("=IIIIi", self._ask(EXPBUF, wanted))[4]
        return fd

    def _ask(self, request: int, argument: bytes) -> bytearray:
        content = bytearray(argument)
        self._ioctl(self._fd, request, content)
        return content
