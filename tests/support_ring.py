"""A device in a child process, over a socket, with no more than what bursts need of a host."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.errors import DeadObject
from penstock.hal import Device
from penstock.ipc import forms, wire
from penstock.ipc.client import RemotePreparedModel
from penstock.ipc.codec import Descriptor, Frame, encode
from penstock.ipc.dispatch import Dispatcher
from penstock.ipc.remote import Channel, RemoteBurst
from penstock.ipc.ring_pool import RingBurst, opened
from tests.support_local import LocalChannel

ROOT = Path(__file__).resolve().parent.parent
MOST_FDS = 16


class ChildChannel(Channel):
    """Frames to a child and back."""

    copies_arrays = True

    def __init__(self, end: socket.socket, pid: int) -> None:
        self._end, self._lock = end, threading.Lock()
        self._later: deque[Frame] = deque()
        self.pid, self._life_fd = pid, os.pidfd_open(pid)

    def exit_fd(self) -> int:
        return os.dup(self._life_fd)

    def call(self, frame: Frame) -> Frame:
        with self._lock:
            try:
                while self._later:
                    self._exchanged(self._later.popleft())
                return self._exchanged(frame)
            except (OSError, EOFError) as error:
                raise DeadObject(f"the child is gone: {error}") from error

    def drop(self, number: forms.ObjectId) -> None:
        self._later.append(Frame(encode(wire.Close(number))))

    def _exchanged(self, frame: Frame) -> Frame:
        _send(self._end, frame)
        return _receive(self._end)

    def close(self) -> None:
        os.close(self._life_fd)
        self._end.close()


class InProcess(LocalChannel):
    """A channel to a dispatcher in this process, whose rings take it for another. Both ends must
    not spin.
    """

    def __init__(self, device: Device) -> None:
        super().__init__(Dispatcher(device))
        self._life_fd, self._ours = os.pipe()

    def exit_fd(self) -> int:
        return os.dup(self._life_fd)

    def die(self) -> None:
        """As if the process had ended."""
        os.close(self._ours)

    def close(self) -> None:
        self.dispatcher.objects.close()
        os.close(self._life_fd)


def ring_burst(prepared: RemotePreparedModel, life_fd: int) -> RingBurst:
    """A burst of *prepared* through a ring that belongs to it, whatever its channel tells of the
    other process's life.
    """
    burst = prepared.configure_burst()
    assert isinstance(burst, RemoteBurst)
    return RingBurst(burst, opened(prepared.channel, life_fd))


@contextmanager
def child(make_device: str, environment: dict[str, str] | None = None) -> Iterator[ChildChannel]:
    """A process that serves the device that *make_device*, `module:function`, makes."""
    ours, theirs = socket.socketpair()
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support_ring", str(theirs.fileno()), make_device],
        cwd=ROOT,
        env={**os.environ, **(environment or {})},
        pass_fds=[theirs.fileno()],
    )
    theirs.close()
    channel = ChildChannel(ours, process.pid)
    try:
        yield channel
    finally:
        channel.close()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def serve(end: socket.socket, device: Device) -> None:
    """Answers until the other end closes."""
    dispatcher = Dispatcher(device)
    while True:
        try:
            frame = _receive(end)
        except (OSError, EOFError):
            break
        reply = dispatcher.answer(frame)
        for handle in frame.handles:
            if isinstance(handle, Descriptor):
                os.close(handle.fd)
        _send(end, reply)
    dispatcher.objects.close()


def _send(end: socket.socket, frame: Frame) -> None:
    fds = [h.fd for h in frame.handles if isinstance(h, Descriptor)]
    header = struct.pack("<II", len(frame.data), len(fds))
    socket.send_fds(end, [header], fds)
    end.sendall(frame.data)


def _receive(end: socket.socket) -> Frame:
    header, fds, _, _ = socket.recv_fds(end, 8, MOST_FDS)
    if len(header) < 8:
        raise EOFError
    length, count = struct.unpack("<II", header)
    if len(fds) != count:
        raise EOFError
    data = b""
    while len(data) < length:
        if not (part := end.recv(length - len(data))):
            raise EOFError
        data += part
    return Frame(data, tuple(map(Descriptor, fds)))


def _made(name: str) -> Any:
    from importlib import import_module

    module, _, function = name.partition(":")
    make: Callable[[], Device] = getattr(import_module(module), function)
    return make()


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), _made(sys.argv[2]))
