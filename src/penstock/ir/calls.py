"""Which subgraph enters which: the order that follows, and the refusal of cycles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.errors import CyclicModel

MAX_DEPTH: Final = 32
"""How deep subgraphs may be nested."""


def callees_first(calls: Sequence[Sequence[int]]) -> list[int]:
    """The subgraphs in an order in which each stands after all it enters; *calls* has the indexes that each
    one enters. Raises `CyclicModel` where one is entered again from within itself. Not recursive: a
    file may chain as many subgraphs as it holds.
    """
    order: list[int] = []
    done: set[int] = set()
    for root in range(len(calls)):
        if root in done:
            continue
        stack, path = [(root, iter(calls[root]))], {root}
        while stack:
            node, pending = stack[-1]
            target = next(pending, None)
            if target is None:
                stack.pop()
                path.discard(node)
                done.add(node)
                order.append(node)
            elif target in path:
                raise CyclicModel(
                    f"subgraph {target} is entered again from within itself",
                    where=f"subgraph {node}",
                )
            elif target not in done:
                path.add(target)
                stack.append((target, iter(calls[target])))
    return order
