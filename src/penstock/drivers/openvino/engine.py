"""OpenVINO itself, imported when a model is first prepared; one core a process; and its runs."""

from __future__ import annotations

import ctypes
import importlib
import math
import sys
import time
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np

from penstock.driverkit.engine_model import Inputs, Outputs, RunPool
from penstock.driverkit.lazy_engine import LazyEngine, LeftInChildren, message_of
from penstock.errors import DeviceUnavailable, GeneralFailure, MissedDeadlineTransient
from penstock.hal import ExecutionConfig, PrepareConfig
from penstock.ir import NDArray

CompiledModel: TypeAlias = Any
"""OpenVINO's compiled model."""

TELEMETRY: Final = "openvino_telemetry"
FORKED: Final = (
    "OpenVINO was in use when this process was forked, and does not work in the child; "
    "start processes by spawn, or fork before the first compile"
)


def openvino() -> Any:
    """OpenVINO's Python package.

    On import OpenVINO sends a report over the network, through another package, unless the user
    opted out. This function hides that package during the import, so nothing is sent. If the
    program imported OpenVINO earlier, its own choice remains.
    """
    found = sys.modules.get("openvino")
    if found is not None:
        return found
    hidden = TELEMETRY not in sys.modules
    if hidden:
        sys.modules[TELEMETRY] = None  # type: ignore[assignment]  # means: not installed
    try:
        return importlib.import_module("openvino")
    finally:
        if hidden:
            sys.modules.pop(TELEMETRY, None)


def _made_core() -> Any:
    made = openvino().Core()
    _made.add(made)
    return made


def message_from(error: BaseException) -> str:
    """The last line of an OpenVINO exception. Earlier lines name places in OpenVINO's sources."""
    return message_of(error, line=-1)


_made: Final = LeftInChildren()
_engine: Final = LazyEngine("OpenVINO", _made_core, FORKED, message_from)

core: Final = _engine.get
"""Returns the process's core. Raises `DeviceUnavailable` if OpenVINO cannot be imported, or if it
was in use when this process was forked: its threads exist only in the parent.
"""

guarded: Final = _engine.guarded

unusable: Final = _engine.unusable
"""Returns why this process cannot use the engine, as far as can be known without loading it."""


class Manner(msgspec.Struct, frozen=True):
    """Threads (None: OpenVINO decides), and whether bfloat16 may replace float32 (*reduced*)."""

    num_threads: int | None = None
    reduced: bool = False

    @staticmethod
    def of(config: PrepareConfig, *, quantized: bool) -> Manner:
        """The manner that *config* requires. Only the class `relaxed` allows reduced precision.
        OpenVINO (2026.4) has no kernels for 8-bit layers in bfloat16, so a model with *quantized*
        values stays in float32.
        """
        return Manner(config.num_threads, config.accuracy == "relaxed" and not quantized)


def settings(plugin: str, manner: Manner, *, quickly: bool = False) -> dict[str, Any]:
    """OpenVINO's properties for compiling or importing: deterministic results, and one run at a
    time on the threads of *manner*. If *quickly*, plugins that support it generate no kernels for
    groups of operations.
    """
    chosen: dict[str, Any] = {"PERFORMANCE_HINT": "LATENCY", "CACHE_DIR": ""}
    if not manner.reduced:
        chosen |= {"INFERENCE_PRECISION_HINT": "f32", "EXECUTION_MODE_HINT": "ACCURACY"}
    if plugin == "CPU":
        chosen |= {"NUM_STREAMS": 1, "ENABLE_CPU_PINNING": False}
        if manner.num_threads is not None:
            chosen["INFERENCE_NUM_THREADS"] = manner.num_threads
        if quickly:
            chosen["SNIPPETS_MODE"] = "DISABLE"
    return chosen


def compile_model(model: Any, plugin: str, chosen: dict[str, Any]) -> CompiledModel:
    """Compiles for *plugin*. Raises `GeneralFailure` with OpenVINO's message."""
    with _engine.guarded("compile the model"):
        compiled = core().compile_model(model, plugin, chosen)
    _made.add(compiled)
    return compiled


def import_model(blob: NDArray, plugin: str, chosen: dict[str, Any]) -> CompiledModel:
    """A compiled model of the exported bytes *blob*: writable memory that must outlive it."""
    with _engine.guarded("import the model"):
        engine, tensor = core(), openvino().Tensor(blob, shared_memory=True)
        compiled = engine.import_model(tensor, plugin, chosen)
    _made.add(compiled)
    return compiled


def export_model(compiled: CompiledModel) -> bytes:
    """The exported bytes of a compiled model."""
    with _engine.guarded("export the model"):
        exported: bytes = compiled.export_model().getvalue()
    return exported


