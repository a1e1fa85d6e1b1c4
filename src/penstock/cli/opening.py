"""Loading and compiling for the commands, each timed.

What is imported or found once a process (the loaders, the runtime, the devices) is there before a
clock starts.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, cast, get_args

import penstock
from penstock import knobs
from penstock.cli.failures import FileError, UsageError, os_reason
from penstock.cli.options import shapes_of, with_remedy
from penstock.errors import ModelError
from penstock.hal import AccuracyClass
from penstock.ir import Model
from penstock.partitioning.policy import Policy

if TYPE_CHECKING:
    from penstock import CompiledModel
    from penstock.cli.output import Output
    from penstock.hal.config import ProgressCallback
    from penstock.ir import NDArray, Operand


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model, the file it came from, how long loading took, and when it began
    (`time.perf_counter_ns`).
    """

    model: Model
    path: str
    load_ns: int
    start_ns: int


def load(path: str) -> Loaded:
    """Raises `FileError`, from the `ModelError` where the content is at fault; `UsageError` for no
    name.
    """
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
    return Loaded(model, path, time.perf_counter_ns() - began, began)


def compile_model(
    model: Model,
    path: str,
    *,
    devices: Sequence[str] | None = None,
    signature: str | None = None,
    threads: int | None = None,
    accuracy: str | None = None,
    operands: Sequence[Operand] = (),
    arrays: Sequence[NDArray] = (),
    cache: bool | Path = True,
    tune: bool = False,
    progress: ProgressCallback | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    assumed: Mapping[str, tuple[int, ...]] | None = None,
) -> tuple[CompiledModel, int]:
    """The compiled model and how long that took, in nanoseconds.

    Where the model leaves dimensions unknown it is compiled for the shapes of *arrays*, which stand
    for *operands*, and for *shapes*, by input name; *assumed* are those that nobody gave. *cache*,
    *tune* and *progress* are `penstock.compile`'s. Raises `UsageError` for a device or an accuracy
    class that does not exist, and `FileError` about the file at *path* from a `ModelError`.
    """
    known = {**shapes_of(operands, arrays), **(shapes or {})}
    check_devices(devices or ())
    if twice := [name for name, times in Counter(devices).items() if times > 1]:
        raise UsageError(f"device {twice[0]!r} is named twice; once is enough")
    if not devices:
        check_knob()
    policy = policy_of(accuracy)
    if cache:
        import_module("penstock.compilation.entry")
    prepare = penstock.compile
    began = time.perf_counter_ns()
    try:
        compiled = prepare(
            model,
            devices=list(devices) if devices else None,
            signature=signature,
            num_threads=threads,
            shapes=known or None,
            policy=policy,
            cache=cache,
            tune=tune,
            progress=progress,
        )
    except ModelError as error:
        raise FileError(path, with_remedy(error, assumed or {})) from error
    return compiled, time.perf_counter_ns() - began


def warn_of_settings(output: Output) -> None:
    """Says which drivers the knob `isolate` names that are not here: what compiles isolates nothing
    by those names. Says too where there is no directory to keep what is compiled.
    """
    from penstock.cli.settings import unknown_drivers, unknown_places
    from penstock.runtime.discovery import manager

    output.warnings(unknown_places())
    output.warnings(unknown_drivers(manager.drivers()))


def check_devices(names: Iterable[str]) -> None:
    """Raises `UsageError` for the first that no device has, `InputError` before that for a knob
    with a value that it cannot have: a driver that could not start for it would seem not to be
    there.
    """
    from penstock.runtime.discovery import unknown_device

    knobs.check()
    found = penstock.devices()
    known = {d.name for d in found}
    if unknown := [name for name in names if name not in known]:
        raise UsageError(unknown_device(unknown[0], found))


def check_knob() -> None:
    """Raises `UsageError` where the knob `devices` names a device that there is not."""
    names = knobs.devices()
    try:
        check_devices(name for n in names.split(",") if (name := n.strip()))
    except UsageError as error:
        raise UsageError(f"the knob devices (PENSTOCK_DEVICES) is {names!r}: {error}") from None


def policy_of(accuracy: str | None) -> Policy | None:
    """The policy that asks for this class; None for none. Raises `UsageError` for a word that is no
    class.
    """
    if accuracy is None:
        return None
    classes = get_args(AccuracyClass)
    if accuracy not in classes:
        raise UsageError(f"--accuracy {accuracy!r} is not one of {', '.join(classes)}")
    return Policy(accuracy=cast("AccuracyClass", accuracy))
