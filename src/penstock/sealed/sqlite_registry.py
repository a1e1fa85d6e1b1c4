"""The registry as one SQLite database a driver version, and how it is read; `registry_changes` changes it."""

from __future__ import annotations

import hashlib
import hmac
import os
import sqlite3
import stat
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from penstock.arguments import check_kind, path_of
from penstock.errors import OtherVersion, RolledBack, SealBroken, Unreadable
from penstock.sealed.files import StrPath
from penstock.sealed.forks import FORK_GATE
from penstock.sealed.keys import KeyStore
from penstock.sealed.registry import (
    Measure,
    Measures,
    Owner,
    RegistryState,
    Row,
    row_mac,
    unpack_records,
)

if TYPE_CHECKING:
    from penstock.sealed.registry_changes import Act

Connect: TypeAlias = Callable[[str], sqlite3.Connection]

FORMAT: Final = 1
BUCKETS: Final = 64
WAIT_SECONDS: Final = 5.0

_UNQUOTED: Final = frozenset(
    b"/:-._~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
)
_MOST_BYTES: Final = 64 << 20
_BUCKET_SHIFT: Final = 2
_WHOLE_DOMAIN: Final = b"penstock registry\x00"
_ROW_TYPES: Final = (bytes, bytes, int, int, bytes, bytes)
# The system failed, as opposed to: the file is not what was written.
_SYSTEM_FAILED: Final = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PROTOCOL,
}


def connect(path: StrPath) -> sqlite3.Connection:
    """A connection to the database at *path*, which exists; one that only reads where its directory cannot be written."""
    return sqlite3.connect(
        f"{uri_of(path)}?{_mode_of(os.path.abspath(os.fspath(path)))}",
        uri=True,
        timeout=WAIT_SECONDS,
        isolation_level=None,
        check_same_thread=False,
    )


def _mode_of(path: str) -> str:
    """How to open *path*, as parameters of its URI.

    Where the directory cannot be written SQLite cannot make the files that readers of a write-ahead log share, and reads
    only a database that it is told nobody changes ("Read-Only Databases" in SQLite's "Write-Ahead Logging"). A log that
    was left behind must be read too. What is read is authenticated either way.
    """
    if os.access(os.path.dirname(path), os.W_OK) and os.access(path, os.W_OK):
        return "mode=rw"
    return "mode=ro" if os.path.exists(f"{path}-wal") else "mode=ro&immutable=1"


def uri_of(path: StrPath) -> str:
    """The `file:` URI of *path* (RFC 8089; "Uniform Resource Identifiers" in SQLite's documentation)."""
    whole = os.path.abspath(os.fspath(path))
    if os.sep != "/":
        whole = "/" + whole.replace(os.sep, "/")
    return "file://" + "".join(
        chr(byte) if byte in _UNQUOTED else f"%{byte:02X}" for byte in os.fsencode(whole)
    )


