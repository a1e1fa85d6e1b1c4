"""The prepared model: an executable behind the contract of `penstock.hal`."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import cast

from penstock.drivers.openvino.arguments import bound
from penstock.drivers.openvino.artefact import Ports
from penstock.drivers.openvino.executable import Executable
from penstock.errors import GeneralFailure
from penstock.hal import (
    DONE,
    NO_CACHE_REPORT,
    CacheReport,
    ExecutionConfig,
    ExecutionResult,
    PreparedModelBase,
    Request,
    Timing,
    validate_request,
)
from penstock.ir import Model, NDArray


class OpenVinoPreparedModel(PreparedModelBase):
    """*executable* with the inputs and outputs that *ports* say."""

    def __init__(
        self, ports: Ports, executable: Executable, report: CacheReport = NO_CACHE_REPORT
    ) -> None:
        # Requests are checked against inputs and outputs alone; there may be no model to show.
        self.model = cast("Model", ports.interface())
        self.cache_report = report
        self._forwards = [(k, i) for k, i in enumerate(ports.forwards) if i >= 0]
        self._computed = [k for k, i in enumerate(ports.forwards) if i < 0]
        self._executable: Executable | None = executable
        self._lock = threading.Lock()

    def execute(self, request: Request, config: ExecutionConfig) -> ExecutionResult:
        began = time.perf_counter_ns()
        validate_request(self.model, request, config)
        executable = self._current()
        if config.cancel is not None:
            config.cancel.check()
        with bound(request, self.model.entry) as (inputs, outputs):
            self._forward(inputs, outputs)
            executable.run(inputs, [outputs[k] for k in self._computed], config)
        if not config.measure:
            return DONE
        return ExecutionResult((), Timing(None, time.perf_counter_ns() - began))

    def close(self) -> None:
        self._executable = None

    def _forward(self, inputs: Sequence[NDArray], outputs: Sequence[NDArray | None]) -> None:
        """Copies the inputs that are outputs, too: OpenVINO would give both the same memory."""
        for output, source in self._forwards:
            target = outputs[output]
            if target is not None:
                target[...] = inputs[source]

    def _current(self) -> Executable:
        executable = self._executable
        if executable is None:
            raise GeneralFailure("the prepared model is closed")
        return executable
