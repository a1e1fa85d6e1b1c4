"""Operations on elements and pairs of elements: arithmetic, comparisons, choices, conversions."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from penstock.driverkit import checks
from penstock.driverkit.layout import Values, broadcasts, channels_last, follows
from penstock.driverkit.site import QUANTIZED, Layout, Refused, Site, require
from penstock.drivers.openvino.graph import Graph, Node, same_grid
from penstock.drivers.openvino.rules import rounding
from penstock.drivers.openvino.rules.rule import moved_or_plain, rule
from penstock.hal import AccuracyClass
from penstock.ir import DType

UNARY: Final = {
    "RELU": "relu", "LOGISTIC": "sigmoid", "TANH": "tanh", "HARD_SWISH": "hswish", "ABS": "abs",
    "NEG": "negative", "EXP": "exp", "SQRT": "sqrt", "LOG": "log", "SIN": "sin", "COS": "cos",
    "SIGN": "sign", "FLOOR": "floor", "CEIL": "ceiling", "ROUND": "round", "RSQRT": "power",
    "SQUARE": "multiply", "ELU": "elu", **dict.fromkeys(checks.CLAMPS, "clamp"),
}  # fmt: skip
"""OpenVINO's operation by operation type."""

CURVES: Final = frozenset({"LOGISTIC", "TANH"})
"""8-bit operations that TFLite evaluates in real arithmetic and rounds once, at the end."""

OF_WHOLE: Final = frozenset({"ABS", "NEG"})

BINARY: Final = {
    "ADD": "add", "SUB": "subtract", "MUL": "multiply", "DIV": "divide", "MAXIMUM": "maximum",
    "MINIMUM": "minimum", "POW": "power", "SQUARED_DIFFERENCE": "squared_difference",
}  # fmt: skip

EXTREMES: Final = frozenset({"MAXIMUM", "MINIMUM"})
ROUNDED: Final = EXTREMES | {"MUL"}
"""8-bit operations that round as TFLite's. Of sums and differences, six in 100,000 differ."""


def _check_unary(site: Site) -> AccuracyClass:
    site.shape()
    if site.operation.type in OF_WHOLE and site.input().dtype is DType.INT32:
        return "exact"
    if site.operation.type in checks.FLOAT_ONLY:
        checks.require_float(site)
    accuracy = checks.activations(site, quantized="faithful")
    if site.is_quantized and site.operation.type not in CURVES:
        ratio = rounding.step_ratio(site)
        # OpenVINO applies the limits on the input's grid, TFLite on the output's grid.
        if site.operation.type in checks.CLAMPS and ratio > 1:
            return "relaxed"
        return (
            "faithful"
            if site.operation.type == "RELU" and rounding.rounds_alike(ratio)
            else "stepwise"
        )
    return accuracy


@rule(*UNARY, check=_check_unary, layout=follows)
def emit_unary(graph: Graph, site: Site) -> None:
    x = graph.get(site)
    if site.is_quantized and site.operation.type == "RELU":
        rounding.define_rescaled(graph, site, x, fused="RELU")
        return
    kind = site.operation.type
    others: dict[str, tuple[Any, ...]] = {
        **checks.CLAMPS,
        "RSQRT": (graph.number(-0.5),),
        "SQUARE": (x,),
        "ELU": (1.0,),
        "ROUND": ("half_to_even",),
    }
    graph.define(site, getattr(graph.op, UNARY[kind])(x, *others.get(kind, ())))


@rule("GELU", check=_check_unary, layout=follows)
def emit_gelu(graph: Graph, site: Site) -> None:
    approximate = site.attributes.flag("approximate")
    graph.define(site, graph.op.gelu(graph.get(site), "tanh" if approximate else "erf"))


def _check_binary(site: Site) -> AccuracyClass:
    kind, dtype = site.operation.type, site.input().dtype
    checks.check_pair(site, {DType.INT32})
    require(kind != "DIV" or dtype is not DType.INT32, "whole numbers are divided as float32")
    accuracy = checks.numbers(site, (DType.INT32,), "faithful" if kind in ROUNDED else "stepwise")
    if not site.is_quantized:
        return accuracy
    if kind in EXTREMES:
        same = all(same_grid(o, site.output()) for o in (site.input(0), site.input(1)))
        require(same, "values of several scales, which TFLite compares as they are")
    return "relaxed" if _is_coarse(site) else accuracy


def _is_coarse(site: Site) -> bool:
    """Whether one operand is a constant scalar and the other's step is coarser than the output's.
    OpenVINO then applies the limits of the output on the coarser grid.
    """
    for position, other in ((0, 1), (1, 0)):
        if not site.input(position).is_constant or math.prod(site.shape(position)) != 1:
            continue
        scale, zero = checks.one_scale(site.input(position))
        number = abs(scale * (float(site.value(position, "a number").reshape(())) - zero))
        ratio = checks.one_scale(site.input(other))[0] / checks.one_scale(site.output())[0]
        if site.operation.type == "MUL":
            ratio *= number
        elif site.operation.type == "DIV" and number:
            ratio /= number
        if ratio > 1:
            return True
    return False


@rule(*BINARY, check=_check_binary, layout=broadcasts)
def emit_binary(graph: Graph, site: Site) -> None:
    a, b = (operand_of(graph, site, position) for position in (0, 1))
    node = getattr(graph.op, BINARY[site.operation.type])(a, b)
    raised = rounding.NOTHING
    if site.is_quantized and site.operation.type == "MUL":
        one, other, made = (checks.one_scale(o)[0] for o in (*site.inputs, site.output()) if o)
        distance = rounding.rounded_twice(site, np.array(one * other / made))
        node, raised = rounding.away_from_zero(graph, site, node, distance, site.activation)
    else:
        node = graph.activate(node, site.activation)
    graph.define(site, node, raised=raised)


