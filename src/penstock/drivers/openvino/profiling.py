"""Measured runs: the time of each OpenVINO kernel, and the operations that the kernel computes.

OpenVINO preserves node names in its optimisations and exports. Each name begins with the number of
the operation that the node was made for.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from penstock.driverkit.engine_model import Inputs, Outputs, Profiler
from penstock.drivers.openvino import engine
from penstock.drivers.openvino.engine import Executable
from penstock.hal import ExecutionConfig, OperationTiming

if TYPE_CHECKING:
    from penstock.drivers.openvino.device import OpenVinoDevice

SETUP: Final = "importing the model to be measured"
MARK: Final = "operation "
MARKED: Final = re.compile(rf"(?:^|,){MARK}(\d+): ")
NS_OF_S: Final = 1_000_000_000
ORIGINAL_NAMES: Final = "originalLayersNames"


def name_nodes(graph: Any, makers: Mapping[str, int]) -> None:
    """Names the nodes of the OpenVINO model *graph*.

    *makers* has, by node name, the operation of each node that computes a result. Any other node
    belongs to the operation that reads it, or else to an operation that it reads.
    """
    nodes = [node for node in graph.get_ordered_ops() if node.get_type_name() != "Parameter"]
    owners: dict[str, int] = dict(makers)
    for node in reversed(nodes):
        _claim(owners, node, [p.get_node() for o in node.outputs() for p in o.get_target_inputs()])
    for node in nodes:
        _claim(owners, node, [p.get_source_output().get_node() for p in node.inputs()])
    for index, node in enumerate(nodes):
        owner = owners.get(node.get_name())
        if owner is not None:
            node.set_friendly_name(f"{MARK}{owner}: {node.get_type_name()} {index}")


def _claim(owners: dict[str, int], node: Any, neighbours: Sequence[Any]) -> None:
    name = node.get_name()
    if name not in owners:
        for neighbour in neighbours:
            if (owner := owners.get(neighbour.get_name())) is not None:
                owners[name] = owner
                return


def profiler(
    device: OpenVinoDevice, manner: engine.Manner, executable: Executable
) -> Profiler[Measured]:
    """The measured runs of *executable*. They use its export, imported again on first use."""

    def prepare() -> Measured:
        plugin, blob = device.plugin.name, executable.exported
        if blob is None:
            exported = engine.export_model(executable.compiled)
            blob = np.frombuffer(bytearray(exported), np.uint8)
        chosen = engine.settings(plugin, manner) | {"PERF_COUNT": True}
        device.count(loads=1)
        compiled = engine.import_model(blob, plugin, chosen)
        with engine.guarded("show the model"):
            nodes = compiled.get_runtime_model().get_ordered_ops()
            operations = {node.get_friendly_name(): _operations(node) for node in nodes}
        return Measured(Executable(compiled, blob), operations)

    def begin(measured: Measured, began_ns: int, is_first: bool) -> MeasuredRun:
        setup_ns = time.perf_counter_ns() - began_ns if is_first else 0
        return MeasuredRun(measured, began_ns, setup_ns)

    return Profiler(prepare, begin)


class Measured(msgspec.Struct, frozen=True):
    """An *executable* that measures time, and each kernel's operations, by the kernel's name."""

    executable: Executable
    operations: Mapping[str, tuple[int, ...]]


class MeasuredRun:
    """An executable for one run.

    After the run it has *timings*, counted from *began_ns*, and its duration. *setup_ns* of that
    time passed before the run.
    """

    def __init__(self, measured: Measured, began_ns: int, setup_ns: int) -> None:
        self.timings: tuple[OperationTiming, ...] = ()
        self._setup = setup_ns
        self.duration_ns = 0
        self._measured, self._began = measured, began_ns
        self._profile: list[Any] = []

    def run(self, inputs: Inputs, outputs: Outputs, config: ExecutionConfig) -> None:
        """As `Executable.run`."""
        start = time.perf_counter_ns()
        self._measured.executable.run(
            inputs, outputs, config, lambda run: self._profile.extend(run.profile())
        )
        self.duration_ns = time.perf_counter_ns() - start
        at = start - self._began
        timings = [OperationTiming((), SETUP, 0, self._setup)] if self._setup else []
        # OpenVINO reports no start times, and mean durations over the runs so far. On one stream
        # the kernels run in this order, one at a time.
        for kernel in self._profile:
            took = round(kernel.real_time.total_seconds() * NS_OF_S)
            if kernel.status == kernel.Status.EXECUTED:
                operations = self._measured.operations.get(kernel.node_name, ())
                timings.append(OperationTiming(operations, str(kernel.exec_type), at, took))
                at += took
        self.timings = tuple(timings)


def _operations(node: Any) -> tuple[int, ...]:
    """The operations of a compiled node, from the names of the nodes that were fused into it."""
    known = node.get_rt_info()
    names = str(known[ORIGINAL_NAMES].value) if ORIGINAL_NAMES in known else ""
    return tuple(sorted({int(number) for number in MARKED.findall(names)}))
