"""`InterceptingDevice`: the base of every double of a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar

from msgspec.structs import replace

from penstock import hal
from penstock.errors import InputError
from penstock.hal.loading import describe, is_device
from penstock.ir import Model

P = ParamSpec("P")
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
"""The methods that `InterceptingDevice.intercept` sees, by name.

The last two are the `execute` of a burst and of a reusable execution.
"""


class InterceptingDevice:
    """A device around *device*: each call of `METHODS`, on it or on an object that it made, goes
    through `intercept`.

    *name* None keeps the name of *device*; all other properties are those of *device*. Closing it
    closes *device*. Raises `InputError` if *device* is no device.
    """

    def __init__(self, device: hal.Device, name: str | None = None) -> None:
        if not is_device(device):
            raise InputError(f"a double is made around a Device, not {describe(device)}")
        self.device = device
        self.name = name or device.name

    def intercept(self, method: str, arguments: tuple[Any, ...], proceed: Callable[[], T]) -> T:
        """Called instead of *method* with its *arguments*; `proceed()` makes the real call."""
        return proceed()

    def call(self, method: str, function: Callable[P, T], *arguments: P.args, **_: P.kwargs) -> T:
        """Calls *function*, the inner *method*, through `intercept`."""
        return self.intercept(method, arguments, partial(function, *arguments))

    @property
    def version(self) -> str:
        return self.device.version

    @property
    def type(self) -> hal.DeviceType:
        return self.device.type

    @property
    def feature_level(self) -> int:
        return self.device.feature_level

    @property
    def capabilities(self) -> hal.Capabilities:
        return self.device.capabilities

    @property
    def hal_version(self) -> int:
        return self.device.hal_version

    def check(self) -> str | None:
        return self.device.check()

    def cache_files_needed(self) -> tuple[int, int]:
        return self.device.cache_files_needed()

    def supported_operations(self, model: Model) -> Sequence[hal.Support]:
        return self.call("supported_operations", self.device.supported_operations, model)

    def prepare_model(self, model: Model, config: hal.PrepareConfig) -> hal.PreparedModel:
        call = self.call("prepare_model", self.device.prepare_model, model, config)
        return InterceptedModel(self, call)

    def prepare_model_from_cache(self, config: hal.PrepareConfig) -> hal.PreparedModel:
        load = self.device.prepare_model_from_cache
        return InterceptedModel(self, self.call("prepare_model_from_cache", load, config))

    def allocate(
        self, desc: hal.BufferDesc, roles: Sequence[hal.BufferRole]
    ) -> tuple[int, hal.Buffer]:
        inner = [replace(r, prepared=_unwrapped(r.prepared)) for r in roles]
        return self.intercept("allocate", (desc, roles), lambda: self.device.allocate(desc, inner))

    def close(self) -> None:
        self.device.close()


class InterceptedModel:
    """A prepared model of an `InterceptingDevice`."""

    def __init__(self, owner: InterceptingDevice, prepared: hal.PreparedModel) -> None:
        self.owner, self.prepared = owner, prepared

    def execute(self, request: hal.Request, config: hal.ExecutionConfig) -> hal.ExecutionResult:
        return self.owner.call("execute", self.prepared.execute, request, config)

    @property
    def cache_report(self) -> hal.CacheReport:
        return getattr(self.prepared, "cache_report", hal.NO_CACHE_REPORT)

    def execute_fenced(
        self,
        request: hal.Request,
        wait_for: Sequence[hal.Fence],
        config: hal.ExecutionConfig,
        timeout_after_fence_ns: int | None = None,
    ) -> hal.Fence:
        arguments = request, wait_for, config, timeout_after_fence_ns
        return self.owner.call("execute_fenced", self.prepared.execute_fenced, *arguments)

    def configure_burst(self) -> hal.Burst:
        burst = self.owner.call("configure_burst", self.prepared.configure_burst)
        return InterceptedBurst(self.owner, burst)

    def create_reusable_execution(self, request: hal.Request) -> hal.ReusableExecution:
        create = self.prepared.create_reusable_execution
        execution = self.owner.call("create_reusable_execution", create, request)
        return InterceptedExecution(self.owner, request, execution)

    def close(self) -> None:
        self.prepared.close()


class InterceptedBurst:
    """A burst of an `InterceptedModel`."""

    def __init__(self, owner: InterceptingDevice, burst: hal.Burst) -> None:
        self._owner, self._burst = owner, burst

    def execute(self, request: hal.Request, config: hal.ExecutionConfig) -> hal.ExecutionResult:
        return self._owner.call("burst_execute", self._burst.execute, request, config)

    def close(self) -> None:
        self._burst.close()


class InterceptedExecution:
    """A reusable execution of an `InterceptedModel`. Interceptors also see its request."""

    def __init__(
        self, owner: InterceptingDevice, request: hal.Request, execution: hal.ReusableExecution
    ) -> None:
        self._owner, self._request, self._execution = owner, request, execution

    def execute(self, config: hal.ExecutionConfig) -> hal.ExecutionResult:
        arguments = self._request, config
        proceed = partial(self._execution.execute, config)
        return self._owner.intercept("reusable_execute", arguments, proceed)

    def close(self) -> None:
        self._execution.close()


def _unwrapped(prepared: hal.PreparedModel) -> hal.PreparedModel:
    return prepared.prepared if isinstance(prepared, InterceptedModel) else prepared


class Call(NamedTuple):
    """One call that a `RecordingDevice` saw; *result* is None where *error* was raised."""

    method: str
    arguments: tuple[Any, ...]
    result: Any
    error: Exception | None


class RecordingDevice(InterceptingDevice):
    """Records every call of `METHODS` in `calls`, with its arguments and its result or error.

    The calls are in the order in which they ended. The records keep their objects alive: prepared
    models, and requests with their memory.
    """

    def __init__(self, device: hal.Device, name: str | None = None) -> None:
        super().__init__(device, name)
        self.calls: list[Call] = []

    def intercept(self, method: str, arguments: tuple[Any, ...], proceed: Callable[[], T]) -> T:
        try:
            result = proceed()
        except Exception as error:
            self.calls.append(Call(method, arguments, None, error))
            raise
        self.calls.append(Call(method, arguments, result, None))
        return result

    def count(self, method: str) -> int:
        """How often *method* was called."""
        return sum(call.method == method for call in self.calls)


class SubsetDevice(InterceptingDevice):
    """Supports what *device* supports and *supports* allows: for tests of partitioning.

    *supports* gets (model, index of an operation of its entry subgraph). It returns whether the
    device may take the operation, or the reason why not.
    """

    def __init__(
        self, device: hal.Device, name: str, supports: Callable[[Model, int], bool | str]
    ) -> None:
        super().__init__(device, name)
        self._supports = supports

    def supported_operations(self, model: Model) -> Sequence[hal.Support]:
        answers = [
            self._narrowed(answer, self._supports(model, index))
            for index, answer in enumerate(super().supported_operations(model))
        ]
        return hal.refuse_unmapped(model, answers, self.capabilities.memory_kinds)

    def prepare_model(self, model: Model, config: hal.PrepareConfig) -> hal.PreparedModel:
        hal.validate_prepare(model, config, self.capabilities.memory_kinds)
        hal.validate_support(model, self.supported_operations(model))
        return super().prepare_model(model, config)

    def _narrowed(self, answer: hal.Support, allowed: bool | str) -> hal.Support:
        if allowed is True or not answer.supported:
            return answer
        reason = allowed if isinstance(allowed, str) else f"{self.name} leaves it to others"
        return hal.Support(supported=False, reason=reason, accuracy=answer.accuracy)


class SimulatedDevice(InterceptingDevice):
    """*device* under another name, as if it were hardware of *type* and *families*.

    For code that searches for a kind of device. Its capabilities say that it is simulated, and so
    do the receipts of every step that ran on it. *performance* maps element types to execution
    times relative to the reference device.
    """

    def __init__(
        self,
        device: hal.Device,
        name: str,
        type: hal.DeviceType,  # the device's own word for it
        families: tuple[str, ...] = (),
        performance: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__(device, name)
        self._type = type
        self._capabilities = replace(
            device.capabilities,
            families=families,
            simulated=True,
            only_when_named=True,
            performance={t: hal.PerformanceInfo(p, p) for t, p in (performance or {}).items()},
        )

    @property
    def type(self) -> hal.DeviceType:
        return self._type

    @property
    def capabilities(self) -> hal.Capabilities:
        return self._capabilities
