"""Misses and failed saves have codes; a driver's words are read once."""

from __future__ import annotations

import pytest

from penstock.compilation import CacheOutcome, cache_faults
from penstock.compilation.filling import named
from penstock.errors import CacheError, GeneralFailure, NoEntry, ReadOnly


def kinds() -> list[type[CacheError]]:
    found, pending = [], [CacheError]
    while pending:
        for kind in pending.pop().__subclasses__():
            if kind.__module__ == "penstock.errors":
                found.append(kind)
                pending.append(kind)
    return found


def test_each_error_of_the_cache_has_one_code() -> None:
    codes = {cache_faults.fault_of(kind("no")).code for kind in kinds()}
    assert codes == set(cache_faults.CacheCode) - {cache_faults.CacheCode.DRIVER}
    assert len(codes) == len(kinds())


class Own(NoEntry):
    """A class that has no code of its own."""


def test_a_subclass_has_the_code_of_its_base() -> None:
    assert cache_faults.fault_of(Own("no")).code is cache_faults.CacheCode.NO_ENTRY


@pytest.mark.parametrize("kind", kinds())
def test_a_driver_that_passes_an_error_on_keeps_its_code(kind: type[CacheError]) -> None:
    error = kind("altered")
    assert named(GeneralFailure(str(error))) == cache_faults.fault_of(error) == named(error)


@pytest.mark.parametrize("words", ["no room", "SealBroken", "DriverError: x", "a SealBroken: x"])
def test_other_words_of_a_driver_have_its_own_code(words: str) -> None:
    assert cache_faults.fault_in(words) == cache_faults.CacheFault(None, words)
    assert named(GeneralFailure(words)) == cache_faults.CacheFault(
        cache_faults.CacheCode.DRIVER,
        f"GeneralFailure: {words}",
    )


def test_only_a_driver_that_writes_later_has_not_yet_written() -> None:
    words = cache_faults.TO_BE_WRITTEN.words
    assert cache_faults.fault_in(words, later=True) == cache_faults.TO_BE_WRITTEN
    assert cache_faults.fault_in(words) == cache_faults.CacheFault(None, words)
    assert not CacheOutcome("miss", not_saved=words).is_to_be_written


def test_the_words_of_an_error_keep_its_name() -> None:
    assert cache_faults.fault_of(ReadOnly("the disk")).words == "ReadOnly: the disk"
