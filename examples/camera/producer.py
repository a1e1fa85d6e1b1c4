"""The camera's process: fills buffers with pictures and announces each one. No picture is copied.

python -m examples.camera.producer SOCKET-FD [/dev/video0]
"""

from __future__ import annotations

import socket
import sys
from typing import Protocol

import numpy as np

from examples.camera.frames import Numbers, Stream, send_number, send_stream
from penstock.memory import HardwareBuffer

WIDTH, HEIGHT, CELL = 160, 120, 8


class Source(Protocol):
    """A source of pictures: a camera or a simulated one."""

    width: int
    height: int
    channels: int
    descriptors: list[int]

    def capture(self) -> tuple[int, int]: ...
    def give_back(self, index: int) -> None: ...
    def close(self) -> None: ...


class StandIn:
    """A simulated camera: a bright square moves one cell per picture over a dark background."""

    channels = 3

    def __init__(self, width: int, height: int, count: int = 4) -> None:
        self.width, self.height = width, height
        nbytes = width * height * self.channels
        self.buffers = [HardwareBuffer.allocate(nbytes) for _ in range(count)]
        self.descriptors = [b.memory.handle.fd for b in self.buffers]
        self._free = list(range(count))
        self._sequence = 0

    def capture(self) -> tuple[int, int]:
        index, sequence = self._free.pop(0), self._sequence
        with self.buffers[index].lock(write=True) as content:
            picture = content.reshape(self.height, self.width, self.channels)
            picture[:] = np.random.default_rng(sequence).integers(0, 60, picture.shape, np.uint8)
            row, column = where(sequence, self.width, self.height)
            picture[row * CELL : (row + 1) * CELL, column * CELL : (column + 1) * CELL] = 250
        self._sequence += 1
        return index, sequence

    def give_back(self, index: int) -> None:
        self._free.append(index)

    def close(self) -> None:
        for buffer in self.buffers:
            buffer.close()


def where(sequence: int, width: int, height: int) -> tuple[int, int]:
    """The cell (row, column) of the simulated camera's square in a picture."""
    rows, columns = height // CELL, width // CELL
    return divmod((sequence * 37) % (rows * columns), columns)


def open_source(path: str | None) -> tuple[Source, str]:
    """The camera at *path*, or a simulated one without a path, and its name.

    Raises `OSError` if the camera does not exist.
    """
    if path is not None:
        from examples.camera.v4l2 import Camera

        return Camera(path, WIDTH, HEIGHT), path
    stand_in = StandIn(WIDTH, HEIGHT)
    return stand_in, f"stand-in ({stand_in.buffers[0].backing})"


def serve(line: socket.socket, source: Source, name: str) -> None:
    """Sends pictures one at a time until the consumer closes the socket."""
    stream = Stream(len(source.descriptors), source.width, source.height, source.channels, name)
    send_stream(line, stream, source.descriptors)
    done = Numbers(line)
    while True:
        send_number(line, *source.capture())
        answer = done.next()
        if answer is None:
            return
        source.give_back(answer[0])


def main() -> None:
    line = socket.socket(fileno=int(sys.argv[1]))
    path = sys.argv[2] if len(sys.argv) > 2 else None
    try:
        source, name = open_source(path)
    except OSError as error:
        sys.exit(f"no camera at {path}: {error}")
    try:
        serve(line, source, name)
    except (BrokenPipeError, ConnectionResetError):
        pass
    finally:
        source.close()


if __name__ == "__main__":
    main()
