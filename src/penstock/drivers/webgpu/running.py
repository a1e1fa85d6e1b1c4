"""Runs of compiled models: the device's memory, what is recorded, and copies to and from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from penstock import knobs
from penstock.driverkit.engine import Limits, check_limits
from penstock.driverkit.engine_model import Inputs, Outputs, RunPool
from penstock.drivers.webgpu.artefact import Manifest
from penstock.drivers.webgpu.calls import Call
from penstock.drivers.webgpu.engine import Gpu
from penstock.errors import GeneralFailure
from penstock.hal import ExecutionConfig
from penstock.ir import NDArray

SUBMIT_NS: Final = 50_000_000
"""The most predicted work of one submit: a run is cancelled between two of them, and no watchdog of
a desktop takes one for hung.
"""


PATIENCE: Final = 100
"""How many times longer than predicted kernels may take before they count as hung."""

COMPILE_SECONDS: Final = 3.0
"""The most that a system's driver takes to compile one shader, which it does in the first run."""


class Code:
    """A compiled model on a device: the pipeline of each shader, and the constants that all runs
    read. Raises what the limits of *config* raise, between two shaders.
    """

    def __init__(
        self, gpu: Gpu, manifest: Manifest, constants: NDArray, config: Limits | None = None
    ) -> None:
        import wgpu

        self.pipelines: list[Any] = []
        for text in manifest.shaders:
            if config is not None:
                check_limits(config)
            self.pipelines.append(gpu.pipeline(text))
        self.gpu, self.manifest = gpu, manifest
        self.is_warm = False
        """Whether a run has ended: until then the system's driver may still compile the shaders."""
        usage = wgpu.BufferUsage
        self.constants = gpu.buffer(_whole(constants.nbytes), usage.STORAGE | usage.COPY_DST)
        if constants.nbytes:
            gpu.device.queue.write_buffer(self.constants, 0, padded(constants))
        self.parts = parts_of(manifest.calls)


def parts_of(calls: Sequence[Call]) -> list[tuple[int, int]]:
    """The first and last kernels of each submit."""
    parts, first, spent = list[tuple[int, int]](), 0, 0
    for at, call in enumerate(calls):
        if at > first and spent + call.estimate_ns > SUBMIT_NS:
            parts.append((first, at))
            first, spent = at, 0
        spent += call.estimate_ns
    return [*parts, (first, len(calls))]


class Run:
    """The device's memory for one run at a time, and the bindings of its kernels."""

    def __init__(self, code: Code) -> None:
        import wgpu

        self.code, gpu = code, code.gpu
        self._layout, usage = code.manifest.layout, wgpu.BufferUsage
        memory = usage.STORAGE | usage.COPY_DST | usage.COPY_SRC
        self._memory = gpu.buffer(_whole(self._layout.memory), memory)
        self._start, self._size = self._layout.results
        read = usage.MAP_READ | usage.COPY_DST
        self._results = gpu.buffer(_whole(self._size), read)
        buffers = {"memory": self._memory, "constants": code.constants}
        self._groups = [
            gpu.device.create_bind_group(
                layout=code.pipelines[call.shader].get_bind_group_layout(0),
                entries=[
                    {
                        "binding": number,
                        "resource": {
                            "buffer": buffers[b.buffer],
                            "offset": b.offset,
                            "size": b.size,
                        },
                    }
                    for number, b in enumerate(call.bindings)
                ],
            )
            for call in code.manifest.calls
        ]
        self._shared: dict[str, Any] = {}

    def run(self, inputs: Inputs, outputs: Outputs, config: ExecutionConfig) -> None:
        """Runs once. Raises `GeneralFailure` if the inputs have no result, and what the limits of
        *config* raise. The run is not used again after an error: the device may still compute.
        """
        self.upload(inputs)
        parts = self.code.parts
        for first, last in parts[:-1]:
            self._perform(config, first, last, results=False)
            self._results.unmap()
            check_limits(config)
        self._perform(config, *parts[-1], results=True)
        self.code.is_warm = True
        try:
            self.download(outputs)
        finally:
            self._results.unmap()

    def upload(self, inputs: Inputs) -> None:
        """Copies the inputs to the device."""
        queue = self.code.gpu.device.queue
        for array, offset in zip(inputs, self._layout.inputs, strict=True):
            if array.nbytes:
                queue.write_buffer(self._memory, offset, padded(array))

    def _perform(self, config: ExecutionConfig, first: int, last: int, *, results: bool) -> None:
        """Computes the kernels *first* to *last* by one submit, and maps the outputs."""
        code = self.code
        predicted = sum(call.estimate_ns for call in code.manifest.calls[first:last])
        seconds = knobs.submit_timeout_ms() / 1e3 + PATIENCE * predicted / 1e9
        if not code.is_warm:
            seconds += COMPILE_SECONDS * len(code.pipelines)
        with code.gpu.watchdog.watching(seconds) as work:
            self._submit(first, last, results=results)
            code.gpu.await_map(self._results, config, work)

    def _submit(self, first: int, last: int, *, results: bool) -> None:
        device = self.code.gpu.device
        encoder = device.create_command_encoder()
        if last > first:
            self.record(encoder, first, last)
        if results:
            self.copy_results(encoder)
        device.queue.submit([encoder.finish()])

    def record(self, encoder: Any, first: int, last: int) -> None:
        """Records kernels."""
        compute = encoder.begin_compute_pass()
        self.dispatch(compute, first, last)
        compute.end()

    def dispatch(self, compute: Any, first: int, last: int) -> None:
        """Records kernels into a compute pass."""
        calls, pipelines, previous = self.code.manifest.calls, self.code.pipelines, -1
        for at in range(first, last):
            call = calls[at]
            if call.shader != previous:
                compute.set_pipeline(pipelines[call.shader])
                previous = call.shader
            compute.set_bind_group(0, self._groups[at])
            compute.dispatch_workgroups(*call.groups)

    def copy_results(self, encoder: Any) -> None:
        """Records the copy of all results to memory that can be mapped."""
        if self._size:
            encoder.copy_buffer_to_buffer(self._memory, self._start, self._results, 0, self._size)

    def download(self, outputs: Outputs) -> None:
        """Copies the outputs, which are mapped, to arrays of the caller."""
        found = np.frombuffer(self._results.read_mapped(copy=False), np.uint8)
        places = [offset - self._start for offset in self._layout.outputs]
        for array, place in zip(outputs, places, strict=False):
            if array is not None and array.nbytes:
                part = found[place : place + array.nbytes]
                array[...] = part.view(array.dtype).reshape(array.shape)
        failures = self.code.manifest.failures
        for place, message in zip(places[len(outputs) :], failures, strict=True):
            if found[place]:
                raise GeneralFailure(message)


class Executable:
    """What a prepared model runs."""

    def __init__(self, code: Code) -> None:
        self.code = code
        self.pool: RunPool[Run] = RunPool(lambda: Run(code), code.gpu.unusable)

    def run(self, inputs: Inputs, outputs: Outputs, config: ExecutionConfig) -> None:
        """As `Runnable.run`. Raises `DeadObject` in a forked child, and if the device is lost."""
        with self.code.gpu.used():
            self.pool.run(inputs, outputs, config)


def padded(array: NDArray) -> NDArray:
    """The bytes of *array*, with up to three more, so that they are whole words."""
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    if data.nbytes % 4:
        data = np.concatenate([data, np.zeros(-data.nbytes % 4, np.uint8)])
    return data


def _whole(size: int) -> int:
    return max(256, -(-size // 4) * 4)