class Books:
    """The registry of *owner* that *key* authenticates, within a transaction: its *state* and the digest of each bucket's
    rows.

    A bucket are the rows whose tokens start alike, so that a find need not look at all rows. What was not
    compared with its digest is not to be believed.
    """

    def __init__(
        self,
        database: sqlite3.Connection,
        owner: Owner,
        key: bytes,
        state: RegistryState,
        digests: list[bytes],
    ) -> None:
        self._database = database
        self.owner, self.key, self.state, self.digests = owner, key, state, digests

    @classmethod
    def found(cls, database: sqlite3.Connection, owner: Owner, measure: Measure) -> Books | None:
        """Those of *database*, if they are authentic and the newest known; None for one without any.

        Raises `SealBroken`, `OtherVersion` or `RolledBack`.
        """
        if not database.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone():
            return None
        found = database.execute(
            "SELECT format, driver, version, registry, count, buckets, mac FROM registry LIMIT 2"
        ).fetchall()
        if not found:
            return None
        format_, driver, version, registry, count, buckets, mac = typed(
            found[0], (int, bytes, bytes, bytes, int, bytes, bytes)
        )
        if len(found) > 1 or driver != owner.driver_digest:
            raise SealBroken("the registry is another driver's")
        if version != owner.version_digest or format_ != FORMAT:
            raise OtherVersion("the registry was written by another version of the driver")
        if len(registry) != 16 or not 0 <= count < 1 << 63 or len(buckets) != 32 * BUCKETS:
            raise SealBroken("the registry's state has no possible value")
        digests = [buckets[at : at + 32] for at in range(0, len(buckets), 32)]
        books = cls(database, owner, measure.key, RegistryState(registry, count), digests)
        if not hmac.compare_digest(mac, books.mac()):
            raise SealBroken("the registry was altered, or sealed with another key")
        if count < measure.least:
            raise RolledBack(
                f"the registry stands at change {count}, and change {measure.least} was seen before"
            )
        return books

    def find(self, token: bytes, entry: bytes) -> Row | None:
        """The row of that token and entry, None where there is none. `SealBroken` if it was altered."""
        for fields in self.fields(bucket_of(token)):
            if fields[:2] == (token, entry):
                return self._row(fields)
        return None

    def rows(self, bucket: int) -> list[Row]:
        """The rows of *bucket*. `SealBroken` if they were altered."""
        return [self._row(fields) for fields in self.fields(bucket)]

    def fields(self, bucket: int) -> list[tuple[Any, ...]]:
        """The rows of *bucket* as they stand in the database: token, entry, sequence, models, files, mac. `SealBroken` if they
        were altered.
        """
        digest, rows = read_bucket(self._database, bucket)
        if not hmac.compare_digest(digest, self.digests[bucket]):
            raise SealBroken("a row of the registry was altered, added or removed")
        return rows

    def mac(self) -> bytes:
        """Authenticates the state and, through the buckets' digests, the list of rows."""
        owner = self.owner
        fields = (owner.driver_digest, owner.version_digest, self.state.registry)
        whole = b"".join((*fields, self.state.changes.to_bytes(8, "little"), *self.digests))
        return hmac.digest(self.key, _WHOLE_DOMAIN + whole, "sha256")

    def _row(self, found: Sequence[object]) -> Row:
        token, entry, sequence, models, files, mac = typed(found, _ROW_TYPES)
        try:
            row = Row(token, entry, *unpack_records(files, models), sequence)
            expected = row_mac(self.key, self.owner, self.state.registry, row)
        except (ValueError, struct.error):
            raise SealBroken("a row of the registry has no possible value") from None
        if not hmac.compare_digest(mac, expected):
            raise SealBroken("a row of the registry was altered")
        return row


