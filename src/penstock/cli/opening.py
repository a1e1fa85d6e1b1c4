"""Loading and compiling for the commands, each timed.

What is imported or found once a process (the loaders, the runtime, the devices) is there before a clock starts.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import penstock
from penstock.cli.failures import FileError, UsageError, os_reason
from penstock.errors import ModelError
from penstock.ir import Model
from penstock.ir.types import is_static

if TYPE_CHECKING:
    from penstock import CompiledModel
    from penstock.ir import NDArray, Operand


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model, the file it came from, and how long loading took."""

    model: Model
    path: str
    load_ns: int


def load(path: str) -> Loaded:
    """Raises `FileError`, from the `ModelError` where the content is at fault; `UsageError` for no name."""
    if not path:
        raise UsageError("MODEL is empty; it must be the name of a model file")
    read = penstock.load
    began = time.perf_counter_ns()
    try:
        model = read(path)
    except OSError as error:
        raise FileError(path, os_reason(error)) from None
    except ModelError as error:
        raise FileError(path, str(error)) from error
    return Loaded(model, path, time.perf_counter_ns() - began)


def compile_model(
    model: Model,
    path: str,
    *,
    devices: Sequence[str] | None = None,
    signature: str | None = None,
    threads: int | None = None,
    operands: Sequence[Operand] = (),
    arrays: Sequence[NDArray] = (),
    progress: Any = None,
) -> tuple[CompiledModel, int]:
    """The compiled model and how long that took, in nanoseconds.

    Where the model leaves dimensions unknown it is compiled for the shapes of *arrays*, which stand for
    *operands*. Raises `UsageError` for a device that does not exist, and `FileError` about the file at
    *path* from a `ModelError`.
    """
    shapes = {
        o.name: a.shape for o, a in zip(operands, arrays, strict=True) if not is_static(o.shape)
    }
    known = [d.name for d in penstock.devices()]
    if unknown := [name for name in devices or () if name not in known]:
        raise UsageError(f"no device is named {unknown[0]!r}; found: {', '.join(known) or 'none'}")
    prepare = penstock.compile
    began = time.perf_counter_ns()
    try:
        compiled = prepare(
            model,
            devices=list(devices) if devices else None,
            signature=signature,
            num_threads=threads,
            shapes=shapes or None,
            progress=progress,
        )
    except ModelError as error:
        raise FileError(path, str(error)) from error
    return compiled, time.perf_counter_ns() - began