def operand_of(graph: Graph, site: Site, position: int) -> Node:
    """An input that takes part in broadcasting."""
    return graph.broadcast(site, position, graph.get(site, position))


def _check_leaky(site: Site) -> AccuracyClass:
    site.shape()
    return checks.activations(site)


@rule("LEAKY_RELU", check=_check_leaky, layout=follows)
def emit_leaky_relu(graph: Graph, site: Site) -> None:
    x = graph.get(site)
    alpha = np.array([site.attributes.number("alpha")], np.float32)
    graph.define(site, graph.op.prelu(x, graph.op.constant(alpha)))


@rule("PRELU", check=checks.check_prelu, layout=broadcasts)
def emit_prelu(graph: Graph, site: Site) -> None:
    """max(x, 0) + alpha min(x, 0), alpha broadcast as in TFLite."""
    x, alpha = (operand_of(graph, site, position) for position in (0, 1))
    op, zero = graph.op, graph.number(0.0)
    graph.define(site, op.add(op.relu(x), op.multiply(alpha, op.minimum(x, zero))))


EQUALITIES: Final = frozenset({"EQUAL", "NOT_EQUAL"})
COMPARISONS: Final = (*EQUALITIES, "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL")
"""Operation types; OpenVINO uses the same names in lower case."""


def _check_comparison(site: Site) -> AccuracyClass:
    site.shapes()
    if site.input().dtype is not DType.INT32:
        checks.require_float(site, "only float32 and int32 values are compared here")
    elif site.operation.type not in EQUALITIES:
        reason = "whole numbers are put in order as float32, which does not tell large ones apart"
        raise Refused(reason)
    return "exact"


@rule(*COMPARISONS, check=_check_comparison, layout=broadcasts)
def emit_comparison(graph: Graph, site: Site) -> None:
    a, b = (operand_of(graph, site, position) for position in (0, 1))
    if site.input().dtype is DType.INT32:
        # The comparison is in float32. A difference that is not 0 is not 0 in float32 either.
        a, b = graph.op.subtract(a, b), graph.op.constant(np.array(0, np.int32))
    graph.define(site, getattr(graph.op, site.operation.type.lower())(a, b))


LOGIC: Final = ("LOGICAL_AND", "LOGICAL_OR", "LOGICAL_NOT")
"""Operation types; OpenVINO uses the same names in lower case."""


@rule(*LOGIC, check=checks.check_logic, layout=broadcasts)
def emit_logic(graph: Graph, site: Site) -> None:
    given = [operand_of(graph, site, p) for p in range(len(site.inputs))]
    graph.define(site, getattr(graph.op, site.operation.type.lower())(*given))


def _check_select(site: Site) -> AccuracyClass:
    checks.require_choice(site)
    return moved_or_plain(site, [site.input(1), site.input(2)])


def _chooses_rows(site: Site) -> bool:
    return site.operation.type == "SELECT" and len(site.shape(0)) < len(site.shape(1))


def _select_layout(site: Site, values: Values) -> Layout:
    return (channels_last if _chooses_rows(site) else broadcasts)(site, values)


@rule("SELECT", "SELECT_V2", check=_check_select, layout=_select_layout)
def emit_select(graph: Graph, site: Site) -> None:
    """The condition of SELECT may be one boolean per row."""
    condition, a, b = (operand_of(graph, site, p) for p in range(3))
    if _chooses_rows(site):
        condition = graph.reshape(condition, (*site.shape(0), *(1,) * (len(site.shape(1)) - 1)))
    graph.move(site, graph.op.select(condition, a, b), (1, 2))


CONVERTED: Final = {checks.F32: "f32", DType.INT32: "i32", DType.BOOL: "boolean"}


def _check_cast(site: Site) -> AccuracyClass:
    site.shape()
    source, target = site.input(), site.output().dtype
    stored = source.dtype in QUANTIZED and source.quantization is None
    if target not in CONVERTED or (source.dtype not in CONVERTED and not stored):
        site.refuse_types()
    is_cut = source.dtype is checks.F32 and target is not checks.F32
    require(not is_cut, "a float32 cut to a whole number")
    require(not (stored and source.is_constant), "a constant of 8 bits without a scale")
    return "exact"


@rule("CAST", check=_check_cast, layout=follows)
def emit_cast(graph: Graph, site: Site) -> None:
    graph.define(site, graph.op.convert(graph.get(site), CONVERTED[site.output().dtype]))


def _check_position(site: Site) -> AccuracyClass:
    checks.one_axis(site)
    require(site.output().dtype is DType.INT32, "positions of another type")
    if site.input().dtype is checks.F32:
        return "exact"
    if site.input().dtype not in QUANTIZED:
        site.refuse_types()
    checks.one_scale(site.input())
    return "relaxed"


@rule("ARG_MAX", "ARG_MIN", check=_check_position)
def emit_position(graph: Graph, site: Site) -> None:
    """The first of equal values: a stable sort puts it first."""
    one, kind = graph.op.constant(np.array(1, np.int32)), site.operation.type[-3:].lower()
    given = graph.get(site), one, checks.one_axis(site), kind, "value"
    node = graph.op.topk(*given, index_element_type="i32", stable=True)
    graph.define(site, graph.reshape(node.output(1), site.output_shape()))
