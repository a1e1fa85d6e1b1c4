"""A cache directory with its driver: `penstock.sealed.Seal`, which saves and loads two model files
and one data file, with the key in a directory of the test's and its registry in memory.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from penstock import sealed
from penstock.cache.directory import CacheDirectory
from penstock.cache.lease import Lease
from penstock.cache.naming import IndexRecord
from penstock.cache.store import Store
from penstock.errors import CacheError
from penstock.testing.doubles import QUICK_FILES
from tests.support_sealed import BINDING

NEEDED = (2, 1)
OWNER = sealed.Owner("lab", "1")


def token_of(number: int) -> bytes:
    return hashlib.sha256(str(number).encode()).digest()


def payloads_of(text: str) -> tuple[bytes, bytes, bytes]:
    return f"{text}: program".encode(), f"{text}: second".encode(), f"{text}: weights".encode() * 3


@dataclass
class Ticking:
    """Seconds since the epoch that move by one with each look."""

    now: float = 1_700_000_000.0
    step: float = 1.0

    def __call__(self) -> float:
        self.now += self.step
        return self.now


class MemoryRegistry:
    """A `Registry` of this process alone, which nobody tampers with."""

    def __init__(self) -> None:
        self.listed: dict[tuple[bytes, bytes], sealed.Row] = {}
        self.changes = 0
        self.name = bytes(16)

    def copy(self) -> MemoryRegistry:
        made = MemoryRegistry()
        made.listed, made.changes = dict(self.listed), self.changes
        return made

    def state(self) -> sealed.RegistryState | None:
        return sealed.RegistryState(self.name, self.changes)

    def open(self) -> sealed.RegistryState:
        return sealed.RegistryState(self.name, self.changes)

    def begin(self, row: sealed.Row) -> None:
        self.changes += 1
        self.listed[row.token, row.entry] = sealed.Row(
            row.token, row.entry, row.models, row.datas, self.changes
        )

    def publish(self, token: bytes, entry: bytes, replaced: Sequence[bytes] = ()) -> None:
        for old in replaced:
            self.remove(token, old)

    def find(self, token: bytes, entry: bytes) -> sealed.Row | None:
        return self.listed.get((token, entry))

    def remove(self, token: bytes, entry: bytes) -> None:
        self.changes += bool(self.listed.pop((token, entry), None))

    def rows(self) -> tuple[sealed.Row, ...]:
        return tuple(self.listed.values())

    def clear(self) -> None:
        self.listed.clear()
        self.changes += 1


@dataclass
class Bench:
    """Compiles through a `CacheDirectory` as a runtime would; every call is a new process, but for
    its number.
    """

    root: Path
    files: Any = QUICK_FILES
    owner: sealed.Owner = OWNER
    binding: bytes = BINDING
    clock: Any = field(default_factory=Ticking)
    uptime: Any = None
    registries: dict[tuple[str, str], MemoryRegistry] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        return self.root / "cache"

    def keys(self) -> sealed.KeyStore:
        return sealed.FileKeyStore(self.root / "key", files=self.files)

    @property
    def registry(self) -> MemoryRegistry:
        return self._registry(self.owner)

    @property
    def directory(self) -> CacheDirectory:
        store = Store(
            str(self.path),
            files=self.files,
            keys=self.keys(),
            clock=self.clock,
            uptime=self.uptime or self.clock,
            seals=self.seal,
            locks=str(self.root / "locks"),
        )
        return CacheDirectory(store)

    def lock_file(self, name: str) -> Path:
        """Where the lock file *name* of the cache directory lies, which has to be there."""
        return Path(self.directory.store.locks.path_of(name))

    def lock_files(self) -> list[str]:
        """The endings of the lock files that there are."""
        place = self.root / "locks"
        return sorted(path.suffix for path in place.iterdir()) if place.exists() else []

    def seal(
        self, device: str = "", version: str = "", needed: tuple[int, int] = NEEDED
    ) -> sealed.Seal:
        owner = sealed.Owner(device or self.owner.driver, version or self.owner.version)
        return sealed.Seal(
            owner.driver,
            owner.version,
            files=needed,
            registry=self._registry(owner),
            keys=self.keys(),
            file_system=self.files,
        )

    def _registry(self, owner: sealed.Owner) -> MemoryRegistry:
        return self.registries.setdefault((owner.driver, owner.version), MemoryRegistry())

    def record(self, token: bytes, **ingredients: str) -> IndexRecord:
        return IndexRecord(
            token=token.hex(),
            binding=self.binding.hex(),
            device=self.owner.driver,
            version=self.owner.version,
            ingredients=ingredients,
            models=NEEDED[0],
            datas=NEEDED[1],
            created=self.clock(),
        )

    def compile_under(self, lease: Lease, token: bytes, text: str, **ingredients: str) -> None:
        with lease.create(NEEDED) as files:
            *model, data = payloads_of(text)
            report = self.seal().save(
                sealed.EntryFiles(files.model, files.data, token, self.binding),
                model=model,
                data=[data],
            )
            if not report.saved:
                lease.discard(files)
                raise Unsaved(report.reason)
            lease.publish(files, self.record(token, **ingredients))

    def compile(self, token: bytes, text: str, **ingredients: str) -> None:
        """Leases, saves the payloads of *text* and publishes them."""
        lease = self.directory.lease(token, wait_ns=0)
        assert lease is not None
        with lease:
            self.compile_under(lease, token, text, **ingredients)

    def compile_later(self, token: bytes) -> sealed.LateWriter:
        """Publishes an entry that the writer is going to write, as a driver that compiles at first
        execution.
        """
        lease = self.directory.lease(token, wait_ns=0)
        assert lease is not None
        with ExitStack() as stack:
            with lease, lease.create(NEEDED) as files:
                if files.lock is None:
                    lease.discard(files)
                    raise Unsaved("nothing can be written later without a lock")
                writer = sealed.LateWriter(
                    self.seal(),
                    sealed.EntryFiles(
                        files.model, files.data, token, self.binding, lock=files.lock
                    ),
                    expected=None,
                )
                stack.callback(writer.close)
                lease.publish(files, self.record(token), late=True)
            stack.pop_all()
        return writer

    def load(self, token: bytes, texts: Sequence[str]) -> str | type[CacheError]:
        """Which of *texts* the entry holds, or the class of the refusal."""
        try:
            directory = self.directory
            with directory.open(token, NEEDED) as files:
                loaded = self.seal().load(
                    sealed.EntryFiles(files.model, files.data, token, self.binding)
                )
            directory.touch(token)
        except CacheError as error:
            return type(error)
        found = tuple(map(bytes, (*loaded.model, *loaded.data)))
        (text,) = [text for text in texts if payloads_of(text) == found]
        return text

    def names(self) -> list[str]:
        """The names in the directory without the letters of the token."""
        return sorted(p.name[64:] for p in self.path.iterdir()) if self.path.exists() else []

    def temporaries(self) -> list[str]:
        return [name for name in self.names() if name.endswith(".tmp")]


class Unsaved(Exception):
    """The driver could not save; the runtime goes on without."""


class ProcessBench(Bench):
    """A `Bench` whose registry is a file, so that processes share it, and whose clock is the
    system's.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(root, clock=time.time)

    @cached_property
    def directory(self) -> CacheDirectory:  # one, which knows what it has seen
        return super().directory

    def seal(
        self, device: str = "", version: str = "", needed: tuple[int, int] = NEEDED
    ) -> sealed.Seal:
        owner = sealed.Owner(device or self.owner.driver, version or self.owner.version)
        keys = self.keys()
        path = sealed.registry_path(self.root / "state", owner, keys)
        registry = sealed.FileRegistry(path, owner, keys, files=QUICK_FILES)
        return sealed.Seal(
            owner.driver,
            owner.version,
            files=needed,
            registry=registry,
            keys=keys,
            file_system=self.files,
        )
