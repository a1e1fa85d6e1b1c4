"""What a compile would find in the cache: partitions as `compile_model` does, and prepares nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from penstock.cache.cache import Cache, Explanation
from penstock.compilation.caching import why_not_cached
from penstock.execution.interface import interface_of
from penstock.hal import Device, Preference, PrepareConfig, Priority
from penstock.ir import Model, infer_shapes
from penstock.loaders.registry import Source, load
from penstock.partitioning.placement import place
from penstock.partitioning.plan import ExecutionPlan, ExecutionStep
from penstock.partitioning.policy import Policy
from penstock.runtime.discovery import DeviceInfo, manager
from penstock.runtime.session import shapes_by_position
from penstock.threads import allowed_threads


@dataclass(frozen=True, slots=True)
class ExplainedStep:
    """One *step* of a plan, and what the cache has for it; where its device *caches* nothing, why."""

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
    shapes: Mapping[str, Sequence[int]] | None = None,
    policy: Policy | None = None,
) -> tuple[ExecutionPlan, list[ExplainedStep]]:
    """The plan that `compile_model` would make with these arguments, and for each of its steps whether
    *cache* has its entry under the derived token, or which ingredient of the key has changed.

    *model* is a Model or anything `load` takes; *cache* a `Cache`, a directory, or None for the user's. The others are
    `compile_model`'s. No driver compiles anything, and nothing is written. Raises `ModelError`, `InputError`,
    `UnknownSignature`, `PlacementError`, and `Unreadable` for a directory that cannot be read.
    """
    cache = cache if isinstance(cache, Cache) else Cache(cache)
    model = model if isinstance(model, Model) else load(model)
    policy = Policy() if policy is None else policy
    if signature is not None:
        model = model.signature_model(signature)
    positions = shapes_by_position(interface_of(model, signature), shapes)
    chosen = manager.choose(devices)
    by_name = {device.name: device for device in chosen}
    plan = place(infer_shapes(model, positions), chosen, policy, preference)
    config = PrepareConfig(
        preference=preference,
        priority=priority,
        accuracy=policy.accuracy,
        num_threads=allowed_threads(num_threads),
    )

    def explained(step: ExecutionStep) -> ExplainedStep:
        device = by_name[step.device]
        explanation = cache.explain(
            model,
            device,
            config,
            step=step.model,
            operations=step.operations,
            shapes=positions,
        )
        if reason := why_not_cached(device):
            explanation = replace(explanation, found=False, reason=reason, nearest=None, changed=())
        return ExplainedStep(step, explanation, not reason)

    return plan, [explained(step) for step in plan.steps]
