"""Null objects: what stands in for a device, prepared model or buffer that is gone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from penstock.errors import GeneralFailure
from penstock.hal.buffer import Buffer, BufferDesc, BufferRole
from penstock.hal.capabilities import Support
from penstock.hal.config import ExecutionConfig, PrepareConfig
from penstock.hal.device import NO_VERSION, DeviceBase
from penstock.hal.prepared import PreparedModel, PreparedModelBase
from penstock.hal.request import ExecutionResult, Memory, Request
from penstock.ir import Model


class InvalidDevice(DeviceBase):
    """A device that refuses everything with one reason."""

    def __init__(self, name: str, reason: str) -> None:
        self.name, self.version, self.reason = name, NO_VERSION, reason

    def check(self) -> str | None:
        return self.reason

    def supported_operations(self, model: Model) -> Sequence[Support]:
        return [Support(False, self.reason)] * len(model.operations)

    def prepare_model(self, model: Model, config: PrepareConfig) -> PreparedModel:
        self._refuse()

    def prepare_model_from_cache(self, config: PrepareConfig) -> PreparedModel:
        self._refuse()

    def allocate(self, desc: BufferDesc, roles: Sequence[BufferRole]) -> tuple[int, Buffer]:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise GeneralFailure(f"device {self.name}: {self.reason}")


class InvalidPreparedModel(PreparedModelBase):
    """A prepared model whose device is gone."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def execute(self, request: Request, config: ExecutionConfig) -> ExecutionResult:
        raise GeneralFailure(self.reason)


class InvalidBuffer:
    """A buffer whose device is gone."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def copy_to(self, destination: Memory) -> None:
        raise GeneralFailure(self.reason)

    def copy_from(self, source: Memory, dimensions: tuple[int, ...]) -> None:
        raise GeneralFailure(self.reason)

    def close(self) -> None:
        """Nothing to free."""
