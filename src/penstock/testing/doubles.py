"""Devices around devices: faulty, slow, recording, lying, scribbling, and ones that support less.

Each is a `Device` and holds another; they nest. Counting and scripting are deterministic: nothing depends on
time but `SlowDevice`, whose clock and sleep are given to it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec
import numpy as np

from penstock.errors import (
    GeneralFailure,
    InputError,
    MissedDeadlineTransient,
)
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
    HostMemory,
    OutputShape,
    PoolArgument,
    PrepareConfig,
    PreparedModel,
    Request,
    ReusableExecution,
    Support,
    Timing,
    validate_prepare,
)
from penstock.ir import Model, NDArray
from penstock.memory import map_memory

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
"""What `InterceptingDevice.intercept` sees, by name; the last two are the `execute` of a burst and of a
reusable execution."""


class InterceptingDevice:
    """A device around *device*: each call of `METHODS` on it or on what it makes goes through `intercept`."""

    def __init__(self, device: Device, name: str | None = None) -> None:
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


When: TypeAlias = int | Collection[int] | Literal["always"]
"""The calls meant, counted from 1: one, several, or all of them."""


class FaultyDevice(InterceptingDevice):
    """Raises in place of chosen calls: `FaultyDevice(device, raise_on={"execute": 3})`.

    *error* makes what is raised from a sentence (default: `GeneralFailure`). `calls` counts the calls of
    each method so far.
    """

    def __init__(
        self,
        device: Device,
        raise_on: Mapping[str, When],
        error: Callable[[str], Exception] = GeneralFailure,
        name: str | None = None,
    ) -> None:
        super().__init__(device, name)
        if unknown := set(raise_on) - set(METHODS):
            raise InputError(f"no method of a device is named {', '.join(sorted(unknown))}")
        self.raise_on, self.error = dict(raise_on), error
        self.calls = dict.fromkeys(METHODS, 0)
        self._lock = threading.Lock()

    def intercept(self, method: str, arguments: tuple[Any, ...], proceed: Callable[[], T]) -> T:
        with self._lock:
            self.calls[method] += 1
            count = self.calls[method]
        if _is_meant(self.raise_on.get(method, ()), count):
            raise self.error(f"{self.name}: {method} fails at call {count}, as told")
        return proceed()


class Call(NamedTuple):
    """One call that a `RecordingDevice` saw; *result* is None where *error* was raised."""

    method: str
    arguments: tuple[Any, ...]
    result: Any
    error: Exception | None


class RecordingDevice(InterceptingDevice):
    """Keeps every call, with its arguments and its result or error, in `calls`."""

    def __init__(self, device: Device, name: str | None = None) -> None:
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


class SlowDevice(InterceptingDevice):
    """Takes *seconds*[method] longer, and notices deadline and cancellation meanwhile.

    *sleep* and *clock_ns* stand for `time.sleep` and `time.monotonic_ns`.
    """

    STEP_S: Final = 0.001

    def __init__(
        self,
        device: Device,
        seconds: Mapping[str, float],
        name: str | None = None,
        *,
        sleep: Callable[[float], None] = time.sleep,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        super().__init__(device, name)
        self.seconds, self._sleep, self._clock_ns = dict(seconds), sleep, clock_ns

    def intercept(self, method: str, arguments: tuple[Any, ...], proceed: Callable[[], T]) -> T:
        configs = [a for a in arguments if isinstance(a, ExecutionConfig | PrepareConfig)]
        end = self._clock_ns() + int(self.seconds.get(method, 0.0) * 1e9)
        while self._clock_ns() < end:
            for config in configs:
                if config.cancel is not None:
                    config.cancel.check()
                if config.deadline_ns is not None and self._clock_ns() >= config.deadline_ns:
                    raise MissedDeadlineTransient(f"{self.name}: the deadline passed in {method}")
            self._sleep(self.STEP_S)
        return proceed()


Lie: TypeAlias = Literal[
    "support_length",
    "support_changes",
    "refuses_after_all",
    "output_count",
    "output_shapes",
    "insufficient",
    "values",
    "timing",
]


class LyingDevice(InterceptingDevice):
    """Breaks its promises without an error.

    *support_length*: an answer too few; *support_changes*: a yes becomes a no at every second call;
    *refuses_after_all*: prepares nothing that it supports; *output_count*: a shape too few; *output_shapes*:
    shapes that are wrong; *insufficient*: success that says an output did not fit; *values*: outputs whose
    first byte is wrong; *timing*: more time on the device than in the driver.
    """

    def __init__(self, device: Device, *lies: Lie, name: str | None = None) -> None:
        super().__init__(device, name)
        self.lies = frozenset(lies)
        self._asked = 0

    def intercept(self, method: str, arguments: tuple[Any, ...], proceed: Callable[[], T]) -> T:
        if method == "prepare_model" and "refuses_after_all" in self.lies:
            raise GeneralFailure(f"{self.name} changed its mind")
        result: Any = proceed()
        if isinstance(result, ExecutionResult):
            result = self._tell(arguments[0], result)
        elif method == "supported_operations":
            result = self._answer(list(result))
        answer: T = result
        return answer

    def _answer(self, answers: list[Support]) -> list[Support]:
        self._asked += 1
        if "support_length" in self.lies:
            return answers[:-1]
        if "support_changes" in self.lies and self._asked % 2 == 0:
            return [Support(supported=False, reason="not today")] * len(answers)
        return answers

    def _tell(self, request: Request, result: ExecutionResult) -> ExecutionResult:
        shapes = list(result.output_shapes) or [OutputShape(())] * len(request.outputs)
        if "values" in self.lies:
            _damage_outputs(request)
        if "output_count" in self.lies:
            return ExecutionResult(tuple(shapes[:-1]) or (shapes[0],) * 2, result.timing)
        if "output_shapes" in self.lies:
            wrong = (OutputShape((*s.dimensions, 3)) for s in shapes)
            return ExecutionResult(tuple(wrong), result.timing)
        if "insufficient" in self.lies:
            small = (OutputShape(s.dimensions, is_sufficient=False) for s in shapes)
            return ExecutionResult(tuple(small), result.timing)
        if "timing" in self.lies:
            return ExecutionResult(result.output_shapes, Timing(2, 1))
        return result


class SubsetDevice(InterceptingDevice):
    """Supports what *device* does and *supports* lets it: for tests of partitioning.

    *supports* takes (model, index of an operation of its entry subgraph) and returns whether it may, or
    the reason why not.
    """

    def __init__(
        self, device: Device, name: str, supports: Callable[[Model, int], bool | str]
    ) -> None:
        super().__init__(device, name)
        self._supports = supports

    def supported_operations(self, model: Model) -> Sequence[Support]:
        return [
            self._narrowed(answer, self._supports(model, index))
            for index, answer in enumerate(super().supported_operations(model))
        ]

    def prepare_model(self, model: Model, config: PrepareConfig) -> PreparedModel:
        validate_prepare(model, config)
        for index, answer in enumerate(self.supported_operations(model)):
            if not answer.supported:
                kind = model.operations[index].type
                raise GeneralFailure(f"operation {index} ({kind}): {answer.reason}")
        return super().prepare_model(model, config)

    def _narrowed(self, answer: Support, allowed: bool | str) -> Support:
        if allowed is True or not answer.supported:
            return answer
        reason = allowed if isinstance(allowed, str) else f"{self.name} leaves it to others"
        return Support(supported=False, reason=reason, accuracy=answer.accuracy)


class ScribblingDevice(InterceptingDevice):
    """Writes where it must not, after every run: over its *inputs*, or *behind* or *before* its outputs."""

    def __init__(
        self,
        device: Device,
        where: Literal["inputs", "behind", "before"],
        name: str | None = None,
    ) -> None:
        super().__init__(device, name)
        self.where = where

    def intercept(self, method: str, arguments: tuple[Any, ...], proceed: Callable[[], T]) -> T:
        result = proceed()
        if isinstance(result, ExecutionResult):
            self._scribble(arguments[0])
        return result

    def _scribble(self, request: Request) -> None:
        over = request.inputs if self.where == "inputs" else request.outputs
        for argument in over:
            if isinstance(argument, HostMemory):
                if self.where == "inputs":
                    _flip(argument.array)
            elif isinstance(argument, PoolArgument):
                place = argument.location
                at = {"inputs": place.offset, "before": place.offset - 1}.get(
                    self.where, place.offset + place.length
                )
                with map_memory(request.pools[place.pool]) as mapping:
                    mapping.array[at] ^= 0xFF


def _is_meant(when: When, count: int) -> bool:
    if when == "always":
        return True
    return count == when if isinstance(when, int) else count in when


def _unwrapped(prepared: PreparedModel) -> PreparedModel:
    return prepared.prepared if isinstance(prepared, InterceptedModel) else prepared


def _damage_outputs(request: Request) -> None:
    for argument in request.outputs:
        if isinstance(argument, HostMemory):
            _flip(argument.array)
        elif isinstance(argument, PoolArgument) and argument.location.length:
            with map_memory(request.pools[argument.location.pool]) as mapping:
                mapping.array[argument.location.offset] ^= 0xFF


def _flip(array: NDArray) -> None:
    if array.size:
        array.reshape(-1).view(np.uint8)[0] ^= 0xFF
