"""The composition root: `compile` puts the four stages together."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Final

from msgspec import structs

from penstock import hal, knobs
from penstock.arguments import deadline_of
from penstock.compilation.compilation import compile_plan
from penstock.compilation.prepared import Compilation, CompileOptions
from penstock.compilation.step_receipt import Recorder
from penstock.distribution import FALLBACK_DEVICE
from penstock.errors import InputError, PlacementError, RefusalCode, counted
from penstock.execution.compiled import CompiledModel
from penstock.execution.interface import interface_of
from penstock.execution.variant import Variant
from penstock.hal.config import ProgressCallback
from penstock.hal.device import is_isolated, is_placeholder
from penstock.interrupts import interruptible, punctual
from penstock.ir import Model, infer_shapes
from penstock.loaders import Source, load
from penstock.logs import Log
from penstock.partitioning.plan import ExecutionPlan
from penstock.partitioning.policy import Policy
from penstock.runtime.compile_arguments import (
    CompileArguments,
    Reporter,
    Shapes,
    cache_info,
    check_types,
    shapes_by_position,
)
from penstock.runtime.discovery import DeviceInfo, manager
from penstock.runtime.planning import (
    CompileDevices,
    check_rules,
    check_run_memory,
    has_driver_verdicts,
    last_resort,
    may_be_long,
    operations_of,
    plan_model,
    with_fallbacks,
    with_unusable,
)
from penstock.threads import allowed_threads

if TYPE_CHECKING:
    from penstock.cache.info import CacheInfo
    from penstock.compilation.entry import Caching
    from penstock.execution.shadow import Shadow
    from penstock.runtime.isolation import IsolatedCompile
log = Log(__name__)

FILES_GIVEN_BACK: Final = "the cache files were given for the first compile alone"
"""Why shapes that come with a run are not cached if the caller opened the files."""


def compile_model(
    model: Model | Source,
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
) -> CompiledModel:
    """Compiles a model for this machine: loads it if necessary, partitions, compiles.

    *model* is a Model or anything `load` takes. *devices* None uses every usable device. A list of
    names, DeviceInfo or Device objects, in order of preference, places operations on these only. If
    they all fail, the fallback is still the device "reference", unless *policy* forbids it.
    *timeout* is in seconds; drivers receive it as their deadline. *num_threads* None uses what
    cgroup, affinity and OMP_NUM_THREADS allow; a number may be at most four for each core of the
    machine.

    *signature* selects an entry point and its names. *shapes* maps input names, or positions, to
    full shapes, which replace the model's. *cache* True stores compiled steps in the user's cache
    directory (the knob `cache_dir`), a path in that directory, and a `CacheInfo` under the caller's
    own token or in the caller's own files. False or None stores nothing. A fault in a cache only
    causes a compile; the receipt reports hits, and the reason of each miss.

    *tune* measures candidate placements on this machine, uses the best (`plan.tuned`) and stores
    the verdict in the cache directory. A later compile of the same model with the same devices,
    policy, preference, threads and shapes uses the verdict without measuring, with or without
    *tune*. *isolate* True runs the devices' drivers in host processes, False in this process. None
    follows the knob `isolate`, which by default isolates drivers of other distributions than
    Penstock. *extension_attributes* are vendor hints for the driver of the single listed device;
    they are part of the cache key.

    Raises `ModelError` (also a ValueError) for the model. Raises `InputError` for an argument, and
    for an unknown device in the policy's rules. Raises `PlacementError`, with every device's
    reason, if an operation has no device. Raises `DriverError` if a driver failed and no fallback
    could replace it. Also raises `MissedDeadline*`, `Cancelled`, and `NotAvailable` for a feature
    that is not implemented yet.
    """
    policy = Policy() if policy is None else policy
    # Checks all settings at once, instead of when a failure or a cache miss first needs one.
    knobs.check()
    check_types(cancel, num_threads, shapes, policy, progress)
    if not isinstance(tune, bool):
        raise InputError(f"tune must be true or false, not {tune!r}")
    if isolate is not None and not isinstance(isolate, bool):
        raise InputError(f"isolate must be true, false or None, not {isolate!r}")
    if tune and policy.placement != "cost":
        raise InputError(
            f"tune measures placements; policy placement {policy.placement!r} leaves nothing to "
            "choose"
        )
    attributes: tuple[hal.ExtensionAttribute, ...] = ()
    if extension_attributes:
        from penstock.execution.run import checked_attributes

        attributes = checked_attributes(extension_attributes)
        if devices is None or isinstance(devices, str) or len(devices) != 1:
            raise InputError("extension_attributes are for one device, which devices must name")
    info, uncached = cache_info(cache)
    arguments = CompileArguments(
        devices,
        preference,
        priority,
        num_threads,
        signature,
        shapes,
        policy,
        info,
        tune,
        isolate,
        attributes,
        uncached,
    )
    if preference not in hal.PREFERENCES:
        raise InputError(f"preference {preference!r} is not one of {', '.join(hal.PREFERENCES)}")
    if priority not in hal.PRIORITIES:
        raise InputError(f"priority {priority!r} is not one of {', '.join(hal.PRIORITIES)}")
    deadline_ns = deadline_of(timeout, time.monotonic_ns())
    recorder = Recorder()
    with interruptible(deadline_ns, cancel):
        loaded = model if isinstance(model, Model) else _load(model, recorder)
        if signature is not None:
            loaded = loaded.signature_model(signature)
        return _Session(loaded, arguments, deadline_ns, cancel, progress).compile(recorder)


def _load(source: Source, recorder: Recorder) -> Model:
    with recorder.time("load", ""):
        return load(source)


class _Session:
    """One call of `compile_model`, and later compiles of its model for other shapes."""

    def __init__(
        self,
        model: Model,
        arguments: CompileArguments,
        deadline_ns: int | None,
        cancel: hal.CancelToken | None,
        progress: ProgressCallback | None,
    ) -> None:
        self.model, self.arguments = model, arguments
        self.allow = arguments.policy.allow_fallback and knobs.allow_fallback()
        self.chosen = self._choose(deadline_ns)
        if arguments.policy.require or arguments.policy.forbid:
            check_rules(arguments.policy, self.chosen, manager)
        self.interface = interface_of(model, arguments.signature)
        self.files_lent = True
        self.reporter = None if progress is None else Reporter(progress)
        self.shadow = _shadow(arguments.policy)
        self.config = hal.PrepareConfig(
            preference=arguments.preference,
            priority=arguments.priority,
            deadline_ns=deadline_ns,
            accuracy=arguments.policy.accuracy,
            num_threads=allowed_threads(arguments.num_threads),
            attributes=arguments.attributes,
            progress=self.reporter,
            cancel=cancel,
        )

    def _choose(self, deadline_ns: int | None) -> list[hal.Device]:
        wanted, isolate = self.arguments.devices, self.arguments.isolate
        return manager.choose(wanted, isolate, deadline_ns, absent=self.allow)

    def compile(self, recorder: Recorder) -> CompiledModel:
        shapes = shapes_by_position(self.interface, self.arguments.shapes)
        with punctual(operations_of(self.model)):
            base = self._reported(shapes, recorder)
        self.files_lent = False
        # Compiles for later shapes happen inside runs, under the run's deadline and cancel token.
        later = _for_later(self.config)
        interface = interface_of(base.model, self.arguments.signature)
        return CompiledModel(
            interface,
            base,
            lambda full, run: self._later(
                {**shapes, **full},
                structs.replace(later, deadline_ns=run.deadline_ns, cancel=run.cancel),
            ),
            (_recompile, (self.model, self.arguments)),
        )

    def _later(self, shapes: Mapping[int, Sequence[int]], config: hal.PrepareConfig) -> Variant:
        with interruptible(config.deadline_ns, config.cancel), punctual(operations_of(self.model)):
            return self._variant(shapes, config, Recorder())

    def _reported(self, shapes: Mapping[int, Sequence[int]], recorder: Recorder) -> Variant:
        """The variant for *shapes*. An error of the progress callback propagates."""
        try:
            base = self._variant(shapes, self.config, recorder)
        except Exception:
            if self.reporter is not None and self.reporter.error is not None:
                raise self.reporter.error from None
            raise
        if self.reporter is not None and self.reporter.error is not None:
            base.close()
            raise self.reporter.error
        return base

    def _variant(
        self, shapes: Mapping[int, Sequence[int]], config: hal.PrepareConfig, recorder: Recorder
    ) -> Variant:
        policy = self.arguments.policy
        allow = self.allow
        if any(map(is_placeholder, self.chosen)):
            self.chosen = self._choose(config.deadline_ns)
        devices = CompileDevices(self.chosen, manager)
        isolated = self._isolated_compile(config.deadline_ns)
        with recorder.time("partition", ""):
            model = infer_shapes(self.model, shapes)
            check_run_memory(model)
            with isolated.placing() if isolated else nullcontext():
                plan = self._placed(model, shapes, devices, config)
        left: list[str] = []
        if may_be_long(plan, config):
            from penstock.runtime.apart import demanding, set_apart

            reasons = demanding(plan, self.chosen, config)
            isolate, until = self.arguments.isolate, config.deadline_ns
            chosen, apart, left = set_apart(self.chosen, reasons, isolate, manager, until)
            if apart:
                plan = structs.replace(plan, apart=tuple(apart.items()))
                devices = CompileDevices(chosen, manager, apart=True)
                isolated = isolated or self._isolated_compile(until, chosen)
        if isolated and not allow:
            isolated.check(plan)
        amounts = counted(len(plan.operations), "operation"), counted(len(plan.steps), "step")
        log.info("compiling %s in %s", *amounts)
        caching = self._caching(shapes, plan)
        meanwhile = None
        # A background compile could outlive the call, and the caller's descriptors with it.
        if policy.while_compiling == "reference" and not (caching and caching.in_given_files):
            meanwhile = manager.by_name(FALLBACK_DEVICE)
        uncached = self.arguments.uncached if self.arguments.cache is None else FILES_GIVEN_BACK
        means = CompileOptions(allow, caching, meanwhile, recorder, uncached=uncached)
        with isolated.compiling() if isolated else nullcontext(), _ending(plan, devices):
            compilation = _logged(plan, compile_plan(plan, devices, config, means))
        if plan.apart:
            from penstock.runtime.apart import end_with_their_calls

            end_with_their_calls(compilation, devices)
        notes = (
            *filter(None, [self._not_tuned(plan)]),
            *self._unasked(plan),
            *(f"{device}: {doubt}" for device, doubt in plan.doubts),
            *(f"device {d} runs in a process of its own: {why}" for d, why in plan.apart),
            *left,
            *self._not_named(plan),
        )
        if notes:
            receipt = structs.replace(compilation.receipt, notes=notes)
            compilation = structs.replace(compilation, receipt=receipt)
        absence = None
        if isolated:
            compilation, absence = isolated.with_notes(compilation, devices)
        if self.shadow is None:
            variant = Variant(compilation, devices, _for_later(config), allow)
        else:
            from penstock.runtime.shadow import ShadowedVariant

            variant = ShadowedVariant(compilation, devices, _for_later(config), allow, self.shadow)
        variant.absence = absence
        return variant

    def _isolated_compile(
        self, deadline_ns: int | None, chosen: Sequence[hal.Device] | None = None
    ) -> IsolatedCompile | None:
        """The `IsolatedCompile`; None if all devices (*chosen*, or the session's) are in this
        process.
        """
        devices = self.chosen if chosen is None else chosen
        if not any(is_isolated(device) for device in devices):
            return None
        from penstock.ir.transforms import pooled
        from penstock.runtime.isolation import IsolatedCompile

        # The pools of this model record the copies for other processes.
        self.model = pooled(self.model)
        return IsolatedCompile(self.model, deadline_ns)

    def _placed(
        self,
        model: Model,
        shapes: Mapping[int, Sequence[int]],
        devices: Mapping[str, hal.Device],
        config: hal.PrepareConfig,
    ) -> ExecutionPlan:
        """The plan on the chosen devices, or with the fallback for dead or blocklisted ones."""
        try:
            try:
                return self._plan(model, shapes, self.chosen, devices, config)
            except PlacementError as error:
                last = self._instead_of_the_dead(error)
                if last is not None:
                    return self._plan(model, shapes, [*self.chosen, last], devices, config)
                last = self._instead_of_the_wrong()
                if last is None:
                    raise
                try:
                    plan = self._plan(model, shapes, [*self.chosen, last], devices, config)
                except PlacementError:
                    raise error from None
                return with_fallbacks(plan, self.chosen, self.arguments.policy)
        except PlacementError as error:
            from penstock.execution.availability import with_crash_details

            told = with_crash_details(error)
            if self.arguments.policy.require:
                policy, isolate = self.arguments.policy, self.arguments.isolate
                told = with_unusable(told, policy, manager, isolate)
            raise told from error.__cause__

    def _plan(
        self,
        model: Model,
        shapes: Mapping[int, Sequence[int]],
        chosen: Sequence[hal.Device],
        devices: Mapping[str, hal.Device],
        config: hal.PrepareConfig,
    ) -> ExecutionPlan:
        arguments = self.arguments
        return plan_model(
            self.model,
            model,
            shapes,
            chosen,
            devices,
            arguments.policy,
            config,
            arguments.cache,
            measure=arguments.tune and self.files_lent,
        )

    def _instead_of_the_dead(self, error: PlacementError) -> hal.Device | None:
        """The fallback device if *error* comes from a dead process; None if there is none."""
        from penstock.execution.availability import lists_unavailable

        chosen = any(device.name == FALLBACK_DEVICE for device in self.chosen)
        if not self.allow or not lists_unavailable(error.refusals):
            return None
        if not chosen:
            return manager.by_name(FALLBACK_DEVICE)
        return last_resort(manager)

    def _instead_of_the_wrong(self) -> hal.Device | None:
        """The fallback device for blocklisted operations; None if not allowed or not needed."""
        chosen = any(device.name == FALLBACK_DEVICE for device in self.chosen)
        if not self.allow or chosen or not has_driver_verdicts():
            return None
        from penstock.runtime.blocklist import substitute_for

        last = manager.by_name(FALLBACK_DEVICE)
        return substitute_for(last, self.chosen, self.arguments.policy.accuracy)

    def _not_named(self, plan: ExecutionPlan) -> list[str]:
        """Notes on steps on devices that the caller did not name, with the first reason."""
        if any(device.name == FALLBACK_DEVICE for device in self.chosen):
            return []
        there = [p for p in plan.operations if p.device == FALLBACK_DEVICE]
        if not there:
            return []
        found = (r for r in there[0].refusals.values() if r.code is RefusalCode.WRONG_RESULTS)
        notes = [
            f"{counted(len(there), 'operation')} on {FALLBACK_DEVICE}, which was not named: "
            f"{reason}"
            for reason in itertools.islice(found, 1)
        ]
        for note in notes:
            log.warning("%s", note)
        return notes

    def _unasked(self, plan: ExecutionPlan) -> list[str]:
        """Notes on drivers that were unavailable, and on devices that did not answer."""
        absent = (
            {} if self.arguments.devices is not None else manager.absent(self.arguments.isolate)
        )
        notes = [f"driver {name} is unavailable: {reason}" for name, reason in absent.items()]
        if any(
            r.code is RefusalCode.NO_ANSWER
            for p in plan.operations[:1]
            for r in p.refusals.values()
        ):
            from penstock.execution.availability import unanswered

            for name, reason in unanswered(plan).items():
                notes.append(f"device {name} runs nothing: {reason}")
                log.warning("%s", notes[-1])
        return notes

    def _not_tuned(self, plan: ExecutionPlan) -> str:
        """Why the placement was not measured although asked for; empty if it was."""
        if not self.arguments.tune:
            return ""
        tuned = plan.tuned
        if tuned is not None:
            if tuned.outcome == "unmeasured":
                return f"tune: nothing was measured: {tuned.reason}"
            return ""
        if self.files_lent or len(self.chosen) < 2:
            return ""
        return "tune: nothing was measured for these shapes, which came with a run: give shapes"

    def _caching(self, shapes: Mapping[int, Sequence[int]], plan: ExecutionPlan) -> Caching | None:
        info = self.arguments.cache
        # The descriptors belong to the caller, who may close them once the call has returned.
        if info is None or (info.place is None and not self.files_lent):
            return None
        from penstock.compilation.entry import Caching

        return Caching(info, self.model, shapes, plan)


def _ending(plan: ExecutionPlan, devices: Mapping[str, hal.Device]) -> AbstractContextManager[None]:
    if not plan.apart:
        return nullcontext()
    from penstock.runtime.apart import abandoned_late

    return abandoned_late(devices, dict(plan.apart))


def _shadow(policy: Policy) -> Shadow | None:
    if not policy.shadow:
        return None
    from penstock.execution.shadow import Shadow

    return Shadow(policy.shadow)


def _recompile(model: Model, arguments: CompileArguments) -> CompiledModel:
    return _Session(model, arguments, None, None, None).compile(Recorder())


def _for_later(config: hal.PrepareConfig) -> hal.PrepareConfig:
    """*config* without the values of one call: deadline, progress, cancellation."""
    return structs.replace(config, deadline_ns=None, progress=None, cancel=None)


def _logged(plan: ExecutionPlan, compilation: Compilation) -> Compilation:
    receipt = compilation.receipt
    log.info(
        "compiled %d operations in %d steps in %.3f s, %d driver compiles: %s",
        len(plan.operations),
        len(plan.steps),
        receipt.wall_ns / 1e9,
        receipt.compiles,
        "; ".join(f"{step.device}, cache {step.cache}" for step in receipt.steps),
    )
    return compilation
