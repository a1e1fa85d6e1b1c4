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

from penstock.driverkit.lazy_engine import LeftInChildren
from penstock.errors import DeviceUnavailable, GeneralFailure

Kernels: TypeAlias = Literal["xnnpack", "builtin"]
"""XNNPACK with LiteRT's own kernels for the rest, or LiteRT's own optimised kernels alone."""

RESOLVERS: Final[dict[Kernels, str]] = {
    "xnnpack": "BUILTIN",
    "builtin": "BUILTIN_WITHOUT_DEFAULT_DELEGATES",
}
MAX_MESSAGE: Final = 300
CLONE_FILES: Final = 0x400
"""`unshare` flag: gives the calling thread its own descriptor table (Linux, unshare(2))."""


LOADING: Final = (
    "LiteRT was being loaded by another thread when this process was forked, and cannot be loaded "
    "in the child; start processes by spawn, or fork after the first compile"
)


class _Engine:
    """LiteRT's module, imported on first use, once per process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._module: Any = None
        self._process: int | None = None

    def module(self) -> Any:
        if self._module is None:
            if self.was_forked_while_loading():
                raise DeviceUnavailable(LOADING)
            with self._lock:
                if self._module is None:
                    self._process = os.getpid()
                    try:
                        self._module = _load()
                    finally:
                        self._process = None
        return self._module

    def was_forked_while_loading(self) -> bool:
        """Whether this process was forked while another thread imported LiteRT."""
        return self._process not in {None, os.getpid()}

    def after_fork(self) -> None:
        """Replaces the lock in a forked child: another thread of the parent may have held it."""
        self._lock = threading.Lock()


_engine: Final = _Engine()


def unusable() -> str | None:
    """Why LiteRT cannot be used in this process, without loading it; None if no reason is known."""
    return LOADING if _engine.was_forked_while_loading() else None


forked_away: Final = LeftInChildren()
"""Objects with an interpreter, which a forked child must not free."""

forks = 0
"""Number of forks of this process and its ancestors since they loaded this module."""


def _count_fork() -> None:
    global forks  # noqa: PLW0603  # the one place that changes it
    forks += 1
    _engine.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count_fork)


def make_interpreter(content: bytes, kernels: Kernels, num_threads: int) -> Any:
    """An interpreter of a file, without allocated tensors.

    If LiteRT rejects the file, raises `GeneralFailure` with LiteRT's message. If LiteRT cannot be
    loaded, raises `DeviceUnavailable`.
    """
    litert = _engine.module()
    try:
        return litert.Interpreter(
            model_content=content,
            num_threads=num_threads,
            experimental_op_resolver_type=litert.OpResolverType[RESOLVERS[kernels]],
        )
    except Exception as error:
        raise GeneralFailure(f"LiteRT did not take the model: {last_line(error)}") from error


def last_line(error: BaseException) -> str:
    """The last line of LiteRT's message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:MAX_MESSAGE]


def _load() -> Any:
    try:
        module = _interpreter_module()
    except Exception as error:
        raise DeviceUnavailable(f"LiteRT cannot be used: {last_line(error)}") from error
    _create_first_delegate(module)
    return module


def _interpreter_module() -> Any:
    """LiteRT's own module, even if another module replaces it in this process."""
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


def _create_first_delegate(litert: Any) -> None:
    """Creates a delegate without output on stderr. LiteRT writes a line there for the first
    delegate of a process.
    """
    if sys.platform != "linux":
        return
    thread = threading.Thread(target=_create_silently, args=(litert,), name="penstock-litert")
    # An object collected in that thread would close its descriptor only there.
    collecting = gc.isenabled()
    gc.disable()
    try:
        thread.start()
        thread.join()
    finally:
        if collecting:
            gc.enable()


def _create_silently(litert: Any) -> None:
    """Gives this thread its own descriptor table, redirects stderr to /dev/null there, and creates
    a delegate. Does nothing if the system forbids it; LiteRT's line then appears.
    """
    import ctypes

    with suppress(Exception):
        if ctypes.CDLL(None).unshare(CLONE_FILES) != 0:
            return
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 2)
        os.close(null)
        litert.Interpreter(model_content=_smallest_file(), num_threads=1).allocate_tensors()


def _smallest_file() -> bytes:
    """A file with one operation that XNNPACK supports."""
    from penstock.export.tflite import write
    from penstock.ir import DType, ModelBuilder

    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, (1,), "x")
    return write(builder.build(builder.operation("ADD", [x, x], [(DType.FLOAT32, (1,))])))
