"""The accuracy class that would admit a device, and how to ask for it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING

from penstock.distribution import FALLBACK_DEVICE
from penstock.errors import Refusal, counted
from penstock.hal import ACCURACY_RANK
from penstock.partitioning.placements import asking_for

if TYPE_CHECKING:
    from penstock.partitioning.plan import ExecutionPlan


def strictest(refusals: Iterable[Refusal | None]) -> str:
    """The strictest class in which one of the refusing devices would run the operation.

    Empty if no device is refused for its accuracy.
    """
    classes = (refusal.admits for refusal in refusals if refusal is not None)
    return max(
        filter(ACCURACY_RANK.__contains__, classes), key=ACCURACY_RANK.__getitem__, default=""
    )


def laxest(classes: Iterable[str]) -> str:
    """The class that admits all that each of *classes* admits."""
    return min(classes, key=ACCURACY_RANK.__getitem__)


def refused_for_accuracy(plan: ExecutionPlan, devices: Collection[str]) -> Iterator[str]:
    """For each of *devices* that *plan* refuses operations for their accuracy: how many, and the
    class that admits them.
    """
    for device in devices:
        if device == FALLBACK_DEVICE:
            continue
        own = (p.refusals[device] for p in plan.operations if device in p.refusals)
        if classes := [why.admits for why in own if why.admits]:
            every = counted(len(plan.operations), "operation")
            refused = f"device {device} is refused {len(classes)} of {every} for accuracy"
            yield f"{refused}: {asking_for(laxest(classes))} admits it"
