"""NNAPI's own tests of compilation caching, by their names, on a recording double (NNAPI section
2.6).
"""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from penstock import errors
from penstock.drivers.reference import ReferenceDevice
from penstock.hal import BYTE_SIZE_OF_CACHE_TOKEN, CacheReport, PrepareConfig, PreparedModel
from penstock.ir import Model as IrModel
from penstock.nnapi import Compilation, Model
from penstock.runtime.discovery import Manager
from penstock.testing.doubles import InterceptedModel, InterceptingDevice
from tests.unit.nnapi.building import finished

pytestmark = pytest.mark.usefixtures("no_descriptor_leaks")

TOKEN: Final = bytes(range(BYTE_SIZE_OF_CACHE_TOKEN))
CONTENT: Final = bytes(range(256))
COUNTS: Final = (0, 1, 32)
STATUSES: Final = {
    "NONE": None,
    "GENERAL_FAILURE": errors.GeneralFailure,
    "DEVICE_UNAVAILABLE": errors.DeviceUnavailable,
    "INVALID_ARGUMENT": errors.InvalidArgument,
}


class SavedModel(InterceptedModel):
    cache_report = CacheReport(save="saved")


class CachingDouble(InterceptingDevice):
    """Writes the same 256 bytes to each cache file it is given, and notes how it was called: with
    how many handles, and under which token.
    """

    def __init__(
        self, needed: tuple[int, int], load_error: type[errors.DriverError] | None
    ) -> None:
        super().__init__(ReferenceDevice(), "caching")
        self.needed, self.load_error = needed, load_error
        self.prepared: list[tuple[int, int]] = []
        self.loaded: list[tuple[int, int]] = []
        self.tokens: set[bytes] = set()

    def cache_files_needed(self) -> tuple[int, int]:
        return self.needed

    def prepare_model(self, model: IrModel, config: PrepareConfig) -> PreparedModel:
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
        self, tmp_path: Path, models: int, datas: int, status: type[errors.DriverError] | None
    ) -> None:
        device = CachingDouble((models, datas), status)
        self.compile(device, tmp_path)
        assert device.loaded == []
        assert device.prepared == [(models, datas)]

    def test_token_provided_and_cache_exist(
        self, tmp_path: Path, models: int, datas: int, status: type[errors.DriverError] | None
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
        self, models: int, datas: int, status: type[errors.DriverError] | None
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
                raise errors.DeviceUnavailable("as told")
            return self.needed

    device = Registered((models, datas), None)
    manager = Manager(tuple)
    if not fails and models <= 32 and datas <= 32:
        assert manager.choose([device]) == [device]
    else:
        with pytest.raises(errors.PlacementError):
            manager.choose([device])


def test_shapes_compiled_later_leave_the_callers_descriptors_alone(tmp_path: Path) -> None:
    """A shape that a run brings is compiled then, when the descriptors may be anything."""
    model = Model()
    x, y = model.add_operand(3, (0, 3)), model.add_operand(3, (0, 3))
    model.add_operation("ABS", [x], [y])
    model.identify_inputs_and_outputs([x], [y])
    model.finish()
    device = CachingDouble((1, 0), None)
    fd = os.open(tmp_path / "given", os.O_RDWR | os.O_CREAT, 0o600)
    compilation = Compilation.create_for_devices(model, [device])
    compilation.set_caching_from_fds([fd], [], TOKEN)
    os.close(fd)
    compilation.finish()
    compiled = compilation.compiled
    assert (tmp_path / "given").read_bytes() == CONTENT
    os.truncate(tmp_path / "given", 0)
    del compilation
    gc.collect()
    with (tmp_path / "other").open("w+b"), (tmp_path / "another").open("w+b"):
        assert compiled.run([np.full((2, 3), -1, np.float32)])[0].tolist() == [[1.0] * 3] * 2
    assert [(tmp_path / n).stat().st_size for n in ("given", "other", "another")] == [0, 0, 0]
    compiled.close()
