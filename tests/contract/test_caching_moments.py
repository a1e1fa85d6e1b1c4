"""Cache files replaced, and file operations that fail, at each moment of a driver's save and load.

SaveToCache_TOCTOU and PrepareFromCache_TOCTOU of NNAPI section 2.7, without a race: a file system
that is given to the driver acts before its operation number 0, 1, 2, ... until there is none of
that number.
"""

from __future__ import annotations

import gc
import itertools
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest

from penstock.drivers.sample import SampleDevice
from penstock.errors import GeneralFailure
from penstock.hal import CacheReport, Device
from penstock.ir import DType
from penstock.sealed import FileSystem, Seal
from penstock.testing.contract.caching import Entry, load, save
from penstock.testing.contract.caching_security import chain
from penstock.testing.contract.cases import Case
from penstock.testing.contract.trial import prepare
from penstock.testing.doubles import QUICK_FILES, Crash, FaultyFiles
from penstock.testing.lab import LabDevice
from penstock.testing.resources import Resources
from tests.support_sealed import FAULTS

Make = Callable[[FileSystem], Device]


def sample(files: FileSystem) -> Device:
    version = SampleDevice.version
    return SampleDevice(Seal("sample", version, files=(1, 1), file_system=files))


DRIVERS: Final[dict[str, Make]] = {
    "sample": sample,
    "lab": lambda files: LabDevice(file_system=files),
    "lab, first run": lambda files: LabDevice(mode="first_run", file_system=files),
    "lab, staged": lambda files: LabDevice(mode="staged", uses=1, file_system=files),
}
HOW: Final = ("overwritten", "renamed over")


@pytest.fixture(params=DRIVERS)
def make(request: pytest.FixtureRequest) -> Make:
    return DRIVERS[request.param]


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


def two(make: Make, directory: Path) -> tuple[Case, Entry, Entry]:
    """A chain of ADD with an empty entry, and one of MUL in a saved one."""
    device = make(QUICK_FILES)
    case, other = chain("ADD", DType.FLOAT32, 1, 2), chain("MUL", DType.FLOAT32, -1, 2)
    counts = device.cache_files_needed()
    foreign = Entry(directory / "foreign", counts, token=bytes(32))
    with foreign.opened() as config:
        save(device, other, config)
    load(make(QUICK_FILES), other, foreign)
    return case, Entry(directory / "own", counts), foreign


def replaced(entry: Entry, foreign: Entry, how: str) -> Callable[[], None]:
    """Puts the files of *foreign* in place of those of *entry*."""

    def act() -> None:
        if how == "overwritten":
            entry.put(foreign.contents())
            return
        for path, other in zip(entry.paths, foreign.paths, strict=True):
            copy = path.with_suffix(".copy")
            shutil.copyfile(other, copy)
            copy.replace(path)

    return act


def moments(act: Callable[[], None]) -> Iterator[FaultyFiles]:
    """File systems that *act* before their operation 0, 1, 2, ..., until one came to no operation
    of its number.
    """
    for at in itertools.count():
        files = FaultyFiles(at=at, fault=act)
        yield files
        if len(files.log) <= at:
            assert at > 4
            return


@contextmanager
def nothing_open(fault: str) -> Iterator[None]:
    """Nothing stays open after the block, unless the process is said to have died in it."""
    if fault == "crash":
        yield
        gc.collect()
        return
    with Resources.unchanged(f"{fault} at each operation in turn"):
        yield


@pytest.mark.parametrize("how", HOW)
def test_save_to_cache_toctou(how: str, make: Make, directory: Path) -> None:
    case, entry, foreign = two(make, directory)
    for files in moments(replaced(entry, foreign, how)):
        for path in entry.paths:
            path.write_bytes(b"")
        with entry.opened() as config:
            save(make(files), case, config, f"with files {how} at operation {files.at}")
        with suppress(GeneralFailure):
            load(make(QUICK_FILES), case, entry)
    load(make(QUICK_FILES), case, entry)


@pytest.mark.parametrize("how", HOW)
def test_prepare_from_cache_toctou(how: str, make: Make, directory: Path) -> None:
    case, entry, foreign = two(make, directory)
    with entry.opened() as config:
        save(make(QUICK_FILES), case, config)
    own = entry.contents()
    hits = 0
    for files in moments(replaced(entry, foreign, how)):
        entry.put(own)
        with suppress(GeneralFailure):
            load(make(files), case, entry, f"with files {how} at operation {files.at}")
            hits += 1
    assert hits >= 1


@pytest.mark.parametrize("fault", FAULTS)
def test_a_save_that_fails_leaves_a_model_that_runs(
    fault: str, make: Make, directory: Path
) -> None:
    """And an entry that is loaded rightly, or refused; nothing stays open."""
    case, entry, _ = two(make, directory)
    reports: set[str] = set()
    with nothing_open(fault):
        for files in moments(FAULTS[fault]):
            for path in entry.paths:
                path.write_bytes(b"")
            with suppress(Crash):
                reports.add(saved(make(files), case, entry).save)
            with suppress(GeneralFailure):
                load(make(QUICK_FILES), case, entry)
    load(make(QUICK_FILES), case, entry)
    assert "saved" in reports
    assert fault == "crash" or "failed" in reports


@pytest.mark.parametrize("fault", FAULTS)
def test_a_load_that_fails_is_a_general_failure(fault: str, make: Make, directory: Path) -> None:
    case, entry, _ = two(make, directory)
    with entry.opened() as config:
        save(make(QUICK_FILES), case, config)
    outcomes = []
    with nothing_open(fault):
        for files in moments(FAULTS[fault]):
            try:
                load(make(files), case, entry)
                outcomes.append("hit")
            except (GeneralFailure, Crash) as error:
                outcomes.append(type(error).__name__)
            load(make(QUICK_FILES), case, entry)
    assert outcomes[-1] == "hit"
    assert len(set(outcomes)) == 2


def saved(device: Device, case: Case, entry: Entry) -> CacheReport:
    """What the device says after a compile and a run."""
    with entry.opened() as config, prepare(device, case, config) as on:
        on.check("while saving fails")
        return on.prepared.cache_report
