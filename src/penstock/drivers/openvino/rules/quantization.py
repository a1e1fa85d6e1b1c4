"""QUANTIZE and DEQUANTIZE."""

from __future__ import annotations

from penstock.driverkit.site import QUANTIZED, Site, require
from penstock.driverkit.types import F32, one_scale
from penstock.drivers.openvino.graph import Graph
from penstock.drivers.openvino.rules.rounding import (
    define_rescaled,
    rounds_alike,
    step_ratio,
)
from penstock.drivers.openvino.rules.rule import rule
from penstock.drivers.openvino.types import STEPPED, alike
from penstock.hal import AccuracyClass
from penstock.ir import DType


def _check_quantize(site: Site) -> AccuracyClass:
    site.shape()
    source, target = site.input(), site.output()
    if target.dtype not in STEPPED or source.dtype not in {F32, *STEPPED}:
        site.refuse_types()
    one_scale(target)
    if source.dtype is not F32:
        one_scale(source)
    if DType.INT16 in {source.dtype, target.dtype}:
        return "relaxed"
    if source.dtype is F32 or alike(source, target):
        return "faithful"
    ratio = step_ratio(site)
    if ratio > 1:
        # To finer steps OpenVINO goes by way of its own, which is up to two of them off.
        return "relaxed"
    return "faithful" if rounds_alike(ratio) else "stepwise"


@rule("QUANTIZE", check=_check_quantize)
def emit_quantize(graph: Graph, site: Site) -> None:
    if alike(site.input(), site.output()):
        graph.pass_on(site)
        return
    first = graph.is_first(site.input_indexes[0])
    node = graph.get(site.input_indexes[0], first=first)
    if site.input().dtype not in QUANTIZED or not site.is_quantized:
        graph.move(site, node, first=first)
    else:
        define_rescaled(graph, site, node, first=first)


def _check_dequantize(site: Site) -> AccuracyClass:
    site.shape()
    source = site.input()
    require(site.output().dtype is F32, "an output that is not float32")
    if source.dtype is DType.FLOAT16:
        require(source.is_constant, "float16 values are converted only where they are constant")
        return "exact"
    if source.dtype not in STEPPED:
        site.refuse_types()
    one_scale(source)
    return "relaxed" if source.dtype is DType.INT16 else "faithful"


@rule("DEQUANTIZE", check=_check_dequantize)
def emit_dequantize(graph: Graph, site: Site) -> None:
    """Values are real in the graph already."""
    first = graph.is_first(site.input_indexes[0])
    graph.define(site, graph.get(site.input_indexes[0], first=first), first=first)
