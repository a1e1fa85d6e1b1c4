"""Preparing: a model through ONNX Runtime's optimiser, or a verified artefact past it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.driverkit.compiling import compiled_within
from penstock.drivers.onnxruntime import artefact, engine
from penstock.drivers.onnxruntime.executable import Executable
from penstock.drivers.onnxruntime.installation import saturates
from penstock.drivers.onnxruntime.prepared import OnnxRuntimePreparedModel
from penstock.drivers.onnxruntime.wire import build, serialize
from penstock.errors import CacheError, DriverError, GeneralFailure, OtherVersion
from penstock.hal import CacheReport, PrepareConfig, check_deadline
from penstock.ir import Model

if TYPE_CHECKING:
    from penstock.drivers.onnxruntime.device import OnnxRuntimeDevice
    from penstock.drivers.onnxruntime.graph import Graph

OPTIMISED = "model.onnx"


def prepare(
    device: OnnxRuntimeDevice, model: Model, config: PrepareConfig
) -> OnnxRuntimePreparedModel:
    """Writes a model whose operations are all supported as ONNX, and saves what ONNX Runtime makes
    of it to the cache handles.
    """
    from penstock.drivers.onnxruntime.profiling import Profiler

    ports = artefact.ports_of(model)

    def write() -> Graph:
        relaxed = config.accuracy == "relaxed"
        return build(model, wide=saturates(), portable=not device.measured, relaxed=relaxed)

    graph = write()
    _check(config)
    content = serialize(graph, engine.onnx())
    _check(config)
    caching = bool(config.model_cache or config.data_cache)
    device.count(compiles=1)
    profiler = Profiler(write, config.num_threads) if device.measured else None
    if not caching:
        session = compiled_within(
            config,
            lambda: engine.session_of(
                content, device.provider.name, config.num_threads, fuse=not device.measured
            ),
        )
        return OnnxRuntimePreparedModel(ports, CacheReport(), Executable(session), profiler)
    with tempfile.TemporaryDirectory(prefix="penstock-onnxruntime-") as folder:
        path = Path(folder) / OPTIMISED
        session = compiled_within(
            config,
            lambda: engine.session_of(
                content, device.provider.name, config.num_threads, save_to=path
            ),
        )
        _check(config)
        report = _save(device, path, ports, config)
    return OnnxRuntimePreparedModel(ports, report, Executable(session), profiler)


def _save(
    device: OnnxRuntimeDevice, path: Path, ports: artefact.Ports, config: PrepareConfig
) -> CacheReport:
    """Seals the optimised model into the cache file. Never raises."""
    try:
        payload = artefact.pack(path.read_bytes(), ports, engine.onnxruntime().__version__)
    except (OSError, DriverError) as error:
        return CacheReport("failed", f"{type(error).__name__}: {error}")
    saved = device.seal.save(
        config.model_cache,
        config.data_cache,
        config.token,
        config.binding,
        model=[payload],
        data=[],
    )
    return CacheReport("saved" if saved.saved else "failed", saved.reason or "")


def load(device: OnnxRuntimeDevice, config: PrepareConfig) -> OnnxRuntimePreparedModel:
    """Takes what the cache file holds, once it is verified and found to be of this engine.

    Raises `InvalidArgument` for a wrong number of handles, `GeneralFailure` for the rest; ONNX
    Runtime sees nothing that is refused.
    """
    try:
        entry = device.seal.load(
            config.model_cache, config.data_cache, config.token, config.binding
        )
        try:
            manifest, content = artefact.unpack(entry.model[0])
        finally:
            for held in (*entry.model, *entry.data):
                held.release()
        version = engine.onnxruntime().__version__
        if manifest.engine != version:
            raise OtherVersion(f"the artefact is of {manifest.engine}, and this is {version}")
    except CacheError as error:
        raise GeneralFailure(str(error)) from error
    _check(config)
    device.count(loads=1)
    session = engine.session_of(content, device.provider.name, config.num_threads, optimised=True)
    return OnnxRuntimePreparedModel(manifest.ports, CacheReport(), Executable(session))


def _check(config: PrepareConfig) -> None:
    """Raises once the token is set or the deadline has passed."""
    if config.cancel is not None:
        config.cancel.check()
    check_deadline(config.deadline_ns)
