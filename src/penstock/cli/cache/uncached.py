"""Why nothing of a compiled model is cached."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from penstock.errors import counted

if TYPE_CHECKING:
    from penstock import CompiledModel

OPTIONS: Final = {
    "shapes=": "--shape NAME=N,N,...",
    "the policy asks": "the policy (--accuracy) asks",
}
"""How the command line spells what reasons call by its name in Python."""


def why_nothing_is_cached(
    path: str, compiled: CompiledModel, wanted: Sequence[str] | None
) -> list[str]:
    """A note where no device that runs the model caches: what kept it from those that would, if
    there are any.
    """
    from penstock.compilation.caching import why_not_cached
    from penstock.runtime import manager

    steps = compiled.receipt.steps
    if not steps or any(s.cache.outcome != "off" or s.fallback_from for s in steps):
        return []
    running = ", ".join(dict.fromkeys(step.device for step in steps))
    note = f"{path}: nothing of it is cached, since {running} runs it"
    caching = [device.name for device in manager.choose(wanted) if not why_not_cached(device)]
    if not caching:
        return [f"{note}, and no other device was found that may; see 'penstock devices'"]
    placed = [operation.reasons for operation in compiled.plan.operations]
    return [f"{note}; {name} does not: {most_frequent(placed, name)}" for name in caching]


def most_frequent(placed: Sequence[Mapping[str, str]], device: str) -> str:
    """Of the reasons against *device* the one that most operations have, and how many have it."""
    ((reason, count),) = Counter(reasons.get(device, "") for reasons in placed).most_common(1)
    for argument, option in OPTIONS.items():
        reason = reason.replace(argument, option)
    return f"{reason} ({count} of {counted(len(placed), 'operation')})"
