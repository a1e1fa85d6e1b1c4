"""The engine: wgpu-py, its adapters, and what shaders need of an open device.

Imported when a model is prepared, not earlier: it takes half a second.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, NoReturn

from penstock.driverkit.engine import POLL_SECONDS, Limits, check_limits
from penstock.drivers.webgpu.declarations import parsed_declarations
from penstock.drivers.webgpu.installation import SOFTWARE, keep_shaders
from penstock.drivers.webgpu.launches import Launches
from penstock.drivers.webgpu.structs import structs_made_later
from penstock.drivers.webgpu.turns import Turns
from penstock.drivers.webgpu.watchdog import LOOK_SECONDS, Watchdog, Work
from penstock.errors import (
    DeadObject,
    DeviceUnavailable,
    GeneralFailure,
    PenstockError,
    ResourceExhaustedPersistent,
)
from penstock.hal import engine_lost

BACKENDS: Final = ("Vulkan", "Metal", "D3D12")
"""Interfaces of graphics systems that have compute shaders everywhere."""

TIMESTAMPS: Final = "timestamp-query"
MAPPABLE: Final = "mappable-primary-buffers"
WANTED: Final = (TIMESTAMPS, MAPPABLE)
"""Features that are used where an adapter has them."""

LIMITS: Final = (
    "max-buffer-size", "max-storage-buffer-binding-size", "max-compute-workgroup-storage-size",
    "max-compute-invocations-per-workgroup", "max-compute-workgroup-size-x",
)  # fmt: skip
"""Limits that are raised to the adapter's."""

MOST_PIPELINES: Final = 4096
"""Pipelines that are kept for other models."""

KINDS: Final = {"DiscreteGPU": 0, "IntegratedGPU": 1, "VirtualGPU": 2}
"""Adapters of hardware, the fastest kind first."""


SHARING: Final = frozenset({"CPU", "IntegratedGPU"})
"""Adapters that have no memory of their own."""


