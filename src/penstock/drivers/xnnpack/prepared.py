"""Runs of a prepared model: of the interpreters of its files."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import Final

from penstock import errors, hal
from penstock.driverkit import request_arrays
from penstock.driverkit.host_buffers import lent_arrays
from penstock.driverkit.request_arrays import unknown_memory
from penstock.drivers.xnnpack import engine
from penstock.drivers.xnnpack.interpreter import File, Runner, execution_failure
from penstock.drivers.xnnpack.state_copies import StateCopies
from penstock.ir import Model, NDArray

FORKED: Final = (
    "the model was prepared before this process was forked, and LiteRT's threads are the parent's"
)
MOST_KEPT: Final = 16
"""Greatest number of idle interpreter sets on the free list."""

NAMES: Final = {"xnnpack": "XNNPACK", "builtin": "LiteRT's built-in kernels"}
"""The names of the kernel sets in the timings of a measured run."""


class XnnpackPreparedModel(hal.PreparedModelBase):
    """A model as *files*, in execution order. Each run takes a set of interpreters from a free list
    and returns it. *first* is the first set. *state* copies the model's state, if it has one of
    several arrays. *detections* has the outputs of each operation `DETECTION`.
    """

    def __init__(
        self,
        model: Model,
        files: Sequence[File],
        first: list[Runner],
        state: StateCopies | None = None,
        detections: Sequence[Sequence[int]] = (),
    ) -> None:
        self.model = model
        self._files = files
        self._free: deque[list[Runner]] = deque([first], MOST_KEPT)
        self._forks, self._closed = engine.forks, False
        entry = model.entry
        self._inputs = [entry.operands[i] for i in entry.inputs]
        self._outputs = [entry.operands[i] for i in entry.outputs]
        constant = [i for i in entry.outputs if entry.operands[i].is_constant]
        self._constants = {i: model.constant(entry.operands[i]) for i in constant}
        self.detections = detections
        self.is_whole = self._is_whole()
        """Whether one file, whose tensors never move, has the inputs and outputs of the request."""
        self._direct = self.is_whole and not detections
        read = files[0].part.all_inputs if self._direct else ()
        # Positions of the request's inputs that the fast path reads; None for all, in order.
        self._read = None if read == entry.inputs else [entry.inputs.index(i) for i in read]
        self._state = state if self._direct and self._read is None else None

    def execute(self, request: hal.Request, config: hal.ExecutionConfig) -> hal.ExecutionResult:
        if engine.forks != self._forks:
            raise errors.DeadObject(FORKED)
        if type(request) is not hal.ProvenRequest or config.deadline_ns is not None:
            hal.validate_request(self.model, request, config)
        if config.cancel is not None:
            config.cancel.check()
        began = time.perf_counter_ns() if config.measure else 0
        timings: list[hal.OperationTiming] = []
        try:
            runners = self._free.pop()
        except IndexError:
            if self._closed:
                raise errors.GeneralFailure("the prepared model is closed") from None
            runners = [file.open() for file in self._files]
        if self._direct and not request.pools:
            runner = runners[0]
            if self._state is not None:
                self._state.write_inputs(runner, request.inputs)
            else:
                arguments = request.inputs
                if self._read is not None:
                    if lent_arrays(arguments) is None:
                        other = next(a for a in arguments if type(a) is not hal.HostMemory)
                        raise unknown_memory(other)
                    arguments = tuple([arguments[k] for k in self._read])
                for view, argument in zip(runner.inputs, arguments):  # noqa: B905  # checked above
                    if type(argument) is not hal.HostMemory:
                        raise unknown_memory(argument)
                    view[...] = argument.array
            start = time.perf_counter_ns() if began else 0
            try:
                runner.invoke()
            except (RuntimeError, ValueError) as error:
                raise execution_failure(error) from error
            if began:
                timings.append(_timing(runner, start - began, time.perf_counter_ns() - start))
            if self._state is not None:
                self._state.read_outputs(runner, request.outputs)
            else:
                for view, wanted in zip(runner.outputs, request.outputs):  # noqa: B905  # checked
                    if type(wanted) is hal.HostMemory:
                        wanted.array[...] = view
                    elif type(wanted) is not hal.NoValue:
                        raise unknown_memory(wanted)
            result = hal.DONE
        else:
            try:
                result = self._run(runners, request, config, began, timings)
            except (errors.OutputInsufficientSize, errors.MissedDeadline, errors.Cancelled):
                self._free.append(runners)
                raise
        # Interpreters whose run failed are dropped.
        self._free.append(runners)
        if began:
            timing = hal.Timing(None, time.perf_counter_ns() - began, tuple(timings))
            return hal.ExecutionResult(result.output_shapes, timing)
        return result

    def close(self) -> None:
        """Closes the model. Runs that have begun finish with their own interpreters."""
        self._closed = True
        self._free = deque(maxlen=0)

    def _is_whole(self) -> bool:
        if len(self._files) != 1 or not self._files[0].static:
            return False
        entry, part = self.model.entry, self._files[0].part
        return set(part.all_inputs) <= set(entry.inputs) and entry.outputs == part.all_outputs

    def _run(
        self,
        runners: list[Runner],
        request: hal.Request,
        config: hal.ExecutionConfig,
        began: int,
        timings: list[hal.OperationTiming],
    ) -> hal.ExecutionResult:
        """Runs all segments. A run measured since *began* (else 0) adds times to *timings*."""
        entry = self.model.entry
        with request_arrays.mapped_pools(request) as pools:
            arrays = request_arrays.input_arrays(request, self._inputs, pools)
            values: dict[int, NDArray] = dict(zip(entry.inputs, arrays, strict=True))
            values.update(self._constants)
            for runner in runners:
                if config.cancel is not None:
                    config.cancel.check()
                hal.check_deadline(config.deadline_ns, "the model ran")
                start = time.perf_counter_ns() if began else 0
                values.update(runner.run(values))
                if began:
                    timings.append(_timing(runner, start - began, time.perf_counter_ns() - start))
            for outputs in self.detections:
                _clear_rest(values, outputs)
            results = [values[i] for i in entry.outputs]
            shapes = request_arrays.write_results(request, self._outputs, results, pools)
            return hal.ExecutionResult(shapes)


def _timing(runner: Runner, start_ns: int, duration_ns: int) -> hal.OperationTiming:
    """The time of a whole segment: LiteRT's interpreter does not report single operations."""
    part = runner.part
    return hal.OperationTiming(part.operations, NAMES[part.kernels], start_ns, duration_ns)


def _clear_rest(values: dict[int, NDArray], outputs: Sequence[int]) -> None:
    """Sets everything behind the last detection to zero, because LiteRT leaves it uninitialised."""
    boxes, classes, scores, count = outputs
    found = max(0, int(values[count].reshape(-1)[0]))
    for index in (boxes, classes, scores):
        values[index][:, found:] = 0
