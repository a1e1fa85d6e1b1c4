"""A layered drawing of an acyclic graph, after Sugiyama, Tagawa and Toda (1981): layers by longest
path, order within a layer by the mean place of neighbours, long edges bent at the layers they pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

from msgspec import Struct

SWEEPS: Final = 6
"""Passes down and up in which layers are put in order; more change little."""


class Layout(Struct, frozen=True):
    """Where nodes are: *places* gives each key its middle (x) and its layer; *routes* gives each
    edge the x at every layer from its source to its target.
    """

    places: Mapping[str, tuple[float, int]]
    routes: tuple[tuple[float, ...], ...]
    width: float
    layers: int


def lay_out(
    widths: Mapping[str, float], edges: Sequence[tuple[str, str]], gap: float, bend: float
) -> Layout:
    """Places nodes of these *widths*, in an order in which edges run forward, *gap* apart; a long
    edge takes *bend* of each layer that it passes.
    """
    layer = _layers(list(widths), edges)
    taken: dict[str, float] = dict(widths)
    chains = _chains(edges, layer, taken, bend)
    before: dict[str, list[str]] = {key: [] for key in taken}
    after: dict[str, list[str]] = {key: [] for key in taken}
    for chain in chains:
        for one, other in pairwise(chain):
            after[one].append(other)
            before[other].append(one)
    rows: list[list[str]] = [[] for _ in range(max(layer.values(), default=0) + 1)]
    for key in taken:
        rows[layer[key]].append(key)
    x = _centred(rows, taken, gap)
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        for row in rows if down else reversed(rows):
            _settle(row, before if down else after, taken, gap, x)
    left = min((x[key] - taken[key] / 2 for key in taken), default=0.0)
    right = max((x[key] + taken[key] / 2 for key in taken), default=0.0)
    return Layout(
        {key: (x[key] - left, layer[key]) for key in widths},
        tuple(tuple(x[key] - left for key in chain) for chain in chains),
        right - left,
        len(rows),
    )


def _layers(keys: Sequence[str], edges: Sequence[tuple[str, str]]) -> dict[str, int]:
    """The longest path to each node; a node without predecessors stands just above what reads it."""
    into: dict[str, list[str]] = {key: [] for key in keys}
    out_of: dict[str, list[str]] = {key: [] for key in keys}
    for source, target in edges:
        into[target].append(source)
        out_of[source].append(target)
    layer: dict[str, int] = {}
    for key in keys:
        layer[key] = max((layer[source] + 1 for source in into[key]), default=0)
    for key in keys:
        if not into[key] and out_of[key]:
            layer[key] = max(0, min(layer[target] for target in out_of[key]) - 1)
    return layer


def _chains(
    edges: Sequence[tuple[str, str]],
    layer: dict[str, int],
    taken: dict[str, float],
    bend: float,
) -> list[list[str]]:
    """Each edge as the nodes it passes, one a layer; those in between are added to *layer* and
    *taken*.
    """
    chains = []
    for number, (source, target) in enumerate(edges):
        chain = [source]
        for at in range(layer[source] + 1, layer[target]):
            key = f"{number}@{at}"
            layer[key], taken[key] = at, bend
            chain.append(key)
        chains.append([*chain, target])
    return chains


def _centred(
    rows: Sequence[Sequence[str]], taken: Mapping[str, float], gap: float
) -> dict[str, float]:
    x: dict[str, float] = {}
    for row in rows:
        at = -(sum(taken[key] for key in row) + gap * (len(row) - 1)) / 2
        for key in row:
            x[key] = at + taken[key] / 2
            at += taken[key] + gap
    return x


def _settle(
    row: list[str],
    neighbours: Mapping[str, Sequence[str]],
    taken: Mapping[str, float],
    gap: float,
    x: dict[str, float],
) -> None:
    """Puts *row* in the order of its neighbours' mean places and each node as near its own as the
    others let it.
    """
    wished = {
        key: sum(x[other] for other in neighbours[key]) / len(neighbours[key])
        if neighbours[key]
        else x[key]
        for key in row
    }
    row.sort(key=lambda key: (wished[key], x[key]))
    at: list[float] = []
    for place, key in enumerate(row):
        least = at[-1] + (taken[row[place - 1]] + taken[key]) / 2 + gap if at else wished[key]
        at.append(max(least, wished[key]))
    # Pushing went to the right only; the row goes back by what it was pushed on average.
    shift = sum(got - wished[key] for key, got in zip(row, at, strict=True)) / max(len(row), 1)
    x.update((key, got - shift) for key, got in zip(row, at, strict=True))
