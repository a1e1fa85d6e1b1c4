"""Compiling a model of the IR, or the graph in an artefact."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from penstock.driverkit.artefact import Ports, ports_of
from penstock.driverkit.engine import Limits, check_limits, compiled_within
from penstock.driverkit.postponed_write import Payloads
from penstock.driverkit.site import make_sites
from penstock.drivers.openvino import artefact, engine
from penstock.drivers.openvino.engine import Executable
from penstock.drivers.openvino.graph import Graph
from penstock.drivers.openvino.loading import Form
from penstock.drivers.openvino.profiling import name_nodes
from penstock.drivers.openvino.rules import RULES
from penstock.errors import GeneralFailure, PenstockError
from penstock.hal import PrepareConfig
from penstock.interrupts import polled
from penstock.ir import Model, NDArray

if TYPE_CHECKING:
    from penstock.drivers.openvino.device import OpenVinoDevice


class Compiled(msgspec.Struct, frozen=True):
    """A compile's result: graph *constants*, and a baseline's *graph* (XML, weights)."""

    executable: Executable
    constants: tuple[NDArray, ...]
    ports: Ports
    form: Form
    graph: tuple[bytes, bytes] | None = None

    def payloads(self, device: OpenVinoDevice) -> Payloads:
        """The contents of the model file and of the data file."""
        exported = engine.export_model(self.executable.compiled)
        build = engine.build_of(device.plugin.name)
        parts = [exported, *(self.graph or ())]
        model, data = artefact.pack(parts, self.constants, self.ports, build, self.form)
        return [model], [data]


Graphs: TypeAlias = Callable[[Limits], tuple[Any, Sequence[NDArray], object]]
"""Makes OpenVINO's graph, its constants, and what must live as long as the compiled model."""


class Source:
    """A source of models with *ports*, compiled in a *manner*, as often as it is asked."""

    def __init__(
        self, device: OpenVinoDevice, ports: Ports, manner: engine.Manner, make: Graphs
    ) -> None:
        self.ports, self.manner = ports, manner
        self._device, self._make = device, make

    def compile(self, form: Form, limits: Limits) -> Compiled:
        """Makes OpenVINO's graph and compiles it. A baseline also stores the graph."""
        check_limits(limits)
        graph, constants, keep = self._make(limits)
        plugin = self._device.plugin.name
        chosen = engine.settings(plugin, self.manner, quickly=form == "baseline")
        self._device.count(compiles=1)
        compiled = compiled_within(limits, partial(engine.compile_model, graph, plugin, chosen))
        check_limits(limits)
        kept = engine.serialize(graph) if form == "baseline" else None
        return Compiled(Executable(compiled, keep), tuple(constants), self.ports, form, kept)


def source_of_model(device: OpenVinoDevice, model: Model, config: PrepareConfig) -> Source:
    """The source of a model whose operations are all supported."""

    def make(limits: Limits) -> tuple[Any, Sequence[NDArray], object]:
        graph = build_graph(model)
        built = graph.finish("penstock")
        name_nodes(built, makers_of(graph))
        check_limits(limits)
        return built, graph.constants, graph.constants

    ports = ports_of(model)
    return Source(device, ports, engine.Manner.of(config, quantized=ports.quantized), make)


def source_of_graph(
    device: OpenVinoDevice, ports: Ports, xml: NDArray, weights: NDArray, manner: engine.Manner
) -> Source:
    """The source of a graph in an artefact: XML and weights of `engine.serialize`."""

    def make(_: Limits) -> tuple[Any, Sequence[NDArray], object]:
        graph = engine.read_model(xml, weights)
        nodes = (node for node in graph.get_ordered_ops() if node.get_type_name() == "Constant")
        return graph, [node.data for node in nodes], (graph, weights)

    return Source(device, ports, manner, make)


def makers_of(graph: Graph) -> dict[str, int]:
    """The first operation that each OpenVINO node computes the result of, by the node's name."""
    makers: dict[str, int] = {}
    for index, operation in enumerate(polled(graph.entry.operations)):
        for output in operation.outputs:
            if (name := graph.name_of(output)) is not None:
                makers.setdefault(name, index)
    return makers


def build_graph(model: Model) -> Graph:
    """The graph of *model*. Raises `GeneralFailure` with the name of an operation that fails."""
    engine.core()
    try:
        graph = Graph(model)
    except (PenstockError, RuntimeError, TypeError) as error:
        text = f"the inputs cannot be declared: {engine.message_from(error)}"
        raise GeneralFailure(text) from error
    RULES.emit(graph, enumerate(RULES.lay_out(make_sites(model))), engine.message_from)
    return graph
