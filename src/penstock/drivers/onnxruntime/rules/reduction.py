"""Reductions, positions of extremes, and normalisation along the last dimension."""

from __future__ import annotations

from typing import Final

from penstock.driverkit import checks
from penstock.driverkit.layout import Values, channels_first, computed_axis, reduces
from penstock.driverkit.site import QUANTIZED, Layout, Site, require
from penstock.drivers.onnxruntime.graph import Graph
from penstock.drivers.onnxruntime.rules.conversion import TARGETS
from penstock.drivers.onnxruntime.rules.rule import WHOLE, moves, rule
from penstock.hal import AccuracyClass
from penstock.ir import DType

REDUCTIONS: Final = {
    "MEAN": "ReduceMean",
    "SUM": "ReduceSum",
    "REDUCE_MAX": "ReduceMax",
    "REDUCE_MIN": "ReduceMin",
    "REDUCE_PROD": "ReduceProd",
    "REDUCE_ANY": "ReduceMax",
    "REDUCE_ALL": "ReduceMin",
}
LOGICAL: Final = frozenset({"REDUCE_ANY", "REDUCE_ALL"})
EXTREMES: Final = frozenset({"REDUCE_MAX", "REDUCE_MIN"})


def _check(site: Site) -> AccuracyClass:
    checks.reduced_axes(site), site.output_shape()
    kind, dtype = site.operation.type, site.input().dtype
    if kind in LOGICAL:
        require(dtype is DType.BOOL, "only truth values are combined here")
        return "exact"
    if dtype in WHOLE:
        # ONNX Runtime multiplies integers as float64.
        require(kind not in {"MEAN", "REDUCE_PROD"}, "the mean or the product of whole numbers")
        return "exact"
    if kind in EXTREMES:
        return moves(site)
    require(kind != "REDUCE_PROD" or dtype is checks.F32, "only float32 values are multiplied here")
    return checks.activations(site, [0])


def _layout(site: Site, values: Values) -> Layout:
    return reduces(site, values, checks.reduced_axes(site))


@rule(*REDUCTIONS, check=_check, layout=_layout)
def emit_reduction(graph: Graph, site: Site) -> None:
    axes, kind = checks.reduced_axes(site), site.operation.type
    keep = site.attributes.flag("keep_dims")
    if kind == "MEAN" and axes == [1, 2] and site.first:
        _emit_image_mean(graph, site, keep=keep)
        return
    axes = sorted(computed_axis(site, axis) for axis in axes)
    moved = kind in EXTREMES
    x = graph.source(site) if moved else graph.real(site)
    if kind in LOGICAL:
        x = graph.node("Cast", x, to=TARGETS[DType.INT32])
    if axes:
        x = graph.node(REDUCTIONS[kind], x, graph.whole(axes), keepdims=int(keep))
    if kind in LOGICAL:
        x = graph.node("Cast", x, to=TARGETS[DType.BOOL])
    if moved:
        graph.put(site, x)
    else:
        graph.round(site, x)


def _emit_image_mean(graph: Graph, site: Site, *, keep: bool) -> None:
    """The mean by a pool, which adds all channels in the same order. In ReduceMean the order
    depends on the channel.
    """
    x = graph.real(site)
    node = graph.node("GlobalAveragePool", x)
    if not keep:
        node = graph.reshape(node, site.output_shape())
    graph.round(site, node)


def _check_position(site: Site) -> AccuracyClass:
    shape = site.shape()
    axes = site.integers(1, "its axis")
    require(len(axes) == 1 and -len(shape) <= axes[0] < len(shape), f"axes {axes}")
    dtype = site.input().dtype
    require(
        dtype in {checks.F32, DType.INT32, *QUANTIZED},
        f"{dtype.value} values are not compared here",
    )
    if dtype in QUANTIZED:
        checks.one_scale(site.input())
    require(site.output().dtype in WHOLE, "a position of another type")
    return "exact"


@rule("ARG_MAX", "ARG_MIN", check=_check_position)
def emit_position(graph: Graph, site: Site) -> None:
    """The first of equal values."""
    kind = "ArgMax" if site.operation.type == "ARG_MAX" else "ArgMin"
    x, rank = graph.get(site), len(site.shape())
    axis = site.integers(1, "its axis")[0] % rank
    node = graph.node(kind, x, axis=axis, keepdims=0)
    if site.output().dtype is DType.INT32:
        node = graph.node("Cast", node, to=TARGETS[DType.INT32])
    graph.put(site, node)


def _check_sum(site: Site) -> AccuracyClass:
    shape, axes = site.shape(), site.integers(1, "its axis")
    require(len(axes) == 1 and -len(shape) <= axes[0] < len(shape), f"axes {axes}")
    if site.input().dtype in WHOLE:
        return "exact"
    require(site.input().dtype is checks.F32, "only float32 and whole numbers are summed here")
    return "faithful"


@rule("CUMSUM", check=_check_sum)
def emit_cumulative_sum(graph: Graph, site: Site) -> None:
    attributes = site.attributes
    node = graph.node(
        "CumSum",
        graph.get(site),
        graph.whole(site.integers(1, "its axis")[0] % len(site.shape())),
        exclusive=int(attributes.flag("exclusive")),
        reverse=int(attributes.flag("reverse")),
    )
    graph.put(site, node)


@rule("L2_NORMALIZATION", check=checks.check_l2)
def emit_l2(graph: Graph, site: Site) -> None:
    x = graph.get(site)
    length = graph.node("ReduceL2", x, graph.whole([-1]), keepdims=1)
    graph.put(
        site, graph.node("Div", x, graph.node("Max", length, graph.number(checks.LEAST_LENGTH)))
    )


@rule("LOCAL_RESPONSE_NORMALIZATION", check=checks.check_local, layout=channels_first)
def emit_local(graph: Graph, site: Site) -> None:
    """ONNX divides alpha by the number of neighbours."""
    attributes = site.attributes
    size = 2 * attributes.integer("radius") + 1
    node = graph.node(
        "LRN",
        graph.get(site),
        size=size,
        alpha=attributes.number("alpha") * size,
        beta=float(attributes.number("beta")),
        bias=float(attributes.number("bias")),
    )
    graph.put(site, node)
