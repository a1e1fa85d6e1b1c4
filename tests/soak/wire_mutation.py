"""Seeded damage to messages, and one trial of each way that they come in by: decoders, a
dispatcher, a host's client.
"""

from __future__ import annotations

import os
import random
import selectors
import socket
import threading
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

from penstock.drivers.null import create
from penstock.errors import WireError
from penstock.hal import CancelToken, PrepareConfig
from penstock.ipc import codec, forms, wire
from penstock.ipc.client import RemoteDevice
from penstock.ipc.dispatch import Dispatcher
from penstock.ipc.host.serving import Client
from penstock.ipc.transport import HEADER, Connection
from penstock.memory import MemoryPool
from penstock.testing.contract.cases import every_case
from penstock.testing.contract.trial import PLAIN, Trial
from tests.support_local import LocalChannel
from tests.support_waiting import PATIENCE, eventually

DECODERS: Final = (
    codec.decode_call,
    codec.decode_reply,
    codec.decode_notice,
    codec.decode_to_host,
    codec.decode_to_client,
)

SIZES: Final = (
    b"\xcf" + b"\xff" * 8,
    b"\xd3\x80" + b"\0" * 7,
    b"\xdd\xff\xff\xff\xff",
    b"\xc6\x7f\xff\xff\xff",
)
"""The largest and the least number, and the largest announced sizes."""  # fmt: skip

FRAMES: Final = 24
"""Messages of one connection to a host."""


