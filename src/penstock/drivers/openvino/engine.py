"""OpenVINO itself: imported when a model is first prepared, one core a process."""

from __future__ import annotations

import importlib
import os
import sys
import threading
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

from penstock.driverkit.forks import LeftInChildren
from penstock.errors import DeviceUnavailable, GeneralFailure
from penstock.hal import PrepareConfig
from penstock.ir import NDArray

CompiledModel: TypeAlias = Any
"""OpenVINO's compiled model."""

MAX_MESSAGE: Final = 300
TELEMETRY: Final = "openvino_telemetry"
FORKED: Final = (
    "OpenVINO was in use when this process was forked, and does not work in the child; "
    "start processes by spawn, or fork before the first compile"
)


class _Engine:
    """The process's core, made when it is first asked for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._core: Any = None
        self._process: int | None = None

    def core(self) -> Any:
        if self.is_forked():
            raise DeviceUnavailable(FORKED)
        with self._lock:
            if self._core is None:
                try:
                    self._process = os.getpid()
                    self._core = openvino().Core()
                    _made.add(self._core)
                except Exception as error:
                    self._process = None
                    raise DeviceUnavailable(f"OpenVINO cannot be used: {told(error)}") from error
            return self._core

    def is_forked(self) -> bool:
        """Whether the engine's threads are those of another process."""
        return self._process not in {None, os.getpid()}


_made: Final = LeftInChildren()
_engine: Final = _Engine()


def openvino() -> Any:
    """OpenVINO's Python package.

    Its import reports itself over the network unless the user has opted out, through a package that
    it can do without: that one is hidden meanwhile, and so stays unused in this process. Whoever
    has imported OpenVINO before has chosen for himself.
    """
    found = sys.modules.get("openvino")
    if found is not None:
        return found
    hidden = TELEMETRY not in sys.modules
    if hidden:
        sys.modules[TELEMETRY] = None  # type: ignore[assignment]  # Python's way to say: not installed
    try:
        return importlib.import_module("openvino")
    finally:
        if hidden:
            sys.modules.pop(TELEMETRY, None)


def core() -> Any:
    """The process's core. Raises `DeviceUnavailable` when OpenVINO cannot be imported, or was in
    use before this process was forked: its threads, which it waits for, are the parent's.
    """
    return _engine.core()


def unusable() -> str | None:
    """Why the engine cannot be used in this process, as far as is known without loading it."""
    return FORKED if _engine.is_forked() else None


class Manner(msgspec.Struct, frozen=True):
    """How a model computes: on *num_threads* (None: as many as OpenVINO likes), and whether the
    processor's *reduced* precision (bfloat16) may stand for float32.
    """

    num_threads: int | None = None
    reduced: bool = False

    @staticmethod
    def of(config: PrepareConfig, *, quantized: bool) -> Manner:
        """What *config* asks for: only `relaxed` takes reduced precision. OpenVINO (2026.4) finds
        no kernels for 8-bit layers in bfloat16, so that a model with *quantized* values stays with
        float32.
        """
        return Manner(config.num_threads, config.accuracy == "relaxed" and not quantized)


def settings(plugin: str, manner: Manner, *, quickly: bool = False) -> dict[str, Any]:
    """How a model is compiled or imported: results do not depend on chance, and one run at a time
    uses the threads of *manner*. *quickly* does without kernels generated for groups of operations,
    where the plugin has them.
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
    """Compiles for *plugin*; `GeneralFailure` with OpenVINO's words."""
    try:
        compiled = core().compile_model(model, plugin, chosen)
    except Exception as error:
        raise GeneralFailure(f"OpenVINO did not compile the model: {told(error)}") from error
    _made.add(compiled)
    return compiled


def import_model(blob: NDArray, plugin: str, chosen: dict[str, Any]) -> CompiledModel:
    """A compiled model of the exported bytes *blob*, writable memory that must outlive it."""
    engine = core()
    try:
        tensor = openvino().Tensor(blob, shared_memory=True)
        compiled = engine.import_model(tensor, plugin, chosen)
    except Exception as error:
        raise GeneralFailure(f"OpenVINO did not import the model: {told(error)}") from error
    _made.add(compiled)
    return compiled


def export_model(compiled: CompiledModel) -> bytes:
    """What OpenVINO exports of a compiled model."""
    try:
        exported: bytes = compiled.export_model().getvalue()
    except Exception as error:
        raise GeneralFailure(f"OpenVINO did not export the model: {told(error)}") from error
    return exported


def serialize(model: Any) -> tuple[bytes, bytes]:
    """A graph that is not compiled, as XML and weights."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="penstock-openvino-") as folder:
        xml, weights = Path(folder) / "graph.xml", Path(folder) / "graph.bin"
        try:
            openvino().serialize(model, xml, weights)
        except Exception as error:
            raise GeneralFailure(f"OpenVINO did not write the graph: {told(error)}") from error
        return xml.read_bytes(), weights.read_bytes()


def read_model(xml: NDArray, weights: NDArray) -> Any:
    """The graph that `serialize` gave; *weights* must outlive it."""
    engine = core()
    try:
        tensor = openvino().Tensor(weights, shared_memory=True)
        return engine.read_model(xml.tobytes(), tensor)
    except Exception as error:
        raise GeneralFailure(f"OpenVINO did not read the graph: {told(error)}") from error


def build_of(plugin: str) -> str:
    """The build of engine and plugin, as they say themselves."""
    try:
        versions = core().get_versions(plugin)
        return "; ".join(f"{name} {v.build_number}" for name, v in sorted(versions.items()))
    except DeviceUnavailable:
        raise
    except Exception as error:
        raise DeviceUnavailable(f"OpenVINO's {plugin} plugin: {told(error)}") from error


def told(error: BaseException) -> str:
    """The last line of an exception of OpenVINO, which comes after where in its sources it was
    raised.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:MAX_MESSAGE]
