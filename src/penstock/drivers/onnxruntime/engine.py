"""ONNX Runtime itself: imported when a model is first prepared."""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeAlias

from penstock.driverkit.forks import LeftInChildren
from penstock.errors import DeviceUnavailable, GeneralFailure

Session: TypeAlias = Any
"""ONNX Runtime's inference session."""

PACKAGE: Final = "onnxruntime"
NO_TELEMETRY: Final = "ORT_DISABLE_TELEMETRY"
"""The environment variable that ONNX Runtime reads once, when it is loaded."""

MAX_MESSAGE: Final = 300
SILENT: Final = 4
"""Nothing but fatal errors is logged: what fails is raised."""

FORKED: Final = (
    "ONNX Runtime was in use when this process was forked, and its threads stay with the parent; "
    "start processes by spawn, or fork before the first compile"
)


class _Engine:
    """The process's ONNX Runtime, imported when it is first asked for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._package: Any = None
        self._process: int | None = None

    def package(self) -> Any:
        if self.is_forked():
            raise DeviceUnavailable(FORKED)
        with self._lock:
            if self._package is None:
                # From here on: a child forked while another thread imports would wait for that
                # thread.
                self._process = os.getpid()
                try:
                    self._package = _load()
                except Exception as error:
                    self._process = None
                    raise DeviceUnavailable(
                        f"ONNX Runtime cannot be used: {told(error)}"
                    ) from error
            return self._package

    def is_forked(self) -> bool:
        """Whether the engine's threads are those of another process."""
        return self._process not in {None, os.getpid()}


def _load() -> Any:
    """Imports the package without its telemetry, which would take its place in the user's cache
    directory with the import. Whoever has imported it before has chosen for himself.
    """
    if PACKAGE in sys.modules:
        return importlib.import_module(PACKAGE)
    with _without_telemetry():
        package = importlib.import_module(PACKAGE)
    package.set_default_logger_severity(SILENT)
    # For builds that do not read the variable.
    package.disable_telemetry_events()
    return package


@contextmanager
def _without_telemetry() -> Iterator[None]:
    before = os.environ.get(NO_TELEMETRY)
    os.environ[NO_TELEMETRY] = "1"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(NO_TELEMETRY, None)
        else:
            os.environ[NO_TELEMETRY] = before


_engine: Final = _Engine()


_sessions: Final = LeftInChildren()


def onnxruntime() -> Any:
    """ONNX Runtime's Python package, silent and without telemetry. Raises `DeviceUnavailable` when
    it cannot be imported, or was in use before this process was forked.
    """
    return _engine.package()


def unusable() -> str | None:
    """Why the engine cannot be used in this process, as far as is known without loading it."""
    return FORKED if _engine.is_forked() else None


def onnx() -> Any:
    """The package with ONNX's protobuf classes."""
    try:
        package = importlib.import_module("onnx")
        importlib.import_module("onnx.helper")
    except Exception as error:
        raise DeviceUnavailable(f"the package onnx cannot be used: {told(error)}") from error
    return package


def session_of(
    data: bytes,
    provider: str,
    num_threads: int | None,
    *,
    optimised: bool = False,
    fuse: bool = False,
    save_to: Path | None = None,
    profile_to: Path | None = None,
) -> Session:
    """A session of an ONNX model's bytes; `GeneralFailure` with ONNX Runtime's words.

    *num_threads* None: as many as ONNX Runtime likes. What was *optimised* before is taken as it
    is. The optimised model is written to *save_to*, what its kernels take to a file that begins so
    as *profile_to*. *fuse* lets it make integer kernels of operators that stand between
    dequantisation and quantisation; its own graphs name those kernels.
    """
    package = onnxruntime()
    if provider not in package.get_available_providers():
        raise DeviceUnavailable(f"this build of ONNX Runtime has no {provider}")
    levels = package.GraphOptimizationLevel
    options = package.SessionOptions()
    options.log_severity_level = SILENT
    options.inter_op_num_threads = 1
    options.intra_op_num_threads = num_threads or 0
    options.graph_optimization_level = (
        levels.ORT_DISABLE_ALL if optimised else levels.ORT_ENABLE_ALL
    )
    if save_to is not None:
        options.optimized_model_filepath = str(save_to)
    if profile_to is not None:
        options.enable_profiling = True
        options.profile_file_prefix = str(profile_to)
    if not fuse:
        options.add_session_config_entry("session.disable_quant_qdq", "1")
    chosen = [provider] if provider == CPU else [provider, CPU]
    try:
        session = package.InferenceSession(data, options, providers=chosen)
    except Exception as error:
        raise GeneralFailure(f"ONNX Runtime did not take the model: {told(error)}") from error
    _sessions.add(session)
    return session


CPU: Final = "CPUExecutionProvider"


def told(error: BaseException) -> str:
    """The first line of an exception of ONNX Runtime that says something."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:MAX_MESSAGE]
