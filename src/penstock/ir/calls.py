"""Which subgraph enters which: the order that follows, and the refusal of cycles and of nesting too deep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.errors import CyclicModel, LimitExceeded

MAX_DEPTH: Final = 128
"""How deep subgraphs may be nested."""


def callees_first(calls: Sequence[Sequence[int]]) -> list[int]:
    """The subgraphs in an order in which each stands after all it enters; *calls* has the indexes that each
    one enters.

    Raises `CyclicModel` where one is entered again from within itself, `LimitExceeded` where they are nested more than
    `MAX_DEPTH` deep. Each is looked at once, however often it is entered.
    """
    order: list[int] = []
    # Of each subgraph that is done how deep it enters others. Not recursive: a file chains as many as it holds.
    depths: dict[int, int] = {}
    for root in range(len(calls)):
        if root in depths:
            continue
        stack, path = [(root, iter(calls[root]))], {root}
        while stack:
            node, pending = stack[-1]
            target = next(pending, None)
            if target is None:
                stack.pop()
                path.discard(node)
                depths[node] = depth = 1 + max((depths[t] for t in calls[node]), default=-1)
                if depth > MAX_DEPTH:
                    raise LimitExceeded(
                        f"it enters subgraphs {depth} deep; the limit is {MAX_DEPTH}",
                        where=f"subgraph {node}",
                    )
                order.append(node)
            elif target in path:
                raise CyclicModel(
                    f"subgraph {target} is entered again from within itself",
                    where=f"subgraph {node}",
                )
            elif target not in depths:
                path.add(target)
                stack.append((target, iter(calls[target])))
    return order
