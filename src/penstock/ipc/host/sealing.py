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
from typing import Any, Final, TypeAlias, TypeVar

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


class Question(
    msgspec.Struct, frozen=True, tag_field="ask", array_like=False, forbid_unknown_fields=True
):
    """A request for the driver *driver* of version *version*."""

    driver: str
    version: str


class State(Question, frozen=True, tag="state"):
    """Request of `Registry.state`, or of `open` if the registry is to be *made*."""

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
    """Request of `Signer.sign`, for 256 bytes whose seal is not checked."""

    header: bytes = b""


class IsSealed(Question, frozen=True, tag="is_sealed"):
    """`Signer.is_sealed`."""

    header: bytes = b""


Asked: TypeAlias = State | Begin | Publish | Find | Remove | Rows | Clear | Sign | IsSealed


class Listed(msgspec.Struct, frozen=True, array_like=True):
    """A row of an answer."""

    token: bytes
    entry: bytes
    models: tuple[tuple[bytes, int], ...]
    datas: tuple[tuple[bytes, int], ...]
    sequence: int


class Told(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An answer: the requested value, or the class and message of an error."""

    state: tuple[bytes, int] | None = None
    rows: tuple[Listed, ...] = ()
    sealed: bytes = b""
    holds: bool = False
    error: str = ""
    message: str = ""


def records_of(pairs: tuple[tuple[bytes, int], ...]) -> tuple[FileRecord, ...]:
    """Records of an entry. Raises `WireError` if they are malformed."""
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
            raise EOFError("the other side is gone")
        content += part
    return bytes(content)


T = TypeVar("T")

MOST_OWNERS: Final = 16
"""Most names and versions that one host seals for: each has a registry, which is a file."""

ANSWER_SECONDS: Final = 60.0
"""Seconds that the broker has for an answer: it waits for locks and for the key store."""

NO_MESSAGE: Final = (msgspec.MsgspecError, ValueError, RecursionError)
"""Errors that decoding raises. Text that is not UTF-8 raises `ValueError`."""

ID_BYTES: Final = 16
"""Of an entry's id."""


class Sealer:
    """The broker's end: answers the driver's requests over *sock*, for *origin* alone."""

    def __init__(self, sock: socket.socket, origin: str) -> None:
        self._sock, self._origin = sock, origin
        self._known: dict[tuple[str, str], tuple[Owner, Registry, Signer]] = {}
        self._decoder = msgspec.msgpack.Decoder(Asked)

    def serve(self) -> None:
        """Serves until the driver's end is closed, or sends an invalid request."""
        try:
            while True:
                question = self._decoder.decode(receive(self._sock, MOST_ASKED))
                send(self._sock, self._answer(question))
        except (EOFError, OSError, WireError, *NO_MESSAGE, MemoryError):
            self._sock.close()

    def _answer(self, question: Asked) -> Told:
        try:
            owner, registry, signer = self._trust(question)
            return _done(question, owner, registry, signer)
        except PenstockError as error:
            return Told(error=type(error).__name__, message=Exception.__str__(error))
        except OSError as error:
            return Told(
                error="Unreadable", message=f"the registry cannot be used: {error.strerror}"
            )

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


def _done(asked: Asked, owner: Owner, registry: Registry, signer: Signer) -> Told:
    match asked:
        case State():
            state = registry.open() if asked.made else registry.state()
            return Told(state=None if state is None else (state.registry, state.changes))
        case Begin():
            _check_ids(asked.token, asked.entry)
            models, datas = records_of(asked.models), records_of(asked.datas)
            registry.begin(Row(asked.token, asked.entry, models, datas))
            return Told()
        case Publish():
            _check_ids(asked.token, asked.entry, *asked.replaced)
            registry.publish(asked.token, asked.entry, asked.replaced)
            return Told()
        case Find():
            _check_ids(asked.token, asked.entry)
            row = registry.find(asked.token, asked.entry)
            return Told(rows=() if row is None else (_listed(row),))
        case Remove():
            _check_ids(asked.token, asked.entry)
            registry.remove(asked.token, asked.entry)
            return Told()
        case Rows():
            return Told(rows=tuple(map(_listed, registry.rows())))
        case Clear():
            registry.clear()
            return Told()
        case Sign():
            return Told(sealed=signer.sign(_header(asked.header, owner)))
        case IsSealed():
            if len(asked.header) != HEADER_BYTES:
                raise WireError("a header of another length")
            return Told(holds=signer.is_sealed(asked.header))


def _header(content: bytes, owner: Owner) -> Header:
    """The header to sign. Raises `Unreadable` for another driver, version or origin."""
    header = Header.unpack(content)
    if header is None:
        raise WireError("what is to be sealed is no header")
    if (header.driver, header.version) != (owner.driver_digest, owner.version_digest):
        raise Unreadable("a header of another driver, version or origin is not sealed")
    return header


def _check_ids(token: bytes, *entries: bytes) -> None:
    if len(token) != TOKEN_BYTES or any(len(entry) != ID_BYTES for entry in entries):
        raise WireError("a token has 32 bytes, and an entry's id 16")


def _listed(row: Row) -> Listed:
    return Listed(row.token, row.entry, _pairs(row.models), _pairs(row.datas), row.sequence)


def _pairs(records: Sequence[FileRecord]) -> tuple[tuple[bytes, int], ...]:
    return tuple((record.digest, record.length) for record in records)


class ParentKeeper:
    """The driver's end: a `penstock.sealed.entry.Keeper` that sends requests over *sock*."""

    def __init__(self, sock: socket.socket, origin: str) -> None:
        sock.settimeout(ANSWER_SECONDS)
        self._sock, self._origin = sock, origin
        self._lock = threading.Lock()
        self._decoder = msgspec.msgpack.Decoder(Told)

    @property
    def origin(self) -> str:
        return self._origin

    def trust(self, owner: Owner) -> tuple[Registry, Signer]:
        return _Registry(self, owner), _Signer(self, owner)

    def ask(self, question: Asked) -> Told:
        """The answer. Raises the `CacheError` it contains, or `Unreadable` without an answer."""
        with self._lock:
            try:
                send(self._sock, question)
                told = self._decoder.decode(receive(self._sock, MOST_ANSWERED))
            except (EOFError, OSError, WireError, *NO_MESSAGE) as error:
                # A late answer would be read as the answer to the next request.
                self._sock.close()
                raise Unreadable(
                    f"the process that holds the key does not answer: {error}"
                ) from None
        if told.error:
            kind = getattr(errors, told.error, Unreadable)
            is_known = isinstance(kind, type) and issubclass(kind, CacheError)
            raise (kind if is_known else Unreadable)(told.message)
        return told


class _Registry:
    """A `penstock.sealed.registry.Registry` of the parent."""

    def __init__(self, keeper: ParentKeeper, owner: Owner) -> None:
        self._keeper, self._names = keeper, (owner.driver, owner.version)

    def state(self) -> RegistryState | None:
        told = self._keeper.ask(State(*self._names)).state
        return None if told is None else RegistryState(*told)

    def open(self) -> RegistryState:
        told = self._keeper.ask(State(*self._names, made=True)).state
        if told is None:
            raise Unreadable("the process that holds the key gives no state of the registry")
        return RegistryState(*told)

    def begin(self, row: Row) -> None:
        self._keeper.ask(
            Begin(*self._names, row.token, row.entry, _pairs(row.models), _pairs(row.datas))
        )

    def publish(self, token: bytes, entry: bytes, replaced: Sequence[bytes] = ()) -> None:
        self._keeper.ask(Publish(*self._names, token, entry, tuple(replaced)))

    def find(self, token: bytes, entry: bytes) -> Row | None:
        rows = self._keeper.ask(Find(*self._names, token, entry)).rows
        return _row(rows[0]) if rows else None

    def remove(self, token: bytes, entry: bytes) -> None:
        self._keeper.ask(Remove(*self._names, token, entry))

    def rows(self) -> tuple[Row, ...]:
        return tuple(map(_row, self._keeper.ask(Rows(*self._names)).rows))

    def clear(self) -> None:
        self._keeper.ask(Clear(*self._names))


class _Signer:
    """A `penstock.sealed.entry.Signer` of the parent."""

    def __init__(self, keeper: ParentKeeper, owner: Owner) -> None:
        self._keeper, self._names = keeper, (owner.driver, owner.version)

    def sign(self, header: Header) -> bytes:
        return self._keeper.ask(Sign(*self._names, header.pack(b""))).sealed

    def is_sealed(self, content: bytes) -> bool:
        return self._keeper.ask(IsSealed(*self._names, content)).holds


def _row(listed: Listed) -> Row:
    models, datas = records_of(listed.models), records_of(listed.datas)
    return Row(listed.token, listed.entry, models, datas, listed.sequence)
