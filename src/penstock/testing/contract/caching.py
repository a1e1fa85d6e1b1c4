"""Compilation caching through the HAL (NNAPI section 2.7): handles, counts, access modes.

A check with an upstream scenario has its name. The scenarios SaveToCacheInvalidNumFd and
PrepareModelFromCacheInvalidNumFd have no counterpart: in NNAPI a handle may hold no descriptor or
two, but a `CacheHandle` holds exactly one.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from penstock import hal
from penstock.errors import GeneralFailure, InvalidArgument, PenstockError
from penstock.hal.capabilities import least_class
from penstock.sealed.locks import locked
from penstock.testing.contract.cases import Case, one_case, static_cases
from penstock.testing.contract.promise import NotCovered, Suite, allowed, refused, require
from penstock.testing.contract.sharing import shared_models
from penstock.testing.contract.trial import PreparedCase, prepare

SUITE: Final = Suite("caching", "caching", "Device.prepare_model_from_cache")

TOKEN: Final = bytes(range(32))
BINDING: Final = bytes(range(32, 64))

RUNS: Final = 3
PATIENCE_SECONDS: Final = 5.0
"""Exceeds the variation of small models' run times on a loaded machine."""

NO_FILE: Final = -1
"""Replaces flags: the handle's descriptor is closed."""
CLOSED: Final = 1 << 20

ODD_CALL: Final = (InvalidArgument, GeneralFailure)
"""Errors that a load may raise if the call, not the entry, is wrong."""


class Entry:
    """The cache files of one entry in *directory*, created empty if missing, and its lock file.

    *counts* are the numbers of (model, data) files. Files are numbered; the model files come first.
    """

    def __init__(
        self,
        directory: Path,
        counts: tuple[int, int],
        *,
        token: bytes = TOKEN,
        binding: bytes = BINDING,
        accuracy: hal.AccuracyClass = "faithful",
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
        self, flags: int = os.O_RDWR, *, odd: Mapping[int, int] | None = None, **fields: Any
    ) -> Iterator[hal.PrepareConfig]:
        """A `PrepareConfig` with the files opened again, with *flags*.

        *odd* overrides the flags by file number. *fields* replace fields of the configuration.
        """
        with ExitStack() as stack:

            def handle(path: Path, how: int) -> hal.CacheHandle:
                if how == NO_FILE:
                    return hal.CacheHandle(CLOSED)
                fd = os.open(path, how | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0))
                stack.callback(os.close, fd)
                return hal.CacheHandle(fd)

            every = enumerate(self.paths)
            handles = tuple(handle(path, (odd or {}).get(number, flags)) for number, path in every)
            standard = hal.PrepareConfig(
                token=self.token,
                binding=self.binding,
                accuracy=self.accuracy,
                model_cache=handles[: self.counts[0]],
                data_cache=handles[self.counts[0] :],
                lock=handle(self.lock, os.O_RDWR),
            )
            yield replace(standard, **fields)

    def contents(self) -> list[bytes]:
        """The content of each file."""
        return [path.read_bytes() for path in self.paths]

    def put(self, contents: Sequence[bytes]) -> None:
        """Writes *contents* into the files, in place."""
        for number, content in enumerate(contents):
            self.put_one(number, content)

    def put_one(self, number: int, content: bytes) -> None:
        """Writes *content* into one file, in place."""
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
def entry_of(
    device: hal.Device, counts: tuple[int, int] | None = None, **fields: Any
) -> Iterator[Entry]:
    """An empty entry, within the block, of the files that *device* needs or of other *counts*."""
    with tempfile.TemporaryDirectory() as directory:
        yield Entry(Path(directory) / "entry", counts or device.cache_files_needed(), **fields)


def weakest(device: hal.Device, case: Case) -> hal.AccuracyClass:
    """The accuracy class to request so that *device* may run the whole *case*."""
    return least_class(device.supported_operations(case.model))


def save(
    device: hal.Device, case: Case, config: hal.PrepareConfig, what: str = "while saving"
) -> hal.CacheReport:
    """Compiles *case* into the files of *config* and runs it once. Returns the device's cache
    report.

    The run writes a deferred compile, too. Its answer must be right.
    """
    with prepare(device, case, config) as on:
        on.check(what)
        return on.prepared.cache_report


def load(device: hal.Device, case: Case, entry: Entry, what: str = "from the cache") -> None:
    """Loads *case* through new handles and runs it. Its answer must be right; errors propagate."""
    with entry.opened() as config:
        load_from(device, case, config, what)


def load_from(device: hal.Device, case: Case, config: hal.PrepareConfig, what: str) -> None:
    """Loads *case* from the files of *config* and runs it."""
    with PreparedCase(device, case, device.prepare_model_from_cache(config)) as on:
        on.check(what)


def refuses_load(
    device: hal.Device, entry: Entry, what: str, *kinds: type[PenstockError], **opened: Any
) -> None:
    """A load of *entry*, *opened* so, must raise one of *kinds* (default: `GeneralFailure`)."""
    with entry.opened(**opened) as config, refused(what, *(kinds or (GeneralFailure,))):
        device.prepare_model_from_cache(config)


