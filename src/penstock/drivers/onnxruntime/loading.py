"""Loading a verified artefact. What only compiling needs is not imported for it.

The payload of the cache file is a manifest with the model's inputs and outputs, followed by the
optimised model.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.driverkit.artefact import Ports, opened, unframed
from penstock.driverkit.engine import check_limits
from penstock.driverkit.engine_model import EngineModel
from penstock.drivers.onnxruntime import engine
from penstock.drivers.onnxruntime.engine import Executable
from penstock.hal import CacheReport, PrepareConfig
from penstock.memory.sealed_file import SealedFile, seal_chunks
from penstock.sealed import LoadedEntry

if TYPE_CHECKING:
    from penstock.drivers.onnxruntime.device import OnnxRuntimeDevice

SCHEMA: Final = 1


class Manifest(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """*engine* is the version of ONNX Runtime that optimised the model."""

    schema: int
    engine: str
    ports: Ports


def unpack(content: memoryview) -> tuple[Manifest, SealedFile]:
    """The manifest and the model. Raises `GeneralFailure` for bytes that `pack` cannot produce."""
    manifest, model = unframed(content, Manifest, SCHEMA)
    return manifest, seal_chunks([model], model.nbytes)


def version() -> str:
    """The version of ONNX Runtime."""
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
    manifest, content = opened(entry, unpack, version)
    check_limits(config)
    device.count(loads=1)
    provider, threads = device.provider.name, config.num_threads
    session = engine.session_of(_source(content), provider, threads, optimised=True)
    return EngineModel(device, manifest.ports, CacheReport(), Executable(session))
