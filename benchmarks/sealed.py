"""Overhead of verifying a cache file: `penstock.sealed` compared with reading and hashing it."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.measuring import ROOT, Row, interleaved, medians, seconds, worked
from penstock.hal import CacheHandle
from penstock.sealed import (
    SYSTEM_FILES,
    EntryFiles,
    FileKeyStore,
    FileRecord,
    FileRegistry,
    FileSystem,
    Owner,
    Registry,
    Row as EntryRow,
    Seal,
    open_cache_file,
)
from penstock.testing.doubles import QUICK_FILES

NAME = "sealed"
TOKEN = bytes(32)
LARGE = 64 << 20
MANY_ROWS = 4000
LIMIT_RATIO = 1.2
LIMIT_LOAD_MS = 1.5
LIMIT_IMPORT_MS = 10.0

IMPORT = """
import sys, time, numpy, penstock
began = time.process_time()
import penstock.sealed
sys.stdout.write(str(time.process_time() - began))
"""


def rows(*, quick: bool) -> list[Row]:
    """Ratio for a data file of 64 MiB; load of a small entry with few and many rows; import."""
    return [
        verification(5 if quick else 15),
        small_load("load of 1 KiB", 1, 20 if quick else 200),
        small_load(f"load of 1 KiB, {MANY_ROWS} rows", MANY_ROWS, 20 if quick else 200),
        first_load(20 if quick else 200),
        save(20 if quick else 200),
        importing(3 if quick else 15),
    ]


def verification(rounds: int) -> Row:
    with entry(os.urandom(LARGE)) as (seal, handle, path):
        found = medians(
            interleaved(
                {
                    "load": lambda: worked(loading(seal, handle)),
                    "hash": lambda: worked(lambda: hashlib.sha256(path.read_bytes()).digest()),
                },
                rounds,
            )
        )
    ratio = found["load"] / found["hash"]
    return Row(NAME, "load of 64 MiB over reading and SHA-256", ratio, "x", LIMIT_RATIO)


def small_load(measure: str, count: int, rounds: int) -> Row:
    with entry(bytes(1024)) as (seal, handle, _):
        fill(seal, count)
        values = [seconds(loading(seal, handle)) for _ in range(rounds)]
    return Row(NAME, measure, 1000 * sorted(values)[rounds // 2], "ms", LIMIT_LOAD_MS)


def first_load(rounds: int) -> Row:
    """The first load of a process. It reads and authenticates the whole registry."""
    with entry(bytes(1024)) as (seal, handle, _):
        fill(seal, MANY_ROWS)
        values = [seconds(loading(anew(seal), handle)) for _ in range(rounds)]
    measure = f"first load of 1 KiB, {MANY_ROWS} rows"
    return Row(NAME, measure, 1000 * sorted(values)[rounds // 2], "ms", LIMIT_LOAD_MS)


def save(rounds: int) -> Row:
    """A save. Mostly waits for the disk: payload, header, and twice the registry."""
    with entry(bytes(1024)) as (seal, handle, _):
        fill(seal, MANY_ROWS)
        values = [
            seconds(lambda: seal.save(EntryFiles([], [handle], TOKEN, TOKEN), data=[bytes(1024)]))
            for _ in range(rounds)
        ]
    measure = f"save of 1 KiB over another, {MANY_ROWS} rows"
    return Row(NAME, measure, 1000 * sorted(values)[rounds // 2], "ms")


def importing(rounds: int) -> Row:
    def once() -> float:
        command = [sys.executable, "-c", IMPORT]
        told = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
        return float(told.stdout)

    value = sorted(once() for _ in range(rounds))[rounds // 2]
    return Row(NAME, "import penstock.sealed after NumPy", 1000 * value, "ms", LIMIT_IMPORT_MS)


def loading(seal: Seal, handle: CacheHandle) -> Callable[[], object]:
    return lambda: seal.load(EntryFiles([], [handle], TOKEN, TOKEN))


def fill(seal: Seal, count: int) -> None:
    """Adds *count* rows of other tokens to the registry, without waiting for the disk."""
    unsynced = again(seal.registry, QUICK_FILES)
    records = (FileRecord(bytes(32), 0),)
    for number in range(1, count):
        unsynced.begin(
            EntryRow(hashlib.sha256(number.to_bytes(8, "little")).digest(), bytes(16), (), records)
        )


def again(registry: Registry, files: FileSystem = SYSTEM_FILES) -> FileRegistry:
    """*registry* as another process opens it."""
    if not isinstance(registry, FileRegistry):
        raise TypeError("the seal's registry is no file")
    keys = FileKeyStore(Path(registry.path).parent / "key")
    return FileRegistry(registry.path, registry.owner, keys, files=files)


def anew(seal: Seal) -> Seal:
    """*seal* as another process opens it."""
    owner, registry = seal.owner, again(seal.registry)
    keys = FileKeyStore(Path(registry.path).parent / "key")
    return Seal(owner.driver, owner.version, files=(0, 1), registry=registry, keys=keys)


@contextmanager
def entry(content: bytes) -> Iterator[tuple[Seal, CacheHandle, Path]]:
    """A sealed data file with a registry and key of its own."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        keys = FileKeyStore(directory / "key")
        registry = FileRegistry(directory / "registry", Owner("bench", "1"), keys)
        seal = Seal("bench", "1", files=(0, 1), registry=registry, keys=keys)
        handle = CacheHandle(open_cache_file(directory / "data", create=True))
        stack.callback(os.close, handle.fd)
        report = seal.save(EntryFiles([], [handle], TOKEN, TOKEN), data=[content])
        if not report.saved:
            raise RuntimeError(report.reason)
        yield seal, handle, directory / "data"
