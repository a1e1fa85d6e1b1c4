"""What the camera's process and ours say to each other over a Unix socket.

First the camera sends one line of JSON that describes its buffers, with a descriptor for each
beside it; then, for
every picture, a line with the buffer's number and the picture's sequence number. We answer with the
number of the
buffer when we have done with it, and the camera may fill it again.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from typing import Any, NamedTuple

MAX_BUFFERS = 32
MAX_LINE = 4096


class Stream(NamedTuple):
    """The buffers of a camera: *buffers* of them, each one picture of *height* x *width* pixels of
    *channels* bytes.
    """

    buffers: int
    width: int
    height: int
    channels: int
    source: str

    @property
    def nbytes(self) -> int:
        """Of one picture."""
        return self.width * self.height * self.channels


def send_stream(line: socket.socket, stream: Stream, descriptors: Sequence[int]) -> None:
    """Hands the buffers over. Our own descriptors stay ours."""
    socket.send_fds(line, [json.dumps(stream._asdict()).encode() + b"\n"], list(descriptors))


def receive_stream(line: socket.socket) -> tuple[Stream, list[int]]:
    """The camera's buffers; the descriptors are ours to close. Raises `ValueError` for what makes
    no sense, `EOFError`
    where the camera's process has ended.
    """
    data, descriptors, _, _ = socket.recv_fds(line, MAX_LINE, MAX_BUFFERS)
    if not data:
        raise EOFError("the camera's process ended without a picture")
    fields: dict[str, Any] = json.loads(data)
    stream = Stream(**fields)
    if len(descriptors) != stream.buffers:
        raise ValueError(f"{len(descriptors)} descriptors for {stream.buffers} buffers")
    return stream, list(descriptors)


def send_number(line: socket.socket, *numbers: int) -> None:
    """A buffer's number, and what belongs to it."""
    line.sendall(json.dumps(numbers).encode() + b"\n")


class Numbers:
    """The lines of numbers that come over a socket, one at a time."""

    def __init__(self, line: socket.socket) -> None:
        self._line, self._rest = line, b""

    def next(self) -> list[int] | None:
        """The next line; None when the other side has gone."""
        while b"\n" not in self._rest:
            data = self._line.recv(MAX_LINE)
            if not data:
                return None
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        numbers: list[int] = json.loads(line)
        return numbers
