"""The protocol between the camera's process and the consumer, over a Unix socket.

First the camera sends one line of JSON that describes its buffers, with one descriptor for each.
For every picture it then sends a line with the buffer's number and the picture's sequence number.
When the consumer has finished with a picture, it answers with the buffer's number, and the camera
may fill that buffer again.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from typing import Any, NamedTuple

MAX_BUFFERS = 32
MAX_LINE = 4096


class Stream(NamedTuple):
    """The description of a camera's buffers.

    *buffers* buffers, each one picture of *height* x *width* pixels of *channels* bytes.
    """

    buffers: int
    width: int
    height: int
    channels: int
    source: str

    @property
    def nbytes(self) -> int:
        """Bytes of one picture."""
        return self.width * self.height * self.channels


def send_stream(line: socket.socket, stream: Stream, descriptors: Sequence[int]) -> None:
    """Sends the buffers. The sender keeps its own descriptors."""
    socket.send_fds(line, [json.dumps(stream._asdict()).encode() + b"\n"], list(descriptors))


def receive_stream(line: socket.socket) -> tuple[Stream, list[int]]:
    """Receives the camera's buffers. The caller closes the descriptors.

    Raises `ValueError` for an invalid description, `EOFError` if the camera's process has ended.
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
    """Sends a buffer's number and its sequence number."""
    line.sendall(json.dumps(numbers).encode() + b"\n")


class Numbers:
    """Reads lines of numbers from a socket."""

    def __init__(self, line: socket.socket) -> None:
        self._line, self._rest = line, b""

    def next(self) -> list[int] | None:
        """The next line; None when the peer has closed the socket."""
        while b"\n" not in self._rest:
            data = self._line.recv(MAX_LINE)
            if not data:
                return None
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        numbers: list[int] = json.loads(line)
        return numbers
