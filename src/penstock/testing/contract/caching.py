"""Compilation caching across the waist (NNAPI section 2.7): handles, counts, and what may not be loaded."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Final

import msgspec

from penstock.errors import GeneralFailure, InvalidArgument
from penstock.hal import MAX_NUMBER_OF_CACHE_FILES, CacheHandle, Device, PrepareConfig
from penstock.testing.contract.cases import Case, one_case, static_cases
from penstock.testing.contract.promise import Check, NotCovered, needs_values, refused, require
from penstock.testing.contract.trial import Trial, compare, kinds, prepare

TOKEN: Final = bytes(range(32))
BINDING: Final = bytes(range(32, 64))


def check_cache_files_needed(device: Device) -> None:
    """Two numbers, each 0 to 32, constant."""
    model, data = device.cache_files_needed()
    for label, count in (("model", model), ("data", data)):
        require(0 <= count <= MAX_NUMBER_OF_CACHE_FILES, f"{count} {label} cache files")
    require(device.cache_files_needed() == (model, data), "the numbers change from call to call")


def check_loading_without_a_cache(device: Device) -> None:
    """A device that does not cache has nothing to load: `GeneralFailure` or `InvalidArgument`."""
    if _caches(device):
        raise NotCovered("it caches")
    for config in (PrepareConfig(), PrepareConfig(token=TOKEN, binding=BINDING)):
        with refused("loading from a cache it does not have", GeneralFailure, InvalidArgument):
            device.prepare_model_from_cache(config)


@needs_values
def check_saving_never_fails_a_compile(device: Device) -> None:
    """Wrong numbers of handles, read-only ones, and ones that are no files: it compiles and runs."""
    case = one_case(device)
    model, data = device.cache_files_needed()
    for what, counts, mode in (
        ("a model file too many", (model + 1, data), "w+b"),
        ("a data file too many", (model, data + 1), "w+b"),
        ("a model file too few", (max(0, model - 1), data), "w+b"),
        ("a data file too few", (model, max(0, data - 1)), "w+b"),
        ("read-only files", (max(1, model), max(1, data)), "rb"),
        ("descriptors that are closed", (max(1, model), max(1, data)), ""),
    ):
        with (
            _files(counts, mode) as config,
            closing(prepare(device, case, config)) as prepared,
            Trial(case, kinds(device)[0]) as trial,
        ):
            compare(device, case, trial.run(prepared), case.outputs, f"saved to {what}")


@needs_values
def check_saving_leaves_descriptors_open(device: Device) -> None:
    """Handles are lent: they are open when the call returns, with or without caching."""
    case = one_case(device)
    model, data = device.cache_files_needed()
    with _files((max(1, model), data), "w+b") as config:
        prepare(device, case, config).close()
        for handle in (*config.model_cache, *config.data_cache):
            os.fstat(handle.fd)


@needs_values
def check_what_was_saved_is_loaded(device: Device) -> None:
    """Saved, then loaded through the same files, whatever their offsets: the same answers."""
    for case in _cached(device):
        with _files(device.cache_files_needed(), "w+b") as config:
            for handle in (*config.model_cache, *config.data_cache):
                os.write(handle.fd, b"xx")
            prepare(device, case, config).close()
            for handle in (*config.model_cache, *config.data_cache):
                os.lseek(handle.fd, 1, os.SEEK_SET)
            with (
                closing(device.prepare_model_from_cache(config)) as prepared,
                Trial(case, kinds(device)[0]) as trial,
            ):
                compare(device, case, trial.run(prepared), case.outputs, "from the cache")


def check_wrong_numbers_of_files_are_not_loaded(device: Device) -> None:
    for case in _cached(device):
        with _files(device.cache_files_needed(), "w+b") as config:
            prepare(device, case, config).close()
            handles = (*config.model_cache, *config.data_cache)
            for what, changed in (
                ("a model file more", {"model_cache": (*config.model_cache, handles[0])}),
                ("a data file more", {"data_cache": (*config.data_cache, handles[0])}),
                ("no model files", {"model_cache": ()}),
                ("no data files", {"data_cache": ()}),
            ):
                other = msgspec.structs.replace(config, **changed)
                if other != config:
                    with refused(what, InvalidArgument, GeneralFailure):
                        device.prepare_model_from_cache(other)


def check_altered_files_are_not_loaded(device: Device) -> None:
    """A flipped bit, an appended byte, a byte less, in any file: `GeneralFailure`; so is another token."""
    for case in _cached(device):
        with _files(device.cache_files_needed(), "w+b") as config:
            prepare(device, case, config).close()
            for handle in (*config.model_cache, *config.data_cache):
                content = _content(handle)
                for what, damaged in _damages(content):
                    _rewrite(handle, damaged)
                    with refused(f"a cache file with {what}", GeneralFailure):
                        device.prepare_model_from_cache(config)
                _rewrite(handle, content)
            for field in ("token", "binding"):
                value = getattr(config, field)
                flipped = bytes([value[0] ^ 1]) + value[1:]
                other = msgspec.structs.replace(config, **{field: flipped})
                with refused(f"another {field}", GeneralFailure):
                    device.prepare_model_from_cache(other)
            device.prepare_model_from_cache(config).close()


def _caches(device: Device) -> bool:
    return device.cache_files_needed() != (0, 0)


def _cached(device: Device) -> list[Case]:
    if not _caches(device):
        raise NotCovered("it does not cache")
    return static_cases(device)[:2]


@contextmanager
def _files(counts: tuple[int, int], mode: str) -> Iterator[PrepareConfig]:
    """A configuration with that many (model, data) files of their own; mode "" gives closed descriptors."""
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        handles = []
        for index in range(sum(counts)):
            path = Path(directory) / str(index)
            path.write_bytes(b"")
            fd = stack.enter_context(path.open(mode)).fileno() if mode else 2**20 + index
            handles.append(CacheHandle(fd))
        yield PrepareConfig(
            token=TOKEN,
            binding=BINDING,
            model_cache=tuple(handles[: counts[0]]),
            data_cache=tuple(handles[counts[0] :]),
        )


def _content(handle: CacheHandle) -> bytes:
    os.lseek(handle.fd, 0, os.SEEK_SET)
    return os.read(handle.fd, os.fstat(handle.fd).st_size)


def _rewrite(handle: CacheHandle, content: bytes) -> None:
    os.ftruncate(handle.fd, 0)
    os.lseek(handle.fd, 0, os.SEEK_SET)
    os.write(handle.fd, content)


def _damages(content: bytes) -> Iterator[tuple[str, bytes]]:
    for place in sorted({0, len(content) // 2, len(content) - 1} & set(range(len(content)))):
        flipped = bytearray(content)
        flipped[place] ^= 1 << (place % 8)
        yield f"bit {place % 8} of byte {place} flipped", bytes(flipped)
    yield "a byte more", content + b"\0"
    if content:
        yield "a byte less", content[:-1]
        yield "nothing in it", b""


CHECKS: Final[tuple[Check, ...]] = (
    check_cache_files_needed,
    check_loading_without_a_cache,
    check_saving_never_fails_a_compile,
    check_saving_leaves_descriptors_open,
    check_what_was_saved_is_loaded,
    check_wrong_numbers_of_files_are_not_loaded,
    check_altered_files_are_not_loaded,
)
