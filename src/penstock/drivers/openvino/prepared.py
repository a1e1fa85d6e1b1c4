"""The prepared model: an executable behind the contract of `penstock.hal`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import cast

from penstock.drivers.openvino.artefact import Ports
from penstock.drivers.openvino.executable import Executable
from penstock.drivers.openvino.late import Late
from penstock.engines.arguments import bound
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


class OpenVinoPreparedModel(PreparedModelBase):
    """*executable* with the inputs and outputs that *ports* say. *late* has the optimised form: from the first
    run on where there is no *executable* yet, else when the model has run often enough.
    """

    def __init__(
        self,
        ports: Ports,
        report: CacheReport,
        executable: Executable | None,
        late: Late | None = None,
    ) -> None:
        # Requests are checked against inputs and outputs alone; there may be no model to show.
        self.model = cast("Model", ports.interface())
        self.cache_report = report
        self._forwards = [(k, i) for k, i in enumerate(ports.forwards) if i >= 0]
        self._computed = [k for k, i in enumerate(ports.forwards) if i < 0]
        self._executable, self._late, self._closed = executable, late, False

    def execute(self, request: Request, config: ExecutionConfig) -> ExecutionResult:
        began = time.perf_counter_ns()
        validate_request(self.model, request, config)
        if config.cancel is not None:
            config.cancel.check()
        executable = self._current(config)
        with bound(request, self.model.entry) as (inputs, outputs):
            self._forward(inputs, outputs)
            executable.run(inputs, [outputs[k] for k in self._computed], config)
        elapsed = time.perf_counter_ns() - began
        if (late := self._late) is not None:
            self._become(late.after_a_run(config))
        return ExecutionResult((), Timing(None, elapsed))

    def close(self) -> None:
        self._closed, self._executable = True, None
        if (late := self._late) is not None:
            late.close()

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

    def _become(self, better: tuple[Executable, CacheReport] | None) -> Executable | None:
        """Goes on with the optimised form; runs of other threads end with the old one."""
        if better is None:
            return None
        executable, self.cache_report = better
        self._late = None
        if not self._closed:
            self._executable = executable
        return executable
