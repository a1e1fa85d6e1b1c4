"""CAST, QUANTIZE, DEQUANTIZE, and 8-bit values that networks round by operations of their own."""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.driverkit.checks import F32, one_scale
from penstock.driverkit.layout import follows
from penstock.driverkit.site import QUANTIZED, Site, require
from penstock.drivers.onnxruntime.graph import AWAY_ONCE, BIAS, Graph, Value
from penstock.drivers.onnxruntime.rules.rule import WHOLE, rule
from penstock.hal import AccuracyClass
from penstock.ir import DType

LEAST: Final = {DType.INT8: -128, DType.UINT8: 0}
SPAN: Final = 255


def _check_cast(site: Site) -> AccuracyClass:
    site.shape()
    source, target = site.input().dtype, site.output().dtype
    known = {F32, DType.INT32, DType.INT64, DType.BOOL}
    if source in QUANTIZED and target in {F32, *WHOLE}:
        return "exact"
    if target in QUANTIZED and source is F32:
        return "exact"
    if source not in known or target not in known:
        site.refuse_types()
    require(source is not F32 or target in {F32, DType.BOOL}, "a float32 cut to a whole number")
    return "exact"


@rule("CAST", check=_check_cast, layout=follows)
def emit_cast(graph: Graph, site: Site) -> None:
    x = graph.get(site)
    source, target = site.input().dtype, site.output().dtype
    if source in QUANTIZED:
        node = _from_bytes(graph, x, source, target)
    elif target in QUANTIZED:
        node = _to_bytes(graph, x, target)
    else:
        node = graph.cast(x, target)
    graph.put(site, node)


def _from_bytes(graph: Graph, x: Value, source: DType, target: DType) -> Value:
    if target is F32:
        zero = graph.byte(-LEAST[source])
        return graph.node("DequantizeLinear", x, graph.number(1.0), zero)
    whole = graph.cast(x, target)
    if source is DType.UINT8:
        return whole
    return graph.node("Sub", whole, graph.constant(np.array(BIAS, target.numpy)))


def _to_bytes(graph: Graph, x: Value, target: DType) -> Value:
    """*x* cut and clamped to *target*, or quantised with the step that the network divided by."""
    x = _unlimited(graph, x, target)
    maker = graph.maker(x)
    if maker is not None and maker.kind == "Round":
        (x,) = maker.inputs
        step, divided = graph.number(1.0), graph.maker(x)
        if divided is not None and divided.kind == "Div":
            value, divisor = divided.inputs
            scale = graph.scalar(divisor)
            if scale is not None and scale > 0:
                x, step = value, graph.number(scale)
        return graph.node("QuantizeLinear", x, step, graph.byte(-LEAST[target]))
    least = LEAST[target]
    cut = graph.cast(graph.clip(x, least, least + SPAN), DType.INT32)
    if target is DType.INT8:
        cut = graph.node("Add", cut, graph.constant(np.array(BIAS, np.int32)))
    return graph.cast(cut, DType.UINT8)


def _unlimited(graph: Graph, x: Value, target: DType) -> Value:
    """The value of *x* before clamps that *target* implies."""
    least = LEAST[target]
    while (maker := graph.maker(x)) is not None and maker.kind in {"Max", "Min"}:
        value, bound = maker.inputs
        limit = graph.scalar(bound)
        if limit is None:
            break
        if limit > least if maker.kind == "Max" else limit < least + SPAN:
            break
        x = value
    return x


def scaled_bytes(graph: Graph, a: Value, b: Value) -> Value | None:
    """The product of dequantised 8-bit values and a step, as one node; None for other operands."""
    for value, factor in ((a, b), (b, a)):
        maker, step = graph.maker(value), graph.scalar(factor)
        known = maker is not None and maker.kind == "DequantizeLinear"
        if maker is not None and known and step is not None and step > 0:
            stored, scale, zero = maker.inputs
            if graph.scalar(scale) == 1.0:
                return graph.node("DequantizeLinear", stored, graph.number(step), zero)
    return None


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


@rule("QUANTIZE", check=_check_quantize, layout=follows)
def emit_quantize(graph: Graph, site: Site) -> None:
    if site.input().dtype is F32:
        target = graph.target(site.output(), AWAY_ONCE)
        graph.put(site, graph.node("QuantizeLinear", graph.get(site), *target))
    else:
        graph.put(site, graph.source(site))


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


@rule("DEQUANTIZE", check=_check_dequantize, layout=follows)
def emit_dequantize(graph: Graph, site: Site) -> None:
    operand = site.input()
    if operand.dtype is not DType.FLOAT16:
        graph.put(site, graph.real(site))
    elif operand.is_constant:
        graph.hold(site, site.value(0, "its input").astype(np.float32))
    else:
        graph.put(site, graph.cast(graph.get(site), F32))