def serialize(model: Any) -> tuple[bytes, bytes]:
    """A graph that is not compiled, as XML and weights."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="penstock-openvino-") as folder:
        xml, weights = Path(folder) / "graph.xml", Path(folder) / "graph.bin"
        with _engine.guarded("write the graph"):
            openvino().serialize(model, xml, weights)
        return xml.read_bytes(), weights.read_bytes()


def read_model(xml: NDArray, weights: NDArray) -> Any:
    """The graph that `serialize` returned. *weights* must outlive it."""
    with _engine.guarded("read the graph"):
        engine, tensor = core(), openvino().Tensor(weights, shared_memory=True)
        return engine.read_model(xml.tobytes(), tensor)


def build_of(plugin: str) -> str:
    """The builds of the engine and of *plugin*."""
    try:
        versions = core().get_versions(plugin)
        return "; ".join(f"{name} {v.build_number}" for name, v in sorted(versions.items()))
    except DeviceUnavailable:
        raise
    except Exception as error:
        raise DeviceUnavailable(f"OpenVINO's {plugin} plugin: {message_from(error)}") from error


POLL_MS: Final = 2
"""Interval, in seconds, at which a run checks its deadline and its cancel token."""


class _Run:
    """One infer request with its own memory."""

    def __init__(self, compiled: CompiledModel) -> None:
        with _engine.guarded("make an infer request"):
            self._request: Any = compiled.create_infer_request()
            self._inputs = [_Port(p, self._request.set_input_tensor) for p in compiled.inputs]
            self._outputs = [_Port(p, self._request.set_output_tensor) for p in compiled.outputs]

    def run(self, inputs: Inputs, outputs: Outputs, config: ExecutionConfig) -> None:
        given = [array if array.flags.aligned else array.copy() for array in inputs]
        results = [
            wanted if wanted is not None and wanted.flags.aligned else port.own()
            for port, wanted in zip(self._outputs, outputs, strict=True)
        ]
        try:
            for index, (port, array) in enumerate(zip(self._inputs, given, strict=True)):
                port.bind(index, array)
            for index, (port, array) in enumerate(zip(self._outputs, results, strict=True)):
                port.bind(index, array)
            self._run(config)
        except RuntimeError as error:
            text = f"OpenVINO did not execute the model: {message_from(error)}"
            raise GeneralFailure(text) from error
        for wanted, result in zip(outputs, results, strict=True):
            if wanted is not None and wanted is not result:
                wanted[...] = result

    def profile(self) -> list[Any]:
        """OpenVINO's times of the kernels, in execution order."""
        return list(self._request.get_profiling_info())

    def _run(self, config: ExecutionConfig) -> None:
        if config.deadline_ns is None and config.cancel is None:
            self._request.infer(share_outputs=True)
            return
        self._request.start_async()
        while not self._request.wait_for(POLL_MS):
            late = config.deadline_ns is not None and time.monotonic_ns() >= config.deadline_ns
            if late or (config.cancel is not None and config.cancel.is_set()):
                self._stop()
                if config.cancel is not None:
                    config.cancel.check()
                raise MissedDeadlineTransient("the deadline passed while OpenVINO computed")

    def _stop(self) -> None:
        """Cancels the run. When this returns, OpenVINO does not write to the outputs any more."""
        self._request.cancel()
        try:
            self._request.wait()
        except RuntimeError:
            return


class Executable(RunPool[_Run]):
    """*compiled*, with the objects *keep* that must live as long.

    *exported* are the bytes that it was imported from: OpenVINO cannot import the export of an
    imported model.
    """

    def __init__(
        self, compiled: CompiledModel, keep: object = None, exported: NDArray | None = None
    ) -> None:
        super().__init__(lambda: _Run(compiled), unusable)
        self.compiled, self.exported = compiled, exported
        self._keep = keep


class _Port:
    """One input or output of an infer request, and the address that it is bound to.

    A request keeps references to the objects that its tensors are made from. Tensors are therefore
    made from addresses, so that the caller's memory can be freed after a run. Each run binds every
    port again.
    """

    def __init__(self, port: Any, bind: Any) -> None:
        package = openvino()
        self._tensor, self._bind = package.Tensor, bind
        self._type, self._shape = port.element_type, package.Shape(list(port.shape))
        self._dtype = np.dtype(port.element_type.to_dtype())
        self._memory = ctypes.c_char * (math.prod(port.shape) * self._dtype.itemsize)
        self._bound: int | None = None
        self._own: NDArray | None = None

    def bind(self, index: int, array: NDArray) -> None:
        """Binds the memory of *array*. The caller keeps it alive during the run."""
        address = array.ctypes.data
        if address != self._bound:
            memory = np.frombuffer(self._memory.from_address(address), np.uint8)
            self._bind(index, self._tensor(memory, self._shape, self._type))
            self._bound = address

    def own(self) -> NDArray:
        """Memory for a value that OpenVINO cannot write directly into the caller's memory."""
        if self._own is None:
            self._own = np.empty(list(self._shape), self._dtype)
        return self._own
