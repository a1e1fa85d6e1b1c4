"""The prepared model: interpreters behind the contract of `penstock.hal`."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import Final

from penstock.drivers.xnnpack import engine
from penstock.drivers.xnnpack.arguments import chosen, deliver, mapped, read, unknown
from penstock.drivers.xnnpack.interpreter import File, Runner, failed
from penstock.drivers.xnnpack.support import DETECTION
from penstock.drivers.xnnpack.turning import turning
from penstock.errors import (
    Cancelled,
    DeadObject,
    GeneralFailure,
    MissedDeadline,
    OutputInsufficientSize,
)
from penstock.hal import (
    DONE,
    ExecutionConfig,
    ExecutionResult,
    HostMemory,
    NoValue,
    OperationTiming,
    PreparedModelBase,
    Request,
    Timing,
    check_deadline,
    validate_request,
)
from penstock.hal.request import ProvenRequest
from penstock.ir import Model, NDArray

FORKED: Final = (
    "the model was prepared before this process was forked, and LiteRT's threads are the parent's"
)
MOST_KEPT: Final = 16
"""Sets of interpreters that are kept for later runs."""

NAMES: Final = {"xnnpack": "XNNPACK", "builtin": "LiteRT's built-in kernels"}
"""How a measured run names the kernel sets."""


class XnnpackPreparedModel(PreparedModelBase):
    """*files*, one a segment, in the order they run. Each run takes a set of interpreters of its
    own, which is kept for the next; *first* is one that is ready.
    """

    def __init__(self, model: Model, files: Sequence[File], first: list[Runner]) -> None:
        self.model = model
        self._files = files
        self._free: deque[list[Runner]] = deque([first], MOST_KEPT)
        self._forks, self._closed = engine.forks, False
        entry = model.entry
        self._inputs = [(i, entry.operands[i]) for i in entry.inputs]
        self._operands = [entry.operands[i] for i in entry.outputs]
        self._constants = {
            i: model.constant(entry.operands[i])
            for i in entry.outputs
            if entry.operands[i].is_constant
        }
        self._cleared = [o.outputs for o in entry.operations if o.key == DETECTION]
        self._direct = self._is_direct()
        given = files[0].segment.given if self._direct else ()
        # Which of a request's inputs a direct run reads: None for all of them, in order.
        self._read = None if given == entry.inputs else [entry.inputs.index(i) for i in given]
        self._turning = turning(model) if self._direct and self._read is None else None

    def execute(self, request: Request, config: ExecutionConfig) -> ExecutionResult:
        if engine.forks != self._forks:
            raise DeadObject(FORKED)
        if type(request) is not ProvenRequest or config.deadline_ns is not None:
            validate_request(self.model, request, config)
        if config.cancel is not None:
            config.cancel.check()
        began = time.perf_counter_ns() if config.measure else 0
        timings: list[OperationTiming] = []
        try:
            runners = self._free.pop()
        except IndexError:
            runners = self._open()
        if self._direct and not request.pools:
            runner = runners[0]
            if self._turning is not None:
                self._turning.put(runner, request.inputs)
            else:
                arguments = request.inputs
                if self._read is not None:
                    arguments = chosen(arguments, self._read)
                for view, argument in zip(runner.inputs, arguments):  # noqa: B905  # checked above
                    if type(argument) is not HostMemory:
                        raise unknown(argument)
                    view[...] = argument.array
            start = time.perf_counter_ns() if began else 0
            try:
                runner.invoke()
            except (RuntimeError, ValueError) as error:
                raise failed(error) from error
            if began:
                timings.append(_timing(runner, start - began, time.perf_counter_ns() - start))
            if self._turning is not None:
                self._turning.fetch(runner, request.outputs)
            else:
                for view, wanted in zip(runner.outputs, request.outputs):  # noqa: B905  # checked above
                    if type(wanted) is HostMemory:
                        wanted.array[...] = view
                    elif type(wanted) is not NoValue:
                        raise unknown(wanted)
            result = DONE
        else:
            try:
                result = self._run(runners, request, config, began, timings)
            except (OutputInsufficientSize, MissedDeadline, Cancelled):
                self._free.append(runners)
                raise
        # One that failed is not used again.
        self._free.append(runners)
        if began:
            timing = Timing(None, time.perf_counter_ns() - began, tuple(timings))
            return ExecutionResult(result.output_shapes, timing)
        return result

    def close(self) -> None:
        """Runs under way end on the interpreters they have."""
        self._closed = True
        self._free = deque(maxlen=0)

    def _is_direct(self) -> bool:
        """Whether the arrays of the one segment are the request's, its outputs in the same order,
        all of known shape.
        """
        if len(self._files) != 1 or not self._files[0].steady or self._cleared:
            return False
        entry, segment = self.model.entry, self._files[0].segment
        return set(segment.given) <= set(entry.inputs) and entry.outputs == segment.made

    def _run(
        self,
        runners: list[Runner],
        request: Request,
        config: ExecutionConfig,
        began: int,
        timings: list[OperationTiming],
    ) -> ExecutionResult:
        """Runs the segments one after another. Where *began* says when a measured run began, each
        joins *timings*.
        """
        with mapped(request) as pools:
            values: dict[int, NDArray] = {
                index: read(argument, operand, pools)
                for (index, operand), argument in zip(self._inputs, request.inputs, strict=True)
            }
            values.update(self._constants)
            for runner in runners:
                if config.cancel is not None:
                    config.cancel.check()
                check_deadline(config.deadline_ns)
                start = time.perf_counter_ns() if began else 0
                values.update(runner.run(values))
                if began:
                    timings.append(_timing(runner, start - began, time.perf_counter_ns() - start))
            for outputs in self._cleared:
                clear_rest(values, outputs)
            results = [values[i] for i in self.model.entry.outputs]
            return deliver(request, self._operands, results, pools, Timing())

    def _open(self) -> list[Runner]:
        if self._closed:
            raise GeneralFailure("the prepared model is closed")
        return [file.open() for file in self._files]


def _timing(runner: Runner, start_ns: int, duration_ns: int) -> OperationTiming:
    """A segment as one kernel: LiteRT's interpreter does not tell what each of its operations took."""
    segment = runner.segment
    return OperationTiming(segment.operations, NAMES[segment.kernels], start_ns, duration_ns)


def clear_rest(values: dict[int, NDArray], outputs: Sequence[int]) -> None:
    """Zeros behind the last detection: LiteRT leaves there what lay in memory."""
    boxes, classes, scores, count = outputs
    found = max(0, int(values[count].reshape(-1)[0]))
    for index in (boxes, classes, scores):
        values[index][:, found:] = 0
