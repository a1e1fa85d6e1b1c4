"""How the nodes that a delegate takes are cut into as few subsets as dependencies allow."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set as AbstractSet

from msgspec import Struct


class Subset(Struct, frozen=True):
    """Nodes that run together, all for the delegate or none, in an order in which they can run."""

    nodes: tuple[int, ...]
    delegated: bool


def cut_into_subsets(
    plan: Sequence[int],
    wanted: AbstractSet[int],
    depends: Mapping[int, Collection[int]],
    *,
    cluster: bool = True,
    fuse: bool = True,
) -> list[Subset]:
    """*plan* as subsets, in the order in which they run.

    *depends* has for each node those whose results it needs, which stand before it in *plan*. A
    subset takes every node of its kind that can run then, so that the kinds alternate; of the two
    kinds that may come first, the one that makes fewer subsets does, else that of the first node
    that can run (TFLite's `PartitionGraphIntoIndependentNodeSubsets`). Without *cluster* nodes stay
    in the order of the plan; without *fuse* each wanted node is a subset of its own.
    """
    if not cluster:
        found = _consecutive(plan, wanted)
    else:
        # Nodes of the other kind that are ready too are what makes a difference.
        first = next((n in wanted for n in plan), False)
        found = _alternating(plan, wanted, depends, first)
        if any((n in wanted) is not first and not depends[n] for n in plan):
            other = _alternating(plan, wanted, depends, not first)
            found = min(found, other, key=len)
    if fuse:
        return found
    return [
        one
        for subset in found
        for one in ([Subset((n,), True) for n in subset.nodes] if subset.delegated else [subset])
    ]


def _consecutive(plan: Sequence[int], wanted: AbstractSet[int]) -> list[Subset]:
    found: list[Subset] = []
    for node in plan:
        delegated = node in wanted
        if found and found[-1].delegated is delegated:
            found[-1] = Subset((*found[-1].nodes, node), delegated)
        else:
            found.append(Subset((node,), delegated))
    return found


def _alternating(
    plan: Sequence[int],
    wanted: AbstractSet[int],
    depends: Mapping[int, Collection[int]],
    delegated: bool,
) -> list[Subset]:
    found: list[Subset] = []
    done: set[int] = set()
    left = list(plan)
    while left:
        now, later = [], []
        for node in left:
            if (node in wanted) is delegated and done.issuperset(depends[node]):
                done.add(node)
                now.append(node)
            else:
                later.append(node)
        if now:
            found.append(Subset(tuple(now), delegated))
        left, delegated = later, not delegated
    return found
