"""QUANTIZE and DEQUANTIZE."""

from __future__ import annotations

from penstock.drivers.openvino.graph import Graph
from penstock.drivers.openvino.rules.rule import rule
from penstock.drivers.openvino.types import STEPPED
from penstock.engines.site import Site, require
from penstock.engines.types import F32, one_scale
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
    return "relaxed"


@rule("QUANTIZE", check=_check_quantize)
def emit_quantize(graph: Graph, site: Site) -> None:
    first = graph.is_first(site.input_indexes[0])
    graph.move(site, graph.get(site.input_indexes[0], first=first), first=first)


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
    return "relaxed"


@rule("DEQUANTIZE", check=_check_dequantize)
def emit_dequantize(graph: Graph, site: Site) -> None:
    """Values are real in the graph already."""
    first = graph.is_first(site.input_indexes[0])
    graph.define(site, graph.get(site.input_indexes[0], first=first), first=first)
