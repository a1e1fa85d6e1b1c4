"""A fault at each file operation of a cache directory in turn: afterwards the old entry, the new
one, or a named miss.
"""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.cache.eviction import collect
from penstock.errors import CacheError, ForeignEntry, NoEntry, NotYetWritten
from penstock.sealed.files import StrPath
from penstock.testing.doubles import Crash, FaultyFiles, QuickFiles
from tests.conftest import open_descriptors
from tests.support_cache import Bench, Unsaved, token_of
from tests.support_sealed import FAULTS

TOKEN, OTHER = token_of(1), token_of(2)
TEXTS = ("old", "new, and longer", "repaired")


def publish(bench: Bench) -> None:
    bench.compile(TOKEN, "new, and longer")


def publish_for_later(bench: Bench) -> None:
    writer = bench.compile_later(TOKEN)
    bench.files.at = -1  # the writer has tests of its own
    writer.close()


def compile_in_vain(bench: Bench) -> None:
    lease = bench.directory.lease(TOKEN)
    assert lease is not None
    with lease, lease.create((2, 1)) as files:
        lease.discard(files)


def load(bench: Bench) -> None:
    found = bench.load(TOKEN, TEXTS)
    if isinstance(found, type):
        raise found("")


def evict(bench: Bench) -> None:
    with bench.directory.store.naming("emptied"):
        collect(bench.directory.store, 1)


def ask(bench: Bench) -> None:
    nearest = bench.directory.nearest({"structure": "1"})
    assert nearest is None or nearest.ingredients == {"structure": "1"}


# What is done, and whether an old entry is there before.
ACTS: dict[str, tuple[Callable[[Bench], None], bool]] = {
    "replace": (publish, True),
    "publish": (publish, False),
    "publish for later": (publish_for_later, True),
    "compile in vain": (compile_in_vain, True),
    "load": (load, True),
    "evict": (evict, True),
    "explain": (ask, True),
}

# What is found afterwards, depending on where the fault was.
OUTCOMES: dict[str, set[object]] = {
    "replace": {"old", "new, and longer"},
    "publish": {NoEntry, "new, and longer"},
    "publish for later": {"old", NotYetWritten},
    "compile in vain": {"old"},
    "load": {"old"},
    "evict": {"old", NoEntry},
    "explain": {"old"},
}


ERRORS = tuple(name for name in FAULTS if name != "crash")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bool], Bench]:
    """Directories to copy: with another entry, and with the old one or without."""
    made = {old: prepare(tmp_path_factory.mktemp("prepared"), old) for old in (False, True)}
    return made.__getitem__


def prepare(root: Path, old: bool) -> Bench:
    bench = Bench(root)
    bench.compile(OTHER, "old", structure="1")
    if old:
        bench.compile(TOKEN, "old", structure="1")
        assert bench.load(TOKEN, TEXTS) == "old"
    return bench


def copied(bench: Bench, root: Path) -> Bench:
    shutil.copytree(bench.root, root)
    registries = {owner: registry.copy() for owner, registry in bench.registries.items()}
    return Bench(root, registries=registries)


def attempt(bench: Bench, act: Callable[[Bench], None]) -> None:
    with suppress(Crash, CacheError, Unsaved):
        act(bench)


class Ordered(QuickFiles):
    """Notes what was synced, and in which order files got their names."""

    def __init__(self) -> None:
        super().__init__()
        self.synced: set[tuple[int, int]] = set()
        self.events: list[str] = []

    def write(self, fd: int, content: memoryview, offset: int) -> int:
        self.synced.discard(self.status(fd).identity)
        return super().write(fd, content, offset)

    def sync(self, fd: int) -> None:
        self.synced.add(self.status(fd).identity)
        super().sync(fd)

    def replace(self, source: StrPath, target: StrPath) -> None:
        known = self.status_of(source).identity in self.synced
        self.events.append(f"{Path(target).name[64:]} {'synced' if known else 'not synced'}")
        super().replace(source, target)

    def sync_directory(self, path: StrPath) -> None:
        self.events.append("directory")
        super().sync_directory(path)


def test_files_are_synced_before_they_get_their_names(tmp_path: Path) -> None:
    """A driver need not sync what it wrote. The index may be lost: nothing depends on it."""
    files = Ordered()
    bench = Bench(tmp_path, files=files)
    lease = bench.directory.lease(TOKEN)
    assert lease is not None
    with lease, lease.create((2, 1)) as lent:
        for handle in lent.handles:
            assert os.pwrite(handle.fd, b"an artefact", 0) == 11
        lease.publish(lent, bench.record(TOKEN))
    assert files.events == ["10 synced", "11 synced", "20 synced", "directory", ".json synced"]


@pytest.fixture(scope="module", autouse=True)
def quick_collections() -> None:
    """What other tests left is not looked through at each operation."""
    gc.collect()
    gc.freeze()


@pytest.mark.parametrize("names", [("crash",), ERRORS], ids=["crash", "error"])
@pytest.mark.parametrize("what", ACTS)
def test_a_fault_at_any_file_operation(
    tmp_path: Path, prepared: Callable[[bool], Bench], what: str, names: Sequence[str]
) -> None:
    """Errors take turns, one an operation; the soak has each at every operation."""
    outcomes = fail_each(tmp_path, prepared(ACTS[what][1]), what, names)
    assert outcomes >= OUTCOMES[what]
    if names == ("crash",) and what == "replace":
        assert {ForeignEntry, "old", "new, and longer"} <= outcomes


def fail_each(tmp_path: Path, source: Bench, what: str, names: Sequence[str]) -> set[object]:
    """What is found after a fault at operation 0, 1, ... of *what*; the faults of those *names*
    take turns.
    """
    act, _ = ACTS[what]
    outcomes: set[object] = set()
    counting = FaultyFiles()
    act(replace(copied(source, tmp_path / "counted"), files=counting))
    for at in range(len(counting.log)):
        name = names[at % len(names)]
        root = tmp_path / str(at)
        bench = copied(source, root)
        before = open_descriptors()
        faulty = FaultyFiles(at, FAULTS[name])
        attempt(replace(bench, files=faulty), act)
        if open_descriptors() - before:  # a traceback may hold what was loaded
            gc.collect()
        # What earlier tests left to the collector may go meanwhile.
        assert open_descriptors() - before == set(), (at, faulty.log[at:])

        outcome = bench.load(TOKEN, TEXTS)
        outcomes.add(outcome)
        if name != "crash":
            assert outcome in {"old", "new, and longer", NoEntry, NotYetWritten}
            # A file that could not be removed waits for the next sweep.
            assert not bench.temporaries() or faulty.log[at] == "unlink"
        assert bench.load(OTHER, TEXTS) in {"old", NoEntry}
        bench.compile(TOKEN, "repaired")
        assert bench.load(TOKEN, TEXTS) == "repaired"
        collect(bench.directory.store, None)
        assert bench.temporaries() == []
        assert {n for n in bench.names() if n not in {"10", "11", "20"}} <= {".json"}
        assert set(bench.lock_files()) <= {".lock"}
        shutil.rmtree(root)
    return outcomes
