"""Preparing: a model through OpenVINO's compiler, or a verified artefact past it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.drivers.openvino import artefact, engine
from penstock.drivers.openvino.executable import Executable
from penstock.drivers.openvino.graph import Graph
from penstock.drivers.openvino.prepared import OpenVinoPreparedModel
from penstock.drivers.openvino.rules import RULES
from penstock.drivers.openvino.site import make_sites
from penstock.errors import (
    CacheError,
    DriverError,
    GeneralFailure,
    OtherVersion,
    PenstockError,
)
from penstock.hal import CacheReport, PrepareConfig, check_deadline
from penstock.ir import Model, NDArray

if TYPE_CHECKING:
    from penstock.drivers.openvino.device import OpenVinoDevice

ONLY_FORM = "compiled"
"""The form of an artefact that is compiled at once, as good as it gets."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """One compile's result, with what it takes to write an artefact of it."""

    executable: Executable
    constants: tuple[NDArray, ...]
    ports: artefact.Ports
    form: str


def prepare(device: OpenVinoDevice, model: Model, config: PrepareConfig) -> OpenVinoPreparedModel:
    """Compiles a model whose operations are all supported, and saves it to the cache handles."""
    compiled = compile_model(device, model, config, ONLY_FORM)
    report = save(device, compiled, config)
    return OpenVinoPreparedModel(compiled.ports, compiled.executable, report)


def load(device: OpenVinoDevice, config: PrepareConfig) -> OpenVinoPreparedModel:
    """Imports what the cache files hold, once it is verified and found to be of this engine.

    Raises `InvalidArgument` for a wrong number of handles, `GeneralFailure` for the rest; OpenVINO's importer
    is not called for anything that is refused.
    """
    try:
        entry = device.seal.load(
            config.model_cache, config.data_cache, config.token, config.binding
        )
        try:
            manifest, blob = artefact.unpack(entry.model[0], entry.data[0])
        finally:
            for content in (*entry.model, *entry.data):
                content.release()
        build = engine.build_of(device.plugin.name)
        if manifest.engine != build:
            raise OtherVersion(f"the artefact is of {manifest.engine}, and this is {build}")
    except CacheError as error:
        raise GeneralFailure(str(error)) from error
    interrupts(config)
    device.count(imports=1)
    chosen = engine.settings(device.plugin.name, config.num_threads)
    compiled = engine.import_model(blob, device.plugin.name, chosen)
    report = CacheReport(artefact=manifest.form)
    return OpenVinoPreparedModel(manifest.ports, Executable(compiled, blob), report)


def compile_model(
    device: OpenVinoDevice, model: Model, config: PrepareConfig, form: str
) -> Compiled:
    """Builds OpenVINO's graph of *model* and compiles it."""
    interrupts(config)
    graph = build_graph(model)
    interrupts(config)
    chosen = engine.settings(device.plugin.name, config.num_threads)
    device.count(compiles=1)
    compiled = engine.compile_model(graph.finish("penstock"), device.plugin.name, chosen)
    interrupts(config)
    constants = graph.constants
    return Compiled(Executable(compiled, constants), constants, artefact.ports_of(model), form)


def build_graph(model: Model) -> Graph:
    """OpenVINO's nodes for every operation of *model*. `GeneralFailure` names the one that fails."""
    engine.core()
    try:
        graph = Graph(model)
    except (PenstockError, RuntimeError, TypeError) as error:
        raise GeneralFailure(f"the inputs cannot be declared: {engine.told(error)}") from error
    for index, site in enumerate(make_sites(model)):
        kind = site.operation.key
        try:
            RULES[kind].emit(graph, site)
        except DriverError:
            raise
        except Exception as error:
            raise GeneralFailure(f"operation {index} ({kind}): {engine.told(error)}") from error
    return graph


def save(device: OpenVinoDevice, compiled: Compiled, config: PrepareConfig) -> CacheReport:
    """Writes an artefact to the cache handles, where there are any. Never raises."""
    if not config.model_cache and not config.data_cache:
        return CacheReport(artefact=compiled.form)
    try:
        model, data = payloads(device, compiled)
    except DriverError as error:
        return CacheReport("failed", f"{type(error).__name__}: {error}", artefact=compiled.form)
    saved = device.seal.save(
        config.model_cache,
        config.data_cache,
        config.token,
        config.binding,
        model=[model],
        data=[data],
    )
    if saved.reason is not None:
        return CacheReport("failed", saved.reason, artefact=compiled.form)
    return CacheReport("saved", artefact=compiled.form)


def payloads(device: OpenVinoDevice, compiled: Compiled) -> tuple[bytes, bytes]:
    """What goes into the model file and into the data file."""
    exported = engine.export_model(compiled.executable.compiled)
    build = engine.build_of(device.plugin.name)
    return artefact.pack(exported, compiled.constants, compiled.ports, build, compiled.form)


def interrupts(config: PrepareConfig) -> None:
    """Raises once the token is set or the deadline has passed."""
    if config.cancel is not None:
        config.cancel.check()
    check_deadline(config.deadline_ns)
