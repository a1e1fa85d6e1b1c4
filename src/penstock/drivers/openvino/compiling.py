"""Compiling a model of the IR, or the graph in an artefact; importing an artefact."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias

import msgspec

from penstock.driverkit.artefact import Ports, ports_of
from penstock.driverkit.engine import Limits, check_limits, compiled_within
from penstock.driverkit.postponed_write import Payloads
from penstock.driverkit.site import make_sites
from penstock.drivers.openvino import artefact, engine
from penstock.drivers.openvino.engine import Executable
from penstock.drivers.openvino.graph import Graph
from penstock.drivers.openvino.profiling import name_nodes
from penstock.drivers.openvino.rules import RULES
from penstock.errors import GeneralFailure, OtherVersion, PenstockError
from penstock.hal import PrepareConfig
from penstock.interrupts import polled
from penstock.ir import Model, NDArray
from penstock.sealed import LoadedEntry

if TYPE_CHECKING:
    from penstock.drivers.openvino.device import OpenVinoDevice

Form: TypeAlias = Literal["baseline", "optimised"]
FORMS: Final[tuple[Form, ...]] = ("baseline", "optimised")


class Compiled(msgspec.Struct, frozen=True):
    """The result of one compile. *constants* are the constants of the graph. For a baseline,
    *graph* is its XML and weights.
    """

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


class Source(Protocol):
    """A source of a compiled model; it can be compiled more than once."""

    ports: Ports
    manner: engine.Manner

    def compile(self, form: Form, limits: Limits) -> Compiled: ...


class ModelSource:
    """A model whose operations are all supported."""

    def __init__(self, device: OpenVinoDevice, model: Model, config: PrepareConfig) -> None:
        self.ports = ports_of(model)
        self.manner = engine.Manner.of(config, quantized=self.ports.quantized)
        self._device, self._model = device, model

    def compile(self, form: Form, limits: Limits) -> Compiled:
        """Builds OpenVINO's graph and compiles it. A baseline also stores the graph."""
        check_limits(limits)
        graph = build_graph(self._model)
        built = graph.finish("penstock")
        name_nodes(built, makers_of(graph))
        check_limits(limits)
        compiled = compiled_within(
            limits, lambda: compile_graph(self._device, built, form, self.manner)
        )
        check_limits(limits)
        kept = engine.serialize(built) if form == "baseline" else None
        constants = graph.constants
        return Compiled(Executable(compiled, constants), constants, self.ports, form, kept)


class GraphSource:
    """The graph of an artefact: XML and weights as returned by `engine.serialize`."""

    def __init__(
        self,
        device: OpenVinoDevice,
        ports: Ports,
        xml: NDArray,
        weights: NDArray,
        manner: engine.Manner,
    ) -> None:
        self.ports = ports
        self.manner = manner
        self._device, self._xml, self._weights = device, xml, weights

    def compile(self, form: Form, limits: Limits) -> Compiled:
        """Compiles the graph. All its constants are one buffer, the weights."""
        check_limits(limits)
        graph = engine.read_model(self._xml, self._weights)
        compiled = compiled_within(
            limits, lambda: compile_graph(self._device, graph, form, self.manner)
        )
        check_limits(limits)
        constants = constants_of(graph)
        keep = (graph, self._weights)
        return Compiled(Executable(compiled, keep), constants, self.ports, form)


def makers_of(graph: Graph) -> dict[str, int]:
    """The first operation that each OpenVINO node computes the result of, by the node's name."""
    makers: dict[str, int] = {}
    for index, operation in enumerate(polled(graph.entry.operations)):
        for output in operation.outputs:
            if (name := graph.name_of(output)) is not None:
                makers.setdefault(name, index)
    return makers


def compile_graph(device: OpenVinoDevice, graph: Any, form: Form, manner: engine.Manner) -> Any:
    """OpenVINO's compiled model of *graph*. Increases the counter of compiles."""
    plugin = device.plugin.name
    chosen = engine.settings(plugin, manner, quickly=form == "baseline")
    device.count(compiles=1)
    return engine.compile_model(graph, plugin, chosen)


def constants_of(graph: Any) -> tuple[NDArray, ...]:
    """The constants of an OpenVINO graph, in the graph's order, as views of its memory."""
    return tuple(
        node.data for node in graph.get_ordered_ops() if node.get_type_name() == "Constant"
    )


def build_graph(model: Model) -> Graph:
    """OpenVINO's nodes for every operation of *model*. If an operation fails, raises
    `GeneralFailure` with its name.
    """
    engine.core()
    try:
        graph = Graph(model)
    except (PenstockError, RuntimeError, TypeError) as error:
        raise GeneralFailure(
            f"the inputs cannot be declared: {engine.message_from(error)}"
        ) from error
    RULES.emit(graph, enumerate(RULES.lay_out(make_sites(model))), engine.message_from)
    return graph


def opened(
    device: OpenVinoDevice, entry: LoadedEntry
) -> tuple[artefact.Manifest, Sequence[NDArray]]:
    """The manifest and parts of a verified entry. Releases the entry's private copies. Raises
    `OtherVersion` for another build of OpenVINO, `GeneralFailure` for an unknown form.
    """
    try:
        manifest, parts = artefact.unpack(entry.model[0], entry.data[0])
    finally:
        for content in (*entry.model, *entry.data):
            content.release()
    build = engine.build_of(device.plugin.name)
    if manifest.engine != build:
        raise OtherVersion(f"the artefact is of {manifest.engine}, and this is {build}")
    if manifest.form not in FORMS:
        raise GeneralFailure(f"the artefact is of the form {manifest.form!r}, which is not known")
    return manifest, parts


def imported(device: OpenVinoDevice, exported: NDArray, manner: engine.Manner) -> Executable:
    """OpenVINO's compiled model of exported bytes. Increases the counter of loads."""
    chosen = engine.settings(device.plugin.name, manner)
    device.count(loads=1)
    compiled = engine.import_model(exported, device.plugin.name, chosen)
    return Executable(compiled, exported, exported)
