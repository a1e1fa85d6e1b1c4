"""Loads and compiles models for the commands, and measures how long that takes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args

from msgspec import Struct
from msgspec.structs import replace

import penstock
from penstock import knobs
from penstock.cli import failures
from penstock.cli.failures import FileError, UsageError
from penstock.cli.options import Choices, parse_shapes, shaped, shapes_of, with_remedy
from penstock.cli.output import compile_bar
from penstock.errors import ModelError, PlacementError
from penstock.hal import AccuracyClass
from penstock.ir import Model
from penstock.partitioning.policy import PlacementRule, Policy

if TYPE_CHECKING:
    from penstock import CompiledModel
    from penstock.cli.feed import Fed
    from penstock.cli.output import Output
    from penstock.execution.interface import Interface
    from penstock.hal.config import ProgressCallback
    from penstock.runtime.compiling import ModelFile


class Loaded(Struct, frozen=True):
    """A model, the name of its file, the load time, and the start of loading
    (`time.perf_counter_ns`). With the *content* of the file, a compile may use a kept plan.
    """

    model: Model
    path: str
    load_ns: int
    start_ns: int
    content: ModelFile | None = None


def load(path: str, choices: Choices | None = None, policy: Policy | None = None) -> Loaded:
    """The model in the file, of the plan that is kept for *choices* if there is one.

    Raises `FileError`, and `UsageError` for an empty name.
    """
    if not path:
        raise UsageError("MODEL is empty; it must be the name of a model file")
    if choices is None:
        began = time.perf_counter_ns()
        with failures.opening(path, ModelError):
            model = penstock.load(path)
        return Loaded(model, path, time.perf_counter_ns() - began, began)
    from penstock.runtime.compile_arguments import CompileArguments, cache_info
    from penstock.runtime.compiling import ModelFile

    began = time.perf_counter_ns()
    info, uncached = cache_info(not choices.no_cache)
    expected = CompileArguments(
        choices.device or None,
        num_threads=choices.threads,
        signature=choices.signature,
        shapes=parse_shapes(choices.shape) or None,
        policy=policy or Policy(),
        cache=info,
        uncached=uncached,
        portable=choices.portable,
    )
    with failures.opening(path, ModelError):
        content = ModelFile(path)
        model, _ = content.find(expected)
    return Loaded(model, path, time.perf_counter_ns() - began, began, content)


class Opened(Struct, frozen=True):
    """A model entered through a signature, the arrays to run it on, and how it is compiled.

    *shapes* are those of unknown dimensions, by input name. *input_ns* is the time that reading
    and preparing the inputs took.
    """

    loaded: Loaded
    choices: Choices
    policy: Policy | None
    interface: Interface
    shapes: Mapping[str, tuple[int, ...]]
    fed: Fed
    input_ns: int

    def compile(self, output: Output, *, tune: bool = False) -> tuple[CompiledModel, int]:
        """As `compile_model`, with a progress bar. Raises `PlacementError` for a device that is
        named and cannot be used.
        """
        check_devices(self.choices.device or (), usable=True)
        with compile_bar(output) as progress:
            return compile_model(
                self.loaded,
                self.choices,
                self.policy,
                self.shapes,
                self.fed.assumed,
                tune=tune,
                progress=progress,
            )


def open_fed(
    output: Output,
    model: str,
    inputs: Sequence[str] | None,
    choices: Choices,
    normalize: str | None = None,
    rate: int | None = None,
    *,
    random: bool = True,
) -> Opened:
    """Loads *model* and reads *inputs*. Without inputs it generates random ones, if *random*.

    Raises `FileError` and `UsageError`.
    """
    from penstock.cli.feed import Wishes, feed, parse_normalization, slots_of
    from penstock.execution.interface import interface_of

    scheme = None if normalize is None else parse_normalization(normalize)
    shapes = parse_shapes(choices.shape)
    policy = policy_of(choices.accuracy, choices.placement)
    loaded = load(model, choices, policy)
    warn_of_settings(output)
    signature = choices.signature
    if signature is not None:
        loaded = replace(loaded, model=loaded.model.signature_model(signature))
    interface = interface_of(loaded.model, signature)
    operands = shaped(interface.inputs, shapes)
    given = inputs or (["random"] if operands and random else [])
    began = time.perf_counter_ns()
    slots = slots_of(loaded.model, interface, operands)
    fed = feed(given, slots, Wishes(scheme, choices.seed, rate))
    input_ns = time.perf_counter_ns() - began
    known = {**shapes_of(operands, fed.arrays), **shapes}
    return Opened(loaded, choices, policy, interface, known, fed, input_ns)


def compile_model(
    loaded: Loaded,
    choices: Choices,
    policy: Policy | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    assumed: Mapping[str, tuple[int, ...]] | None = None,
    *,
    tune: bool = False,
    progress: ProgressCallback | None = None,
) -> tuple[CompiledModel, int]:
    """The compiled model, and the compile time in nanoseconds.

    *shapes* are those of unknown dimensions; *assumed* are those that the user did not give.
    *policy*, *tune* and *progress* are arguments of `penstock.compile`. Raises `UsageError` for a
    device that does not exist, and `FileError` about the model's file for a `ModelError`.
    """
    devices = choices.device or []
    check_devices(devices)
    if twice := [name for name, times in Counter(devices).items() if times > 1]:
        raise UsageError(f"device {twice[0]!r} is named twice; once is enough")
    if not devices:
        names = knobs.devices()
        try:
            check_devices(name for n in names.split(",") if (name := n.strip()))
        except UsageError as error:
            text = f"the knob devices (PENSTOCK_DEVICES) is {names!r}: {error}"
            raise UsageError(text) from None
    prepare = penstock.compile
    began = time.perf_counter_ns()
    try:
        compiled = prepare(
            loaded.content or loaded.model,
            devices=devices or None,
            signature=choices.signature,
            num_threads=choices.threads,
            portable=choices.portable,
            shapes=shapes or None,
            policy=policy,
            cache=not choices.no_cache,
            tune=tune,
            progress=progress,
        )
    except ModelError as error:
        raise FileError(loaded.path, with_remedy(error, assumed or {})) from error
    return compiled, time.perf_counter_ns() - began


def warn_of_settings(output: Output) -> None:
    """Warns of unknown drivers in the knob `isolate`, and of a missing cache directory."""
    from penstock.cli.settings import unknown_drivers, unknown_places
    from penstock.runtime.discovery import manager

    output.warnings(unknown_places())
    output.warnings(unknown_drivers(manager.drivers()))


def check_devices(names: Iterable[str], *, usable: bool = False) -> None:
    """Raises `UsageError` for the first name that no device has, and, if devices must be *usable*,
    `PlacementError` with the reason of the first that is not.

    For a knob with an invalid value it raises `InputError` first: the knob may be the reason why a
    driver did not start.
    """
    from penstock.runtime.discovery import manager, unknown_device

    knobs.check()
    for name in names:
        # Loads the drivers of this name alone, if they have it.
        if manager.by_name(name) is not None:
            continue
        found = manager.infos()
        known = {d.name: d for d in found}
        if name not in known:
            raise UsageError(unknown_device(name, found))
        if usable and not known[name].usable:
            raise PlacementError(f"device {name!r} cannot be used", {name: known[name].reason})


def policy_of(accuracy: str | None, placement: str | None = None) -> Policy | None:
    """The policy with this accuracy class and placement rule; None if neither is given.

    Raises `UsageError` for a word that is no class or no rule.
    """
    given: dict[str, Any] = {}
    for name, value, words in (
        ("accuracy", accuracy, get_args(AccuracyClass)),
        ("placement", placement, get_args(PlacementRule)),
    ):
        if value is not None:
            given[name] = word(f"--{name}", value, words)
    return Policy(**given) if given else None


def word(option: str, given: str, words: Sequence[str]) -> str:
    """*given*, if it is one of *words*. Raises `UsageError` otherwise."""
    if given not in words:
        raise UsageError(f"{option} {given!r} is not one of {', '.join(words)}")
    return given
