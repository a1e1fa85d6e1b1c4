"""How much of a plan is on the reference device, which is slow, and what would mend it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from penstock.distribution import FALLBACK_DEVICE
from penstock.errors import RefusalCode
from penstock.ir import Model
from penstock.ir.types import is_static
from penstock.ir.validate import subgraph_references
from penstock.partitioning.placements import MOST_REMEDIES, Kind, Remedy
from penstock.partitioning.work import callees_first, products_of, share_of

if TYPE_CHECKING:
    from penstock.partitioning.plan import ExecutionPlan

ALARMING: Final = 0.5
"""The share of a plan's multiply-accumulates that may be on the reference device in silence."""


def products_by_operation(model: Model) -> list[float]:
    """The multiply-accumulates of each entry operation, with those of subgraphs that it enters."""
    sums: dict[int, float] = {}
    found: list[float] = []
    for index in callees_first(model):
        graph = model.subgraphs[index]
        found = [
            products_of(graph, operation)
            + share_of(operation) * sum(sums[t] for t in subgraph_references(operation))
            for operation in graph.operations
        ]
        sums[index] = sum(found)
    return found


def products_on_reference(plan: ExecutionPlan) -> tuple[dict[int, float], float]:
    """The multiply-accumulates of each operation on the reference device, and those of the plan.

    Operations that were measured to be no slower there do not count. Nor do those that a device may
    take once the shapes of inputs are known: each set of shapes has a plan of its own.
    """
    slow: dict[int, float] = {}
    every = products_by_operation(plan.model)
    total = 0.0
    excused = {RefusalCode.MEASURED}
    if not all(is_static(operand.shape) for operand in plan.model.inputs):
        excused.add(RefusalCode.SHAPE_UNKNOWN)
    for step in plan.steps:
        if step.control is not None:
            parts = [products_on_reference(branch) for branch in step.control.branches]
            (index,) = step.operations
            times = share_of(plan.model.operations[index])
            slow[index] = times * sum(sum(found.values()) for found, _ in parts)
            total += times * sum(whole for _, whole in parts)
            continue
        for index in step.operations:
            total += every[index]
            placement = plan.operations[index]
            codes = {why.code for why in placement.refusals.values()}
            if placement.device == FALLBACK_DEVICE and not codes & excused:
                slow[index] = every[index]
    return {index: macs for index, macs in slow.items() if macs > 0}, total


def types_of(model: Model, slow: Mapping[int, float]) -> tuple[str, ...]:
    """The operation types of *slow*, those with most multiply-accumulates first."""
    sums: dict[str, float] = {}
    for index, macs in slow.items():
        key = model.operations[index].key
        sums[key] = sums.get(key, 0.0) + macs
    return tuple(sorted(sums, key=lambda key: -sums[key]))


class Claim(Struct, frozen=True):
    """*device* would run *macs* multiply-accumulates: a `Remedy` of one device."""

    kind: Kind
    device: str
    macs: float
    fix: str = ""
    accuracy: str = ""


KINDS: Final[dict[RefusalCode, Kind]] = {
    RefusalCode.POLICY: "policy",
    RefusalCode.LIMIT: "policy",
    RefusalCode.PREDICTED: "tune",
    RefusalCode.DECLARED: "tune",
    RefusalCode.UNDECLARED: "tune",
    RefusalCode.FAILED: "failure",
    RefusalCode.NO_ANSWER: "failure",
    RefusalCode.WRONG_RESULTS: "failure",
}
"""The reasons that say that a device might run the operation, and what is in the way."""

TUNE: Final = "tune=True (bench --tune) measures whether that is quicker"


def claims_of(plan: ExecutionPlan, slow: Mapping[int, float]) -> Iterator[Claim]:
    """What the devices that the plan considered would take."""
    from penstock.partitioning.remedies import laxest

    for device in plan.devices:
        if device == FALLBACK_DEVICE:
            continue
        refusals = {i: why for i in slow if (why := plan.operations[i].refusals.get(device))}
        if classes := {i: why.admits for i, why in refusals.items() if why.admits}:
            macs = sum(slow[i] for i in classes)
            yield Claim("accuracy", device, macs, accuracy=laxest(classes.values()))
        sums: dict[tuple[Kind, str], float] = {}
        for index, why in refusals.items():
            if (kind := KINDS.get(why.code)) is not None:
                fix = TUNE if kind == "tune" else str(why)
                sums[kind, fix] = sums.get((kind, fix), 0.0) + slow[index]
        for (kind, fix), macs in sums.items():
            yield Claim(kind, device, macs, fix)


def remedies_of(claims: Iterable[Claim], total: float) -> tuple[Remedy, ...]:
    """The remedies that move most of *total*, one for each thing to do."""
    grouped: dict[tuple[Kind, str, str], list[Claim]] = {}
    for claim in claims:
        grouped.setdefault((claim.kind, claim.fix, claim.accuracy), []).append(claim)
    found = []
    for (kind, fix, accuracy), group in grouped.items():
        share = max(claim.macs for claim in group) / total
        found.append(Remedy(kind, tuple(claim.device for claim in group), share, fix, accuracy))
    return tuple(sorted(found, key=lambda remedy: -remedy.share)[:MOST_REMEDIES])