class Heard(LocalChannel):
    """A channel that keeps what is said."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        super().__init__(dispatcher)
        self.calls: list[bytes] = []
        self.replies: list[bytes] = []

    def answer(self, frame: codec.Frame) -> codec.Frame:
        reply = super().answer(frame)
        self.calls.append(frame.data)
        self.replies.append(reply.data)
        return reply


@cache
def messages() -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
    """Calls and replies of every kind on small models, and messages of a stream."""
    channel = Heard(Dispatcher(create()))
    device = RemoteDevice(channel)
    device.check()
    device.cache_files_needed()
    for case in every_case():
        if case.model.pools:
            continue
        device.supported_operations(case.model)
        device.explain(case.model, PrepareConfig())
        prepared = device.prepare_model(case.model, PrepareConfig())
        with Trial(case, "pool") as trial:
            prepared.execute(trial.request, PLAIN)
            prepared.create_reusable_execution(trial.request).execute(PLAIN)
            for make in (wire.LendPool, lambda m: wire.CopyTo(1, m)):
                pack = codec.Packer()
                channel.call(pack.frame(make(pack.memory(trial.request.pools[0]))))
        prepared.configure_burst().close()
        channel.call(
            codec.Frame(codec.encode(wire.OpenRing(0, 0, 0, 4, 1024)), (codec.Descriptor(1 << 20),))
        )
    small = sorted(set(channel.calls), key=len)[:200]
    stream = [
        codec.encode(wire.Hello(wire.WIRE_VERSION)),
        codec.encode(wire.Lend(1, 4096)),
        codec.encode(wire.Release(1)),
        codec.encode(wire.Cancel(1)),
        codec.encode(wire.Drop(0, 1)),
    ]
    for number, body in enumerate(small):
        table = (forms.DescriptorForm(0), forms.ArrayForm(1, 0, _float32(), (4,), True))
        stream.append(codec.encode(wire.Ask(number, 0, body, table)))
    return tuple(small), (*channel.replies[:100], *stream)


def _float32() -> Any:
    from penstock.ir import DType

    return DType.FLOAT32


def mutate(rng: random.Random, seeds: Sequence[bytes]) -> bytes:
    """A message with some damage, or none."""
    content = bytearray(rng.choice(seeds))
    for _ in range(rng.choice((0, 1, 1, 1, 2, 4))):
        place = rng.randrange(len(content) + 1)
        match rng.randrange(7):
            case 0 if content:
                content[place - 1] ^= 1 << rng.randrange(8)
            case 1 if content:
                content[place - 1] = rng.randrange(256)
            case 2:
                del content[place : place + rng.randrange(1, 9)]
            case 3:
                content[place:place] = rng.randbytes(rng.randrange(1, 9))
            case 4:
                other = rng.choice(seeds)
                at = rng.randrange(len(other) + 1)
                content[place:] = other[at:]
            case 5:
                content[place : place + 1] = rng.choice(SIZES)
            case _:
                piece = content[place : place + rng.randrange(1, 33)]
                content[place:place] = piece * rng.randrange(1, 5)
    return bytes(content)


def try_decoders(rng: random.Random) -> str:
    """Each decoder gives a message or `WireError`; what it gives can be said again."""
    calls, others = messages()
    content = mutate(rng, rng.choice((calls, others)))
    outcome = "refused"
    for decode in DECODERS:
        try:
            message = decode(content)
        except WireError:
            continue
        again = decode(codec.encode(message))
        if again != message:
            raise AssertionError(f"{message!r} comes back as {again!r}")
        outcome = "decoded"
    return outcome


class Device:
    """A dispatcher that is exchanged now and then, and handles of every kind."""

    LIFE: Final = 500

    def __init__(self) -> None:
        self._pool = MemoryPool.anonymous(1 << 16)
        self._left = 0
        self._dispatcher: Dispatcher | None = None

    def try_call(self, rng: random.Random) -> str:
        """The dispatcher answers whatever it is asked with a message."""
        if self._left == 0 or self._dispatcher is None:
            self.close_dispatcher()
            self._dispatcher, self._left = Dispatcher(create()), self.LIFE
            for call in messages()[0]:
                if b"prepare_model" in call[:20]:
                    self._dispatcher.answer(codec.Frame(call))
        self._left -= 1
        fd = self._pool.memory.handle
        handles = (
            codec.Descriptor(fd),
            codec.Opaque("x"),
            self._pool.view("float32", 4),
            CancelToken(),
            codec.Descriptor(1 << 20),
            lambda _: None,
        )
        given = handles[: rng.randrange(len(handles) + 1)] if rng.randrange(2) else handles * 4
        reply = self._dispatcher.answer(codec.Frame(mutate(rng, messages()[0]), given))
        answer = codec.decode_reply(reply.data)
        return "failed" if isinstance(answer, wire.Failure | wire.Stopped) else "answered"

    def close_dispatcher(self) -> None:
        if self._dispatcher is not None:
            self._dispatcher.objects.close()

    def close(self) -> None:
        self.close_dispatcher()
        self._pool.close()


def try_host(rng: random.Random) -> str:
    """A host's side of a connection takes `FRAMES` damaged messages, or ends it, and leaves nothing
    behind.
    """
    ours, theirs = socket.socketpair()
    over = threading.Event()
    Client(Connection(theirs), [Dispatcher(create(), owns_device=False)], over.set).start()
    pool = MemoryPool.anonymous(4096)
    sent = 0
    writable = selectors.DefaultSelector()
    try:
        ours.setblocking(False)
        writable.register(ours, selectors.EVENT_WRITE)
        _, stream = messages()
        for _ in range(FRAMES):
            content = mutate(rng, stream)
            fds = [pool.memory.handle] * rng.choice((0, 1, 1, 2))
            told = len(fds) if rng.randrange(8) else rng.choice((0, 3, 5000, 2**32 - 1))
            length = len(content) if rng.randrange(16) else rng.choice((0, 1, 2**26 + 1, 2**63))
            data = HEADER.pack(told, length) + content
            if not writable.select(PATIENCE):
                raise AssertionError("a host's client stopped reading")
            socket.send_fds(ours, [data], fds)
            sent += 1
            _drain(ours)
    except (BrokenPipeError, ConnectionResetError):
        pass
    finally:
        writable.close()
        ours.close()
        pool.close()
    if not over.wait(PATIENCE):
        raise AssertionError("a host's client did not end with its connection")
    if not eventually(lambda: theirs.fileno() < 0):
        raise AssertionError("a host's side of a connection is not closed")
    return "to the end" if sent == FRAMES else "ended"


def _drain(ours: socket.socket) -> None:
    """Reads what came so far, closing what came beside it."""
    while True:
        try:
            data, fds, _, _ = socket.recv_fds(ours, 1 << 16, 64, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        for fd in fds:
            os.close(fd)
        if not data:
            raise BrokenPipeError
