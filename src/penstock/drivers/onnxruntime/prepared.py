"""The prepared model: an executable behind the contract of `penstock.hal`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from penstock.driverkit.request_arrays import bound_arrays, lent_arrays
from penstock.drivers.onnxruntime.artefact import Ports
from penstock.drivers.onnxruntime.executable import Executable
from penstock.errors import GeneralFailure
from penstock.hal import (
    DONE,
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
    from penstock.drivers.onnxruntime.profiling import ProfiledRun, Profiler


class OnnxRuntimePreparedModel(PreparedModelBase):
    """*executable* with the inputs and outputs that *ports* say. Where there is a *profiler* it
    runs what is to be measured.
    """

    loops = False

    def __init__(
        self,
        ports: Ports,
        report: CacheReport,
        executable: Executable,
        profiler: Profiler | None = None,
    ) -> None:
        # Requests are checked against inputs and outputs alone; there may be no model to show.
        self.model = cast("Model", ports.interface())
        self.cache_report = report
        self._forwards = [(k, i) for k, i in enumerate(ports.forwards) if i >= 0]
        self._computed = [k for k, i in enumerate(ports.forwards) if i < 0]
        self._executable: Executable | None = executable
        self._profiler = profiler

    def execute(self, request: Request, config: ExecutionConfig) -> ExecutionResult:
        began = time.perf_counter_ns()
        validate_request(self.model, request, config)
        if config.cancel is not None:
            config.cancel.check()
        executable: Executable | ProfiledRun | None = self._executable
        if executable is None:
            raise GeneralFailure("the prepared model is closed")
        if config.measure and self._profiler is not None and self._computed:
            executable = self._profiler.start(began) or executable
        given, wanted = lent_arrays(request.inputs), lent_arrays(request.outputs)
        if given is not None and wanted is not None:
            self._run(executable, given, wanted, config)
        else:
            with bound_arrays(request, self.model.entry) as (inputs, outputs):
                self._run(executable, inputs, outputs, config)
        if not config.measure:
            return DONE
        if isinstance(executable, Executable):
            return ExecutionResult((), Timing(None, time.perf_counter_ns() - began))
        return ExecutionResult((), Timing(None, executable.duration_ns, executable.timings))

    def close(self) -> None:
        self._executable = self._profiler = None

    def _run(
        self,
        executable: Executable | ProfiledRun,
        inputs: Sequence[NDArray],
        outputs: Sequence[NDArray | None],
        config: ExecutionConfig,
    ) -> None:
        """Runs once, and copies the inputs that are outputs, too."""
        for output, source in self._forwards:
            target = outputs[output]
            if target is not None:
                target[...] = inputs[source]
        if self._forwards:
            outputs = [outputs[k] for k in self._computed]
        if outputs:
            executable.run(inputs, outputs, config)
