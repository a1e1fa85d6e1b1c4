"""Reports what a compile would find in the cache. Nothing is prepared."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from penstock.cache.cache import Cache, Explanation
from penstock.cache.info import CacheInfo
from penstock.compilation.calls import config_of
from penstock.compilation.entry import why_not_cached
from penstock.compilation.step_receipt import CacheOutcome
from penstock.execution.interface import interface_of
from penstock.hal import Device, Preference, PrepareConfig, Priority
from penstock.ir import Model, infer_shapes
from penstock.loaders import Source, load, read
from penstock.partitioning.plan import ExecutionPlan, ExecutionStep
from penstock.partitioning.policy import Policy
from penstock.runtime.compile_arguments import (
    CompileArguments,
    Occasion,
    Shapes,
    portable_options,
    shapes_by_position,
)
from penstock.runtime.discovery import DeviceInfo, manager
from penstock.runtime.keeping import kept_plan
from penstock.runtime.planning import check_rules, plan_model
from penstock.threads import allowed_threads

_Shapes: TypeAlias = "Mapping[int, Sequence[int]]"


def explain_plan(
    model: Model | Source,
    cache: Cache | str | os.PathLike[str] | None = None,
    devices: Sequence[str | DeviceInfo | Device] | None = None,
    *,
    preference: Preference = "fast_single_answer",
    priority: Priority = "medium",
    num_threads: int | None = None,
    signature: str | None = None,
    shapes: Shapes | None = None,
    policy: Policy | None = None,
    portable: str | None = None,
) -> CacheOutcome:
    """What a compile of *model* with these arguments would find of its plan in *cache*.

    It is a hit, or a miss whose reason names what differs from the nearest kept plan of its file,
    or off if the plan of such a compile is not kept. The arguments are those of `explain_model`;
    *shapes* must be named as the compile names them. Nothing is compiled or written, but drivers of
    a kept plan's devices are loaded.

    Raises `ModelError` for a file that cannot be a model.
    """
    own = cache if isinstance(cache, Cache) else Cache(cache)
    arguments = CompileArguments(
        devices,
        preference,
        priority,
        num_threads,
        signature,
        shapes,
        Policy() if policy is None else policy,
        CacheInfo(own.directory),
        portable=portable,
    )
    file = model.file if isinstance(model, Model) else read(model)
    if file is None:
        return CacheOutcome("off", "the model is not the whole content of a file")
    return kept_plan(file, arguments, manager, None)[-1]


@dataclass(frozen=True, slots=True)
class ExplainedStep:
    """One *step* of a plan, its cache entry, and whether its device *caches*."""

    step: ExecutionStep
    explanation: Explanation
    caches: bool


def explain_model(
    model: Model | Source,
    cache: Cache | str | os.PathLike[str] | None = None,
    devices: Sequence[str | DeviceInfo | Device] | None = None,
    *,
    preference: Preference = "fast_single_answer",
    priority: Priority = "medium",
    num_threads: int | None = None,
    signature: str | None = None,
    shapes: Shapes | None = None,
    policy: Policy | None = None,
    portable: str | None = None,
) -> tuple[ExecutionPlan, list[ExplainedStep]]:
    """The plan that `compile_model` would make with these arguments, and each step's cache entry.

    For each step it reports whether *cache* has the entry of the derived token, or which ingredient
    of the key has changed. *model* is a Model or anything `load` takes. *cache* is a `Cache`, a
    directory, or None for the user's directory. The other arguments are `compile_model`'s. No
    driver compiles anything, and nothing is written.

    Raises `ModelError`, `InputError`, `UnknownSignature`, `PlacementError`, and `Unreadable` for a
    directory that cannot be read.
    """
    cache = cache if isinstance(cache, Cache) else Cache(cache)
    model = model if isinstance(model, Model) else load(model)
    policy = Policy() if policy is None else policy
    if signature is not None:
        model = model.signature_model(signature)
    positions = shapes_by_position(interface_of(model, signature), shapes)
    chosen = manager.choose(devices)
    check_rules(policy, chosen, manager)
    by_name = {device.name: device for device in chosen}
    threads = allowed_threads(num_threads)
    limits: dict[str, Any] = {"accuracy": policy.accuracy, "num_threads": threads}
    limits["options"] = portable_options(portable, chosen)
    config = PrepareConfig(preference=preference, priority=priority, **limits)
    given = infer_shapes(model, positions), positions, chosen, by_name
    plan = plan_model(Occasion(model, *given, policy, config, str(cache.directory)))

    def explained(step: ExecutionStep, whole: Model, given: _Shapes) -> Iterator[ExplainedStep]:
        """Explains *step* of a plan of *whole*; for control flow, the steps of its branches."""
        if step.control is not None:
            for branch in step.control.branches:
                for inner in branch.steps:
                    yield from explained(inner, branch.model, {})
            return
        device = by_name[step.device]
        parts: dict[str, Any] = {"step": step.model, "operations": step.operations, "shapes": given}
        explanation = cache.explain(whole, device, config_of(step, config), **parts)
        if reason := why_not_cached(device):
            explanation = replace(explanation, found=False, reason=reason, nearest=None, changed=())
        yield ExplainedStep(step, explanation, not reason)

    return plan, [found for step in plan.steps for found in explained(step, model, positions)]
