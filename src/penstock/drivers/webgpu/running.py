"""Runs of compiled models: the device's memory, what is recorded, and copies to and from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final, Literal, Self

import numpy as np
from msgspec import Struct

from penstock import knobs
from penstock.driverkit.engine import Limits, check_limits
from penstock.driverkit.engine_model import Copies, EngineModel, RunPool, copied
from penstock.drivers.webgpu.artefact import Manifest
from penstock.drivers.webgpu.binding import Bindings, readers_of
from penstock.drivers.webgpu.calls import ALIGNMENT
from penstock.drivers.webgpu.engine import Gpu
from penstock.drivers.webgpu.fenced import execute_fenced
from penstock.drivers.webgpu.launches import MARK_BYTES, Launch
from penstock.drivers.webgpu.mapped import LEAST_MAPPED, Mapped
from penstock.drivers.webgpu.submits import Pace, Piece, Submit
from penstock.drivers.webgpu.values import Argument, DeviceValue, padded, whole, words
from penstock.errors import DeadObject, DriverError, GeneralFailure
from penstock.hal import (
    ArgumentCopy,
    CacheReport,
    DescriptorFence,
    ExecutionConfig,
    Fence,
    Request,
)
from penstock.ir import NDArray

if TYPE_CHECKING:
    from penstock.drivers.webgpu.staging import Staging

PATIENCE: Final = 100
"""How many times longer than predicted kernels may take before they count as hung."""

START_BYTES: Final = 16
"""Bytes of the uniform that says where a dispatch begins."""

COMPILE_SECONDS: Final = 3.0
"""The most that a system's driver takes to compile one shader, which it does in the first run."""


class Code:
    """A compiled model on a device: the pipeline of each shader, and the constants that all runs
    read. Raises what the limits of *config* raise, between two shaders.
    """

    def __init__(
        self,
        gpu: Gpu,
        manifest: Manifest,
        constants: NDArray | Any | None,
        config: Limits | None = None,
    ) -> None:
        """*constants* are those of the manifest, the buffer of another code that has them, or None
        for zeros.
        """
        import wgpu

        self.pipelines: list[Any] = []
        self.layouts: list[Any] = []
        for text in manifest.shaders:
            if config is not None:
                check_limits(config)
            self.pipelines.append(gpu.pipeline(text))
            self.layouts.append(self.pipelines[-1].get_bind_group_layout(0))
        self.gpu, self.manifest = gpu, manifest
        self.is_warm = False
        """Whether a run has ended: until then the system's driver may still compile the shaders."""
        usage = wgpu.BufferUsage
        self.constants = constants
        if constants is None or isinstance(constants, np.ndarray):
            size = whole(manifest.constants)
            self.constants = gpu.buffer(size, usage.STORAGE | usage.COPY_DST)
        if isinstance(constants, np.ndarray) and constants.nbytes:
            gpu.device.queue.write_buffer(self.constants, 0, padded(constants))
        numbers = np.frombuffer(manifest.numbers, np.uint8)
        self.numbers = gpu.buffer(whole(numbers.nbytes), usage.UNIFORM | usage.COPY_DST)
        if numbers.nbytes:
            gpu.device.queue.write_buffer(self.numbers, 0, padded(numbers))
        self.pace = Pace(manifest.calls)
        self.readers = readers_of(manifest)


class Plan(Struct, frozen=True):
    """What one run does: the bind *groups* of its kernels, the device buffers that are *copied* to
    its memory before them and *stored* to after them, by place, and the places and bytes of the
    *downloads*. *mapped_inputs* and *mapped_outputs*, by their numbers, lie in memory that the host
    maps.
    """

    groups: Sequence[Any]
    copied: Sequence[tuple[int, DeviceValue]]
    stored: Sequence[tuple[int, DeviceValue]]
    downloads: Sequence[tuple[int, int]]
    mapped_inputs: Mapping[int, Mapped]
    mapped_outputs: Mapping[int, Mapped]


NO_PLAN: Final = Plan((), (), (), (), {}, {})


