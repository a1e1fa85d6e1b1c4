"""A plan as a Graphviz digraph."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.partitioning.drawing.graph import Node, graph_of

if TYPE_CHECKING:
    from penstock.partitioning.plan import ExecutionPlan


def plan_to_dot(plan: ExecutionPlan) -> str:
    """`ExecutionPlan.to_dot`."""
    graph = graph_of(plan)
    lines = ["digraph plan {", "  rankdir=TB;", '  node [shape=box, style="filled,rounded"];']
    lines += [_node(node, "  ") for node in graph.nodes if node.step is None]
    for index, (title, colour) in enumerate(graph.steps):
        lines += [
            f"  subgraph cluster_step{index} {{",
            f"    label={_quote(title)};",
            f"    color={_quote(colour)};",
            *(_node(node, "    ") for node in graph.nodes if node.step == index),
            "  }",
        ]
    for edge in graph.edges:
        label = f" [label={_quote(edge.label)}]" if edge.crosses else ""
        lines.append(f"  {edge.source} -> {edge.target}{label};")
    return "\n".join([*lines, "}"]) + "\n"


def _node(node: Node, indent: str) -> str:
    shape = "" if node.is_operation else "shape=ellipse, "
    told = f"label={_quote(node.label)}, tooltip={_quote(node.detail)}"
    return f"{indent}{node.key} [{shape}{told}, fillcolor={_quote(node.colour)}];"


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
