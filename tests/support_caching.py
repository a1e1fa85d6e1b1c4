"""A device that records how it was asked to cache, as NNAPI's own test driver does (NNAPI section
2.6).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from penstock import hal
from penstock.cache.directory import CacheDirectory
from penstock.errors import DriverError
from penstock.ir import Model
from tests.support_devices import KERNELS, NumpyDevice, NumpyPrepared

PAYLOAD: Final = bytes(range(256))


def lock_file(cache: Path) -> Path:
    """The lock file of the one entry in a cache directory, which lies in the state directory."""
    (token,) = {path.name[:64] for path in cache.iterdir() if len(path.name) > 64}
    return Path(CacheDirectory(cache).store.locks.path_of(f"{token}.lock"))


@dataclass
class Asked:
    """One call: which, under which token and binding, and with how many files."""

    method: str
    token: bytes
    binding: bytes
    files: tuple[int, int]
    config: hal.PrepareConfig = field(repr=False, default_factory=hal.PrepareConfig)

    @property
    def with_caching(self) -> bool:
        return sum(self.files) > 0


class CachingDevice(NumpyDevice):
    """Writes the same 256 bytes into every file, and reads and compares them; answers a load with
    *status*.

    Everything asked is kept in `calls`. What it prepared it remembers by token: the bytes do not
    stand for it. *on_prepare* is called in each compile.
    """

    def __init__(
        self,
        name: str = "caching",
        needed: tuple[int, int] = (1, 1),
        *,
        kinds: frozenset[str] = frozenset(KERNELS),
        version: str = "1",
        status: type[DriverError] | None = None,
        level: int = 8,
        saves: bool = True,
        report: hal.CacheReport = hal.CacheReport(),  # noqa: B008  # immutable
        on_prepare: Callable[[hal.PrepareConfig], None] = lambda _: None,
        **more: Any,
    ) -> None:
        super().__init__(name, kinds, level=level, **more)
        self.capabilities = hal.Capabilities(
            default_performance=hal.PerformanceInfo(0.5, 0.5), dispatch_ns=0
        )
        self.version = version
        self.needed, self.status, self.saves, self.report = needed, status, saves, report
        self.on_prepare = on_prepare
        self.calls: list[Asked] = []
        self.models: dict[bytes, Model] = {}

    def cache_files_needed(self) -> tuple[int, int]:
        return self.needed

    def prepare_model(self, model: Model, config: hal.PrepareConfig) -> NumpyPrepared:
        self._note("prepare_model", config)
        self.on_prepare(config)
        prepared = super().prepare_model(model, config)
        if self.saves and config.token != hal.NO_TOKEN:
            self.models[config.token] = model
            for handle in (*config.model_cache, *config.data_cache):
                os.ftruncate(handle.fd, 0)
                assert os.pwrite(handle.fd, PAYLOAD, 0) == len(PAYLOAD)
        prepared.cache_report = self.report
        return prepared

    def prepare_model_from_cache(self, config: hal.PrepareConfig) -> hal.PreparedModel:
        self._note("prepare_model_from_cache", config)
        for handle in (*config.model_cache, *config.data_cache):
            assert os.pread(handle.fd, 1000, 0) == PAYLOAD
        if self.status is not None:
            raise self.status("as told")
        return NumpyPrepared(self.models[config.token])

    @property
    def methods(self) -> list[str]:
        """The calls in order, "prepare_model with caching" or "... without"."""
        return [
            f"{c.method} {'with' if c.with_caching else 'without'} caching"
            if c.method == "prepare_model"
            else c.method
            for c in self.calls
        ]

    def _note(self, method: str, config: hal.PrepareConfig) -> None:
        files = len(config.model_cache), len(config.data_cache)
        assert files in {(0, 0), self.needed}
        self.calls.append(Asked(method, config.token, config.binding, files, config))
