"""Cache files for trying a driver alone: what the runtime would open and lend."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Final

from penstock.errors import GeneralFailure
from penstock.hal import (
    ACCURACY_RANK,
    AccuracyClass,
    CacheHandle,
    CacheReport,
    Device,
    PrepareConfig,
    PreparedModel,
)
from penstock.testing.contract.cases import Case, static_cases
from penstock.testing.contract.promise import NotCovered, require
from penstock.testing.contract.trial import Trial, compare, kinds

TOKEN: Final = bytes(range(32))
BINDING: Final = bytes(range(32, 64))

NO_FILE: Final = -1
"""Instead of flags: the descriptor of no open file."""
CLOSED: Final = 1 << 20


class Entry:
    """The cache files of one entry in *directory*, made empty if they are not there, and its lock
    file.

    *counts* are the (model, data) files. Files have numbers: the model files' come first.
    """

    def __init__(
        self,
        directory: Path,
        counts: tuple[int, int],
        *,
        token: bytes = TOKEN,
        binding: bytes = BINDING,
        accuracy: AccuracyClass = "faithful",
    ) -> None:
        self.counts, self.token, self.binding, self.accuracy = counts, token, binding, accuracy
        self.directory = directory
        directory.mkdir(exist_ok=True)
        self.paths = [directory / f"{n}.cache" for n in range(sum(counts))]
        self.lock = directory / "lock"
        for path in (*self.paths, self.lock):
            path.touch()

    @contextmanager
    def opened(
        self,
        flags: int = os.O_RDWR,
        *,
        odd: Mapping[int, int] | None = None,
        **fields: Any,
    ) -> Iterator[PrepareConfig]:
        """A configuration with the files opened anew with *flags*, those numbered in *odd* with
        others.

        *fields* replace what the entry has for `PrepareConfig`.
        """
        with ExitStack() as stack:

            def handle(path: Path, how: int) -> CacheHandle:
                if how == NO_FILE:
                    return CacheHandle(CLOSED)
                fd = os.open(path, how | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0))
                stack.callback(os.close, fd)
                return CacheHandle(fd)

            how = dict(odd or {})
            handles = tuple(
                handle(path, how.get(number, flags)) for number, path in enumerate(self.paths)
            )
            standard: dict[str, Any] = {
                "token": self.token,
                "binding": self.binding,
                "accuracy": self.accuracy,
                "model_cache": handles[: self.counts[0]],
                "data_cache": handles[self.counts[0] :],
                "lock": handle(self.lock, os.O_RDWR),
            }
            yield PrepareConfig(**(standard | fields))

    def contents(self) -> list[bytes]:
        """What each file holds."""
        return [path.read_bytes() for path in self.paths]

    def put(self, contents: Sequence[bytes]) -> None:
        """Writes that into the files, in place."""
        for number, content in enumerate(contents):
            self.put_one(number, content)

    def put_one(self, number: int, content: bytes) -> None:
        """Writes that into one file, in place."""
        with self.paths[number].open("r+b") as file:
            file.write(content)
            file.truncate()

    @property
    def model_numbers(self) -> range:
        return range(self.counts[0])

    @property
    def data_numbers(self) -> range:
        return range(self.counts[0], sum(self.counts))


@contextmanager
def entry_of(device: Device, counts: tuple[int, int] | None = None) -> Iterator[Entry]:
    """An empty entry of the files that *device* needs, or of other *counts*, for the time of a
    block.
    """
    with tempfile.TemporaryDirectory() as directory:
        yield Entry(Path(directory) / "entry", counts or device.cache_files_needed())


def weakest(device: Device, case: Case) -> AccuracyClass:
    """The accuracy class to ask for, so that *device* may compute all of *case*."""
    answers = device.supported_operations(case.model)
    return min((a.accuracy for a in answers), key=ACCURACY_RANK.__getitem__, default="faithful")


def save(
    device: Device, case: Case, config: PrepareConfig, what: str = "while saving"
) -> CacheReport:
    """Compiles *case* into the files of *config* and runs it once, so that a late compile is made
    and written.

    The run must be right. Returns what the device said after the compile.
    """
    with closing(device.prepare_model(case.model, config)) as prepared:
        check_run(device, case, prepared, what)
        return prepared.cache_report


def check_run(device: Device, case: Case, prepared: PreparedModel, what: str) -> None:
    """One run, which must be right."""
    with Trial(case, kinds(device)[0]) as trial:
        compare(device, case, trial.run(prepared), case.outputs, what)


def load(device: Device, case: Case, entry: Entry, what: str = "from the cache") -> None:
    """Loads *case* through handles opened anew and runs it: right, or whatever loading raises."""
    with (
        entry.opened() as config,
        closing(device.prepare_model_from_cache(config)) as prepared,
    ):
        check_run(device, case, prepared, what)


def each_saved(device: Device, cases: Sequence[Case]) -> Iterator[tuple[Case, Entry]]:
    """Every case with an entry of its own that was saved, and shown to load.

    A device may refuse to cache a model, but not all of them (NNAPI section 2.7).
    """
    refusals = []
    for case in cases:
        with tempfile.TemporaryDirectory() as directory:
            token = hashlib.sha256(case.name.encode()).digest()
            entry = Entry(
                Path(directory) / "entry",
                device.cache_files_needed(),
                token=token,
                accuracy=weakest(device, case),
            )
            with entry.opened() as config:
                report = save(device, case, config)
            try:
                load(device, case, entry)
            except GeneralFailure as error:
                refusals.append(f"{case.name}: {report.reason or error}")
                continue
            yield case, entry
    require(len(refusals) < len(cases), f"nothing that was saved is loaded: {refusals[:1]}")


def cached_cases(device: Device) -> list[Case]:
    """Two of the cases that *device* can run; `NotCovered` when it does not cache."""
    require_caching(device)
    return static_cases(device)[:2]


def require_caching(device: Device) -> None:
    """Raises `NotCovered` for a device that has no cache files."""
    if device.cache_files_needed() == (0, 0):
        raise NotCovered("it does not cache")
