"""NNAPI's own tests of compilation caching, by their names, on a recording double (NNAPI section 2.6)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pytest

from penstock.drivers.reference import ReferenceDevice
from penstock.errors import (
    DeviceUnavailable,
    DriverError,
    GeneralFailure,
    InvalidArgument,
    PlacementError,
)
from penstock.hal import BYTE_SIZE_OF_CACHE_TOKEN, CacheReport, PrepareConfig, PreparedModel
from penstock.ir import Model
from penstock.nnapi import Compilation
from penstock.runtime.discovery import Manager
from penstock.testing.doubles import InterceptedModel, InterceptingDevice
from tests.unit.nnapi.building import finished

pytestmark = pytest.mark.usefixtures("no_descriptor_leaks")

TOKEN: Final = bytes(range(BYTE_SIZE_OF_CACHE_TOKEN))
CONTENT: Final = bytes(range(256))
COUNTS: Final = (0, 1, 32)
STATUSES: Final = {
    "NONE": None,
    "GENERAL_FAILURE": GeneralFailure,
    "DEVICE_UNAVAILABLE": DeviceUnavailable,
    "INVALID_ARGUMENT": InvalidArgument,
}


class SavedModel(InterceptedModel):
    cache_report = CacheReport(save="saved")


class CachingDouble(InterceptingDevice):
    """Writes the same 256 bytes to each cache file it is given, and notes how it was called: with how many
    handles, and under which token.
    """

    def __init__(self, needed: tuple[int, int], load_error: type[DriverError] | None) -> None:
        super().__init__(ReferenceDevice(), "caching")
        self.needed, self.load_error = needed, load_error
        self.prepared: list[tuple[int, int]] = []
        self.loaded: list[tuple[int, int]] = []
        self.tokens: set[bytes] = set()

    def cache_files_needed(self) -> tuple[int, int]:
        return self.needed

    def prepare_model(self, model: Model, config: PrepareConfig) -> PreparedModel:
        files = self._files(config)
        self.prepared.append((len(config.model_cache), len(config.data_cache)))
        for fd in files:
            os.ftruncate(fd, 0)
            assert os.pwrite(fd, CONTENT, 0) == len(CONTENT)
        plain = PrepareConfig()
        return SavedModel(self, self.device.prepare_model(model, plain))

    def prepare_model_from_cache(self, config: PrepareConfig) -> PreparedModel:
        self.loaded.append((len(config.model_cache), len(config.data_cache)))
        for fd in self._files(config):
            assert os.pread(fd, len(CONTENT) + 1, 0) == CONTENT
        if self.load_error is not None:
            raise self.load_error("as told")
        return SavedModel(self, self.device.prepare_model(finished().lowered, PrepareConfig()))

    def _files(self, config: PrepareConfig) -> list[int]:
        files = [handle.fd for handle in (*config.model_cache, *config.data_cache)]
        if files:
            self.tokens.add(config.token)
        return files


@pytest.mark.parametrize("status", STATUSES.values(), ids=STATUSES)
@pytest.mark.parametrize("datas", COUNTS)
@pytest.mark.parametrize("models", COUNTS)
class TestCompilationCaching:
    @staticmethod
    def compile(device: CachingDouble, directory: Path | None) -> None:
        with Compilation.create_for_devices(finished(), [device]) as compilation:
            if directory is not None:
                compilation.set_caching(directory, TOKEN)
            compilation.finish()

    def test_token_provided_and_cache_not_exist(
        self, tmp_path: Path, models: int, datas: int, status: type[DriverError] | None
    ) -> None:
        device = CachingDouble((models, datas), status)
        self.compile(device, tmp_path)
        assert device.loaded == []
        assert device.prepared == [(models, datas)]

    def test_token_provided_and_cache_exist(
        self, tmp_path: Path, models: int, datas: int, status: type[DriverError] | None
    ) -> None:
        self.compile(CachingDouble((models, datas), None), tmp_path)
        device = CachingDouble((models, datas), status)
        self.compile(device, tmp_path)
        supported = (models, datas) != (0, 0)
        assert device.loaded == [(models, datas)] * supported
        hit = supported and status is None
        assert device.prepared == ([] if hit else [(models, datas)])
        assert len(device.tokens) == supported

    def test_token_not_provided(
        self, models: int, datas: int, status: type[DriverError] | None
    ) -> None:
        device = CachingDouble((models, datas), status)
        self.compile(device, None)
        assert device.loaded == []
        assert device.prepared == [(0, 0)]


@pytest.mark.parametrize("fails", [False, True], ids=["NONE", "DEVICE_UNAVAILABLE"])
@pytest.mark.parametrize("datas", [0, 1, 32, 33])
@pytest.mark.parametrize("models", [0, 1, 32, 33])
def test_device_registration(models: int, datas: int, fails: bool) -> None:
    class Registered(CachingDouble):
        def cache_files_needed(self) -> tuple[int, int]:
            if fails:
                raise DeviceUnavailable("as told")
            return self.needed

    device = Registered((models, datas), None)
    manager = Manager(tuple)
    if not fails and models <= 32 and datas <= 32:
        assert manager.choose([device]) == [device]
    else:
        with pytest.raises(PlacementError):
            manager.choose([device])
