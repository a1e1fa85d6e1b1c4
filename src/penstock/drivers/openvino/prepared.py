"""The prepared model: an executable behind the contract of `penstock.hal`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

from penstock.driverkit.postponed_write import PostponedWrite
from penstock.driverkit.request_arrays import bound_arrays
from penstock.drivers.openvino.artefact import Ports
from penstock.drivers.openvino.executable import Executable
from penstock.drivers.openvino.late import Better, Late
from penstock.errors import GeneralFailure
from penstock.hal import (
    CacheReport,
    ExecutionConfig,
    ExecutionResult,
    PreparedModelBase,
    Request,
    Timing,
    validate_request,
)
from penstock.ir import Model, NDArray

if TYPE_CHECKING:
    from penstock.drivers.openvino.device import OpenVinoDevice
    from penstock.drivers.openvino.profiling import MeasuredRun, Profiler


def _timing(executable: Executable | MeasuredRun, began_ns: int) -> Timing:
    if isinstance(executable, Executable):
        return Timing(None, time.perf_counter_ns() - began_ns)
    return Timing(None, executable.duration_ns, executable.timings)


class OpenVinoPreparedModel(PreparedModelBase):
    """*executable* with the inputs and outputs that *ports* say. *late* has the optimised form:
    from the first run on where there is no *executable* yet, else when the model has run often
    enough. *profilers* makes what runs of an executable are measured by. *device* has the buffers
    that requests may name.
    """

    device: OpenVinoDevice | None = None
    loops = False

    def __init__(
        self,
        ports: Ports,
        report: CacheReport,
        executable: Executable | None,
        late: Late | None = None,
        profilers: Callable[[Executable], Profiler] | None = None,
    ) -> None:
        # Requests are checked against inputs and outputs alone; there may be no model to show.
        self.model = cast("Model", ports.interface())
        self._report = report
        self._write: PostponedWrite | None = None
        self._forwards = [(k, i) for k, i in enumerate(ports.forwards) if i >= 0]
        self._computed = [k for k, i in enumerate(ports.forwards) if i < 0]
        self._executable, self._late, self._closed = executable, late, False
        self._profilers = profilers
        self._profiler: Profiler | None = None

    def execute(self, request: Request, config: ExecutionConfig) -> ExecutionResult:
        began = time.perf_counter_ns()
        validate_request(self.model, request, config)
        if config.cancel is not None:
            config.cancel.check()
        executable = self._started(config, began)
        with self._arguments(request) as (inputs, outputs):
            self._forward(inputs, outputs)
            executable.run(inputs, [outputs[k] for k in self._computed], config)
        timing = _timing(executable, began)
        if (late := self._late) is not None:
            self._become(late.after_a_run(config))
        if (write := self._write) is not None:
            write.attempt(config.deadline_ns)
            if write.is_over:
                self._report, self._write = write.report, None
        return ExecutionResult((), timing)

    @property
    def cache_report(self) -> CacheReport:  # type: ignore[override]  # it changes with what becomes of a late write
        return self._report if self._write is None else self._write.report

    def close(self) -> None:
        self._closed, self._executable, self._profiler = True, None, None
        for part in (self._late, self._write):
            if part is not None:
                part.close()

    @contextmanager
    def _arguments(self, request: Request) -> Iterator[tuple[list[NDArray], list[NDArray | None]]]:
        """Where *request* has its inputs and outputs; buffers of the device as they lie."""
        domain = None if self.device is None else self.device.domain
        if domain is None:
            with bound_arrays(request, self.model.entry) as arguments:
                yield arguments
            return
        with (
            domain.claim(self, request) as claim,
            bound_arrays(request, self.model.entry, claim) as arguments,
        ):
            yield arguments

    def _forward(self, inputs: Sequence[NDArray], outputs: Sequence[NDArray | None]) -> None:
        """Copies the inputs that are outputs, too: OpenVINO would give both the same memory."""
        for output, source in self._forwards:
            target = outputs[output]
            if target is not None:
                target[...] = inputs[source]

    def _current(self, config: ExecutionConfig) -> Executable:
        executable, late = self._executable, self._late
        if self._closed:
            raise GeneralFailure("the prepared model is closed")
        if executable is None and late is not None:
            executable = self._become(late.now(config))
        if executable is None:
            raise GeneralFailure("the prepared model is closed")
        return executable

    def _started(self, config: ExecutionConfig, began_ns: int) -> Executable | MeasuredRun:
        """What the execution that began at *began_ns* is run by."""
        executable = self._current(config)
        if not config.measure or self._profilers is None:
            return executable
        profiler = self._profiler
        if profiler is None or profiler.executable is not executable:
            profiler = self._profiler = self._profilers(executable)
        return profiler.start(began_ns) or executable

    def _become(self, better: Better | None) -> Executable | None:
        """Goes on with the optimised form; runs of other threads end with the old one."""
        if better is None:
            return None
        executable, told = better
        if isinstance(told, PostponedWrite):
            self._write = told
        else:
            self._report = told
        self._late = None
        if not self._closed:
            self._executable = executable
        return executable
