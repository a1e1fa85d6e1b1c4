"""Measured runs: the time of each kernel, by time stamps of the device."""

from __future__ import annotations

import time
from typing import Any, Final

import numpy as np

from penstock.driverkit.engine_model import Copies, Inputs, Outputs, Profiler, RunPool
from penstock.drivers.webgpu.running import Code, Executable, Run
from penstock.drivers.webgpu.submits import Submit
from penstock.errors import GeneralFailure
from penstock.hal import ExecutionConfig, OperationTiming
from penstock.ir import NDArray

MOST_STAMPS: Final = 4096
"""Time stamps of one set of WebGPU."""

STAMP_BYTES: Final = 8


def profiler(executable: Executable) -> Profiler[RunPool[TimedRun]]:
    """The measured runs of *executable*. None is measured where the device has no time stamps."""
    code = executable.code

    def prepare() -> RunPool[TimedRun]:
        if not code.gpu.ns_a_tick:
            raise GeneralFailure(f"{code.gpu.adapter} has no time stamps")
        return RunPool(lambda: TimedRun(code), code.gpu.unusable)

    def begin(pool: RunPool[TimedRun], began_ns: int, _: bool) -> MeasuredRun:
        return MeasuredRun(pool, executable, began_ns)

    return Profiler(prepare, begin)


class TimedRun(Run):
    """A run with time stamps before and after each kernel. Each kernel is a compute pass of its
    own, which takes a little longer. A kernel in several submits has what lies between these, too.
    """

    def __init__(self, code: Code) -> None:
        import wgpu

        super().__init__(code)
        usage, count = wgpu.BufferUsage, 2 * len(code.manifest.calls)
        self._sets = [
            code.gpu.device.create_query_set(
                type="timestamp", count=min(MOST_STAMPS, count - first)
            )
            for first in range(0, count, MOST_STAMPS)
        ]
        self._nbytes = count * STAMP_BYTES
        size = max(self._nbytes, STAMP_BYTES)
        self._stamps = code.gpu.buffer(size, usage.QUERY_RESOLVE | usage.COPY_SRC)
        self._copy = code.gpu.buffer(size, usage.MAP_READ | usage.COPY_DST)

    def record(self, encoder: Any, submit: Submit) -> None:
        for piece in submit.pieces:
            number, index = divmod(2 * piece.call, MOST_STAMPS)
            writes = {"query_set": self._sets[number]}
            if piece.is_first:
                writes["beginning_of_pass_write_index"] = index
            if piece.is_last:
                writes["end_of_pass_write_index"] = index + 1
            stamped = {"timestamp_writes": writes} if len(writes) > 1 else {}
            compute = encoder.begin_compute_pass(**stamped)
            self.dispatch(compute, [piece])
            compute.end()

    def copy_results(self, encoder: Any) -> None:
        super().copy_results(encoder)
        for number, each in enumerate(self._sets):
            place = number * MOST_STAMPS * STAMP_BYTES
            encoder.resolve_query_set(each, 0, each.count, self._stamps, place)
        if self._nbytes:
            encoder.copy_buffer_to_buffer(self._stamps, 0, self._copy, 0, self._nbytes)

    def stamps(self) -> NDArray:
        """The ticks before and after each kernel, of shape (kernels, 2), once the run has ended."""
        if not self._nbytes:
            return np.zeros((0, 2), np.int64)
        self._copy.map_sync("READ")
        try:
            found = np.frombuffer(self._copy.read_mapped(), np.int64, self._nbytes // STAMP_BYTES)
            return found.reshape(-1, 2)
        finally:
            self._copy.unmap()


class MeasuredRun:
    """An executable for one run. After the run it has *timings*, counted from *began_ns*, and its
    duration.
    """

    def __init__(self, pool: RunPool[TimedRun], executable: Executable, began_ns: int) -> None:
        self.timings: tuple[OperationTiming, ...] = ()
        self.duration_ns = 0
        self._pool, self._executable, self._began = pool, executable, began_ns

    def run(self, inputs: Inputs, outputs: Outputs, config: ExecutionConfig) -> Copies:
        """As `Executable.run`."""
        start = time.perf_counter_ns()
        with self._executable.code.gpu.used():
            copies = self._pool.run(inputs, outputs, config, self._read)
        self.duration_ns = time.perf_counter_ns() - start
        # The device's clock is not the host's: the last kernel ends at the end of the run at most.
        last = max((t.start_ns + t.duration_ns for t in self.timings), default=0)
        offset = start - self._began + max(self.duration_ns - last, 0)
        self.timings = tuple(
            OperationTiming(t.operations, t.name, offset + t.start_ns, t.duration_ns)
            for t in self.timings
        )
        return copies

    def _read(self, run: TimedRun) -> None:
        code = run.code
        stamps = run.stamps()
        ns = (stamps - stamps[:1, :1]) * code.gpu.ns_a_tick
        self.timings = tuple(
            OperationTiming(
                call.origin,
                call.name
                if call.template in {"nest", call.name}
                else f"{call.name} by {call.template}",
                round(before),
                max(round(after - before), 0),
            )
            for call, (before, after) in zip(code.manifest.calls, ns.tolist(), strict=True)
        )
