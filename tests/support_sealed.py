"""A rig for sealed cache entries: files, registry and key in a directory of the test's, and a file system that
fails or changes files on purpose.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import CacheError
from penstock.sealed import (
    SYSTEM_FILES,
    FileKeyStore,
    FileSystem,
    KeyStore,
    LoadedEntry,
    Owner,
    Registry,
    SaveReport,
    Seal,
    SqliteRegistry,
    open_cache_file,
    registry_path,
)

TOKEN = bytes(range(32))
BINDING = bytes(range(100, 132))
PROGRAM = (b"first half of a program", b"and the second")
WEIGHTS = (b"weights" * 5,)


@dataclass(frozen=True)
class Opened:
    """A `Handle`."""

    fd: int


class Crash(BaseException):
    """The process dies here: nothing that catches errors runs any more."""


@dataclass
class FaultyFiles:
    """A `FileSystem` whose operation number *at* (from 0) does *fault* instead of its work; counts the operations.

    *fault* raises, or returns to let the operation go on. *only* counts operations of these names alone. After
    a `Crash` nothing works any more but closing, which the system does for a dead process.
    """

    at: int = -1
    fault: Callable[[], None] = lambda: None
    only: Sequence[str] = ()
    inner: FileSystem = SYSTEM_FILES
    log: list[str] = field(default_factory=list)
    dead: bool = False

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self.inner, name)

        def call(*arguments: object, **named: object) -> object:
            if self.dead and name != "close":
                raise Crash
            if not self.only or name in self.only:
                self.log.append(name)
                if len(self.log) == self.at + 1:
                    if name == "close":  # closes, whatever it says
                        operation(*arguments, **named)
                    try:
                        self.fault()
                    except Crash:
                        self.dead = True
                        raise
                    if name == "close":
                        return None
            return operation(*arguments, **named)

        return call


def failing(code: int) -> Callable[[], None]:
    """A fault that raises `OSError(code)`."""

    def fail() -> None:
        raise OSError(code, os.strerror(code))

    return fail


def crash() -> None:
    raise Crash


FAULTS = {
    "crash": crash,
    "ENOSPC": failing(errno.ENOSPC),
    "EIO": failing(errno.EIO),
    "EACCES": failing(errno.EACCES),
}


class Rig:
    """One driver version with a state directory and cache directories below *root*.

    An entry's files are `<folder>/<kind><index>`; every call makes a `Seal` of its own, as a new process
    would.
    """

    def __init__(
        self,
        root: Path,
        *,
        driver: str = "lab",
        version: str = "1",
        keys: KeyStore | None = None,
        program: Sequence[bytes] = PROGRAM,
        weights: Sequence[bytes] = WEIGHTS,
        registry: Callable[[], Registry] | None = None,
    ) -> None:
        self.root, self.owner, self.program, self.weights = (
            root,
            Owner(driver, version),
            program,
            weights,
        )
        self.state = root / "state"
        self.state.mkdir(mode=0o700, exist_ok=True)
        self._keys = keys
        self._registry = registry

    def keys(self, files: FileSystem = SYSTEM_FILES) -> KeyStore:
        return self._keys or FileKeyStore(self.state / "key", files=files)

    def registry(self, keys: KeyStore | None = None) -> Registry:
        if self._registry is not None:
            return self._registry()
        keys = keys or self.keys()
        return SqliteRegistry(self.database, self.owner, keys)

    @property
    def database(self) -> Path:
        return registry_path(self.state, self.owner, self.keys())

    def seal(self, files: FileSystem = SYSTEM_FILES) -> Seal:
        keys = self.keys(files)
        return Seal(
            self.owner.driver,
            self.owner.version,
            files=(len(self.program), len(self.weights)),
            registry=self.registry(keys),
            keys=keys,
            file_system=files,
        )

    def paths(self, folder: str = "cache") -> list[Path]:
        directory = self.root / folder
        directory.mkdir(exist_ok=True)
        return [
            *(directory / f"model{i}" for i in range(len(self.program))),
            *(directory / f"data{i}" for i in range(len(self.weights))),
        ]

    @contextmanager
    def handles(
        self, folder: str = "cache", *, create: bool = False
    ) -> Iterator[tuple[list[Opened], list[Opened]]]:
        with ExitStack() as stack:
            opened = []
            for path in self.paths(folder):
                fd = open_cache_file(path, create=create)
                stack.callback(os.close, fd)
                opened.append(Opened(fd))
            yield opened[: len(self.program)], opened[len(self.program) :]

    def save(
        self,
        folder: str = "cache",
        *,
        token: bytes = TOKEN,
        binding: bytes = BINDING,
        files: FileSystem = SYSTEM_FILES,
    ) -> SaveReport:
        with self.handles(folder, create=True) as (model, data):
            return self.seal(files).save(
                model, data, token, binding, model=self.program, data=self.weights
            )

    def load(
        self,
        folder: str = "cache",
        *,
        token: bytes = TOKEN,
        binding: bytes = BINDING,
        files: FileSystem = SYSTEM_FILES,
    ) -> LoadedEntry:
        with self.handles(folder) as (model, data):
            return self.seal(files).load(model, data, token, binding)

    def hits(self, folder: str = "cache", **named: Any) -> bool:
        """Whether the entry loads, with the very payloads that were saved."""
        loaded = self.load(folder, **named)
        found = [bytes(v) for v in (*loaded.model, *loaded.data)]
        return found == [*self.program, *self.weights]

    def refuses(self, kind: type[CacheError], folder: str = "cache", **named: Any) -> bool:
        """Whether loading raises exactly *kind*, with a text of the form `<Name>: sentence`."""
        with pytest.raises(CacheError) as caught:
            self.load(folder, **named)
        error = caught.value
        assert type(error) is kind, str(error)
        assert str(error).startswith(f"{kind.__name__}: ")
        return True

    def saved(self, folder: str = "cache", **named: Any) -> bool:
        """Saves, and whether the entry then hits."""
        report = self.save(folder, **named)
        assert report.saved, report.reason
        return self.hits(folder, **named)