class Gpu:
    """An open device of wgpu. Threads share it; a child process made by `fork` may not use it.

    *name* is the name of Penstock's device.
    """

    def __init__(self, adapter: Any, name: str = SOFTWARE) -> None:
        features = [name for name in WANTED if name in adapter.features]
        limits = {name: adapter.limits[name] for name in LIMITS if name in adapter.limits}
        self.device = adapter.request_device_sync(
            required_features=features, required_limits=limits
        )
        self.source, self.adapter = adapter, described(adapter)
        self.turns = Turns()
        self.shares_memory = MAPPABLE in features and adapter.info["adapter_type"] in SHARING
        """Whether the device computes in the host's memory, and the host can map what it uses."""
        self.ns_a_tick = _ns_a_tick(self.device) if TIMESTAMPS in features else 0.0
        """Nanoseconds of a tick of the device's clock; 0 if it has no time stamps."""
        self.limits: dict[str, int] = dict(self.device.limits)
        self.name, self.process = name, os.getpid()
        self.watchdog = Watchdog(self._hangs)
        self.launches = Launches(self)
        self.lost = ""
        """Why no process can use the device any more; empty while it can be used."""
        self._lock = threading.Lock()
        self._pipelines: OrderedDict[str, Any] = OrderedDict()

    def pipeline(self, text: str) -> Any:
        """The pipeline of the shader *text*. Raises `GeneralFailure` if the engine refuses it."""
        with self._lock:
            if (made := self._pipelines.pop(text, None)) is None:
                made = self._compiled(text)
            self._pipelines[text] = made
            while len(self._pipelines) > MOST_PIPELINES:
                self._pipelines.popitem(last=False)
            return made

    def _compiled(self, text: str) -> Any:
        import wgpu

        try:
            module = self.device.create_shader_module(code=text)
            compute = {"module": module, "entry_point": "main"}
            return self.device.create_compute_pipeline(layout="auto", compute=compute)
        except wgpu.GPUError as error:
            self._check_lost(error)
            raise GeneralFailure(f"wgpu refuses a shader: {error}") from error

    def buffer(self, size: int, usage: int) -> Any:
        """A buffer of *size* bytes. Raises `ResourceExhaustedPersistent` if there is no memory."""
        if size > self.limits["max-buffer-size"]:
            most = self.limits["max-buffer-size"]
            raise ResourceExhaustedPersistent(
                f"a buffer of {size} bytes; {self.adapter} has buffers of at most {most}"
            )
        import wgpu

        try:
            return self.device.create_buffer(size=size, usage=usage)
        except wgpu.GPUError as error:
            self._check_lost(error)
            raise ResourceExhaustedPersistent(f"a buffer of {size} bytes: {error}") from error

    def unusable(self) -> str | None:
        """Why this process cannot use the device."""
        if os.getpid() != self.process:
            return "the device was opened before this process was forked"
        return self.lost or None

    def lose(self, reason: str) -> NoReturn:
        """The device is lost: ends a host process. Otherwise raises `DeadObject`, and another
        device is opened for the next model.
        """
        self.lost = f"device {self.name} is lost: {reason}"
        try:
            engine_lost(self.lost)
        finally:
            with _opening:
                key = self.process, self.name
                if _open.get(key) is self:
                    del _open[key]

    @contextmanager
    def used(self) -> Iterator[None]:
        """A block that uses the device. An error of wgpu in it means that the device is lost."""
        try:
            yield
        except (PenstockError, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001  # wgpu raises errors of several classes
            self.lose(f"{type(error).__name__}: {error}")

    def await_map(self, buffer: Any, config: Limits, work: Work) -> None:
        """Maps *buffer* for reading once *work*, which was submitted before, has ended.

        Raises what the limits of *config* raise; then the work goes on and stays watched, and the
        buffer must not be used again. Raises `DeadObject` if the device is lost meanwhile.
        """
        promise = buffer.map_async("READ")
        # The event of a promise is the only way to wait with a limit.
        ended: threading.Event = promise._thread_event  # noqa: SLF001
        work.ended, work.buffer = ended, buffer
        while not ended.wait(_look_seconds(config)):
            check_limits(config)
            if self.lost:
                raise DeadObject(self.lost)
        promise.sync_wait()

    def _hangs(self, seconds: float) -> None:
        with suppress(DeadObject):
            self.lose(f"a shader has not ended within {seconds:.3g} s")

    def _check_lost(self, error: Exception) -> None:
        """Loses the device if *error* says that it is lost."""
        if "lost" in str(error).lower():
            self.lose(str(error))


def _look_seconds(config: Limits) -> float:
    """Seconds to wait before the next look at the limits of *config* and at the device."""
    most = LOOK_SECONDS if config.cancel is None else POLL_SECONDS
    if config.deadline_ns is not None:
        most = min(most, (config.deadline_ns - time.monotonic_ns()) / 1e9)
    return max(most, 0.0)


def _ns_a_tick(device: Any) -> float:
    from wgpu.backends.wgpu_native import lib

    return float(lib.wgpuQueueGetTimestampPeriod(device.queue._internal))  # noqa: SLF001


def described(adapter: Any) -> str:
    """The name of an adapter: of the processor, and of the interface that it is reached by."""
    info = adapter.info
    return f"{info['device']} ({info['backend_type']}, {info['description']})"


def adapters() -> tuple[Sequence[Any], Sequence[Any]]:
    """The adapters of hardware, the fastest kind first, and those of software."""
    with _first:
        if not _opened:
            keep_shaders()
            with parsed_declarations(), structs_made_later():
                from wgpu.backends.wgpu_native.extras import set_instance_extras

            # The library asks every interface of the system otherwise, and some print warnings.
            set_instance_extras(backends=["Vulkan", "Metal", "DX12"])
            _opened.append(True)
    import wgpu

    found = [a for a in wgpu.gpu.enumerate_adapters_sync() if a.info["backend_type"] in BACKENDS]
    hardware = sorted(
        (a for a in found if a.info["adapter_type"] in KINDS),
        key=lambda a: KINDS[a.info["adapter_type"]],
    )
    return hardware, [a for a in found if a.info["adapter_type"] == "CPU"]


_first: Final = threading.Lock()
_opened: Final[list[bool]] = []
_open: Final[dict[tuple[int, str], Gpu]] = {}
_opening: Final = threading.Lock()


def opened(name: str) -> Gpu:
    """The device for the device called *name*, opened once in a process. Raises
    `DeviceUnavailable` if there is no such adapter.
    """
    key = os.getpid(), name
    with _opening:
        if key not in _open:
            hardware, software = adapters()
            found = software if name == SOFTWARE else hardware
            if not found:
                kind = "software" if name == SOFTWARE else "hardware"
                raise DeviceUnavailable(f"device {name}: no adapter of {kind} was found")
            _open[key] = Gpu(found[0], name)
        return _open[key]
