"""ONNX Runtime itself, imported when a model is first prepared, and runs of its sessions."""

from __future__ import annotations

import importlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from penstock.driverkit.engine_model import Inputs, Outputs, RunPool
from penstock.driverkit.lazy_engine import LazyEngine, LeftInChildren, message_of
from penstock.drivers.onnxruntime.external import LEAST_BYTES, OPTIMISED_CONSTANTS
from penstock.errors import DeviceUnavailable, GeneralFailure, MissedDeadlineTransient
from penstock.hal import ExecutionConfig
from penstock.ir import NDArray

Session: TypeAlias = Any
"""ONNX Runtime's inference session."""

PACKAGE: Final = "onnxruntime"
NO_TELEMETRY: Final = "ORT_DISABLE_TELEMETRY"
"""The environment variable that ONNX Runtime reads once, when it is loaded."""

SILENT: Final = 4
"""The log level: only fatal errors are logged, because failures are raised."""

FORKED: Final = (
    "ONNX Runtime was in use when this process was forked, and its threads stay with the parent; "
    "start processes by spawn, or fork before the first compile"
)


def _load() -> Any:
    """Imports the package with its telemetry off: telemetry would create files in the user's cache
    directory. If the program imported ONNX Runtime earlier, its own choice remains.
    """
    if PACKAGE in sys.modules:
        return importlib.import_module(PACKAGE)
    before = os.environ.get(NO_TELEMETRY)
    os.environ[NO_TELEMETRY] = "1"
    try:
        package = importlib.import_module(PACKAGE)
    finally:
        os.environ.pop(NO_TELEMETRY, None)
        if before is not None:
            os.environ[NO_TELEMETRY] = before
    package.set_default_logger_severity(SILENT)
    # Some builds do not read the variable.
    package.disable_telemetry_events()
    return package


def message_from(error: BaseException) -> str:
    """The first line with text of an ONNX Runtime exception."""
    return message_of(error, line=0)


_engine: Final = LazyEngine("ONNX Runtime", _load, FORKED, message_from)
_sessions: Final = LeftInChildren()

onnxruntime: Final = _engine.get
"""Returns ONNX Runtime's Python package, without logging and telemetry. Raises `DeviceUnavailable`
if it cannot be imported, or if it was in use when this process was forked.
"""

unusable: Final = _engine.unusable
"""Returns why this process cannot use the engine, as far as can be known without loading it."""


def onnx() -> Any:
    """The package with ONNX's protobuf classes."""
    try:
        package = importlib.import_module("onnx")
        importlib.import_module("onnx.helper")
    except Exception as error:
        text = f"the package onnx cannot be used: {message_from(error)}"
        raise DeviceUnavailable(text) from error
    return package


def session_of(
    data: bytes | Path,
    provider: str,
    num_threads: int | None,
    *,
    optimised: bool = False,
    fuse: bool = False,
    save_to: Path | None = None,
    profile_to: Path | None = None,
) -> Session:
    """A session of an ONNX model, given as bytes or by path. Raises `GeneralFailure` with ONNX
    Runtime's message.

    If *num_threads* is None, ONNX Runtime decides. A model that is already *optimised* is not
    optimised again. The optimised model is written to *save_to*, and a profile to a file whose name
    begins with *profile_to*. Large constants of the optimised model are written to a file beside it
    if *data* is a path. *fuse* lets ONNX Runtime replace operators between dequantisation and
    quantisation with integer kernels. This driver's own graphs name those kernels.
    """
    package = onnxruntime()
    if provider not in package.get_available_providers():
        raise DeviceUnavailable(f"this build of ONNX Runtime has no {provider}")
    levels = package.GraphOptimizationLevel
    options = package.SessionOptions()
    options.log_severity_level = SILENT
    options.inter_op_num_threads = 1
    options.intra_op_num_threads = num_threads or 0
    level = levels.ORT_DISABLE_ALL if optimised else levels.ORT_ENABLE_ALL
    options.graph_optimization_level = level
    if save_to is not None:
        options.optimized_model_filepath = str(save_to)
        if isinstance(data, Path):
            prefix = "session.optimized_model_external_initializers_"
            options.add_session_config_entry(prefix + "file_name", OPTIMISED_CONSTANTS)
            options.add_session_config_entry(prefix + "min_size_in_bytes", str(LEAST_BYTES))
    if profile_to is not None:
        options.enable_profiling = True
        options.profile_file_prefix = str(profile_to)
    if not fuse:
        options.add_session_config_entry("session.disable_quant_qdq", "1")
    chosen = [provider] if provider == CPU else [provider, CPU]
    with _engine.guarded("take the model"):
        source = str(data) if isinstance(data, Path) else data
        session = package.InferenceSession(source, options, providers=chosen)
    _sessions.add(session)
    return session


