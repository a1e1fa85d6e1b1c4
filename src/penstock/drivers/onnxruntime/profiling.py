"""Measured runs: the time of each ONNX Runtime kernel, and the operations that the kernel computes.

ONNX Runtime writes a profile when a session ends. So each measured run has its own session of the
optimised model, whose nodes are named by numbers.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.driverkit.engine_model import Inputs, Outputs, Profiler
from penstock.drivers.onnxruntime import engine
from penstock.drivers.onnxruntime.engine import Executable
from penstock.drivers.onnxruntime.external import OPTIMISED, read
from penstock.drivers.onnxruntime.graph import Graph
from penstock.drivers.onnxruntime.wire import written
from penstock.hal import ExecutionConfig, OperationTiming
from penstock.logs import Log

log = Log(__name__)

MOST_PROFILED: Final = 16
"""Greatest number of measured runs of a prepared model. Each takes as long as a load."""

SETUP: Final = "making a session that is measured"
NS_OF_US: Final = 1000
RUN: Final = "model_run"
KERNEL: Final = "_kernel_time"
RENAMED: Final = "_nchwc"
"""The suffix of a node that changes the layout of a result. The result's name precedes it."""


class Measurable(msgspec.Struct, frozen=True):
    """An optimised model whose nodes are named `0`, `1`, ..., and the operations of each node."""

    content: bytes
    operations: tuple[tuple[int, ...], ...]


def profiler(write: Callable[[], Graph], num_threads: int | None) -> Profiler[Measurable]:
    """The measured runs of one prepared model. *write* builds its graph again."""
    return Profiler(
        lambda: optimised(write(), num_threads),
        lambda model, began_ns, _: ProfiledRun(model, num_threads, began_ns),
        MOST_PROFILED,
    )


class ProfiledRun:
    """An executable for one run. After it: its *timings* from *began_ns* on, and its duration. It
    runs twice, since the first run of a session is slower.
    """

    def __init__(self, model: Measurable, threads: int | None, began_ns: int) -> None:
        self.timings: tuple[OperationTiming, ...] = ()
        self.duration_ns = 0
        self._model, self._began = model, began_ns
        self._folder = tempfile.TemporaryDirectory(prefix="penstock-onnxruntime-")
        try:
            path = Path(self._folder.name) / "profile"
            self._session = engine.session_of(
                model.content, engine.CPU, threads, optimised=True, profile_to=path
            )
        except BaseException:
            self._folder.cleanup()
            raise

    def run(self, inputs: Inputs, outputs: Outputs, config: ExecutionConfig) -> None:
        """As `Executable.run`."""
        with self._folder:
            executable = Executable(self._session)
            executable.run(inputs, outputs, config)
            start = time.perf_counter_ns()
            executable.run(inputs, outputs, config)
            self.duration_ns = time.perf_counter_ns() - start
            setup = OperationTiming((), SETUP, 0, start - self._began)
            kernels = self._kernels(start - self._began)
            self.timings = (setup, *kernels) if kernels else ()

    def _kernels(self, start_ns: int) -> list[OperationTiming]:
        """The kernels of the last run, begun at *start_ns*; empty for an unreadable profile."""
        try:
            events = json.loads(Path(self._session.end_profiling()).read_bytes())
            runs = [event for event in events if event["name"] == RUN]
            nodes = [event for event in events if event["cat"] == "Node"]
            first = int(runs[-1]["ts"])
            return [
                self._timing(event, start_ns - first * NS_OF_US)
                for event in nodes
                if _is_kernel(event["name"]) and int(event["ts"]) >= first
            ]
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            log.debug("ONNX Runtime's profile cannot be read: %s", error)
            return []

    def _timing(self, event: Mapping[str, Any], zero_ns: int) -> OperationTiming:
        name = event["name"].removesuffix(KERNEL)
        start = zero_ns + int(event["ts"]) * NS_OF_US
        operations, kind = self._model.operations[int(name)], str(event["args"]["op_name"])
        return OperationTiming(operations, kind, max(0, start), int(event["dur"]) * NS_OF_US)


def _is_kernel(name: str) -> bool:
    """Whether *name* is of a run of a numbered node; nodes of branches are not numbered."""
    return name.endswith(KERNEL) and name.removesuffix(KERNEL).isdigit()


def optimised(graph: Graph, threads: int | None) -> Measurable:
    """The optimised model of *graph*, for measured runs. Raises `GeneralFailure`."""
    onnx = engine.onnx()
    with tempfile.TemporaryDirectory(
        prefix="penstock-onnxruntime-", ignore_cleanup_errors=True
    ) as folder:
        path = Path(folder) / OPTIMISED
        content = written(graph, onnx, Path(folder))
        engine.session_of(content, engine.CPU, threads, save_to=path)
        model = read(onnx, path, whole=True)
    nodes = [(node.name, node.input, node.output) for node in model.graph.node]
    operations = operations_of(nodes, graph)
    for index, node in enumerate(model.graph.node):
        node.name = str(index)
    return Measurable(model.SerializeToString(), operations)


def operations_of(
    nodes: Sequence[tuple[str, Sequence[str], Sequence[str]]], graph: Graph
) -> tuple[tuple[int, ...], ...]:
    """The operations that were fused into each of *nodes* (name, inputs, outputs) of an optimised
    model.

    They are the operations whose nodes in *graph* lie between the node's result and the results of
    other nodes. The list is empty for nodes that ONNX Runtime has added.
    """
    makers = {value: node for node in graph.nodes for value in node.outputs}
    made = [
        [v for v in (*outputs, name.removesuffix(RENAMED)) if v in makers]
        for name, _, outputs in nodes
    ]
    results = {value for values in made for value in values}
    found = []
    for values in made:
        members, pending, seen = set(), list(values), set(values)
        while pending:
            node = makers[pending.pop()]
            if node.operation is not None:
                members.add(node.operation)
            behind = [v for v in node.inputs if v in makers and v not in results and v not in seen]
            seen.update(behind)
            pending += behind
        found.append(tuple(sorted(members)))
    return tuple(found)
