"""`compile_model`: checks the caller's arguments, loads the model, compiles it in a session."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock import hal, knobs
from penstock.arguments import deadline_of
from penstock.compilation.step_receipt import Recorder
from penstock.errors import InputError
from penstock.execution.compiled import CompiledModel
from penstock.hal.config import ProgressCallback
from penstock.interrupts import interruptible
from penstock.ir import ConstantPool, Model
from penstock.loaders import Source, decode, read
from penstock.partitioning.policy import Policy
from penstock.runtime.compile_arguments import CompileArguments, Shapes, cache_info, check_types
from penstock.runtime.discovery import DeviceInfo
from penstock.runtime.session import Kept, Session, kept_plan

if TYPE_CHECKING:
    from penstock.cache.info import CacheInfo


class ModelFile:
    """The content of *source*, which is anything `load` takes or a pool with it, read once: a
    program looks at the model first, and compiles it afterwards.

    The model is that of a kept plan, if there is one, and decoded otherwise. Raises as `load`.
    """

    def __init__(self, source: Source | ConstantPool) -> None:
        self._content = source if isinstance(source, ConstantPool) else read(source)
        self._decoded: Model | None = None
        self._kept: tuple[CompileArguments, Kept] | None = None

    def find(
        self, arguments: CompileArguments, deadline_ns: int | None = None
    ) -> tuple[Model, Kept]:
        """The model, and what `kept_plan` returns, for a compile with *arguments*."""
        kept = self.kept(arguments, deadline_ns)
        if kept.restored is not None:
            return kept.restored.model, kept
        if self._decoded is None:
            self._decoded = decode(self._content)
        return self._decoded, kept

    def kept(self, arguments: CompileArguments, deadline_ns: int | None = None) -> Kept:
        """What `kept_plan` returns for *arguments*; looked up once. Nothing is decoded."""
        if self._kept is None or self._kept[0] != arguments:
            self._kept = arguments, kept_plan(self._content, arguments, deadline_ns)
        return self._kept[1]


def compile_model(
    model: Model | ModelFile | Source,
    devices: Sequence[str | DeviceInfo | hal.Device] | None = None,
    preference: hal.Preference = "fast_single_answer",
    priority: hal.Priority = "medium",
    timeout: float | None = None,
    cancel: hal.CancelToken | None = None,
    num_threads: int | None = None,
    signature: str | None = None,
    shapes: Shapes | None = None,
    cache: bool | str | os.PathLike[str] | CacheInfo | None = True,
    policy: Policy | None = None,
    isolate: bool | None = None,
    tune: bool = False,
    progress: ProgressCallback | None = None,
    extension_attributes: Sequence[hal.ExtensionAttribute] = (),
    portable: str | None = None,
) -> CompiledModel:
    """Compiles a model for this machine: loads it if necessary, partitions, compiles.

    *model* is a Model, a `ModelFile`, or anything `load` takes. *devices* None uses every usable
    device. A list of names, DeviceInfo or Device objects, in order of preference, places operations
    on these only. If they all fail, the fallback is still the device "reference", unless *policy*
    forbids it. *timeout* is in seconds; drivers receive it as their deadline. *num_threads* None
    uses what cgroup, affinity and OMP_NUM_THREADS allow; a number may be at most four for each core
    of the machine.

    *signature* selects an entry point and its names. *shapes* maps input names, or positions, to
    full shapes, which replace the model's. *cache* True stores compiled steps in the user's cache
    directory (the knob `cache_dir`), a path in that directory, and a `CacheInfo` under the caller's
    own token or in the caller's own files. False or None stores nothing. A fault in a cache only
    causes a compile; the receipt reports hits, and the reason of each miss.

    *tune* measures candidate placements on this machine, uses the best (`plan.tuned`) and stores
    the verdict in the cache directory. A later compile of the same model with the same devices,
    policy, preference, threads and shapes uses the verdict without measuring, with or without
    *tune*. An unknown batch counts as 1; the first run with other shapes measures them, unless it
    has a timeout. *isolate* True runs the devices' drivers in host processes, False in this
    process. None follows the knob `isolate`, which by default isolates drivers of other
    distributions than Penstock. *extension_attributes* are vendor hints for the driver of the
    single listed device; they are part of the cache key.

    *portable* names a processor baseline ("x86-64-v3", "armv8.2-a+dotprod") that devices with such
    baselines compile for, instead of for this processor: the cache entry is then of use on every
    machine with the baseline, and one machine can fill the cache of another. If this processor
    lacks the baseline, the entry is written and the steps run on the fallback device.

    Raises `ModelError` (also a ValueError) for the model. Raises `InputError` for an argument, and
    for an unknown device in the policy's rules. Raises `PlacementError`, with every device's
    reason, if an operation has no device. Raises `DriverError` if a driver failed and no fallback
    could replace it. Also raises `MissedDeadline*`, `Cancelled`, and `NotAvailable` for a feature
    that is not implemented yet.
    """
    policy = Policy() if policy is None else policy
    # Checks all settings at once, instead of when a failure or a cache miss first needs one.
    knobs.check()
    check_types(cancel, num_threads, shapes, policy, progress, tune, isolate)
    if tune and policy.placement != "cost":
        rule = f"policy placement {policy.placement!r}"
        raise InputError(f"tune measures placements; {rule} leaves nothing to choose")
    attributes: tuple[hal.ExtensionAttribute, ...] = ()
    if extension_attributes:
        from penstock.execution.run import checked_attributes

        attributes = checked_attributes(extension_attributes)
        if devices is None or isinstance(devices, str) or len(devices) != 1:
            raise InputError("extension_attributes are for one device, which devices must name")
    info, uncached = cache_info(cache)
    if preference not in hal.PREFERENCES:
        raise InputError(f"preference {preference!r} is not one of {', '.join(hal.PREFERENCES)}")
    if priority not in hal.PRIORITIES:
        raise InputError(f"priority {priority!r} is not one of {', '.join(hal.PRIORITIES)}")
    variants = None
    if policy.shadow:
        from penstock.runtime.shadow import shadowed

        variants = shadowed
    wanted = devices, preference, priority, num_threads, signature, shapes, policy
    arguments = CompileArguments(
        *wanted, info, tune, isolate, attributes, uncached, variants, portable
    )
    deadline_ns = deadline_of(timeout, time.monotonic_ns())
    recorder = Recorder()
    with interruptible(deadline_ns, cancel):
        kept = None
        if isinstance(model, Model):
            loaded = model
            if model.file is not None:
                with recorder.time("cache", "load the plan"):
                    kept = kept_plan(model.file, arguments, deadline_ns)
        else:
            with recorder.time("load", ""):
                file = model if isinstance(model, ModelFile) else ModelFile(model)
                loaded, kept = file.find(arguments, deadline_ns)
        if kept is not None and kept.restored is not None:
            loaded = kept.restored.model
        elif signature is not None:
            loaded = loaded.signature_model(signature)
        return Session(loaded, arguments, deadline_ns, cancel, progress, kept).compile(recorder)


# Python names the function so where it refuses an argument, and pickles it so.
compile_model.__module__, compile_model.__qualname__ = "penstock", "compile"