def each_saved(device: hal.Device, cases: Sequence[Case]) -> Iterator[tuple[Case, Entry]]:
    """Every case that the device caches, each with its own saved entry that loads.

    A device may decline to cache some models, but not all of them (NNAPI section 2.7). Checks that
    share models also share what was saved: each gets files of its own with that content.
    """
    refusals = []
    shared = shared_models(device)
    contents = {} if shared is None else shared.saved
    for case in cases:
        token, accuracy = hashlib.sha256(case.name.encode()).digest(), weakest(device, case)
        with entry_of(device, token=token, accuracy=accuracy) as entry:
            reason = ""
            if token in contents:
                entry.put(contents[token])
            else:
                with entry.opened() as config:
                    reason = save(device, case, config).reason
            try:
                load(device, case, entry)
            except GeneralFailure as error:
                refusals.append(f"{case.name}: {reason or error}")
                continue
            contents[token] = entry.contents()
            yield case, entry
    require(len(refusals) < len(cases), f"nothing that was saved is loaded: {refusals[:1]}")


def cached_cases(device: hal.Device) -> list[Case]:
    """Two cases that *device* can run. Raises `NotCovered` if it does not cache."""
    require_caching(device)
    return static_cases(device)[:2]


def require_caching(device: hal.Device) -> None:
    """Raises `NotCovered` for a device without cache files."""
    if device.cache_files_needed() == (0, 0):
        raise NotCovered("it does not cache")


@SUITE.check
def check_get_number_of_cache_files_needed(device: hal.Device) -> None:
    """BasicTests.getNumberOfCacheFilesNeeded: two constant numbers, each 0 to 32."""
    model, data = device.cache_files_needed()
    for label, count in (("model", model), ("data", data)):
        require(0 <= count <= hal.MAX_NUMBER_OF_CACHE_FILES, f"{count} {label} cache files")
    require(device.cache_files_needed() == (model, data), "the numbers change from call to call")


@SUITE.check
def check_loading_without_a_cache(device: hal.Device) -> None:
    """A device without caching cannot load: `GeneralFailure` or `InvalidArgument`."""
    if device.cache_files_needed() != (0, 0):
        raise NotCovered("it caches")
    for config in (hal.PrepareConfig(), hal.PrepareConfig(token=TOKEN, binding=BINDING)):
        with refused("loading from a cache it does not have", GeneralFailure, InvalidArgument):
            device.prepare_model_from_cache(config)


@SUITE.check
def check_loading_nothing(device: hal.Device) -> None:
    """Loading from empty files is `GeneralFailure`."""
    require_caching(device)
    with entry_of(device) as entry:
        refuses_load(device, entry, "loading from empty files")


@SUITE.check
def check_saving_leaves_descriptors_open(device: hal.Device) -> None:
    """The driver borrows the handles: they are open after the call, with or without caching."""
    model, data = device.cache_files_needed()
    with entry_of(device, (max(1, model), data)) as entry, entry.opened() as config:
        prepare(device, None, config).close()
        for handle in (*config.model_cache, *config.data_cache):
            with allowed("a lent handle is closed"):
                os.fstat(handle.fd)


@SUITE.check
def check_cache_reports(device: hal.Device) -> None:
    """Without handles the driver saves nothing. A reported failure has a reason, `<Name>: why`."""
    with prepare(device) as on:
        report = on.prepared.cache_report
        require(report.save == "none" and not report.later, f"without handles: {report}")
    with (
        entry_of(device, (1, 33)) as entry,
        entry.opened() as config,
        prepare(device, None, config) as on,
    ):
        report = on.prepared.cache_report
        require(report.save != "saved" and not report.later, f"with 34 files: {report}")
        name, colon, sentence = report.reason.partition(": ")
        named = name.isidentifier() and colon and sentence
        require(named or report.save == "none", f"a failure without a name: {report}")


@SUITE.values
def check_cache_saving_and_retrieval(device: hal.Device) -> None:
    """CacheSavingAndRetrieval: an entry loaded through new handles gives the same answers."""
    for case, entry in each_saved(device, cached_cases(device)):
        load(device, case, entry)


@SUITE.values
def check_cache_saving_and_retrieval_non_zero_offset(device: hal.Device) -> None:
    """CacheSavingAndRetrievalNonZeroOffset: files with other content, handles at an offset."""
    for case, entry in each_saved(device, cached_cases(device)):
        entry.put([b"xx"] * len(entry.paths))
        with entry.opened() as config:
            for handle in (*config.model_cache, *config.data_cache):
                os.lseek(handle.fd, 2, os.SEEK_SET)
            save(device, case, config)
        with entry.opened() as config:
            for handle in (*config.model_cache, *config.data_cache):
                os.lseek(handle.fd, 1, os.SEEK_SET)
            load_from(device, case, config, "from handles with an offset")


