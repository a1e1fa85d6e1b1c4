"""The prepared model: an executable behind the contract of `penstock.hal`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import cast

from penstock.drivers.onnxruntime.artefact import Ports
from penstock.drivers.onnxruntime.executable import Executable
from penstock.engines.arguments import bound, lent
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


class OnnxRuntimePreparedModel(PreparedModelBase):
    """*executable* with the inputs and outputs that *ports* say."""

    def __init__(self, ports: Ports, report: CacheReport, executable: Executable) -> None:
        # Requests are checked against inputs and outputs alone; there may be no model to show.
        self.model = cast("Model", ports.interface())
        self.cache_report = report
        self._forwards = [(k, i) for k, i in enumerate(ports.forwards) if i >= 0]
        self._computed = [k for k, i in enumerate(ports.forwards) if i < 0]
        self._executable: Executable | None = executable

    def execute(self, request: Request, config: ExecutionConfig) -> ExecutionResult:
        began = time.perf_counter_ns()
        validate_request(self.model, request, config)
        if config.cancel is not None:
            config.cancel.check()
        if (executable := self._executable) is None:
            raise GeneralFailure("the prepared model is closed")
        given, wanted = lent(request.inputs), lent(request.outputs)
        if given is not None and wanted is not None:
            self._run(executable, given, wanted, config)
        else:
            with bound(request, self.model.entry) as (inputs, outputs):
                self._run(executable, inputs, outputs, config)
        if not config.measure:
            return DONE
        return ExecutionResult((), Timing(None, time.perf_counter_ns() - began))

    def close(self) -> None:
        self._executable = None

    def _run(
        self,
        executable: Executable,
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
