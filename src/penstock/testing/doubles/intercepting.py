"""`InterceptingDevice`: what every double of a device is made from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import msgspec

from penstock.errors import InputError
from penstock.hal import (
    NO_CACHE_REPORT,
    Buffer,
    BufferDesc,
    BufferRole,
    Burst,
    CacheReport,
    Capabilities,
    Device,
    DeviceType,
    ExecutionConfig,
    ExecutionResult,
    Fence,
    PrepareConfig,
    PreparedModel,
    Request,
    ReusableExecution,
    Support,
)
from penstock.hal.loading import describe, is_device
from penstock.ir import Model

T = TypeVar("T")

METHODS: Final = (
    "supported_operations",
    "prepare_model",
    "prepare_model_from_cache",
    "allocate",
    "execute",
    "execute_fenced",
    "configure_burst",
    "create_reusable_execution",
    "burst_execute",
    "reusable_execute",
)
"""What `InterceptingDevice.intercept` sees, by name; the last two are the `execute` of a burst and
of a reusable execution.
"""


class InterceptingDevice:
    """A device around *device*: each call of `METHODS` on it or on what it makes goes through
    `intercept`.

    *name* None keeps the name of *device*; all else that a device says of itself is that one's.
    Close it as any device: *device* is closed with it. Raises `InputError` for what is no device.
    """

    def __init__(self, device: Device, name: str | None = None) -> None:
        if not is_device(device):
            raise InputError(f"a double is made around a Device, not {describe(device)}")
        self.device = device
        self.name = name or device.name

    def intercept(self, method: str, arguments: tuple[Any, ...], proceed: Callable[[], T]) -> T:
        """Called in place of *method* with its *arguments*; `proceed()` makes the real call."""
        return proceed()

    @property
    def version(self) -> str:
        return self.device.version

    @property
    def type(self) -> DeviceType:
        return self.device.type

    @property
    def feature_level(self) -> int:
        return self.device.feature_level

    @property
    def capabilities(self) -> Capabilities:
        return self.device.capabilities

    @property
    def hal_version(self) -> int:
        return self.device.hal_version

    def check(self) -> str | None:
        return self.device.check()

    def cache_files_needed(self) -> tuple[int, int]:
        return self.device.cache_files_needed()

    def supported_operations(self, model: Model) -> Sequence[Support]:
        return self.intercept(
            "supported_operations", (model,), lambda: self.device.supported_operations(model)
        )

    def prepare_model(self, model: Model, config: PrepareConfig) -> PreparedModel:
        return InterceptedModel(
            self,
            self.intercept(
                "prepare_model", (model, config), lambda: self.device.prepare_model(model, config)
            ),
        )

    def prepare_model_from_cache(self, config: PrepareConfig) -> PreparedModel:
        return InterceptedModel(
            self,
            self.intercept(
                "prepare_model_from_cache",
                (config,),
                lambda: self.device.prepare_model_from_cache(config),
            ),
        )

    def allocate(self, desc: BufferDesc, roles: Sequence[BufferRole]) -> tuple[int, Buffer]:
        inner = [msgspec.structs.replace(r, prepared=_unwrapped(r.prepared)) for r in roles]
        return self.intercept("allocate", (desc, roles), lambda: self.device.allocate(desc, inner))

    def close(self) -> None:
        self.device.close()


class InterceptedModel:
    """A prepared model of an `InterceptingDevice`."""

    def __init__(self, owner: InterceptingDevice, prepared: PreparedModel) -> None:
        self.owner, self.prepared = owner, prepared

    def execute(self, request: Request, config: ExecutionConfig) -> ExecutionResult:
        return self.owner.intercept(
            "execute", (request, config), lambda: self.prepared.execute(request, config)
        )

    @property
    def cache_report(self) -> CacheReport:
        return getattr(self.prepared, "cache_report", NO_CACHE_REPORT)

    def execute_fenced(
        self,
        request: Request,
        wait_for: Sequence[Fence],
        config: ExecutionConfig,
        timeout_after_fence_ns: int | None = None,
    ) -> Fence:
        return self.owner.intercept(
            "execute_fenced",
            (request, wait_for, config, timeout_after_fence_ns),
            lambda: self.prepared.execute_fenced(request, wait_for, config, timeout_after_fence_ns),
        )

    def configure_burst(self) -> Burst:
        return InterceptedBurst(
            self.owner,
            self.owner.intercept("configure_burst", (), self.prepared.configure_burst),
        )

    def create_reusable_execution(self, request: Request) -> ReusableExecution:
        return InterceptedExecution(
            self.owner,
            request,
            self.owner.intercept(
                "create_reusable_execution",
                (request,),
                lambda: self.prepared.create_reusable_execution(request),
            ),
        )

    def close(self) -> None:
        self.prepared.close()


class InterceptedBurst:
    """A burst of an `InterceptedModel`."""

    def __init__(self, owner: InterceptingDevice, burst: Burst) -> None:
        self._owner, self._burst = owner, burst

    def execute(self, request: Request, config: ExecutionConfig) -> ExecutionResult:
        return self._owner.intercept(
            "burst_execute", (request, config), lambda: self._burst.execute(request, config)
        )

    def close(self) -> None:
        self._burst.close()


class InterceptedExecution:
    """A reusable execution of an `InterceptedModel`; interceptors see its request, too."""

    def __init__(
        self, owner: InterceptingDevice, request: Request, execution: ReusableExecution
    ) -> None:
        self._owner, self._request, self._execution = owner, request, execution

    def execute(self, config: ExecutionConfig) -> ExecutionResult:
        return self._owner.intercept(
            "reusable_execute",
            (self._request, config),
            lambda: self._execution.execute(config),
        )

    def close(self) -> None:
        self._execution.close()


def _unwrapped(prepared: PreparedModel) -> PreparedModel:
    return prepared.prepared if isinstance(prepared, InterceptedModel) else prepared
