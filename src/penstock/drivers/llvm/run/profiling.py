"""Measured runs: the time of each kernel, the operations that it computes, and the share of the
processor's peak that it reaches.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, cast

import msgspec
import numpy as np

from penstock.driverkit.engine_model import Inputs, Outputs, Profiler, RunPool
from penstock.drivers.llvm.isa import RECORDS
from penstock.drivers.llvm.run.clock import machine
from penstock.drivers.llvm.run.running import Executable, Run
from penstock.hal import ExecutionConfig, OperationTiming

if TYPE_CHECKING:
    from penstock.drivers.llvm.emit.peak import Kind

SETUP: Final = "measuring the processor's peak"


class Measured(msgspec.Struct, frozen=True):
    """Runs with time stamps; nanoseconds a tick; and for each kernel the multiply-accumulates that
    all threads of a run could do in a nanosecond, 0 where it does none.
    """

    pool: RunPool[Run]
    executable: Executable
    ns_a_tick: float
    peaks: tuple[float, ...]


def profiler(executable: Executable) -> Profiler[Measured]:
    """The measured runs of *executable*."""
    code = executable.code

    def prepare() -> Measured:
        lanes = RECORDS[code.manifest.instructions].lanes
        peaks = [
            machine.peak(code.image, cast("Kind", kind), lanes) * code.threads if work else 0.0
            for work, kind in code.manifest.work
        ]
        pool = RunPool(lambda: Run(code, timed=True), code.unusable)
        return Measured(pool, executable, machine.ns_a_tick(code.image), tuple(peaks))

    def begin(measured: Measured, began_ns: int, is_first: bool) -> MeasuredRun:
        setup_ns = time.perf_counter_ns() - began_ns if is_first else 0
        return MeasuredRun(measured, began_ns, setup_ns)

    return Profiler(prepare, begin)


class MeasuredRun:
    """An executable for one run.

    After the run it has *timings*, counted from *began_ns*, and its duration. *setup_ns* of that
    time passed before the run.
    """

    def __init__(self, measured: Measured, began_ns: int, setup_ns: int) -> None:
        self.timings: tuple[OperationTiming, ...] = ()
        self.duration_ns = 0
        self._measured, self._began, self._setup = measured, began_ns, setup_ns

    def run(self, inputs: Inputs, outputs: Outputs, config: ExecutionConfig) -> None:
        """As `Executable.run`."""
        start = time.perf_counter_ns()
        self._measured.pool.run(
            inputs, outputs, config, lambda run: self._read(run, start - self._began)
        )
        self.duration_ns = time.perf_counter_ns() - start

    def _read(self, run: Run, at_ns: int) -> None:
        """Makes the timings of a run that began at *at_ns*. A kernel's time is for all images."""
        measured = self._measured
        manifest = measured.executable.code.manifest
        stamps = run.times.reshape(manifest.images, -1)
        took = np.diff(stamps, axis=1).sum(axis=0) * measured.ns_a_tick
        ends = np.cumsum(took)
        timings = [OperationTiming((), SETUP, 0, self._setup)] if self._setup else []
        for number, (template, name, operations) in enumerate(manifest.kernels):
            start, end = round(float(ends[number] - took[number])), round(float(ends[number]))
            work, peak = manifest.work[number][0] * manifest.images, measured.peaks[number]
            text = name if template in {"nest", name} else f"{name} by {template}"
            if peak and end > start:
                text += f", {100 * work / (end - start) / peak:.0f}% of peak"
            timings.append(OperationTiming(operations, text, at_ns + start, end - start))
        self.timings = tuple(timings)
