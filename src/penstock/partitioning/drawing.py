"""Drawings of a plan: the operations as a Graphviz digraph and as SVG, coloured by device."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape
from itertools import pairwise
from typing import Final

from msgspec import Struct

COLOURS: Final = (
    "#a6cee3", "#fdbf6f", "#b2df8a", "#fb9a99", "#cab2d6", "#ffff99",
    "#7fcdbb", "#e5c494", "#f4b6d2", "#b3b3b3",
)  # fmt: skip
"""Colours of devices, in the plan's order, light enough for black text. Reused after the last."""
PLAIN: Final = "#ffffff"
"""Colour of inputs, outputs, and operations of no step."""


class Node(Struct, frozen=True):
    """An operation, input or output. *step* is None outside steps; *detail* is the tooltip."""

    key: str
    label: str
    detail: str
    colour: str
    step: int | None = None
    is_operation: bool = True


class Edge(Struct, frozen=True):
    """A value from node to node; *label* describes it if it crosses from step to step."""

    source: str
    target: str
    label: str
    crosses: bool


class Graph(Struct, frozen=True):
    """Nodes and edges; *steps* and *devices* are pairs of name and colour, in order."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    steps: tuple[tuple[str, str], ...]
    devices: tuple[tuple[str, str], ...]


SWEEPS: Final = 6
"""Sweeps down and up that order the layers; further sweeps change little."""


class Layout(Struct, frozen=True):
    """*places* has each key's middle x and layer, *routes* each edge's x at every layer."""

    places: Mapping[str, tuple[float, int]]
    routes: tuple[tuple[float, ...], ...]
    width: float
    layers: int


def lay_out(
    widths: Mapping[str, float], edges: Sequence[tuple[str, str]], gap: float, bend: float
) -> Layout:
    """Places nodes of *widths*, *gap* apart. An edge that passes a layer is *bend* wide there."""
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
    """The length of the longest path to each node; sources are one layer above their readers."""
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
    edges: Sequence[tuple[str, str]], layer: dict[str, int], taken: dict[str, float], bend: float
) -> list[list[str]]:
    """Each edge as the nodes it passes, one a layer; new ones are put into *layer* and *taken*."""
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
    """Sorts *row* by its neighbours' mean positions, and moves each node close to them."""
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
    # Nodes were pushed only to the right, so the row is moved back by the average push.
    shift = sum(got - wished[key] for key, got in zip(row, at, strict=True)) / max(len(row), 1)
    x.update((key, got - shift) for key, got in zip(row, at, strict=True))


def to_dot(graph: Graph) -> str:
    """*graph* as a Graphviz digraph."""
    lines = ["digraph plan {", "  rankdir=TB;", '  node [shape=box, style="filled,rounded"];']
    lines += [_dot_node(node, "  ") for node in graph.nodes if node.step is None]
    for index, (title, colour) in enumerate(graph.steps):
        lines += [
            f"  subgraph cluster_step{index} {{",
            f"    label={_quote(title)};",
            f"    color={_quote(colour)};",
            *(_dot_node(node, "    ") for node in graph.nodes if node.step == index),
            "  }",
        ]
    for edge in graph.edges:
        label = f" [label={_quote(edge.label)}]" if edge.crosses else ""
        lines.append(f"  {edge.source} -> {edge.target}{label};")
    return "\n".join([*lines, "}"]) + "\n"


def _dot_node(node: Node, indent: str) -> str:
    shape = "" if node.is_operation else "shape=ellipse, "
    text = f"label={_quote(node.label)}, tooltip={_quote(node.detail)}"
    return f"{indent}{node.key} [{shape}{text}, fillcolor={_quote(node.colour)}];"


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


MARGIN: Final = 16
ROW: Final = 52
BOX: Final = 24
GAP: Final = 14.0
BEND: Final = 6.0
CHARACTER: Final = 6.7
"""Width of a character of the monospaced font, in pixels."""
LONGEST: Final = 40
LINE: Final = 18
UNSPEAKABLE: Final = re.compile("[^\t\n\r\\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def to_svg(graph: Graph, heading: str) -> str:
    """*graph* as an SVG picture below *heading*."""
    labels = {
        node.key: node.label if len(node.label) <= LONGEST else f"{node.label[: LONGEST - 3]}..."
        for node in graph.nodes
    }
    widths = {key: len(label) * CHARACTER + 16 for key, label in labels.items()}
    layout = lay_out(widths, [(e.source, e.target) for e in graph.edges], GAP, BEND)
    top = MARGIN + LINE * (2 + len(graph.devices))
    longest = max([len(heading), *(3 + len(name) for name, _ in graph.devices)])
    width = max(layout.width, CHARACTER * longest) + 2 * MARGIN
    left = (width - layout.width) / 2
    height = top + layout.layers * ROW + MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}"',
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="monospace" font-size="11">',
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="white"/>',
        f'<text x="{MARGIN}" y="{MARGIN + 4}" font-weight="bold">{_text(heading)}</text>',
        *_legend(graph),
    ]
    for edge, route in zip(graph.edges, layout.routes, strict=True):
        first = layout.places[edge.source][1]
        points = [(left + x, top + (first + at) * ROW + BOX / 2) for at, x in enumerate(route)]
        parts.append(_edge(edge, points))
    for node in graph.nodes:
        x, layer = layout.places[node.key]
        parts.append(_node(node, labels[node.key], left + x, top + layer * ROW, widths[node.key]))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _legend(graph: Graph) -> list[str]:
    parts = []
    for at, (name, colour) in enumerate(graph.devices, 1):
        y = MARGIN + at * LINE
        box = f'<rect x="{MARGIN}" y="{y - 6}" width="14" height="12" rx="3"'
        label = f'<text x="{MARGIN + 20}" y="{y + 4}">{_text(name)}</text>'
        parts.append(f'{box} fill="{colour}" stroke="#555"/>{label}')
    return parts


def _edge(edge: Edge, points: list[tuple[float, float]]) -> str:
    """A smooth line from the lower edge of the source to the upper edge of the target."""
    (x, y), (end_x, end_y) = points[0], points[-1]
    points = [(x, y + BOX / 2), *points[1:-1], (end_x, end_y - BOX / 2)]
    path = f"M{points[0][0]:.1f} {points[0][1]:.1f}"
    for (ax, ay), (bx, by) in pairwise(points):
        middle = (ay + by) / 2
        path += f" C{ax:.1f} {middle:.1f} {bx:.1f} {middle:.1f} {bx:.1f} {by:.1f}"
    style = 'stroke="#222" stroke-width="1.6"' if edge.crosses else 'stroke="#999"'
    return f'<path d="{path}" fill="none" {style}><title>{_text(edge.label)}</title></path>'


def _node(node: Node, label: str, x: float, y: float, width: float) -> str:
    rim = 12 if not node.is_operation else 4
    idle = ' stroke-dasharray="3 2"' if node.is_operation and node.step is None else ""
    step = "" if node.step is None else f"step {node.step}\n"
    return (
        f"<g><title>{_text(step + node.detail)}</title>"
        f'<rect x="{x - width / 2:.1f}" y="{y}" width="{width:.1f}" height="{BOX}" rx="{rim}" '
        f'fill="{node.colour}" stroke="#555"{idle}/>'
        f'<text x="{x:.1f}" y="{y + BOX / 2 + 4}" text-anchor="middle">{_text(label)}</text></g>'
    )


def _text(text: str) -> str:
    """*text* escaped for XML; characters that XML does not allow are replaced."""
    return escape(UNSPEAKABLE.sub("\ufffd", text))