CPU: Final = "CPUExecutionProvider"


POLL_SECONDS: Final = 0.002
"""Interval, in seconds, at which a run's watchdog checks its deadline and its cancel token."""


class _Run:
    """A binding with its own memory, for one run at a time."""

    def __init__(self, session: Session) -> None:
        package = onnxruntime()
        # The public methods bind and copy at each run.
        native, inner = package.capi.onnxruntime_pybind11_state, session._sess  # noqa: SLF001
        self._call = inner.run_with_iobinding
        self._binding = native.SessionIOBinding(inner)
        place = native.OrtDevice(0, 0, 0)
        self._inputs = [_Port(a, self._binding.bind_input, place) for a in session.get_inputs()]
        self._outputs = [_Port(a, self._binding.bind_output, place) for a in session.get_outputs()]
        self._options: Any = package.RunOptions

    def run(self, inputs: Inputs, outputs: Outputs, config: ExecutionConfig) -> None:
        copies: list[NDArray] = []
        late: list[tuple[NDArray, NDArray]] = []
        try:
            for port, array in zip(self._inputs, inputs, strict=True):
                address = array.__array_interface__["data"][0]
                if address != port.bound:
                    if address % port.alignment:
                        copies.append(array.copy())
                        address = address_of(copies[-1])
                    port.bind(address)
            for port, wanted in zip(self._outputs, outputs, strict=True):
                address = 0 if wanted is None else wanted.__array_interface__["data"][0]
                if address != port.bound or wanted is None:
                    if wanted is None or address % port.alignment:
                        own = port.own()
                        address = address_of(own)
                        if wanted is not None:
                            late.append((wanted, own))
                    port.bind(address)
            if config.deadline_ns is None and config.cancel is None:
                self._call(self._binding, None)
            else:
                self._run_watched(config)
        except (RuntimeError, ValueError, TypeError) as error:
            text = f"ONNX Runtime did not execute the model: {message_from(error)}"
            raise GeneralFailure(text) from error
        for wanted, result in late:
            wanted[...] = result.view(wanted.dtype).reshape(wanted.shape)

    def _run_watched(self, config: ExecutionConfig) -> None:
        options = self._options()
        with _watched(options, config):
            try:
                self._call(self._binding, options)
            except Exception:
                if not options.terminate:
                    raise
        if options.terminate:
            if config.cancel is not None:
                config.cancel.check()
            raise MissedDeadlineTransient("the deadline passed while ONNX Runtime computed")


class Executable(RunPool[_Run]):
    """Runs of *session*, with its element types and shapes. int8 values are seen as bytes."""

    def __init__(self, session: Session) -> None:
        super().__init__(lambda: _Run(session), unusable)
        self.session = session


@contextmanager
def _watched(options: Any, config: ExecutionConfig) -> Iterator[None]:
    """A watchdog: terminates the run of *options* between two nodes if it is late or cancelled."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(POLL_SECONDS):
            late = config.deadline_ns is not None and time.monotonic_ns() >= config.deadline_ns
            if late or (config.cancel is not None and config.cancel.is_set()):
                options.terminate = True
                return

    thread = threading.Thread(target=watch, name="penstock-onnxruntime-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class _Port:
    """A session's input or output, and the address *bound* to it; the caller owns the memory."""

    __slots__ = ("_call", "_dtype", "_name", "_own", "_place", "_shape", "alignment", "bound")

    def __init__(self, port: Any, bind: Any, place: Any) -> None:
        self._name, self._shape, self._place, self._call = port.name, list(port.shape), place, bind
        self._dtype = np.dtype(TYPES[port.type])
        self.alignment = self._dtype.alignment
        self.bound = -1
        self._own: NDArray | None = None

    def bind(self, address: int) -> None:
        """Binds the memory at *address*, which the next run reads or writes."""
        self._call(self._name, self._place, self._dtype, self._shape, address)
        self.bound = address

    def own(self) -> NDArray:
        """Memory for a value that cannot be written directly into the caller's memory."""
        if self._own is None:
            self._own = np.empty(self._shape, self._dtype)
        return self._own


def address_of(array: NDArray) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


TYPES: Final = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(uint8)": "uint8",
    "tensor(int32)": "int32",
    "tensor(int64)": "int64",
    "tensor(bool)": "bool",
}
