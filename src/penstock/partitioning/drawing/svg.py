"""A plan as an SVG picture, drawn without any program but this one."""

from __future__ import annotations

import re
from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from penstock.partitioning.drawing.graph import Edge, Graph, Node, graph_of
from penstock.partitioning.drawing.layout import lay_out

if TYPE_CHECKING:
    from penstock.partitioning.plan import ExecutionPlan

MARGIN: Final = 16
ROW: Final = 52
BOX: Final = 24
GAP: Final = 14.0
BEND: Final = 6.0
CHARACTER: Final = 6.7
"""Width of a character of the font, which is monospaced, in pixels."""
LONGEST: Final = 40
LINE: Final = 18
UNSPEAKABLE: Final = re.compile("[^\t\n\r\\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def plan_to_svg(plan: ExecutionPlan) -> str:
    """`ExecutionPlan.to_svg`."""
    graph = graph_of(plan)
    labels = {node.key: _shortened(node.label) for node in graph.nodes}
    widths = {key: len(label) * CHARACTER + 16 for key, label in labels.items()}
    layout = lay_out(widths, [(e.source, e.target) for e in graph.edges], GAP, BEND)
    heading = plan.summary()
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
        parts.append(
            f'<rect x="{MARGIN}" y="{y - 6}" width="14" height="12" rx="3" fill="{colour}" stroke="#555"/>'
            f'<text x="{MARGIN + 20}" y="{y + 4}">{_text(name)}</text>'
        )
    return parts


def _edge(edge: Edge, points: list[tuple[float, float]]) -> str:
    """A smooth line from the lower rim of the source to the upper rim of the target."""
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


def _shortened(label: str) -> str:
    return label if len(label) <= LONGEST else label[: LONGEST - 3] + "..."


def _text(text: str) -> str:
    """*text* as XML has it; characters that XML cannot hold are replaced."""
    return escape(UNSPEAKABLE.sub("\ufffd", text))
