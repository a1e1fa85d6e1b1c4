"""Sealing for a driver's process by the broker, which alone has the key and the registry.

A message is its length in 4 bytes, little-endian, and a MessagePack map. The driver sends one
request at a time. It keeps the payloads, and hashes what it wrote and read. The broker seals only
for the origin that the host was started for, whatever origin the driver sends.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec

from penstock import errors
from penstock.errors import CacheError, PenstockError, Unreadable, WireError
from penstock.sealed.entry import TOKEN_BYTES, Signer
from penstock.sealed.header import HEADER_BYTES, Header
from penstock.sealed.registry import MOST_FILES, FileRecord, Owner, Registry, RegistryState, Row

LENGTH: Final = struct.Struct("<I")

MOST_ASKED: Final = 1 << 16
"""Most bytes of a request: an entry's row has 64 files at most."""

MOST_ANSWERED: Final = 24 << 20
"""Most bytes of an answer: a registry has 4,096 rows."""

MOST_NAME: Final = 1024
"""Most characters of a driver's name, and of its version."""

MOST_OWNERS: Final = 16
"""Most names and versions that one host seals for: each has a registry, which is a file."""

ANSWER_SECONDS: Final = 60.0
"""Seconds that the broker has for an answer: it waits for locks and for the key store."""

NO_MESSAGE: Final = (msgspec.MsgspecError, ValueError, RecursionError)
"""Errors that decoding raises. Text that is not UTF-8 raises `ValueError`."""

ID_BYTES: Final = 16
"""Bytes of an entry's id."""


