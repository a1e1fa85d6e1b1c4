"""Reductions, positions of extremes, and normalisation along the last dimension."""

from __future__ import annotations

from typing import Any, Final

from penstock.driverkit import checks
from penstock.driverkit.layout import channels_first, computed_axis, reduces
from penstock.driverkit.site import QUANTIZED, Site, require
from penstock.drivers.onnxruntime.graph import Graph
from penstock.drivers.onnxruntime.rules.rule import WHOLE, moves, rule
from penstock.hal import AccuracyClass
from penstock.ir import DType

REDUCTIONS: Final = {
    "MEAN": "ReduceMean", "SUM": "ReduceSum", "REDUCE_MAX": "ReduceMax", "REDUCE_MIN": "ReduceMin",
    "REDUCE_PROD": "ReduceProd", "REDUCE_ANY": "ReduceMax", "REDUCE_ALL": "ReduceMin",
}  # fmt: skip
"""ONNX's operator by operation type; it computes booleans as integers."""

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


@rule(*REDUCTIONS, check=_check, layout=reduces)
def emit_reduction(graph: Graph, site: Site) -> None:
    axes, kind = checks.reduced_axes(site), site.operation.type
    keep = site.attributes.flag("keep_dims")
    if kind == "MEAN" and axes == [1, 2] and site.first:
        # A pool adds all channels in the same order. In ReduceMean the order depends on the
        # channel.
        node = graph.node("GlobalAveragePool", graph.real(site))
        graph.round(site, node if keep else graph.reshape(node, site.output_shape()))
        return
    axes = sorted(computed_axis(site, axis) for axis in axes)
    moved = kind in EXTREMES
    x = graph.source(site) if moved else graph.real(site)
    if kind in LOGICAL:
        x = graph.cast(x, DType.INT32)
    if axes:
        x = graph.node(REDUCTIONS[kind], x, graph.whole(axes), keepdims=int(keep))
    if kind in LOGICAL:
        x = graph.cast(x, DType.BOOL)
    register = graph.put if moved else graph.round
    register(site, x)


def _check_position(site: Site) -> AccuracyClass:
    checks.one_axis(site)
    dtype = site.input().dtype
    known = dtype in {checks.F32, DType.INT32, *QUANTIZED}
    require(known, f"{dtype.value} values are not compared here")
    if dtype in QUANTIZED:
        checks.one_scale(site.input())
    require(site.output().dtype in WHOLE, "a position of another type")
    return "exact"


@rule("ARG_MAX", "ARG_MIN", check=_check_position)
def emit_position(graph: Graph, site: Site) -> None:
    """The first of equal values."""
    kind = "ArgMax" if site.operation.type == "ARG_MAX" else "ArgMin"
    node = graph.node(kind, graph.get(site), axis=checks.one_axis(site), keepdims=0)
    is_short = site.output().dtype is DType.INT32
    graph.put(site, graph.cast(node, DType.INT32) if is_short else node)


def _check_sum(site: Site) -> AccuracyClass:
    checks.one_axis(site)
    if site.input().dtype in WHOLE:
        return "exact"
    checks.require_float(site, "only float32 and whole numbers are summed here")
    return "faithful"


@rule("CUMSUM", check=_check_sum)
def emit_cumulative_sum(graph: Graph, site: Site) -> None:
    options: dict[str, Any] = {
        name: int(site.attributes.flag(name)) for name in ("exclusive", "reverse")
    }
    axis = graph.whole(checks.one_axis(site))
    graph.put(site, graph.node("CumSum", graph.get(site), axis, **options))


@rule("L2_NORMALIZATION", check=checks.check_l2)
def emit_l2(graph: Graph, site: Site) -> None:
    x = graph.get(site)
    length = graph.node("ReduceL2", x, graph.whole([-1]), keepdims=1)
    divisor = graph.node("Max", length, graph.number(checks.LEAST_LENGTH))
    graph.put(site, graph.node("Div", x, divisor))


@rule("LOCAL_RESPONSE_NORMALIZATION", check=checks.check_local, layout=channels_first)
def emit_local(graph: Graph, site: Site) -> None:
    """ONNX divides alpha by the number of neighbours."""
    size = 2 * site.attributes.integer("radius") + 1
    alpha, beta, bias = (float(site.attributes.number(n)) for n in ("alpha", "beta", "bias"))
    x = graph.get(site)
    graph.put(site, graph.node("LRN", x, size=size, alpha=alpha * size, beta=beta, bias=bias))
