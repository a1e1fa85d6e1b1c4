"""A driver's own cache: what the lab device keeps in a blob cache, whatever the runtime caches."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

import penstock
from penstock.blobcache import Limits, PersistentBlobCache
from penstock.hal import PrepareConfig
from penstock.testing.lab import LabDevice
from penstock.testing.lab.device import MODES, Mode
from tests.support_lab import network, run, small

PLAIN = PrepareConfig()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "lab.blobs"


def use(device: LabDevice, times: int = 1) -> LabDevice:
    """Compiles and runs a network, and closes the device."""
    with closing(device):
        case = small()
        with closing(device.prepare_model(case.model, PLAIN)) as prepared:
            for _ in range(times):
                run(prepared, case)
    return device


def keys(file: Path) -> list[bytes]:
    with PersistentBlobCache.open(file, Limits(value=1 << 20)) as blobs:
        return [key for key, _ in blobs.items()]


@pytest.mark.parametrize("mode", MODES)
def test_the_next_device_compiles_nothing(mode: Mode, file: Path) -> None:
    assert use(LabDevice(mode=mode, uses=2, blobs=file), times=3).compiles > 0
    assert use(LabDevice(mode=mode, uses=2, blobs=file), times=3).compiles == 0


def test_blob_cache_misses_for_another_model(file: Path) -> None:
    use(LabDevice(blobs=file))
    device = LabDevice(blobs=file)
    with closing(device), closing(device.prepare_model(network().model, PLAIN)) as prepared:
        run(prepared, network())
    assert device.compiles == 1


def test_artefacts_are_freed_after_a_version_change(file: Path) -> None:
    """With a driver of feature level 1, which gets no cache files from any runtime."""
    use(LabDevice(feature_level=1, blobs=file), times=1)
    use(LabDevice(feature_level=1, mode="first_run", blobs=file))
    old = keys(file)
    assert len(old) == 2
    assert use(LabDevice(feature_level=1, version="2", blobs=file)).compiles == 1
    new = keys(file)
    assert len(new) == 1
    assert not set(new) & set(old)


def test_artefacts_are_freed_on_request(file: Path) -> None:
    device = LabDevice(feature_level=1, blobs=file)
    use(device)
    with closing(LabDevice(feature_level=1, blobs=file)) as again:
        assert again.free_artefacts() == 1
        assert again.free_artefacts() == 0
    assert keys(file) == []
    assert use(LabDevice(feature_level=1, blobs=file)).compiles == 1


def test_device_keeps_blobs_of_others_in_its_file(file: Path) -> None:
    with PersistentBlobCache.open(file) as blobs:
        blobs.set(b"kernel", b"somebody else's")
    use(LabDevice("lab", blobs=file))
    use(LabDevice("other lab", version="7", blobs=file))
    with closing(LabDevice("lab", version="2", blobs=file)):
        pass
    assert b"kernel" in keys(file)
    assert use(LabDevice("other lab", version="7", blobs=file)).compiles == 0


def test_a_cache_that_is_shared_stays_open() -> None:
    with PersistentBlobCache() as blobs:
        blobs.initialize(Limits(key=96, value=1 << 20))
        use(LabDevice(blobs=blobs))
        assert use(LabDevice(blobs=blobs)).compiles == 0
        assert len(blobs) == 1


def test_device_without_a_blob_cache_frees_no_artefact() -> None:
    assert LabDevice().free_artefacts() == 0


def test_a_file_that_is_damaged_is_a_miss(file: Path) -> None:
    use(LabDevice(blobs=file))
    content = file.read_bytes()
    for place in range(0, len(content), 7):
        changed = bytearray(content)
        changed[place] ^= 1 << place % 8
        file.write_bytes(changed)
        assert use(LabDevice(blobs=file)).compiles == 1


def test_a_program_that_somebody_put_there_is_parsed_as_a_stranger_s(file: Path) -> None:
    use(LabDevice(blobs=file))
    (key,) = keys(file)
    for content in (b"x", bytes(8), bytes(200), b"\xff" * 8 + b"PLAB"):
        with PersistentBlobCache.open(file, Limits(value=1 << 20)) as blobs:
            blobs.set(key, content)
        assert use(LabDevice(blobs=file)).compiles == 1
    assert use(LabDevice(blobs=file)).compiles == 0


def test_through_the_runtime_which_gives_a_driver_of_level_1_no_files(
    file: Path, tmp_path: Path
) -> None:
    case = small()
    counted = []
    for _ in range(2):
        with closing(LabDevice(feature_level=1, blobs=file)) as device:
            with penstock.compile(
                case.model, devices=[device], cache=tmp_path / "cache"
            ) as compiled:
                compiled(*case.inputs)
            counted.append((device.compiles, device.loads, device.saves))
    assert counted == [(1, 0, 0), (0, 0, 0)]
