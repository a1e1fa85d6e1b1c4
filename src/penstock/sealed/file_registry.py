"""The registry as a file for each driver version, authenticated before it is read."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from penstock.arguments import check_kind, path_of
from penstock.errors import OtherVersion, RolledBack, SealBroken, Unreadable
from penstock.sealed.files import (
    SYSTEM_FILES,
    FileStatus,
    FileSystem,
    Renaming,
    StrPath,
    is_private,
    read_exactly,
    unreadable,
)
from penstock.sealed.keys import KeyStore
from penstock.sealed.registry import (
    HEAD_BYTES,
    MOST_BYTES,
    Contents,
    Measure,
    Measures,
    Owner,
    RegistryState,
    Row,
)

WAIT_SECONDS: Final = 5.0
"""Longest wait for another process that changes the registry."""
_NONBLOCK: Final[int] = getattr(os, "O_NONBLOCK", 0)


class FileRegistry:
    """`Registry` in the file *path* (0600, at most 4,096 rows), authenticated by *keys*.

    A change writes a new file and renames it, under the lock `<path>.lock`, within *wait_seconds*.
    Readers take no lock. Authenticated contents are kept in memory while the first bytes of the
    file stay the same.

    A file is `SealBroken` if others can read or write it, if it is a link, has a second name, is no
    regular file, or is too long.
    """

    def __init__(
        self,
        path: StrPath,
        owner: Owner,
        keys: KeyStore,
        *,
        files: FileSystem = SYSTEM_FILES,
        wait_seconds: float = WAIT_SECONDS,
    ) -> None:
        check_kind(owner, Owner, "a registry has an Owner")
        self.path = path_of(path, "a registry lies in a file at a path")
        self.owner, self._files, self._wait_seconds = owner, files, wait_seconds
        self._measures = Measures(keys, owner.digits)
        # Replaced, never changed: threads need no lock. A child forked meanwhile would wait for a
        # lock forever.
        self._known: Contents | None = None

    def state(self) -> RegistryState | None:
        contents = self._now()
        return None if contents is None else contents.state

    def find(self, token: bytes, entry: bytes) -> Row | None:
        contents = self._now()
        return None if contents is None else contents.find(token, entry)

    def rows(self) -> tuple[Row, ...]:
        contents = self._now()
        return () if contents is None else contents.rows()

    def _now(self) -> Contents | None:
        return self._verified(self._measures.now())

    def open(self) -> RegistryState:
        try:
            state = self.state()
        except (SealBroken, OtherVersion, RolledBack):
            state = None
        if state is None:
            self._change(lambda contents: contents, repair=True)
            state = self.state()
        if state is None:
            raise Unreadable(f"the registry {self.path} does not stay as it was made")
        return state

    def begin(self, row: Row) -> None:
        self._change(lambda contents: contents.with_row(row), repair=True)

    def publish(self, token: bytes, entry: bytes, replaced: Sequence[bytes] = ()) -> None:
        if removed := [old for old in replaced if old != entry]:
            self._change(lambda contents: contents.without(token, removed))

    def remove(self, token: bytes, entry: bytes) -> None:
        self._change(lambda contents: contents.without(token, [entry]))

    def clear(self) -> None:
        self._change(Contents.emptied, repair=True)

    def _change(self, act: Callable[[Contents], Contents], *, repair: bool = False) -> None:
        """Writes the registry that *act* returns, if it differs.

        With *repair*, a registry that is missing or fails verification is created first. Without, a
        missing registry stays missing.
        """
        if not repair and self._is_missing():
            return
        try:
            # Only changes need this module; it cannot be imported without a free descriptor.
            from penstock.sealed.places import make_private_directory
            from penstock.sealed.replacing import exclusively, replace_file
        except (OSError, ImportError) as error:
            raise Unreadable(f"the registry {self.path} cannot be changed: {error}") from error
        measure = self._measures.now()
        if repair:
            make_private_directory(os.path.dirname(self.path))
        with exclusively(self.path, self._wait_seconds, self._files):
            try:
                found = self._verified(measure)
            except (SealBroken, OtherVersion, RolledBack):
                if not repair:
                    raise
                found = None
            if found is None and not repair:
                return
            newest = measure if found is not None else self._measures.renewed()
            changed = act(found or Contents.empty(self.owner, newest.key, newest.least))
            if changed is found:
                return
            with self._naming("changed"):
                replace_file(self.path, changed.pack(), self._files)
            self._known = changed
        self._measures.store(changed.key, changed.state.changes)

    def _is_missing(self) -> bool:
        try:
            self._files.status_of(self.path)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return False

    def _verified(self, measure: Measure) -> Contents | None:
        """The registry, if it is authentic and the newest known; None if there is none.

        If authentication fails, the key is read again: another process may have replaced it.
        """
        try:
            return self._measured(measure)
        except SealBroken:
            if (newer := self._measures.other_than(measure)) is None:
                raise
            return self._measured(newer)

    def _measured(self, measure: Measure) -> Contents | None:
        with self._naming("read"):
            contents = self._read(measure.key)
        if contents is None:
            return None
        if contents.state.changes < measure.least:
            latest = f"change {contents.state.changes}, and change {measure.least} was seen before"
            raise RolledBack(f"the registry stands at {latest}")
        self._measures.seen(measure.key, contents.state.changes)
        self._known = contents
        return contents

    def _read(self, key: bytes) -> Contents | None:
        """The contents that *key* authenticates. `OSError`, `SealBroken`, `OtherVersion`."""
        files, known = self._files, self._known
        if (fd := self._opened()) is None:
            return None
        try:
            status = files.status(fd)
            _check(status)
            content = bytearray(HEAD_BYTES)
            with memoryview(content) as head:
                whole = read_exactly(files, fd, head, 0)
            if known is not None and known.key == key and known.head == bytes(content):
                return known
            content += bytes(status.size - HEAD_BYTES)
            with memoryview(content) as view:
                with view[HEAD_BYTES:] as rest:
                    whole = whole and read_exactly(files, fd, rest, HEAD_BYTES)
                if not whole:
                    raise SealBroken("the registry became shorter while it was read")
                return Contents.unpack(view, self.owner, key)
        finally:
            with suppress(OSError):
                files.close(fd)

    def _opened(self) -> int | None:
        """A descriptor of the file; None if there is none."""
        try:
            return self._files.open(self.path, os.O_RDONLY | _NONBLOCK)
        except FileNotFoundError:
            return None
        except OSError:
            # A link, a socket, or a mode that excludes its owner; any other error is the system's.
            with suppress(OSError):
                _check(self._files.status_of(self.path))
            raise

    def _naming(self, act: str) -> Renaming:
        return unreadable(f"the registry {self.path} cannot be {act}")


def _check(status: FileStatus) -> None:
    """Raises `SealBroken` for a file that cannot be a registry."""
    if not status.regular or status.links > 1:
        raise SealBroken("the registry is a link or no file")
    if not is_private(status):
        raise SealBroken(f"the registry is another user's, or has mode {status.mode:04o}, not 0600")
    if not HEAD_BYTES <= status.size <= MOST_BYTES:
        raise SealBroken(f"the registry has {status.size} bytes, not {HEAD_BYTES} to {MOST_BYTES}")
