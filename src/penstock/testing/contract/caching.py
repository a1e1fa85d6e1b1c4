"""Compilation caching across the waist (NNAPI section 2.7): handles, counts, access modes.

Checks that have an upstream scenario bear its name. The scenarios SaveToCacheInvalidNumFd and
PrepareModelFromCacheInvalidNumFd have no counterpart: there a handle may hold no descriptor, or
two, and a `CacheHandle` holds one by its type.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, Final

from penstock.errors import GeneralFailure, InvalidArgument
from penstock.hal import MAX_NUMBER_OF_CACHE_FILES, Device, PrepareConfig, PreparedModel
from penstock.sealed.locks import locked
from penstock.testing.contract.cases import Case, one_case
from penstock.testing.contract.entries import (
    BINDING,
    NO_FILE,
    TOKEN,
    Entry,
    cached_cases,
    check_run,
    each_saved,
    entry_of,
    load,
    require_caching,
    save,
    weakest,
)
from penstock.testing.contract.promise import (
    Check,
    NotCovered,
    allowed,
    needs_values,
    refused,
    require,
)
from penstock.testing.contract.trial import prepare

RUNS: Final = 3
PATIENCE_SECONDS: Final = 5.0
"""Longer than runs of small models differ on a loaded machine."""


def check_get_number_of_cache_files_needed(device: Device) -> None:
    """BasicTests.getNumberOfCacheFilesNeeded: two numbers, each 0 to 32, constant."""
    model, data = device.cache_files_needed()
    for label, count in (("model", model), ("data", data)):
        require(0 <= count <= MAX_NUMBER_OF_CACHE_FILES, f"{count} {label} cache files")
    require(device.cache_files_needed() == (model, data), "the numbers change from call to call")


def check_loading_without_a_cache(device: Device) -> None:
    """A device that does not cache has nothing to load: `GeneralFailure` or `InvalidArgument`."""
    if device.cache_files_needed() != (0, 0):
        raise NotCovered("it caches")
    for config in (PrepareConfig(), PrepareConfig(token=TOKEN, binding=BINDING)):
        with refused("loading from a cache it does not have", GeneralFailure, InvalidArgument):
            device.prepare_model_from_cache(config)


def check_loading_nothing(device: Device) -> None:
    """Empty files hold nothing to load: `GeneralFailure`."""
    require_caching(device)
    with (
        entry_of(device) as entry,
        entry.opened() as config,
        refused("loading from empty files", GeneralFailure),
    ):
        device.prepare_model_from_cache(config)


def check_saving_leaves_descriptors_open(device: Device) -> None:
    """Handles are lent: they are open when the call returns, with or without caching."""
    case = one_case(device)
    model, data = device.cache_files_needed()
    with entry_of(device, (max(1, model), data)) as entry, entry.opened() as config:
        prepare(device, case, config).close()
        for handle in (*config.model_cache, *config.data_cache):
            with allowed("a lent handle is closed"):
                os.fstat(handle.fd)


def check_cache_reports(device: Device) -> None:
    """Without handles nothing was saved or will be; a failure has its reason, `<Name>: sentence`."""
    case = one_case(device)
    with closing(prepare(device, case)) as prepared:
        report = prepared.cache_report
        require(report.save == "none" and not report.later, f"without handles: {report}")
    with (
        entry_of(device, (1, 33)) as entry,
        entry.opened() as config,
        closing(prepare(device, case, config)) as prepared,
    ):
        report = prepared.cache_report
        require(report.save != "saved" and not report.later, f"with 34 files: {report}")
        name, colon, sentence = report.reason.partition(": ")
        named = name.isidentifier() and colon and sentence
        require(named or report.save == "none", f"a failure without a name: {report}")


@needs_values
def check_cache_saving_and_retrieval(device: Device) -> None:
    """CacheSavingAndRetrieval: saved, then loaded through handles opened anew: the same answers."""
    for case, entry in each_saved(device, cached_cases(device)):
        load(device, case, entry)


@needs_values
def check_cache_saving_and_retrieval_non_zero_offset(device: Device) -> None:
    """CacheSavingAndRetrievalNonZeroOffset: files with other content, handles not at their start."""
    for case, entry in each_saved(device, cached_cases(device)):
        entry.put([b"xx"] * len(entry.paths))
        with entry.opened() as config:
            for handle in (*config.model_cache, *config.data_cache):
                os.lseek(handle.fd, 2, os.SEEK_SET)
            save(device, case, config)
        with entry.opened() as config:
            for handle in (*config.model_cache, *config.data_cache):
                os.lseek(handle.fd, 1, os.SEEK_SET)
            with closing(device.prepare_model_from_cache(config)) as prepared:
                check_run(device, case, prepared, "from handles with an offset")


@needs_values
def check_save_to_cache_invalid_num_cache(device: Device) -> None:
    """SaveToCacheInvalidNumCache: a file too many or too few: it compiles and runs, and loads
    nothing.
    """
    case = one_case(device)
    for what, counts in _wrong(device.cache_files_needed()):
        with entry_of(device, counts) as entry, entry.opened() as config:
            save(device, case, config, f"saved with {what}")
            with refused(f"loading with {what}", InvalidArgument, GeneralFailure):
                device.prepare_model_from_cache(config)


def check_prepare_model_from_cache_invalid_num_cache(device: Device) -> None:
    """PrepareModelFromCacheInvalidNumCache: a good entry, and a handle too many or too few."""
    for case, entry in each_saved(device, cached_cases(device)):
        with entry.opened() as config:
            models, datas = config.model_cache, config.data_cache
            some = (*models, *datas)
            for what, (model, data) in _wrong(entry.counts):
                fields: dict[str, Any] = {
                    "model_cache": (*models, some[0])[:model],
                    "data_cache": (*datas, some[-1])[:data],
                }
                with (
                    entry.opened(**fields) as wrong,
                    refused(f"loading with {what}", InvalidArgument, GeneralFailure),
                ):
                    device.prepare_model_from_cache(wrong)
        load(device, case, entry, "after refused loads")


@needs_values
def check_save_to_cache_invalid_access_mode(device: Device) -> None:
    """SaveToCacheInvalidAccessMode: one file at a time read-only, or closed: it compiles and runs."""
    require_caching(device)
    case = one_case(device)
    for number in range(sum(device.cache_files_needed())):
        for what, flags in (("read-only", os.O_RDONLY), ("closed", NO_FILE)):
            with entry_of(device) as entry, entry.opened(odd={number: flags}) as config:
                report = save(device, case, config, f"saved with file {number} {what}")
                require(report.save != "saved", f"file {number} is {what}, and yet it was saved")
                with refused(f"file {number} {what} at the save", InvalidArgument, GeneralFailure):
                    device.prepare_model_from_cache(config)


def check_prepare_model_from_cache_invalid_access_mode(device: Device) -> None:
    """PrepareModelFromCacheInvalidAccessMode: one file at a time write-only, or closed."""
    for case, entry in each_saved(device, cached_cases(device)):
        for number in range(len(entry.paths)):
            for what, flags in (("write-only", os.O_WRONLY), ("closed", NO_FILE)):
                with (
                    entry.opened(odd={number: flags}) as config,
                    refused(f"file {number} {what}", InvalidArgument, GeneralFailure),
                ):
                    device.prepare_model_from_cache(config)
        load(device, case, entry, "after refused loads")


@needs_values
def check_loading_needs_no_write_access(device: Device) -> None:
    """A cache that its user cannot write still serves."""
    for case, entry in each_saved(device, cached_cases(device)):
        with (
            entry.opened(os.O_RDONLY, lock=None) as config,
            closing(device.prepare_model_from_cache(config)) as prepared,
        ):
            check_run(device, case, prepared, "from files that cannot be written")


@needs_values
def check_no_run_waits_for_who_reads_the_entry(device: Device) -> None:
    """While another process has the entry's lock to read, runs take no longer than without it. A
    driver that writes late says in its report what the write waits for; a later run makes it, or
    none, and the report says which.
    """
    case = cached_cases(device)[0]
    with entry_of(device) as entry, _writing_late(device, case, entry) as prepared:
        alone = _timed_runs(device, case, prepared)
    with (
        entry_of(device) as entry,
        _writing_late(device, case, entry) as prepared,
        entry.lock.open("r+b") as reader,
    ):
        with locked(reader.fileno(), exclusive=False, timeout=0) as held:
            require(held, "the preparation left the entry's lock taken")
            extra = _timed_runs(device, case, prepared) - alone
            require(extra < PATIENCE_SECONDS, f"runs took {extra:.1f} s longer while others read")
            report = prepared.cache_report
            told = report.reason and (report.later or report.save == "failed")
            require(told, f"a write that could not be made is not told: {report}")
        check_run(device, case, prepared, "once nobody reads the entry")
        report = prepared.cache_report
        require(report.save == "saved" or report.reason, f"nothing is told of the write: {report}")
        if report.save == "saved":
            load(device, case, entry, "what was written once nobody read the entry")


@contextmanager
def _writing_late(device: Device, case: Case, entry: Entry) -> Iterator[PreparedModel]:
    """*case*, prepared; `NotCovered` where nothing is to be written late."""
    with (
        entry.opened(accuracy=weakest(device, case)) as config,
        closing(device.prepare_model(case.model, config)) as prepared,
    ):
        if not prepared.cache_report.later:
            raise NotCovered("it writes nothing late")
        yield prepared


def _timed_runs(device: Device, case: Case, prepared: PreparedModel) -> float:
    """Seconds of the first runs."""
    began = time.monotonic()
    for _ in range(RUNS):
        check_run(device, case, prepared, "that may write late")
    return time.monotonic() - began


def _wrong(counts: tuple[int, int]) -> Iterator[tuple[str, tuple[int, int]]]:
    """One more and one less of each kind."""
    model, data = counts
    yield "a model file too many", (model + 1, data)
    yield "a data file too many", (model, data + 1)
    if model:
        yield "a model file too few", (model - 1, data)
    if data:
        yield "a data file too few", (model, data - 1)


CHECKS: Final[tuple[Check, ...]] = (
    check_get_number_of_cache_files_needed,
    check_loading_without_a_cache,
    check_loading_nothing,
    check_saving_leaves_descriptors_open,
    check_cache_reports,
    check_cache_saving_and_retrieval,
    check_cache_saving_and_retrieval_non_zero_offset,
    check_save_to_cache_invalid_num_cache,
    check_prepare_model_from_cache_invalid_num_cache,
    check_save_to_cache_invalid_access_mode,
    check_prepare_model_from_cache_invalid_access_mode,
    check_loading_needs_no_write_access,
    check_no_run_waits_for_who_reads_the_entry,
)
