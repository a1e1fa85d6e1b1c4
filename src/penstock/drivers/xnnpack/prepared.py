"""Preparing a model as TFLite files, and running the interpreters that execute them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import Final

import msgspec

from penstock import errors, hal
from penstock.driverkit import request_arrays
from penstock.driverkit.request_arrays import lent_arrays, unknown_memory
from penstock.driverkit.unrolling import flattened
from penstock.drivers.xnnpack import engine
from penstock.drivers.xnnpack.engine import Kernels, last_line
from penstock.drivers.xnnpack.interpreter import File, Runner, execution_failure
from penstock.drivers.xnnpack.segments import Segment, make_segments
from penstock.drivers.xnnpack.state_copies import state_copies
from penstock.drivers.xnnpack.static_shapes import fold_shapes, has_static_shapes
from penstock.drivers.xnnpack.support import DETECTION, classify
from penstock.export.tflite.writer import write
from penstock.ir import Model, NDArray

FORKED: Final = (
    "the model was prepared before this process was forked, and LiteRT's threads are the parent's"
)
MOST_KEPT: Final = 16
"""Greatest number of idle interpreter sets on the free list."""

NAMES: Final = {"xnnpack": "XNNPACK", "builtin": "LiteRT's built-in kernels"}
"""The names of the kernel sets in the timings of a measured run."""

DEFAULT_THREADS: Final = 1
"""LiteRT's own default."""


def prepare(
    model: Model, config: hal.PrepareConfig, kernels: Sequence[Kernels]
) -> XnnpackPreparedModel:
    """Writes each segment of *model* as a file for one of *kernels*, and opens an interpreter of
    it. Raises `GeneralFailure` with the operation's name, or with LiteRT's message.
    """
    _check(config)
    shaped = fold_shapes(flattened(model))
    segments = make_segments(shaped.model, classify(shaped.model, kernels), config.accuracy)
    threads = config.num_threads or DEFAULT_THREADS
    files, runners = [], []
    for planned in segments:
        places = dict.fromkeys(shaped.origins[i] for i in planned.operations)
        segment = msgspec.structs.replace(planned, operations=tuple(places))
        static = has_static_shapes(segment.model)
        file = File(segment, _written(segment), threads, static)
        _check(config)
        files.append(file)
        runners.append(file.open())
    _check(config)
    return XnnpackPreparedModel(model, files, runners)


def _written(segment: Segment) -> bytes:
    try:
        # LiteRT allocates tensors that live throughout a run in the order of the file. With this
        # order the tensors of a state are adjacent, and one copy moves them all (`state_copies`).
        content = write(segment.model, outputs_first=True)
    except errors.PenstockError as error:
        text = f"the model cannot be written for LiteRT: {last_line(error)}"
        raise errors.GeneralFailure(text) from error
    # The constants are in the file now.
    for pool in segment.model.pools:
        pool.unload()
    return content


def _check(config: hal.PrepareConfig) -> None:
    """Raises if the token is set or the deadline has passed."""
    if config.cancel is not None:
        config.cancel.check()
    hal.check_deadline(config.deadline_ns)


class XnnpackPreparedModel(hal.PreparedModelBase):
    """A model as *files*, one for each segment, in execution order. Each run takes a set of
    interpreters from a free list and returns it. *first* is the first set.
    """

    def __init__(self, model: Model, files: Sequence[File], first: list[Runner]) -> None:
        self.model = model
        self._files = files
        self._free: deque[list[Runner]] = deque([first], MOST_KEPT)
        self._forks, self._closed = engine.forks, False
        entry = model.entry
        self._inputs = [entry.operands[i] for i in entry.inputs]
        self._outputs = [entry.operands[i] for i in entry.outputs]
        constant = [i for i in entry.outputs if entry.operands[i].is_constant]
        self._constants = {i: model.constant(entry.operands[i]) for i in constant}
        self._detections = [o.outputs for o in entry.operations if o.key == DETECTION]
        self._direct = self._is_direct()
        read = files[0].segment.all_inputs if self._direct else ()
        # Positions of the request's inputs that the fast path reads; None for all, in order.
        self._read = None if read == entry.inputs else [entry.inputs.index(i) for i in read]
        self._state = state_copies(model) if self._direct and self._read is None else None

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

    def _is_direct(self) -> bool:
        """Whether runs take the fast path: one static segment, with the request's operands."""
        if len(self._files) != 1 or not self._files[0].static or self._detections:
            return False
        entry, segment = self.model.entry, self._files[0].segment
        return set(segment.all_inputs) <= set(entry.inputs) and entry.outputs == segment.all_outputs

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
                hal.check_deadline(config.deadline_ns)
                start = time.perf_counter_ns() if began else 0
                values.update(runner.run(values))
                if began:
                    timings.append(_timing(runner, start - began, time.perf_counter_ns() - start))
            for outputs in self._detections:
                _clear_rest(values, outputs)
            results = [values[i] for i in entry.outputs]
            shapes = request_arrays.write_results(request, self._outputs, results, pools)
            return hal.ExecutionResult(shapes)


def _timing(runner: Runner, start_ns: int, duration_ns: int) -> hal.OperationTiming:
    """The time of a whole segment: LiteRT's interpreter does not report single operations."""
    segment = runner.segment
    return hal.OperationTiming(segment.operations, NAMES[segment.kernels], start_ns, duration_ns)


def _clear_rest(values: dict[int, NDArray], outputs: Sequence[int]) -> None:
    """Sets everything behind the last detection to zero, because LiteRT leaves it uninitialised."""
    boxes, classes, scores, count = outputs
    found = max(0, int(values[count].reshape(-1)[0]))
    for index in (boxes, classes, scores):
        values[index][:, found:] = 0
