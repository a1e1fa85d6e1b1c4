"""Preparing: optimising a model with ONNX Runtime, and saving what it made."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.driverkit.artefact import Ports, framed, ports_of
from penstock.driverkit.engine import check_limits, compiled_within, report_of
from penstock.driverkit.engine_model import EngineModel
from penstock.drivers.onnxruntime import engine
from penstock.drivers.onnxruntime.engine import Executable
from penstock.drivers.onnxruntime.external import OPTIMISED, inlined, read
from penstock.drivers.onnxruntime.installation import saturates
from penstock.drivers.onnxruntime.loading import SCHEMA, Manifest, version
from penstock.drivers.onnxruntime.wire import build, written
from penstock.hal import CacheReport, PrepareConfig
from penstock.interrupts import polled
from penstock.ir import Model

if TYPE_CHECKING:
    from penstock.driverkit.postponed_write import Payloads
    from penstock.drivers.onnxruntime.device import OnnxRuntimeDevice
    from penstock.drivers.onnxruntime.graph import Graph

ARTEFACT: Final = "artefact"


def pack(
    model: Iterable[bytes | memoryview], ports: Ports, version: str
) -> Iterator[bytes | memoryview]:
    """The payload of the model file, part by part, each as long as it is in *model*."""
    yield framed(Manifest(SCHEMA, version, ports))
    yield from model


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
            optimised = read(engine.onnx(), folder / OPTIMISED)
            with (folder / ARTEFACT).open("w+b") as file:
                for part in polled(pack(inlined(optimised, folder), ports, version())):
                    file.write(part)
                file.flush()
                mapped = maps.enter_context(mmap(file.fileno(), 0, access=ACCESS_READ))
            return [maps.enter_context(memoryview(mapped))], []

        yield payloads
