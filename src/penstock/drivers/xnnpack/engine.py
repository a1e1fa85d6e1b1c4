"""LiteRT itself: imported when a model is first prepared."""

from __future__ import annotations

import gc
import importlib
import importlib.util
import os
import sys
import threading
from binascii import a2b_base64
from contextlib import suppress
from importlib.machinery import PathFinder
from typing import Any, Final, Literal, TypeAlias

from penstock.driverkit.lazy_engine import LazyEngine, LeftInChildren, message_of

Kernels: TypeAlias = Literal["xnnpack", "builtin"]
"""XNNPACK with LiteRT's own kernels for the rest, or LiteRT's own optimised kernels alone."""

RESOLVERS: Final[dict[Kernels, str]] = {
    "xnnpack": "BUILTIN",
    "builtin": "BUILTIN_WITHOUT_DEFAULT_DELEGATES",
}
CLONE_FILES: Final = 0x400
"""`unshare` flag: gives the calling thread its own descriptor table (Linux, unshare(2))."""


LOADING: Final = (
    "LiteRT was being loaded by another thread when this process was forked, and cannot be loaded "
    "in the child; start processes by spawn, or fork after the first compile"
)


SMALLEST_FILE: Final = (
    "HAAAAFRGTDMUACAAHAAYABQAEAAMAAAACAAEABQAAAAcAAAAHAAAABwAAAAkAAAAMAAAACwBAAADAAAAAAAAAAAA"
    "AAABAAAABAAAAOT+//8IAAAAUGVuc3RvY2sAAAAAAQAAABQAAAAAAA4AGAAUABAADAAIAAQADgAAABQAAAAcAAAA"
    "XAAAAGAAAABkAAAABAAAAG1haW4AAAAAAQAAABQAAAAAAA4AFAAAABAADAALAAQADgAAABAAAAAAAAALDAAAABAA"
    "AABg////AQAAAAEAAAACAAAAAAAAAAAAAAABAAAAAQAAAAEAAAAAAAAAAgAAAEwAAAAcAAAAAAAWAAwACAAAAAAA"
    "AAAAAAAAAAAAAAcAFgAAAAAAAAEEAAAAAQAAAAEAAAAAABYAEAAMAAAAAAAIAAAAAAAAAAAABwAWAAAAAAAAAQgA"
    "AAAMAAAAAQAAAHgAAAABAAAAAQAAAAEAAAAIAAAABAAEAAQAAAA="
)
"""A file with one ADD, which XNNPACK computes, as `penstock.export.tflite` writes it, in base64."""

forked_away: Final = LeftInChildren()
"""Objects with an interpreter, which a forked child must not free."""

forks = 0
"""Number of forks of this process and its ancestors since they loaded this module."""


def _count_fork() -> None:
    global forks  # noqa: PLW0603  # the one place that changes it
    forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count_fork)


def make_interpreter(content: bytes, kernels: Kernels, num_threads: int) -> Any:
    """An interpreter of a file, without allocated tensors.

    If LiteRT rejects the file, raises `GeneralFailure` with LiteRT's message. If LiteRT cannot be
    loaded, raises `DeviceUnavailable`.
    """
    with _engine.guarded("take the model"):
        litert = _engine.get()
        return litert.Interpreter(
            model_content=content,
            num_threads=num_threads,
            experimental_op_resolver_type=litert.OpResolverType[RESOLVERS[kernels]],
        )


def last_line(error: BaseException) -> str:
    """The last line of LiteRT's message."""
    return message_of(error, line=-1)


def _load() -> Any:
    module = _interpreter_module()
    _create_first_delegate(module)
    return module


_engine: Final = LazyEngine("LiteRT", _load, LOADING, last_line, forkable=True)

unusable: Final = _engine.unusable
"""Returns why LiteRT cannot be used in this process, as far as can be known without loading it."""


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
    """Creates a delegate without output on stderr, where LiteRT greets the first of a process."""
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
        litert.Interpreter(
            model_content=a2b_base64(SMALLEST_FILE), num_threads=1
        ).allocate_tensors()
