"""Changes of a registry's database, each one transaction; and the database made anew where it is not to be believed."""

# ruff: noqa: SLF001  # the friend of SqliteRegistry

from __future__ import annotations

import hashlib
import os
import sqlite3
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeAlias

from penstock.errors import OtherVersion, RolledBack, SealBroken, Unreadable
from penstock.sealed.places import make_private_directory
from penstock.sealed.registry import MOST_ROWS, RegistryState, Row, pack_records, row_mac
from penstock.sealed.sqlite_registry import (
    BUCKETS,
    FORMAT,
    WAIT_SECONDS,
    Books,
    bucket_of,
    read_bucket,
    transaction,
    typed,
)

if TYPE_CHECKING:
    from penstock.sealed.registry import Measure
    from penstock.sealed.sqlite_registry import SqliteRegistry

_NO_ROWS: Final = hashlib.sha256().digest()
_SUFFIXES: Final = ("-wal", "-shm", "-journal", "")
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS registry (
    format INTEGER NOT NULL, driver BLOB NOT NULL, version BLOB NOT NULL,
    driver_name TEXT NOT NULL, version_name TEXT NOT NULL,
    registry BLOB NOT NULL, count INTEGER NOT NULL, buckets BLOB NOT NULL, mac BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS entry (
    token BLOB NOT NULL, entry BLOB NOT NULL, sequence INTEGER NOT NULL, models INTEGER NOT NULL,
    files BLOB NOT NULL, mac BLOB NOT NULL, PRIMARY KEY (token, entry)) WITHOUT ROWID;
"""


class Change:
    """A change of *books*. Only rows of buckets that were compared with their digests are changed: else what somebody
    altered would become authentic.
    """

    def __init__(self, database: sqlite3.Connection, books: Books) -> None:
        self._database, self._books = database, books
        self._trusted: set[int] = set()

    def insert(self, row: Row) -> int:
        """Adds *row*, for which the oldest make room; gives how many were added."""
        books = self._books
        self._trust(row.token)
        # One more than the changes so far: the change that is under way.
        placed = Row(row.token, row.entry, row.models, row.datas, books.state.changes + 1)
        mac = row_mac(books.key, books.owner, books.state.registry, placed)
        self._database.execute(
            "INSERT INTO entry VALUES (?, ?, ?, ?, ?, ?)",
            (row.token, row.entry, placed.sequence, len(row.models), pack_records(row), mac),
        )
        (count,) = self._database.execute("SELECT COUNT(*) FROM entry").fetchone()
        for old in self._database.execute(
            "SELECT token, entry FROM entry ORDER BY sequence LIMIT ?", (max(0, count - MOST_ROWS),)
        ).fetchall():
            self.delete(*typed(old, (bytes, bytes)))
        return 1

    def delete(self, token: bytes, entry: bytes) -> int:
        """Removes that row; gives how many there were."""
        self._trust(token)
        return self._database.execute(
            "DELETE FROM entry WHERE token = ? AND entry = ?", (token, entry)
        ).rowcount

    def delete_all(self) -> int:
        """Removes all rows; gives how many there were."""
        self._trusted.clear()
        self._books.digests = [_NO_ROWS] * BUCKETS
        return self._database.execute("DELETE FROM entry").rowcount

    def finish(self) -> None:
        """Counts it, and authenticates what stands there now."""
        books = self._books
        for bucket in self._trusted:
            books.digests[bucket] = read_bucket(self._database, bucket)[0]
        books.state = RegistryState(books.state.registry, books.state.changes + 1)
        self._database.execute(
            "UPDATE registry SET count = ?, buckets = ?, mac = ?",
            (books.state.changes, b"".join(books.digests), books.mac()),
        )

    def _trust(self, token: bytes) -> None:
        if (bucket := bucket_of(token)) not in self._trusted:
            self._books.fields(bucket)
            self._trusted.add(bucket)


Act: TypeAlias = Callable[[Change], int]


def change(registry: SqliteRegistry, act: Act, *, repair: bool = False) -> None:
    """Runs *act* in one transaction, which counts as one change if *act* says that it touched a row.

    Without *repair* nothing is done to a registry that is missing.
    """
    measure = registry._measures.now()
    if not repair and not os.path.exists(registry.path):
        return
    try:
        changed = _write(registry, act, measure, repair=repair)
    except SealBroken:
        if not repair:
            raise
        _discard(registry.path)
        changed = _write(registry, act, measure, repair=True)
    if changed is not None:
        registry._measures.store(changed.key, changed.state.changes)


def make_room(path: str) -> None:
    """Removes what is no regular file in place of the database at *path* or its logs. Raises `OSError`."""
    for suffix in _SUFFIXES:
        with suppress(FileNotFoundError):
            if not stat.S_ISREG(os.lstat(path + suffix).st_mode):
                os.unlink(path + suffix)


def _write(registry: SqliteRegistry, act: Act, measure: Measure, *, repair: bool) -> Books | None:
    """Runs *act*; what stands in the registry then, None where nothing was changed."""
    if repair:
        make_private_directory(os.path.dirname(registry.path))
        _create(registry.path)
    with registry._database() as database:
        _use_wal(database)
        database.execute("PRAGMA synchronous = FULL")
        with transaction(database, "IMMEDIATE"):
            if repair:
                for statement in _SCHEMA.split(";")[:-1]:
                    database.execute(statement)
            books = _books_to_change(registry, database, measure, repair=repair)
            if books is None:
                return None
            made = Change(database, books)
            try:
                touched = act(made)
            except SealBroken:
                if not repair:
                    raise
                books = _made_anew(registry, database)
                made = Change(database, books)
                touched = act(made)
            if not touched:
                return None
            made.finish()
            return books


def _books_to_change(
    registry: SqliteRegistry, database: sqlite3.Connection, measure: Measure, *, repair: bool
) -> Books | None:
    try:
        books = registry._verified(database, measure)
    except (SealBroken, OtherVersion, RolledBack):
        if not repair:
            raise
        books = None
    return _made_anew(registry, database) if books is None and repair else books


def _made_anew(registry: SqliteRegistry, database: sqlite3.Connection) -> Books:
    newest, owner = registry._measures.renewed(), registry.owner
    state = RegistryState(os.urandom(16), newest.least)
    books = Books(database, owner, newest.key, state, [_NO_ROWS] * BUCKETS)
    database.execute("DELETE FROM entry")
    database.execute("DELETE FROM registry")
    database.execute(
        "INSERT INTO registry VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            FORMAT,
            owner.driver_digest,
            owner.version_digest,
            owner.driver,
            owner.version,
            state.registry,
            state.changes,
            b"".join(books.digests),
            books.mac(),
        ),
    )
    return books


def _create(path: str) -> None:
    """An empty 0600 file where there is no database; what is no regular file makes room."""
    try:
        make_room(path)
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except OSError as error:
        raise Unreadable(f"the registry {path} cannot be made: {error.strerror}") from None


def _discard(path: str) -> None:
    """Removes a database that cannot be read, its log first."""
    for suffix in _SUFFIXES:
        with suppress(OSError):
            os.unlink(path + suffix)


def _use_wal(database: sqlite3.Connection) -> None:
    """Turns the log on. SQLite does not wait by itself while another process does the same."""
    until = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            database.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
            time.sleep(0.01)
        else:
            return
