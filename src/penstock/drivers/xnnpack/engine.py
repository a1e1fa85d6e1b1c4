"""LiteRT itself: imported when a model is first prepared."""

from __future__ import annotations

import gc
import importlib
import importlib.util
import os
import sys
import threading
from contextlib import suppress
from importlib.machinery import PathFinder
from typing import Any, Final, Literal, TypeAlias

from penstock.driverkit.forks import LeftInChildren
from penstock.errors import DeviceUnavailable, GeneralFailure

Kernels: TypeAlias = Literal["xnnpack", "builtin"]
"""XNNPACK with LiteRT's own kernels for the rest, or LiteRT's own optimised kernels alone."""

RESOLVERS: Final[dict[Kernels, str]] = {
    "xnnpack": "BUILTIN",
    "builtin": "BUILTIN_WITHOUT_DEFAULT_DELEGATES",
}
MAX_MESSAGE: Final = 300
CLONE_FILES: Final = 0x400
"""`unshare` flag: descriptors of its own for the calling thread (Linux, unshare(2))."""


LOADING: Final = (
    "LiteRT was being loaded by another thread when this process was forked, and cannot be loaded in the child; "
    "start processes by spawn, or fork after the first compile"
)


class _Engine:
    """The process's LiteRT, imported when it is first asked for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._module: Any = None
        self._process: int | None = None

    def module(self) -> Any:
        if self._module is None:
            if self.is_cut_off():
                raise DeviceUnavailable(LOADING)
            with self._lock:
                if self._module is None:
                    self._process = os.getpid()
                    try:
                        self._module = _load()
                    finally:
                        self._process = None
        return self._module

    def is_cut_off(self) -> bool:
        """Whether another process is, or was at the fork, importing it."""
        return self._process not in {None, os.getpid()}

    def after_fork(self) -> None:
        """In a child, where nobody releases a lock that another thread held."""
        self._lock = threading.Lock()


_engine: Final = _Engine()


def unusable() -> str | None:
    """Why LiteRT cannot be used in this process, as far as is known without loading it."""
    return LOADING if _engine.is_cut_off() else None


runners: Final = LeftInChildren()
"""Whoever holds an interpreter."""

forks = 0
"""How often this process has been forked since its first ancestor that loaded this module."""


def _count_fork() -> None:
    global forks  # noqa: PLW0603  # the one place that changes it
    forks += 1
    _engine.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count_fork)


def make_interpreter(content: bytes, kernels: Kernels, num_threads: int) -> Any:
    """An interpreter of a file, nothing allocated. `GeneralFailure` with LiteRT's words.

    Of a file that LiteRT does not take, and of one it cannot be asked about, `DeviceUnavailable`
    where LiteRT itself is missing.
    """
    litert = _engine.module()
    try:
        return litert.Interpreter(
            model_content=content,
            num_threads=num_threads,
            experimental_op_resolver_type=litert.OpResolverType[RESOLVERS[kernels]],
        )
    except Exception as error:
        raise GeneralFailure(f"LiteRT did not take the model: {told(error)}") from error


def told(error: BaseException) -> str:
    """The last line of an exception of LiteRT."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:MAX_MESSAGE]


def _load() -> Any:
    try:
        module = _interpreter_module()
    except Exception as error:
        raise DeviceUnavailable(f"LiteRT cannot be used: {told(error)}") from error
    _hear_out(module)
    return module


def _interpreter_module() -> Any:
    """LiteRT's own module, also where something else answers its imports in this process."""
    package = importlib.import_module("ai_edge_litert")
    own = PathFinder.find_spec("ai_edge_litert.interpreter", package.__path__)
    if own is None or own.loader is None:
        raise ImportError("ai_edge_litert has no interpreter")
    answered = importlib.util.find_spec(own.name)
    if answered is not None and answered.origin == own.origin:
        return importlib.import_module(own.name)
    module = importlib.util.module_from_spec(own)
    own.loader.exec_module(module)
    return module


def _hear_out(litert: Any) -> None:
    """Makes a delegate where nobody listens: LiteRT reports the first one of a process on
    descriptor 2.
    """
    if sys.platform != "linux":
        return
    listener = threading.Thread(target=_make_unheard, args=(litert,), name="penstock-litert")
    # What is collected in that thread would close its descriptors there alone.
    collecting = gc.isenabled()
    gc.disable()
    try:
        listener.start()
        listener.join()
    finally:
        if collecting:
            gc.enable()


def _make_unheard(litert: Any) -> None:
    """Takes descriptors of its own for this thread, with nothing behind 2, and makes a first
    delegate. Where that is forbidden nothing is done, and LiteRT will be heard once.
    """
    import ctypes

    with suppress(Exception):
        if ctypes.CDLL(None).unshare(CLONE_FILES) != 0:
            return
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 2)
        os.close(nowhere)
        litert.Interpreter(model_content=_smallest_file(), num_threads=1).allocate_tensors()


def _smallest_file() -> bytes:
    """A file of one operation that XNNPACK takes."""
    from penstock.export.tflite import write
    from penstock.ir import DType, ModelBuilder

    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, (1,), "x")
    return write(builder.build(builder.operation("ADD", [x, x], [(DType.FLOAT32, (1,))])))
