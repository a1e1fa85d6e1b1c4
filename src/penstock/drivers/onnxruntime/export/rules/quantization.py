"""QUANTIZE and DEQUANTIZE."""

from __future__ import annotations

import numpy as np

from penstock.driverkit.site import QUANTIZED, Site, require
from penstock.driverkit.types import F32, one_scale
from penstock.drivers.onnxruntime.export.graph import AWAY_ONCE, Graph
from penstock.drivers.onnxruntime.export.rules.conversion import TARGETS
from penstock.drivers.onnxruntime.export.rules.rule import rule
from penstock.hal import AccuracyClass
from penstock.ir import DType


def _check_quantize(site: Site) -> AccuracyClass:
    site.shape()
    source, target = site.input(), site.output()
    if target.dtype not in QUANTIZED or source.dtype not in {F32, *QUANTIZED}:
        site.refuse_types()
    one_scale(target)
    if source.dtype is F32:
        return "faithful"
    one_scale(source)
    return "stepwise"


@rule("QUANTIZE", check=_check_quantize)
def emit_quantize(graph: Graph, site: Site) -> None:
    first = graph.is_first(site.input_indexes[0])
    if site.input().dtype is F32:
        x, target = graph.get(site.input_indexes[0], first=first), site.output()
        node = graph.node("QuantizeLinear", x, *graph.target(target, AWAY_ONCE))
        graph.define(site, node, first=first)
    else:
        graph.define(site, graph.source(site, first=first), first=first)


def _check_dequantize(site: Site) -> AccuracyClass:
    site.shape()
    source = site.input()
    require(site.output().dtype is F32, "an output that is not float32")
    if source.dtype is DType.FLOAT16:
        return "exact"
    if source.dtype not in QUANTIZED:
        site.refuse_types()
    one_scale(source)
    return "faithful"


@rule("DEQUANTIZE", check=_check_dequantize)
def emit_dequantize(graph: Graph, site: Site) -> None:
    operand, index = site.input(), site.input_indexes[0]
    first = graph.is_first(index)
    if operand.dtype is not DType.FLOAT16:
        graph.define(site, graph.real(index, first=first), first=first)
    elif operand.is_constant:
        value = site.value(0, "its input").astype(np.float32)
        graph.hold(site, value)
    else:
        x = graph.get(index, first=first)
        graph.define(site, graph.node("Cast", x, to=TARGETS[F32]), first=first)
