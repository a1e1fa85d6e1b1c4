"""The three flows of caching, on a recording device (NNAPI sections 2.4 and 2.6, under upstream's
names).
"""

from __future__ import annotations

import gc
import itertools
import weakref
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import errors
from penstock.cache.info import CacheInfo
from penstock.hal import NO_TOKEN
from penstock.ir import Model
from tests.support_caching import CachingDevice
from tests.unit.compilation.caching import MODEL, TOKEN, compiled, info, outcome, two
from tests.unit.partitioning.models import chain

pytestmark = pytest.mark.usefixtures("no_descriptor_leaks")

SIZES = (0, 1, 32)
STATUSES = (None, errors.GeneralFailure, errors.DeviceUnavailable, errors.InvalidArgument)


@pytest.mark.parametrize("needed", list(itertools.product(SIZES, SIZES)))
@pytest.mark.parametrize("status", STATUSES)
class TestCompilationCachingTest:
    def test_token_provided_and_cache_not_exist(
        self, tmp_path: Path, needed: tuple[int, int], status: type[errors.DriverError] | None
    ) -> None:
        device = CachingDevice(needed=needed, status=status)
        outcome(device, info(tmp_path))
        supported = needed != (0, 0)
        assert device.methods == [f"prepare_model {'with' if supported else 'without'} caching"]
        assert (device.calls[0].token != NO_TOKEN) == supported
        assert device.calls[0].files == needed

    def test_token_provided_and_cache_exist(
        self, tmp_path: Path, needed: tuple[int, int], status: type[errors.DriverError] | None
    ) -> None:
        device = CachingDevice(needed=needed, status=status)
        outcome(device, info(tmp_path))
        device.calls.clear()
        what, reason = outcome(device, info(tmp_path))
        if needed == (0, 0):
            assert device.methods == ["prepare_model without caching"]
            assert (what, reason) == ("off", "device caching does not cache")
        elif status is None:
            assert device.methods == ["prepare_model_from_cache"]
            assert what == "hit"
        else:
            assert device.methods == ["prepare_model_from_cache", "prepare_model with caching"]
            assert (what, reason) == ("miss", f"{status.__name__}: as told")
            assert device.calls[0].token == device.calls[1].token

    def test_token_not_provided(
        self, tmp_path: Path, needed: tuple[int, int], status: type[errors.DriverError] | None
    ) -> None:
        device = CachingDevice(needed=needed, status=status)
        assert outcome(device, None) == ("off", "no cache was asked for")
        assert device.methods == ["prepare_model without caching"]
        assert device.calls[0].token == NO_TOKEN