@SUITE.values
def check_save_to_cache_invalid_num_cache(device: hal.Device) -> None:
    """SaveToCacheInvalidNumCache: a file too many or too few. It runs; nothing can be loaded."""
    case = one_case(device)
    for what, counts in _wrong(device.cache_files_needed()):
        with entry_of(device, counts) as entry, entry.opened() as config:
            save(device, case, config, f"saved with {what}")
            with refused(f"loading with {what}", *ODD_CALL):
                device.prepare_model_from_cache(config)


@SUITE.check
def check_prepare_model_from_cache_invalid_num_cache(device: hal.Device) -> None:
    """PrepareModelFromCacheInvalidNumCache: a valid entry with one handle too many or too few."""
    for case, entry in each_saved(device, cached_cases(device)):
        with entry.opened() as config:
            models, datas = config.model_cache, config.data_cache
            some = (*models, *datas)
            for what, (model, data) in _wrong(entry.counts):
                fields: dict[str, Any] = {
                    "model_cache": (*models, some[0])[:model],
                    "data_cache": (*datas, some[-1])[:data],
                }
                refuses_load(device, entry, f"loading with {what}", *ODD_CALL, **fields)
        load(device, case, entry, "after refused loads")


@SUITE.values
def check_save_to_cache_invalid_access_mode(device: hal.Device) -> None:
    """SaveToCacheInvalidAccessMode: one file is read-only or closed; the model still runs."""
    require_caching(device)
    case = one_case(device)
    for number in range(sum(device.cache_files_needed())):
        for what, flags in (("read-only", os.O_RDONLY), ("closed", NO_FILE)):
            with entry_of(device) as entry, entry.opened(odd={number: flags}) as config:
                report = save(device, case, config, f"saved with file {number} {what}")
                require(report.save != "saved", f"file {number} is {what}, and yet it was saved")
                with refused(f"file {number} {what} at the save", *ODD_CALL):
                    device.prepare_model_from_cache(config)


@SUITE.check
def check_prepare_model_from_cache_invalid_access_mode(device: hal.Device) -> None:
    """PrepareModelFromCacheInvalidAccessMode: one file at a time is write-only or closed."""
    for case, entry in each_saved(device, cached_cases(device)):
        for number in range(len(entry.paths)):
            for what, flags in (("write-only", os.O_WRONLY), ("closed", NO_FILE)):
                odd = {number: flags}
                refuses_load(device, entry, f"file {number} {what}", *ODD_CALL, odd=odd)
        load(device, case, entry, "after refused loads")


@SUITE.values
def check_loading_needs_no_write_access(device: hal.Device) -> None:
    """A cache that its user cannot write still gives hits."""
    for case, entry in each_saved(device, cached_cases(device)):
        with entry.opened(os.O_RDONLY, lock=None) as config:
            load_from(device, case, config, "from files that cannot be written")


@SUITE.values
def check_no_run_waits_for_who_reads_the_entry(device: hal.Device) -> None:
    """Another process's shared lock on the entry delays no run.

    A driver that writes late reports what the write waits for. A later run writes or gives up, and
    the report says which.
    """
    case = cached_cases(device)[0]
    with entry_of(device) as entry, _writing_late(device, case, entry) as on:
        alone = _timed_runs(on)
    with (
        entry_of(device) as entry,
        _writing_late(device, case, entry) as on,
        entry.lock.open("r+b") as reader,
    ):
        with locked(reader.fileno(), exclusive=False, timeout=0) as held:
            require(held, "the preparation left the entry's lock taken")
            extra = _timed_runs(on) - alone
            require(extra < PATIENCE_SECONDS, f"runs took {extra:.1f} s longer while others read")
            report = on.prepared.cache_report
            is_pending = report.reason and (report.later or report.save == "failed")
            require(is_pending, f"the report does not say why nothing was written: {report}")
        on.check("once nobody reads the entry")
        report = on.prepared.cache_report
        require(report.save == "saved" or report.reason, f"no reason for a failed save: {report}")
        if report.save == "saved":
            load(device, case, entry, "what was written once nobody read the entry")


@contextmanager
def _writing_late(device: hal.Device, case: Case, entry: Entry) -> Iterator[PreparedCase]:
    """*case*, prepared. Raises `NotCovered` if the device writes nothing late."""
    accuracy = weakest(device, case)
    with entry.opened(accuracy=accuracy) as config, prepare(device, case, config) as on:
        if not on.prepared.cache_report.later:
            raise NotCovered("it writes nothing late")
        yield on


def _timed_runs(on: PreparedCase) -> float:
    """Durations of the first runs in seconds."""
    began = time.monotonic()
    for _ in range(RUNS):
        on.check("that may write late")
    return time.monotonic() - began


def _wrong(counts: tuple[int, int]) -> Iterator[tuple[str, tuple[int, int]]]:
    """One file more and one file less of each kind."""
    model, data = counts
    for word, by in (("many", 1), ("few", -1)):
        if model + by >= 0:
            yield f"a model file too {word}", (model + by, data)
        if data + by >= 0:
            yield f"a data file too {word}", (model, data + by)
