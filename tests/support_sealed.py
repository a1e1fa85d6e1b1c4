"""A rig for sealed cache entries: files, registry and key in a directory of the test's, and a file
system that fails or changes files on purpose.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from penstock import sealed
from penstock.errors import CacheError
from penstock.testing import doubles

TOKEN = bytes(range(32))
BINDING = bytes(range(100, 132))
PROGRAM = (b"first half of a program", b"and the second")
WEIGHTS = (b"weights" * 5,)


@dataclass(frozen=True)
class Opened:
    """A `Handle`."""

    fd: int


FAULTS = {
    "crash": doubles.crash,
    "ENOSPC": doubles.failing(errno.ENOSPC),
    "EIO": doubles.failing(errno.EIO),
    "EACCES": doubles.failing(errno.EACCES),
}


def put_private(path: Path, content: bytes) -> None:
    """Puts a file of *content* at *path*, 0600 and new, as Penstock does."""
    path.unlink(missing_ok=True)
    path.touch(0o600)
    path.write_bytes(content)


class MemoryRegistry:
    """A `Registry` without a file, where the cases are many and none is about the registry."""

    def __init__(self) -> None:
        self._rows: dict[tuple[bytes, bytes], sealed.Row] = {}
        self._state = sealed.RegistryState(os.urandom(16), 0)

    def state(self) -> sealed.RegistryState:
        return self._state

    def open(self) -> sealed.RegistryState:
        return self._state

    def begin(self, row: sealed.Row) -> None:
        self._count()
        self._rows[row.token, row.entry] = replace(row, sequence=self._state.changes)

    def publish(self, token: bytes, entry: bytes, replaced: Sequence[bytes] = ()) -> None:
        for old in replaced:
            self.remove(token, old)

    def find(self, token: bytes, entry: bytes) -> sealed.Row | None:
        return self._rows.get((token, entry))

    def remove(self, token: bytes, entry: bytes) -> None:
        self._count()
        self._rows.pop((token, entry), None)

    def rows(self) -> tuple[sealed.Row, ...]:
        return tuple(self._rows.values())

    def clear(self) -> None:
        self._count()
        self._rows.clear()

    def _count(self) -> None:
        self._state = sealed.RegistryState(self._state.registry, self._state.changes + 1)


class Rig:
    """One driver version with a state directory and cache directories below *root*.

    An entry's files are `<folder>/<kind><index>`; every call makes a `Seal` of its own, as a new
    process would.
    """

    def __init__(
        self,
        root: Path,
        *,
        driver: str = "lab",
        version: str = "1",
        keys: sealed.KeyStore | None = None,
        program: Sequence[bytes] = PROGRAM,
        weights: Sequence[bytes] = WEIGHTS,
        registry: Callable[[], sealed.Registry] | None = None,
    ) -> None:
        self.root, self.owner, self.program, self.weights = (
            root,
            sealed.Owner(driver, version),
            program,
            weights,
        )
        self.state = root / "state"
        self.state.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._keys = keys
        self._registry = registry

    def keys(self, files: sealed.FileSystem = doubles.QUICK_FILES) -> sealed.KeyStore:
        return self._keys or sealed.FileKeyStore(self.state / "key", files=files)

    def registry(self, keys: sealed.KeyStore | None = None) -> sealed.Registry:
        if self._registry is not None:
            return self._registry()
        keys = keys or self.keys()
        return sealed.FileRegistry(self.registry_file, self.owner, keys, files=doubles.QUICK_FILES)

    @property
    def registry_file(self) -> Path:
        return Path(sealed.registry_path(self.state, self.owner, self.keys()))

    def seal(self, files: sealed.FileSystem = doubles.QUICK_FILES) -> sealed.Seal:
        keys = self.keys(files)
        return self.seal_with(self.registry(keys), keys, files)

    def seal_with(
        self,
        registry: sealed.Registry,
        keys: sealed.KeyStore | None = None,
        files: sealed.FileSystem = doubles.QUICK_FILES,
    ) -> sealed.Seal:
        return sealed.Seal(
            self.owner.driver,
            self.owner.version,
            files=(len(self.program), len(self.weights)),
            registry=registry,
            keys=keys or self.keys(),
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
                fd = sealed.open_cache_file(path, create=create)
                stack.callback(os.close, fd)
                opened.append(Opened(fd))
            yield opened[: len(self.program)], opened[len(self.program) :]

    @contextmanager
    def late(
        self,
        expected: bytes | None,
        folder: str = "cache",
        *,
        token: bytes = TOKEN,
        binding: bytes = BINDING,
        files: Any = doubles.QUICK_FILES,
        seal: sealed.Seal | None = None,
    ) -> Iterator[sealed.LateWriter]:
        """A late writer that has nothing but its own duplicates."""
        with self.handles(folder, create=True) as (model, data), self.lock(folder) as lock:
            seal = seal or self.seal(files)
            writer = sealed.LateWriter(
                seal, sealed.EntryFiles(model, data, token, binding, lock=lock), expected=expected
            )
        try:
            yield writer
        finally:
            try:
                writer.close()
            finally:
                for handle in writer._handles:  # as the system does for a process that died
                    os.close(handle.fd)

    def write(self, writer: sealed.LateWriter, *, timeout: float = 0.0) -> sealed.SaveReport:
        """Writes the rig's payloads late."""
        return writer.write(model=self.program, data=self.weights, timeout=timeout)

    @contextmanager
    def lock(self, folder: str = "cache") -> Iterator[Opened]:
        """The entry's lock file, opened anew."""
        directory = self.root / folder
        directory.mkdir(exist_ok=True)
        fd = sealed.open_cache_file(directory / "lock", create=True)
        try:
            yield Opened(fd)
        finally:
            os.close(fd)

    def entry(self, folder: str = "cache") -> bytes | None:
        """The id of the entry that the first file says it is of."""
        with self.handles(folder) as (model, data):
            return self.seal().entry_of((*model, *data)[0], TOKEN)

    def save(
        self,
        folder: str = "cache",
        *,
        token: bytes = TOKEN,
        binding: bytes = BINDING,
        files: sealed.FileSystem = doubles.QUICK_FILES,
    ) -> sealed.SaveReport:
        with self.handles(folder, create=True) as (model, data):
            return self.seal(files).save(
                sealed.EntryFiles(model, data, token, binding),
                model=self.program,
                data=self.weights,
            )

    def load(
        self,
        folder: str = "cache",
        *,
        token: bytes = TOKEN,
        binding: bytes = BINDING,
        files: sealed.FileSystem = doubles.QUICK_FILES,
    ) -> sealed.LoadedEntry:
        with self.handles(folder) as (model, data):
            return self.seal(files).load(sealed.EntryFiles(model, data, token, binding))

    def hits(self, folder: str = "cache", **named: Any) -> bool:
        """Whether the entry loads, with the very payloads that were saved."""
        loaded = self.load(folder, **named)
        found = [bytes(v) for v in (*loaded.model, *loaded.data)]
        return found == [*self.program, *self.weights]

    def refuses(self, kind: type[CacheError], folder: str = "cache", **named: Any) -> bool:
        """Whether loading raises exactly *kind*, with a text of the form `<Name>: sentence`."""
        import pytest  # which the processes that tests start do without

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