class Run:
    """The device's memory for one run at a time, and the bindings of its kernels."""

    def __init__(self, code: Code) -> None:
        import wgpu

        self.code, gpu = code, code.gpu
        self._layout, usage = code.manifest.layout, wgpu.BufferUsage
        memory = usage.STORAGE | usage.COPY_DST | usage.COPY_SRC
        self._memory = gpu.buffer(whole(self._layout.memory), memory)
        self._start, size = self._layout.results
        self._results = gpu.buffer(whole(size), usage.MAP_READ | usage.COPY_DST)
        calls = code.manifest.calls
        self._bindings = Bindings(
            gpu,
            [code.layouts[call.shader] for call in calls],
            calls,
            {"memory": self._memory, "constants": code.constants, "numbers": code.numbers},
        )
        self._plan = NO_PLAN
        self._mapped: dict[int, Mapped] = {}
        self._beginnings: dict[Piece, Any] = {}
        self._begun: tuple[Submit, ...] = ()

    def run(
        self,
        inputs: Sequence[Argument],
        outputs: Sequence[Argument | None],
        config: ExecutionConfig,
    ) -> Copies:
        """Runs once. Raises `GeneralFailure` if the inputs have no result, and what the limits of
        *config* raise. The run is not used again after an error: the device may still compute.
        """
        copies = list[ArgumentCopy]()
        with self.code.gpu.turns.run():
            self._plan = self._planned(inputs, outputs, maps=self.code.gpu.shares_memory)
            try:
                with self.code.gpu.used():
                    self._compute(inputs, outputs, config, copies)
            except DriverError as error:
                error.copies = tuple(copies)
                raise
            finally:
                # It keeps device buffers in memory.
                self._plan = NO_PLAN
        return copies

    def launch(
        self,
        inputs: Sequence[Argument],
        outputs: Sequence[Argument | None],
        config: ExecutionConfig,
        behind: Sequence[Launch],
    ) -> tuple[Copies, DescriptorFence]:
        """Submits all work of a run, and returns a fence for its end, which fails if a launch that
        it is *behind* does. The *outputs* are values of device buffers, or not wanted.
        """
        copies, gpu, pace = list[ArgumentCopy](), self.code.gpu, self.code.pace
        # The host would wait for mapped memory that an earlier run still uses.
        self._plan = self._planned(inputs, outputs, maps=False)
        try:
            self.upload(inputs, copies)
            submits = self._submits()

            def submit_all(mark: Any) -> None:
                for submit in submits:
                    first, last = submit is submits[0], submit is submits[-1]
                    self._submit(submit, is_first=first, is_last=last, mark=mark)

            def learn(spent_ns: int) -> None:
                if len(submits) == 1:
                    pace.learn(submits, [spent_ns])

            seconds = sum(self._seconds(submit) for submit in submits)
            return copies, gpu.launches.launch(submit_all, seconds, config, behind, learn)
        finally:
            self._plan = NO_PLAN

    def _submits(self) -> tuple[Submit, ...]:
        """The submits of a run, whose pieces have their beginnings."""
        submits = self.code.pace.submits
        if submits is not self._begun:
            self._beginnings, self._begun = self._begin(submits), submits
        return submits

    def _compute(
        self,
        inputs: Sequence[Argument],
        outputs: Sequence[Argument | None],
        config: ExecutionConfig,
        copies: list[ArgumentCopy],
    ) -> None:
        self.upload(inputs, copies)
        code, spent = self.code, list[int]()
        submits = self._submits()
        for submit in submits:
            if spent:
                self._results.unmap()
                check_limits(config)
            began = perf_counter_ns()
            self._perform(
                config, submit, is_first=submit is submits[0], is_last=submit is submits[-1]
            )
            spent.append(perf_counter_ns() - began)
        if code.is_warm:
            code.pace.learn(submits, spent)
        code.is_warm = True
        try:
            self.download(outputs, copies)
        finally:
            self._results.unmap()

    def _begin(self, submits: Sequence[Submit]) -> dict[Piece, Any]:
        """For each piece of a kernel that divides, the bind group of the uniform that says where it
        begins.
        """
        calls = self.code.manifest.calls
        pieces = [p for submit in submits for p in submit.pieces if calls[p.call].divides]
        if not pieces:
            return {}
        import wgpu

        starts = np.zeros((len(pieces), ALIGNMENT // 4), np.uint32)
        starts[:, :2] = [(calls[p.call].threads * p.column, p.row) for p in pieces]
        gpu, usage = self.code.gpu, wgpu.BufferUsage
        buffer = gpu.buffer(starts.nbytes, usage.UNIFORM | usage.COPY_DST)
        gpu.device.queue.write_buffer(buffer, 0, starts)
        pipelines = self.code.pipelines
        return {
            piece: gpu.device.create_bind_group(
                layout=pipelines[calls[piece.call].shader].get_bind_group_layout(1),
                entries=[
                    {
                        "binding": 0,
                        "resource": {
                            "buffer": buffer,
                            "offset": ALIGNMENT * number,
                            "size": START_BYTES,
                        },
                    }
                ],
            )
            for number, piece in enumerate(pieces)
        }

    def upload(self, inputs: Sequence[Argument], copies: list[ArgumentCopy]) -> None:
        """Copies the inputs to the device, and adds to *copies*."""
        queue = self.code.gpu.device.queue
        for at, (array, place) in enumerate(zip(inputs, self._layout.inputs, strict=True)):
            if isinstance(array, np.ndarray) and array.nbytes:
                began = perf_counter_ns()
                if (mapped := self._plan.mapped_inputs.get(at)) is not None:
                    mapped.write(array)
                else:
                    queue.write_buffer(self._memory, place, padded(array))
                copies.append(copied(at, array.nbytes, began, out=False))

    def _planned(
        self, inputs: Sequence[Argument], outputs: Sequence[Argument | None], *, maps: bool
    ) -> Plan:
        """What kernels are bound to for these arguments, and what is copied on the device. *maps*:
        arrays go through memory that the host maps.
        """
        bound, readers = dict[int, DeviceValue](), self.code.readers

        def is_mapped(value: Argument | None, place: int) -> bool:
            is_large = isinstance(value, np.ndarray) and value.nbytes >= LEAST_MAPPED
            return maps and is_large and bool(readers.get(place))

        copied: list[tuple[int, DeviceValue]] = []
        stored: list[tuple[int, DeviceValue]] = []
        downloads: list[tuple[int, int]] = []
        given, taken = dict[int, Mapped](), dict[int, Mapped]()
        for at, (value, place) in enumerate(zip(inputs, self._layout.inputs, strict=True)):
            if is_mapped(value, place):
                given[at] = self._mapped_at(place, value.nbytes, "WRITE")
                bound[place] = given[at].value
            elif isinstance(value, DeviceValue) and value.nbytes:
                self._check(value)
                # WebGPU binds a buffer that shaders may write to one name at a time.
                if place in readers and all(value is not other for other in bound.values()):
                    bound[place] = value
                else:
                    copied.append((place, value))
        places = self._layout.outputs
        for at, (target, place) in enumerate(zip(outputs, places, strict=False)):
            if target is not None and is_mapped(target, place):
                taken[at] = self._mapped_at(place, target.nbytes, "READ")
                bound[place] = taken[at].value
            elif isinstance(target, DeviceValue):
                if target.nbytes:
                    self._check(target)
                    if place in readers:
                        bound[place] = target
                    else:
                        stored.append((place, target))
            elif target is not None and target.nbytes:
                downloads.append((place, words(target.nbytes)))
        downloads += [(place, 4) for place in places[len(outputs) :]]
        groups = self._bindings.groups(bound, readers)
        return Plan(groups, copied, stored, downloads, given, taken)

    def _mapped_at(self, place: int, nbytes: int, mode: Literal["READ", "WRITE"]) -> Mapped:
        """The memory that the host maps in place of that from *place* on."""
        if (known := self._mapped.get(place)) is None:
            known = self._mapped[place] = Mapped(self.code.gpu, nbytes, mode)
        return known

    def _check(self, value: DeviceValue) -> None:
        """Raises `DeadObject` for a value in the memory of a device that was opened before."""
        if value.gpu is not self.code.gpu:
            raise DeadObject(value.gpu.lost or "the buffer is in memory of another device")

    def _perform(
        self, config: ExecutionConfig, submit: Submit, *, is_first: bool, is_last: bool
    ) -> None:
        """Computes *submit*, and maps the outputs, which the last submit of a run writes."""
        gpu = self.code.gpu
        with gpu.watchdog.watching(self._seconds(submit) + gpu.launches.seconds) as work:
            self._submit(submit, is_first=is_first, is_last=is_last)
            if is_last:
                plan = self._plan
                for mapped in (*plan.mapped_inputs.values(), *plan.mapped_outputs.values()):
                    mapped.map()
            gpu.await_map(self._results, config, work)

    def _seconds(self, submit: Submit) -> float:
        """The most that *submit* may take."""
        seconds = knobs.submit_timeout_ms() / 1e3 + PATIENCE * submit.predicted_ns / 1e9
        return seconds + (0.0 if self.code.is_warm else COMPILE_SECONDS * len(self.code.pipelines))

    def _submit(self, submit: Submit, *, is_first: bool, is_last: bool, mark: Any = None) -> None:
        """Submits *submit*, whose last command writes to the results, or to *mark*."""
        device = self.code.gpu.device
        encoder = device.create_command_encoder()
        if is_first:
            for place, value in self._plan.copied:
                size = words(value.nbytes)
                encoder.copy_buffer_to_buffer(value.buffer, 0, self._memory, place, size)
        if submit.pieces:
            self.record(encoder, submit)
        if is_last:
            self.copy_results(encoder)
        # A buffer that no submit writes is mapped at once: the copy makes the map wait.
        if mark is not None or not (is_last and self._plan.downloads):
            written = self._results if mark is None else mark
            encoder.copy_buffer_to_buffer(self._memory, 0, written, 0, MARK_BYTES)
        device.queue.submit([encoder.finish()])

    def record(self, encoder: Any, submit: Submit) -> None:
        """Records the kernels of *submit*."""
        compute = encoder.begin_compute_pass()
        self.dispatch(compute, submit.pieces)
        compute.end()

    def dispatch(self, compute: Any, pieces: Sequence[Piece]) -> None:
        """Records *pieces* of kernels into a compute pass."""
        calls, pipelines, previous = self.code.manifest.calls, self.code.pipelines, -1
        for piece in pieces:
            shader = calls[piece.call].shader
            if shader != previous:
                compute.set_pipeline(pipelines[shader])
                previous = shader
            compute.set_bind_group(0, self._plan.groups[piece.call])
            if (start := self._beginnings.get(piece)) is not None:
                compute.set_bind_group(1, start)
            compute.dispatch_workgroups(piece.columns, piece.rows, 1)

    def copy_results(self, encoder: Any) -> None:
        """Records the copy of the results: to device buffers, and to memory that can be mapped."""
        for place, value in self._plan.stored:
            size = words(value.nbytes)
            encoder.copy_buffer_to_buffer(self._memory, place, value.buffer, 0, size)
        for place, size in self._plan.downloads:
            start = place - self._start
            encoder.copy_buffer_to_buffer(self._memory, place, self._results, start, size)

    def download(self, outputs: Sequence[Argument | None], copies: list[ArgumentCopy]) -> None:
        """Copies the outputs, which are mapped, to arrays of the caller, and adds to *copies*."""
        found = np.frombuffer(self._results.read_mapped(copy=False), np.uint8)
        places = [offset - self._start for offset in self._layout.outputs]
        for at, (array, place) in enumerate(zip(outputs, places, strict=False)):
            if isinstance(array, np.ndarray) and array.nbytes:
                began = perf_counter_ns()
                if (mapped := self._plan.mapped_outputs.get(at)) is not None:
                    mapped.read(array)
                    copies.append(copied(at, array.nbytes, began, out=True))
                    continue
                part = found[place : place + array.nbytes]
                array[...] = part.view(array.dtype).reshape(array.shape)
                copies.append(copied(at, array.nbytes, began, out=True))
        failures = self.code.manifest.failures
        for place, message in zip(places[len(outputs) :], failures, strict=True):
            if found[place]:
                raise GeneralFailure(message)


class Executable:
    """What a prepared model runs."""

    def __init__(self, code: Code) -> None:
        self.code = code
        self.pool: RunPool[Run] = RunPool(lambda: Run(code), code.gpu.unusable)

    def run(
        self,
        inputs: Sequence[Argument],
        outputs: Sequence[Argument | None],
        config: ExecutionConfig,
    ) -> Copies:
        """As `Runnable.run`, also with values of device buffers. Raises `DeadObject` in a forked
        child, and if the device is lost.
        """
        with self.code.gpu.used():
            return self.pool.run(inputs, outputs, config)  # type: ignore[arg-type]  # passed to `Run.run`


class ShaderModel(EngineModel[Executable]):
    """A prepared model of shaders. Its arguments may lie in the device's memory."""

    _later: Staging | None = None

    def improved_by(self, later: Staging | None) -> Self:
        """The model itself, with *later*, which finds faster shaders for it."""
        self._later = later
        return self

    @property
    def cache_report(self) -> CacheReport:  # type: ignore[override]  # a late write changes it
        later = self._later
        return self.report if later is None else later.report or self.report

    def become(self, executable: Executable) -> None:
        """Goes on with *executable*. Runs of other threads finish with the old one."""
        if not self.closed:
            self.executable = executable

    def after_run(self, config: ExecutionConfig) -> None:
        if self._later is not None:
            self._later.after_run(self, config)

    def close(self) -> None:
        super().close()
        if self._later is not None:
            self._later.close()

    def execute_fenced(
        self,
        request: Request,
        wait_for: Sequence[Fence],
        config: ExecutionConfig,
        timeout_after_fence_ns: int | None = None,
    ) -> Fence:
        return execute_fenced(self, request, wait_for, config, timeout_after_fence_ns)

    def forward(self, source: Argument, target: Argument) -> bool | None:
        if isinstance(target, DeviceValue):
            if isinstance(source, DeviceValue):
                source.copy_to(target)
                return None
            target.write(source)
            return False
        if isinstance(source, DeviceValue):
            source.read(target.reshape(-1).view(np.uint8))
            return True
        target[...] = source
        return None
