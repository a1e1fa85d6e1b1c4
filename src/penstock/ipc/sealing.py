"""What a driver's process asks its parent to seal and to verify: neither the key nor a registry is
in the driver's reach.

A message is its length in 4 bytes, little-endian, and a MessagePack map. The driver asks one thing
at a time and the parent answers it. Payloads stay with the driver, which hashes what it wrote and
what it reads; what the parent seals, it seals for the origin that the host was started for,
whatever the driver says.
"""

from __future__ import annotations

import socket
import struct
from typing import Any, Final, TypeAlias

import msgspec

from penstock.errors import WireError
from penstock.sealed.registry import MOST_FILES, FileRecord

LENGTH: Final = struct.Struct("<I")

MOST_ASKED: Final = 1 << 16
"""Bytes of a question: an entry's row has 64 files at most."""

MOST_ANSWERED: Final = 24 << 20
"""Bytes of an answer: a registry has 4,096 rows."""

MOST_NAME: Final = 1024
"""Characters of a driver's name, and of its version."""


class Question(
    msgspec.Struct, frozen=True, tag_field="ask", array_like=False, forbid_unknown_fields=True
):
    """Asked for the driver *driver* of version *version*."""

    driver: str
    version: str


class State(Question, frozen=True, tag="state"):
    """`Registry.state`, or `open` where it is to be *made*."""

    made: bool = False


class Begin(Question, frozen=True, tag="begin"):
    """`Registry.begin`; records are a digest and a length each."""

    token: bytes = b""
    entry: bytes = b""
    models: tuple[tuple[bytes, int], ...] = ()
    datas: tuple[tuple[bytes, int], ...] = ()


class Publish(Question, frozen=True, tag="publish"):
    """`Registry.publish`."""

    token: bytes = b""
    entry: bytes = b""
    replaced: tuple[bytes, ...] = ()


class Find(Question, frozen=True, tag="find"):
    """`Registry.find`."""

    token: bytes = b""
    entry: bytes = b""


class Remove(Question, frozen=True, tag="remove"):
    """`Registry.remove`."""

    token: bytes = b""
    entry: bytes = b""


class Rows(Question, frozen=True, tag="rows"):
    """`Registry.rows`."""


class Clear(Question, frozen=True, tag="clear"):
    """`Registry.clear`."""


class Sign(Question, frozen=True, tag="sign"):
    """`Signer.sign`, of 256 bytes whose seal is not looked at."""

    header: bytes = b""


class IsSealed(Question, frozen=True, tag="is_sealed"):
    """`Signer.is_sealed`."""

    header: bytes = b""


Asked: TypeAlias = State | Begin | Publish | Find | Remove | Rows | Clear | Sign | IsSealed


class Listed(msgspec.Struct, frozen=True, array_like=True):
    """A row, as an answer has it."""

    token: bytes
    entry: bytes
    models: tuple[tuple[bytes, int], ...]
    datas: tuple[tuple[bytes, int], ...]
    sequence: int


class Told(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An answer: what was asked for, or the class of an error and what it says."""

    state: tuple[bytes, int] | None = None
    rows: tuple[Listed, ...] = ()
    sealed: bytes = b""
    holds: bool = False
    error: str = ""
    message: str = ""


def records_of(pairs: tuple[tuple[bytes, int], ...]) -> tuple[FileRecord, ...]:
    """Raises `WireError` for what are no records of an entry."""
    if len(pairs) > MOST_FILES or any(
        len(digest) != 32 or not 0 <= length < 1 << 63 for digest, length in pairs
    ):
        raise WireError("records of no entry")
    return tuple(FileRecord(digest, length) for digest, length in pairs)


def send(sock: socket.socket, value: Any) -> None:
    """Sends one message. Raises `OSError`."""
    content = msgspec.msgpack.encode(value)
    sock.sendall(LENGTH.pack(len(content)) + content)


def receive(sock: socket.socket, most: int) -> bytes:
    """The next message. Raises `EOFError` at the end, `WireError` for one of more than *most*
    bytes, and `OSError`.
    """
    (length,) = LENGTH.unpack(_exactly(sock, LENGTH.size))
    if length > most:
        raise WireError(f"a message of {length} bytes announced; the limit is {most}")
    return _exactly(sock, length)


def _exactly(sock: socket.socket, nbytes: int) -> bytes:
    content = bytearray()
    while len(content) < nbytes:
        part = sock.recv(min(nbytes - len(content), 1 << 16))
        if not part:
            raise EOFError("the other side is gone")
        content += part
    return bytes(content)
