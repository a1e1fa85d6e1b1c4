"""Preparing: optimising a model with ONNX Runtime, or loading a verified artefact.

The payload of the cache file is a manifest with the model's inputs and outputs, followed by the
optimised model.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.driverkit.artefact import Ports, framed, opened, ports_of, unframed
from penstock.driverkit.engine import check_limits, compiled_within, report_of
from penstock.driverkit.engine_model import EngineModel
from penstock.drivers.onnxruntime import engine
from penstock.drivers.onnxruntime.engine import Executable
from penstock.drivers.onnxruntime.external import OPTIMISED, inlined
from penstock.drivers.onnxruntime.installation import saturates
from penstock.drivers.onnxruntime.wire import build, written
from penstock.hal import CacheReport, PrepareConfig
from penstock.interrupts import polled
from penstock.ir import Model
from penstock.memory.sealed_file import SealedFile, seal_chunks
from penstock.sealed import LoadedEntry

if TYPE_CHECKING:
    from penstock.driverkit.postponed_write import Payloads
    from penstock.drivers.onnxruntime.device import OnnxRuntimeDevice
    from penstock.drivers.onnxruntime.graph import Graph

SCHEMA: Final = 1
ARTEFACT: Final = "artefact"


class Manifest(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """*engine* is the version of ONNX Runtime that optimised the model."""

    schema: int
    engine: str
    ports: Ports


def pack(
    model: Iterable[bytes | memoryview], ports: Ports, version: str
) -> Iterator[bytes | memoryview]:
    """The payload of the model file, part by part, each as long as it is in *model*."""
    yield framed(Manifest(SCHEMA, version, ports))
    yield from model


def unpack(content: memoryview) -> tuple[Manifest, SealedFile]:
    """The manifest and the model. Raises `GeneralFailure` for bytes that `pack` cannot produce."""
    manifest, model = unframed(content, Manifest, SCHEMA)
    return manifest, seal_chunks([model], model.nbytes)


def prepare(
    device: OnnxRuntimeDevice, model: Model, config: PrepareConfig
) -> EngineModel[Executable]:
    """Writes a supported model as ONNX, and saves the optimised model to the cache handles."""
    from penstock.drivers.onnxruntime.profiling import profiler

    ports = ports_of(model)

    def write() -> Graph:
        relaxed = config.accuracy == "relaxed"
        return build(model, wide=saturates(), portable=not device.measured, relaxed=relaxed)

    graph = write()
    check_limits(config)
    with tempfile.TemporaryDirectory(
        prefix="penstock-onnxruntime-", ignore_cleanup_errors=True
    ) as name:
        folder = Path(name)
        content = written(graph, engine.onnx(), folder)
        del graph
        check_limits(config)
        device.count(compiles=1)
        is_kept = bool(config.model_cache or config.data_cache)

        def optimise() -> engine.Session:
            provider, fuse = device.provider.name, not device.measured and not is_kept
            save_to = folder / OPTIMISED if is_kept else None
            return engine.session_of(
                content, provider, config.num_threads, fuse=fuse, save_to=save_to
            )

        session = compiled_within(config, optimise)
        report = CacheReport()
        if is_kept:
            check_limits(config)
            with _payloads(folder, ports) as payloads:
                report = report_of(device.save(config, payloads))
    made = profiler(write, config.num_threads)
    profilers = (lambda _: made) if device.measured else None
    return EngineModel(device, ports, report, Executable(session), profilers)


@contextmanager
def _payloads(folder: Path, ports: Ports) -> Iterator[Callable[[], Payloads]]:
    """What returns the contents of the cache files, for the optimised model in *folder*. They lie
    in a mapped file, until the end of the block.
    """
    with ExitStack() as maps:

        def payloads() -> Payloads:
            optimised = engine.onnx().load(folder / OPTIMISED, load_external_data=False)
            with (folder / ARTEFACT).open("w+b") as file:
                for part in polled(pack(inlined(optimised, folder), ports, _version())):
                    file.write(part)
                file.flush()
                mapped = maps.enter_context(mmap(file.fileno(), 0, access=ACCESS_READ))
            return [maps.enter_context(memoryview(mapped))], []

        yield payloads


def _version() -> str:
    return str(engine.onnxruntime().__version__)


def _source(model: SealedFile) -> bytes | Path:
    """The bytes of *model*, or its path: ONNX Runtime then reads it part by part, and the bytes are
    in memory once less. No process can write the file.
    """
    path = Path(f"/proc/self/fd/{model.fd}")
    if model.fd is None or not os.access(path, os.R_OK):
        return bytes(model.view)
    return path


def load(
    device: OnnxRuntimeDevice, entry: LoadedEntry, config: PrepareConfig
) -> EngineModel[Executable]:
    """The session of a verified entry. Raises `OtherVersion` for another ONNX Runtime's entry."""
    manifest, content = opened(entry, unpack, _version)
    check_limits(config)
    device.count(loads=1)
    provider, threads = device.provider.name, config.num_threads
    session = engine.session_of(_source(content), provider, threads, optimised=True)
    return EngineModel(device, manifest.ports, CacheReport(), Executable(session))
