"""The registry as one SQLite database a driver version."""

from __future__ import annotations

import hashlib
import hmac
import os
import sqlite3
import stat
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any, Final, TypeAlias

from penstock.errors import OtherVersion, RolledBack, SealBroken, Unreadable
from penstock.sealed.files import StrPath
from penstock.sealed.forks import FORK_GATE
from penstock.sealed.keys import KeyStore
from penstock.sealed.places import make_private_directory
from penstock.sealed.registry import (
    MOST_ROWS,
    Measure,
    Measures,
    Owner,
    RegistryState,
    Row,
    pack_records,
    row_mac,
    unpack_records,
)

Connect: TypeAlias = Callable[[str], sqlite3.Connection]

_UNQUOTED: Final = frozenset(
    b"/:-._~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
)
_FORMAT: Final = 1
_MOST_BYTES: Final = 64 << 20
_WAIT_SECONDS: Final = 5.0
_BUCKETS: Final = 64
_BUCKET_SHIFT: Final = 2
_NO_ROWS: Final = hashlib.sha256().digest()
_WHOLE_DOMAIN: Final = b"penstock registry\x00"
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS registry (
    format INTEGER NOT NULL, driver BLOB NOT NULL, version BLOB NOT NULL,
    driver_name TEXT NOT NULL, version_name TEXT NOT NULL,
    registry BLOB NOT NULL, count INTEGER NOT NULL, buckets BLOB NOT NULL, mac BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS entry (
    token BLOB NOT NULL, entry BLOB NOT NULL, sequence INTEGER NOT NULL, models INTEGER NOT NULL,
    files BLOB NOT NULL, mac BLOB NOT NULL, PRIMARY KEY (token, entry)) WITHOUT ROWID;
"""
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
    """A connection to the database at *path*, which exists."""
    return sqlite3.connect(
        f"{uri_of(path)}?mode=rw",
        uri=True,
        timeout=_WAIT_SECONDS,
        isolation_level=None,
        check_same_thread=False,
    )


def uri_of(path: StrPath) -> str:
    """The `file:` URI of *path* (RFC 8089; "Uniform Resource Identifiers" in SQLite's documentation)."""
    whole = os.path.abspath(os.fspath(path))
    if os.sep != "/":
        whole = "/" + whole.replace(os.sep, "/")
    return "file://" + "".join(
        chr(byte) if byte in _UNQUOTED else f"%{byte:02X}" for byte in os.fsencode(whole)
    )


class _Books:
    """A registry that *key* authenticates, within a transaction: its *state* and the digest of each bucket's rows.

    A bucket are the rows whose tokens start alike, so that a find need not look at all rows. What was not
    compared with its digest is not to be believed, nor changed: that would make it authentic.
    """

    def __init__(
        self,
        database: sqlite3.Connection,
        key: bytes,
        state: RegistryState,
        digests: list[bytes],
    ) -> None:
        self._database, self.key, self.state, self.digests = database, key, state, digests
        self._trusted: set[int] = set()

    def rows(self, bucket: int) -> list[tuple[Any, ...]]:
        """The rows of *bucket*: token, entry, sequence, models, files, mac. `SealBroken` if they were altered."""
        digest, rows = _bucket(self._database, bucket)
        if not hmac.compare_digest(digest, self.digests[bucket]):
            raise SealBroken("a row of the registry was altered, added or removed")
        return rows

    def trust(self, token: bytes) -> None:
        """Compares the bucket of *token*, whose rows may then be changed."""
        if (bucket := _bucket_of(token)) not in self._trusted:
            self.rows(bucket)
            self._trusted.add(bucket)

    def delete(self, token: bytes, entry: bytes) -> int:
        self.trust(token)
        return self._database.execute(
            "DELETE FROM entry WHERE token = ? AND entry = ?", (token, entry)
        ).rowcount

    def delete_all(self) -> int:
        self._trusted.clear()
        self.digests = [_NO_ROWS] * _BUCKETS
        return self._database.execute("DELETE FROM entry").rowcount

    def balance(self) -> None:
        """Brings the digests of the buckets that may have been changed up to date."""
        for bucket in self._trusted:
            self.digests[bucket] = _bucket(self._database, bucket)[0]


Act: TypeAlias = Callable[[sqlite3.Connection, _Books], int]


class SqliteRegistry:
    """`Registry` in the SQLite database *path* (WAL, synchronous FULL, 0600), authenticated by *keys*.

    Every call opens the database and closes it, so that nothing stays open, a child process inherits
    nothing, and a database that was removed or exchanged is noticed. Not for network file systems, as
    SQLite's WAL is not.
    """

    def __init__(
        self, path: StrPath, owner: Owner, keys: KeyStore, *, connect: Connect = connect
    ) -> None:
        self.path, self.owner, self._connect = os.fspath(path), owner, connect
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
            for fields in books.rows(_bucket_of(token)):
                if fields[:2] == (token, entry):
                    return self._row(fields, books)
            return None

    def rows(self) -> tuple[Row, ...]:
        measure = self._measures.now()
        with self._reading() as database:
            if database is None or (books := self._verified(database, measure)) is None:
                return ()
            return tuple(
                self._row(fields, books)
                for bucket in range(_BUCKETS)
                for fields in books.rows(bucket)
            )

    def open(self) -> RegistryState:
        with suppress(OSError):
            self._make_room()
        try:
            state = self.state()
        except (SealBroken, OtherVersion, RolledBack):
            state = None
        if state is None:
            self._change(lambda *_: 0, repair=True)
            state = self.state()
        if state is None:
            raise Unreadable("the registry does not stay as it was made")
        return state

    def begin(self, row: Row) -> None:
        self._change(lambda database, books: self._insert(database, books, row), repair=True)

    def publish(self, token: bytes, entry: bytes, replaced: Sequence[bytes] = ()) -> None:
        if gone := [old for old in replaced if old != entry]:
            self._change(lambda _, books: sum(books.delete(token, old) for old in gone))

    def remove(self, token: bytes, entry: bytes) -> None:
        self._change(lambda _, books: books.delete(token, entry))

    def clear(self) -> None:
        self._change(lambda _, books: books.delete_all(), repair=True)

    def _insert(self, database: sqlite3.Connection, books: _Books, row: Row) -> int:
        books.trust(row.token)
        # One more than the changes so far: the change that is under way.
        placed = Row(row.token, row.entry, row.models, row.datas, books.state.changes + 1)
        mac = row_mac(books.key, self.owner, books.state.registry, placed)
        database.execute(
            "INSERT INTO entry VALUES (?, ?, ?, ?, ?, ?)",
            (row.token, row.entry, placed.sequence, len(row.models), pack_records(row), mac),
        )
        (count,) = database.execute("SELECT COUNT(*) FROM entry").fetchone()
        for old in database.execute(
            "SELECT token, entry FROM entry ORDER BY sequence LIMIT ?", (max(0, count - MOST_ROWS),)
        ).fetchall():
            books.delete(*_typed(old, (bytes, bytes)))
        return 1

    def _change(self, act: Act, *, repair: bool = False) -> None:
        """Runs *act* in one transaction, which counts as one change if *act* says that it touched a row.

        Without *repair* nothing is done to a registry that is missing.
        """
        measure = self._measures.now()
        if not repair and not os.path.exists(self.path):
            return
        try:
            changed = self._write(act, measure, repair=repair)
        except SealBroken:
            if not repair:
                raise
            self._discard()
            changed = self._write(act, measure, repair=True)
        if changed is not None:
            self._measures.store(changed.key, changed.state.changes)

    def _write(self, act: Act, measure: Measure, *, repair: bool) -> _Books | None:
        """Runs *act*; what stands in the registry then, None where nothing was changed."""
        if repair:
            make_private_directory(os.path.dirname(self.path))
            self._create()
        with self._database() as database:
            _use_wal(database)
            database.execute("PRAGMA synchronous = FULL")
            with _transaction(database, "IMMEDIATE"):
                if repair:
                    for statement in _SCHEMA.split(";")[:-1]:
                        database.execute(statement)
                books = self._books_to_change(database, measure, repair=repair)
                if books is None:
                    return None
                try:
                    touched = act(database, books)
                except SealBroken:
                    if not repair:
                        raise
                    books = self._made_anew(database)
                    touched = act(database, books)
                if not touched:
                    return None
                books.balance()
                books.state = RegistryState(books.state.registry, books.state.changes + 1)
                database.execute(
                    "UPDATE registry SET count = ?, buckets = ?, mac = ?",
                    (books.state.changes, b"".join(books.digests), self._whole_mac(books)),
                )
                return books

    def _books_to_change(
        self, database: sqlite3.Connection, measure: Measure, *, repair: bool
    ) -> _Books | None:
        try:
            books = self._verified(database, measure)
        except (SealBroken, OtherVersion, RolledBack):
            if not repair:
                raise
            books = None
        return self._made_anew(database) if books is None and repair else books

    def _made_anew(self, database: sqlite3.Connection) -> _Books:
        newest = self._measures.renewed()
        state = RegistryState(os.urandom(16), newest.least)
        books = _Books(database, newest.key, state, [_NO_ROWS] * _BUCKETS)
        database.execute("DELETE FROM entry")
        database.execute("DELETE FROM registry")
        owner = self.owner
        database.execute(
            "INSERT INTO registry VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                _FORMAT,
                owner.driver_digest,
                owner.version_digest,
                owner.driver,
                owner.version,
                books.state.registry,
                books.state.changes,
                b"".join(books.digests),
                self._whole_mac(books),
            ),
        )
        return books

    def _verified(self, database: sqlite3.Connection, measure: Measure) -> _Books | None:
        """The registry, if it is authentic and the newest known; None for a database without one.

        One that is not may be sealed with a key that has taken the place of the known one meanwhile.
        """
        try:
            return self._measured(database, measure)
        except SealBroken:
            if (newer := self._measures.other_than(measure)) is None:
                raise
            return self._measured(database, newer)

    def _measured(self, database: sqlite3.Connection, measure: Measure) -> _Books | None:
        if not database.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone():
            return None
        found = database.execute(
            "SELECT format, driver, version, registry, count, buckets, mac FROM registry LIMIT 2"
        ).fetchall()
        if not found:
            return None
        format_, driver, version, registry, count, buckets, mac = _typed(
            found[0], (int, bytes, bytes, bytes, int, bytes, bytes)
        )
        if len(found) > 1 or driver != self.owner.driver_digest:
            raise SealBroken("the registry is another driver's")
        if version != self.owner.version_digest or format_ != _FORMAT:
            raise OtherVersion("the registry was written by another version of the driver")
        if len(registry) != 16 or not 0 <= count < 1 << 63 or len(buckets) != 32 * _BUCKETS:
            raise SealBroken("the registry's state has no possible value")
        digests = [buckets[at : at + 32] for at in range(0, len(buckets), 32)]
        books = _Books(database, measure.key, RegistryState(registry, count), digests)
        if not hmac.compare_digest(mac, self._whole_mac(books)):
            raise SealBroken("the registry was altered, or sealed with another key")
        if count < measure.least:
            raise RolledBack(
                f"the registry stands at change {count}, and change {measure.least} was seen before"
            )
        self._measures.seen(measure.key, count)
        return books

    def _whole_mac(self, books: _Books) -> bytes:
        """Authenticates the state and, through the buckets' digests, the list of rows."""
        owner = self.owner
        fields = (owner.driver_digest, owner.version_digest, books.state.registry)
        whole = b"".join((*fields, books.state.changes.to_bytes(8, "little"), *books.digests))
        return hmac.digest(books.key, _WHOLE_DOMAIN + whole, "sha256")

    def _row(self, found: Sequence[object], books: _Books) -> Row:
        token, entry, sequence, models, files, mac = _typed(found, _ROW_TYPES)
        try:
            row = Row(token, entry, *unpack_records(files, models), sequence)
            expected = row_mac(books.key, self.owner, books.state.registry, row)
        except (ValueError, struct.error):
            raise SealBroken("a row of the registry has no possible value") from None
        if not hmac.compare_digest(mac, expected):
            raise SealBroken("a row of the registry was altered")
        return row

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
        with self._database() as database, _transaction(database, "DEFERRED"):
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

    def _create(self) -> None:
        """An empty 0600 file where there is no database; what is no regular file makes room."""
        try:
            self._make_room()
            with suppress(FileExistsError):
                os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        except OSError as error:
            raise Unreadable(f"the registry {self.path} cannot be made: {error.strerror}") from None

    def _make_room(self) -> None:
        """Removes what is no regular file in place of the database or its logs. Raises `OSError`."""
        for suffix in ("-wal", "-shm", "-journal", ""):
            path = self.path + suffix
            with suppress(FileNotFoundError):
                if not stat.S_ISREG(os.lstat(path).st_mode):
                    os.unlink(path)

    def _discard(self) -> None:
        """Removes a database that cannot be read, its log first."""
        for suffix in ("-wal", "-shm", "-journal", ""):
            with suppress(OSError):
                os.unlink(self.path + suffix)


@contextmanager
def _transaction(database: sqlite3.Connection, kind: str) -> Iterator[None]:
    """A transaction, which closing the connection undoes if the block raises."""
    database.execute(f"BEGIN {kind}")
    yield
    database.execute("COMMIT")


def _use_wal(database: sqlite3.Connection) -> None:
    """Turns the log on. SQLite does not wait by itself while another process does the same."""
    until = time.monotonic() + _WAIT_SECONDS
    while True:
        try:
            database.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
            time.sleep(0.01)
        else:
            return


def _bucket_of(token: bytes) -> int:
    return token[0] >> _BUCKET_SHIFT if token else 0


def _bucket(database: sqlite3.Connection, bucket: int) -> tuple[bytes, list[tuple[Any, ...]]]:
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
        token, entry, *_, mac = _typed(found, _ROW_TYPES)
        for part in (token, entry, mac):
            digest.update(len(part).to_bytes(8, "little") + part)
    return digest.digest(), rows


def _typed(values: Sequence[object], kinds: Sequence[type]) -> tuple[Any, ...]:
    """*values*, if each is of its kind: SQLite's columns hold what they were given."""
    if len(values) != len(kinds) or not all(map(isinstance, values, kinds)):
        raise SealBroken("the registry holds values of other types")
    return tuple(values)