class TestDeviceRegistrationTest:
    @pytest.mark.parametrize("status", [None, errors.DeviceUnavailable("no")])
    @pytest.mark.parametrize("needed", list(itertools.product((*SIZES, 33), repeat=2)))
    def test_caching_failure(
        self, needed: tuple[int, int], status: Exception | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        device = CachingDevice(needed=needed)
        if status is not None:

            def fail() -> tuple[int, int]:
                raise status

            monkeypatch.setattr(device, "cache_files_needed", fail)
        registered = status is None and max(needed) <= 32
        if registered:
            compiled(device, None).close()
        else:
            with pytest.raises(penstock.errors.PlacementError, match="caching"):
                compiled(device, None)


def tokens(
    tmp_path: Path,
    *devices: CachingDevice,
    model: Model = MODEL,
    token: bytes | None = TOKEN,
    **more: Any,
) -> list[bytes]:
    """The tokens that the devices got, compiled into a directory of its own; the same ten times
    over.
    """
    seen = set()
    for again in range(10):
        for device in devices:
            device.calls.clear()
        compiled(devices, CacheInfo(tmp_path / f"c{again}", token), model, **more).close()
        seen.add(tuple(call.token for device in devices for call in device.calls))
    assert len(seen) == 1
    (found,) = seen
    return list(found)


@pytest.mark.parametrize("token", [TOKEN, None], ids=["caller's token", "derived token"])
class TestPartitioningCache:
    """Upstream's CacheTest of the partitioner: simple plans have one step, compound ones
    several.
    """

    def test_cache_token_none_simple_body(self, token: bytes | None) -> None:
        device = CachingDevice()
        compiled(device, None).close()
        assert [c.token for c in device.calls] == [NO_TOKEN]

    def test_cache_token_none_compound_body(self, token: bytes | None) -> None:
        devices = two()
        compiled(devices, None).close()
        assert {c.token for d in devices for c in d.calls} == {NO_TOKEN}

    def test_cache_token_different_device_names_simple_body(
        self, tmp_path: Path, token: bytes | None
    ) -> None:
        one = tokens(tmp_path, CachingDevice("one"), token=token)
        other = tokens(tmp_path, CachingDevice("other"), token=token)
        assert one != other

    def test_cache_token_different_device_names_compound_body(
        self, tmp_path: Path, token: bytes | None
    ) -> None:
        found = tokens(tmp_path, *two(), token=token)
        other = tokens(tmp_path, *two("three", "four"), token=token)
        assert len({*found, *other}) == 4

    def test_cache_token_different_versions_simple_body(
        self, tmp_path: Path, token: bytes | None
    ) -> None:
        one = tokens(tmp_path, CachingDevice(version="1"), token=token)
        assert one != tokens(tmp_path, CachingDevice(version="2"), token=token)

    def test_cache_token_different_versions_compound_body(
        self, tmp_path: Path, token: bytes | None
    ) -> None:
        found = tokens(tmp_path, *two(), token=token)
        assert len({*found, *tokens(tmp_path, *two(version="2"), token=token)}) == 4

    @pytest.mark.parametrize("compound", [False, True])
    def test_cache_token_different_preferences(
        self, tmp_path: Path, token: bytes | None, compound: bool
    ) -> None:
        found: set[tuple[bytes, ...]] = set()
        for preference in penstock.hal.PREFERENCES:
            devices = two() if compound else (CachingDevice(),)
            found.add(tuple(tokens(tmp_path, *devices, token=token, preference=preference)))
        assert len({t for row in found for t in row}) == (6 if compound else 3)

    @pytest.mark.parametrize("compound", [False, True])
    def test_cache_token_different_priorities(
        self, tmp_path: Path, token: bytes | None, compound: bool
    ) -> None:
        found: set[bytes] = set()
        for priority in penstock.hal.PRIORITIES:
            devices = two() if compound else (CachingDevice(),)
            found.update(tokens(tmp_path, *devices, token=token, priority=priority))
        assert len(found) == (6 if compound else 3)

    @pytest.mark.parametrize("compound", [False, True])
    def test_cache_token_different_tokens(
        self, tmp_path: Path, token: bytes | None, compound: bool
    ) -> None:
        found: set[bytes] = set()
        for own in (TOKEN, bytes(32), TOKEN[::-1], b"\xff" * 32):
            devices = two() if compound else (CachingDevice(),)
            found.update(tokens(tmp_path, *devices, token=own))
        assert len(found) == (8 if compound else 4)

    def test_cache_token_different_partitions_compound_body(
        self, tmp_path: Path, token: bytes | None
    ) -> None:
        model = chain(("ADD", "RELU", "ADD"))
        found = tokens(tmp_path, *two(), model=model, token=token)
        assert len(set(found)) == 3
        whole = tokens(tmp_path, CachingDevice("one"), model=model, token=token)
        assert not {*whole} & {*found}

    def test_a_simple_and_a_compound_plan_differ(self, tmp_path: Path, token: bytes | None) -> None:
        one = tokens(tmp_path, CachingDevice("one"), model=chain(("ADD",)), token=token)
        assert not {*one} & {*tokens(tmp_path, *two(), token=token)}


def test_a_miss_keeps_nothing_of_its_compile_once_that_is_gone(tmp_path: Path) -> None:
    outcome(CachingDevice(), info(tmp_path))
    gc.collect()
    gc.disable()
    try:
        device = CachingDevice(status=errors.DeviceUnavailable)
        assert outcome(device, info(tmp_path)) == ("miss", "DeviceUnavailable: as told")
        kept = weakref.ref(device)
        del device
        assert kept() is None
    finally:
        gc.enable()