class SqliteRegistry:
    """`Registry` in the SQLite database *path* (WAL, synchronous FULL, 0600), authenticated by *keys*.

    Every call opens the database and closes it, so that nothing stays open, a child process inherits
    nothing, and a database that was removed or exchanged is noticed. Not for network file systems, as
    SQLite's WAL is not.
    """

    def __init__(
        self, path: StrPath, owner: Owner, keys: KeyStore, *, connect: Connect = connect
    ) -> None:
        check_kind(owner, Owner, "a registry has an Owner")
        self.path = path_of(path, "a registry lies in a file at a path")
        self.owner, self._connect = owner, connect
        self._measures = Measures(keys, owner.digits)

    def state(self) -> RegistryState | None:
        measure = self._measures.now()
        with self._reading() as database:
            books = None if database is None else self._verified(database, measure)
            return None if books is None else books.state

    def find(self, token: bytes, entry: bytes) -> Row | None:
        measure = self._measures.now()
        with self._reading() as database:
            if database is None or (books := self._verified(database, measure)) is None:
                return None
            return books.find(token, entry)

    def rows(self) -> tuple[Row, ...]:
        measure = self._measures.now()
        with self._reading() as database:
            if database is None or (books := self._verified(database, measure)) is None:
                return ()
            return tuple(row for bucket in range(BUCKETS) for row in books.rows(bucket))

    def open(self) -> RegistryState:
        with suppress(OSError):
            # Without a free descriptor it cannot be imported.
            from penstock.sealed.registry_changes import make_room

            make_room(self.path)
        try:
            state = self.state()
        except (SealBroken, OtherVersion, RolledBack):
            state = None
        if state is None:
            self._change(lambda _: 0, repair=True)
            state = self.state()
        if state is None:
            raise Unreadable("the registry does not stay as it was made")
        return state

    def begin(self, row: Row) -> None:
        self._change(lambda change: change.insert(row), repair=True)

    def publish(self, token: bytes, entry: bytes, replaced: Sequence[bytes] = ()) -> None:
        if gone := [old for old in replaced if old != entry]:
            self._change(lambda change: sum(change.delete(token, old) for old in gone))

    def remove(self, token: bytes, entry: bytes) -> None:
        self._change(lambda change: change.delete(token, entry))

    def clear(self) -> None:
        self._change(lambda change: change.delete_all(), repair=True)

    def _change(self, act: Act, *, repair: bool = False) -> None:
        try:
            from penstock.sealed.registry_changes import change
        except (OSError, ImportError) as error:
            raise Unreadable(f"the registry {self.path} cannot be changed: {error}") from error
        change(self, act, repair=repair)

    def _verified(self, database: sqlite3.Connection, measure: Measure) -> Books | None:
        """The registry, if it is authentic and the newest known; None for a database without one.

        One that is not may be sealed with a key that has taken the place of the known one meanwhile.
        """
        try:
            return self._measured(database, measure)
        except SealBroken:
            if (newer := self._measures.other_than(measure)) is None:
                raise
            return self._measured(database, newer)

    def _measured(self, database: sqlite3.Connection, measure: Measure) -> Books | None:
        books = Books.found(database, self.owner, measure)
        if books is not None:
            self._measures.seen(measure.key, books.state.changes)
        return books

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection | None]:
        try:
            status = os.lstat(self.path)
        except FileNotFoundError:
            yield None
            return
        except OSError as error:
            raise Unreadable(f"the registry {self.path} cannot be read: {error.strerror}") from None
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MOST_BYTES:
            raise SealBroken("the registry is no database")
        with self._database() as database, transaction(database, "DEFERRED"):
            yield database

    @contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        """A connection. SQLite's errors come out as `Unreadable` or `SealBroken`."""
        try:
            with FORK_GATE.passed(), closing(self._connect(self.path)) as database:
                database.text_factory = bytes
                database.execute("PRAGMA trusted_schema = OFF")
                yield database
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code in _SYSTEM_FAILED:
                raise Unreadable(f"the registry {self.path} cannot be used: {error}") from None
            raise SealBroken(f"the registry is damaged: {error}") from None
        except (UnicodeError, OverflowError) as error:
            # What a damaged database holds in place of names and numbers.
            raise SealBroken(f"the registry is damaged: {error}") from None


@contextmanager
def transaction(database: sqlite3.Connection, kind: str) -> Iterator[None]:
    """A transaction, which closing the connection undoes if the block raises."""
    database.execute(f"BEGIN {kind}")
    yield
    database.execute("COMMIT")


def bucket_of(token: bytes) -> int:
    """The bucket that rows of *token* are in."""
    return token[0] >> _BUCKET_SHIFT if token else 0


def read_bucket(database: sqlite3.Connection, bucket: int) -> tuple[bytes, list[tuple[Any, ...]]]:
    """The digest of the rows of *bucket*, and the rows, in ascending order of token and entry."""
    above = (bucket + 1) << _BUCKET_SHIFT
    rows = database.execute(
        "SELECT * FROM entry WHERE token >= ? AND token < ? ORDER BY token, entry",
        (
            bytes([bucket << _BUCKET_SHIFT]) if bucket else b"",
            bytes([above]) if above < 256 else b"\xff" * 64,
        ),
    ).fetchall()
    digest = hashlib.sha256()
    for found in rows:
        token, entry, *_, mac = typed(found, _ROW_TYPES)
        for part in (token, entry, mac):
            digest.update(len(part).to_bytes(8, "little") + part)
    return digest.digest(), rows


def typed(values: Sequence[object], kinds: Sequence[type]) -> tuple[Any, ...]:
    """*values*, if each is of its kind: SQLite's columns hold what they were given."""
    if len(values) != len(kinds) or not all(map(isinstance, values, kinds)):
        raise SealBroken("the registry holds values of other types")
    return tuple(values)