class Question(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A call of `Registry` or `Signer` for the driver *driver* of version *version*.

    *header* is that of `sign`, its 256 bytes with any seal, or of `is_sealed`.
    """

    ask: Literal[
        "state", "open", "begin", "publish", "find", "remove", "rows", "clear", "sign", "is_sealed"
    ]
    driver: str
    version: str
    token: bytes = b""
    entry: bytes = b""
    models: tuple[FileRecord, ...] = ()
    datas: tuple[FileRecord, ...] = ()
    replaced: tuple[bytes, ...] = ()
    header: bytes = b""


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The requested value, or the class and message of an error."""

    state: RegistryState | None = None
    rows: tuple[Row, ...] = ()
    sealed: bytes = b""
    holds: bool = False
    error: str = ""
    message: str = ""


def send(sock: socket.socket, value: Any) -> None:
    """Sends one message. Raises `OSError`."""
    content = msgspec.msgpack.encode(value)
    sock.sendall(LENGTH.pack(len(content)) + content)


def receive(sock: socket.socket, most: int) -> bytes:
    """The next message. Raises `EOFError`, `OSError`, or `WireError` beyond *most* bytes."""
    (length,) = LENGTH.unpack(_exactly(sock, LENGTH.size))
    if length > most:
        raise WireError(f"a message of {length} bytes announced; the limit is {most}")
    return _exactly(sock, length)


def _exactly(sock: socket.socket, nbytes: int) -> bytes:
    content = bytearray()
    while len(content) < nbytes:
        part = sock.recv(min(nbytes - len(content), 1 << 16))
        if not part:
            raise EOFError("the other process closed the connection")
        content += part
    return bytes(content)


class Sealer:
    """The broker's end: answers the driver's requests over *sock*, for *origin* alone."""

    def __init__(self, sock: socket.socket, origin: str) -> None:
        self._sock, self._origin = sock, origin
        self._known: dict[tuple[str, str], tuple[Owner, Registry, Signer]] = {}
        self._decoder = msgspec.msgpack.Decoder(Question)

    def serve(self) -> None:
        """Serves until the driver's end is closed, or sends an invalid request."""
        try:
            while True:
                question = self._decoder.decode(receive(self._sock, MOST_ASKED))
                send(self._sock, self._answer(question))
        except (EOFError, OSError, WireError, *NO_MESSAGE, MemoryError):
            self._sock.close()

    def _answer(self, question: Question) -> Answer:
        try:
            return _done(question, *self._trust(question))
        except PenstockError as error:
            return Answer(error=type(error).__name__, message=Exception.__str__(error))
        except OSError as error:
            message = f"the registry cannot be used: {error.strerror}"
            return Answer(error="Unreadable", message=message)

    def _trust(self, question: Question) -> tuple[Owner, Registry, Signer]:
        key = question.driver, question.version
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= MOST_OWNERS:
                raise Unreadable(f"one host seals for {MOST_OWNERS} versions of drivers at most")
            if max(map(len, key)) > MOST_NAME:
                raise Unreadable(f"a driver's name or version has over {MOST_NAME} characters")
            from penstock.sealed.places import bound_registries, sealed_directory
            from penstock.sealed.seal import own_trust

            bound_registries(sealed_directory())
            owner = Owner(*key, self._origin)
            known = self._known[key] = (owner, *own_trust(owner))
        return known


def _done(asked: Question, owner: Owner, registry: Registry, signer: Signer) -> Answer:
    if asked.ask in {"begin", "publish", "find", "remove"}:
        ids = (asked.entry, *asked.replaced)
        if len(asked.token) != TOKEN_BYTES or any(len(each) != ID_BYTES for each in ids):
            raise WireError("a token has 32 bytes, and an entry's id 16")
    match asked.ask:
        case "state":
            return Answer(state=registry.state())
        case "open":
            return Answer(state=registry.open())
        case "begin":
            row = Row(asked.token, asked.entry, asked.models, asked.datas)
            check_records(row)
            registry.begin(row)
        case "publish":
            registry.publish(asked.token, asked.entry, asked.replaced)
        case "find":
            found = registry.find(asked.token, asked.entry)
            return Answer(rows=() if found is None else (found,))
        case "remove":
            registry.remove(asked.token, asked.entry)
        case "rows":
            return Answer(rows=registry.rows())
        case "clear":
            registry.clear()
        case "sign":
            return Answer(sealed=signer.sign(_header(asked.header, owner)))
        case "is_sealed":
            if len(asked.header) != HEADER_BYTES:
                raise WireError("a header of another length")
            return Answer(holds=signer.is_sealed(asked.header))
    return Answer()


def _header(content: bytes, owner: Owner) -> Header:
    """The header to sign. Raises `Unreadable` for another driver, version or origin."""
    header = Header.unpack(content)
    if header is None:
        raise WireError("what is to be sealed is no header")
    if (header.driver, header.version) != (owner.driver_digest, owner.version_digest):
        raise Unreadable("a header of another driver, version or origin is not sealed")
    return header


def check_records(row: Row) -> None:
    """Raises `WireError` if the records of the row's files are malformed."""
    if max(len(row.models), len(row.datas)) > MOST_FILES or any(
        len(record.digest) != 32 or not 0 <= record.length < 1 << 63
        for record in (*row.models, *row.datas)
    ):
        raise WireError("records of no entry")


class ParentKeeper:
    """The driver's end: a `penstock.sealed.entry.Keeper` that sends requests over *sock*."""

    def __init__(self, sock: socket.socket, origin: str) -> None:
        sock.settimeout(ANSWER_SECONDS)
        self._sock, self._origin = sock, origin
        self._lock = threading.Lock()
        self._decoder = msgspec.msgpack.Decoder(Answer)

    @property
    def origin(self) -> str:
        return self._origin

    def trust(self, owner: Owner) -> tuple[Registry, Signer]:
        remote = _RemoteTrust(self, owner)
        return remote, remote

    def ask(self, question: Question) -> Answer:
        """The answer. Raises the `CacheError` it contains, or `Unreadable` without an answer."""
        with self._lock:
            try:
                send(self._sock, question)
                answer = self._decoder.decode(receive(self._sock, MOST_ANSWERED))
                for row in answer.rows:
                    check_records(row)
            except (EOFError, OSError, WireError, *NO_MESSAGE) as error:
                # A late answer would be read as the answer to the next request.
                self._sock.close()
                why = f"the process that holds the key does not answer: {error}"
                raise Unreadable(why) from None
        if answer.error:
            kind = getattr(errors, answer.error, Unreadable)
            is_known = isinstance(kind, type) and issubclass(kind, CacheError)
            raise (kind if is_known else Unreadable)(answer.message)
        return answer


class _RemoteTrust:
    """The `Registry` and the `Signer` of the parent for one owner."""

    def __init__(self, keeper: ParentKeeper, owner: Owner) -> None:
        self._keeper, self._names = keeper, (owner.driver, owner.version)

    def state(self) -> RegistryState | None:
        return self._keeper.ask(Question("state", *self._names)).state

    def open(self) -> RegistryState:
        state = self._keeper.ask(Question("open", *self._names)).state
        if state is None:
            raise Unreadable("the process that holds the key gives no state of the registry")
        return state

    def begin(self, row: Row) -> None:
        names = self._names
        self._keeper.ask(Question("begin", *names, row.token, row.entry, row.models, row.datas))

    def publish(self, token: bytes, entry: bytes, replaced: Sequence[bytes] = ()) -> None:
        old = tuple(replaced)
        self._keeper.ask(Question("publish", *self._names, token, entry, replaced=old))

    def find(self, token: bytes, entry: bytes) -> Row | None:
        rows = self._keeper.ask(Question("find", *self._names, token, entry)).rows
        return rows[0] if rows else None

    def remove(self, token: bytes, entry: bytes) -> None:
        self._keeper.ask(Question("remove", *self._names, token, entry))

    def rows(self) -> tuple[Row, ...]:
        return self._keeper.ask(Question("rows", *self._names)).rows

    def clear(self) -> None:
        self._keeper.ask(Question("clear", *self._names))

    def sign(self, header: Header) -> bytes:
        content = header.pack(b"")
        return self._keeper.ask(Question("sign", *self._names, header=content)).sealed

    def is_sealed(self, content: bytes) -> bool:
        return self._keeper.ask(Question("is_sealed", *self._names, header=content)).holds
