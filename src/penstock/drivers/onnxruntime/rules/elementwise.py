"""Operations on each element, and on pairs of elements with broadcasting."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Final

import numpy as np

from penstock.driverkit import checks, layout
from penstock.driverkit.layout import Values, broadcasts, follows
from penstock.driverkit.site import QUANTIZED, Layout, Site, require
from penstock.drivers.onnxruntime.graph import (
    AWAY,
    BIAS,
    MICROSOFT,
    Graph,
    Value,
    may_halve,
    stored_grid,
)
from penstock.drivers.onnxruntime.rules.conversion import scaled_bytes
from penstock.drivers.onnxruntime.rules.rule import WHOLE, check_moved, moves, rule
from penstock.hal import AccuracyClass
from penstock.ir import DType, NDArray

UNARY: Final = {
    "RELU": "Relu", "LOGISTIC": "Sigmoid", "TANH": "Tanh", "HARD_SWISH": "HardSwish", "ABS": "Abs",
    "NEG": "Neg", "SIGN": "Sign", "FLOOR": "Floor", "CEIL": "Ceil", "ROUND": "Round", "EXP": "Exp",
    "LOG": "Log", "SQRT": "Sqrt", "SIN": "Sin", "COS": "Cos", "RSQRT": "Sqrt", "SQUARE": "Mul",
    "ELU": "Elu", **dict.fromkeys(checks.CLAMPS, "Clip"),
}  # fmt: skip
"""ONNX's operator by operation type."""

OF_WHOLE: Final = frozenset({"ABS", "NEG", "SIGN"})
NOT_OF_64: Final = frozenset({"ABS", "SIGN", "DIV", "FLOOR_DIV", "SQUARED_DIFFERENCE"})
"""Operations that TFLite does not compute for int64."""

BINARY: Final = {
    "ADD": "Add", "SUB": "Sub", "MUL": "Mul", "DIV": "Div", "MAXIMUM": "Max", "MINIMUM": "Min",
    "POW": "Pow", "SQUARED_DIFFERENCE": "", "FLOOR_DIV": "", "FLOOR_MOD": "Mod",
}  # fmt: skip
SIMPLE: Final = frozenset({"ADD", "SUB", "MUL", "DIV", "MAXIMUM", "MINIMUM"})
EXTREMES: Final = frozenset({"MAXIMUM", "MINIMUM"})
DIVIDES: Final = frozenset({"DIV", "FLOOR_DIV", "FLOOR_MOD"})
ADDED_BITS: Final = 20
SHORT_ROW: Final = 256
MOST_SPREAD: Final = 1 << 20


def _check_unary(site: Site) -> AccuracyClass:
    site.shape()
    kind = site.operation.type
    if kind in OF_WHOLE and site.input().dtype in WHOLE:
        _check_width(site)
        return "exact"
    if kind in checks.FLOAT_ONLY:
        checks.require_float(site)
    return checks.activations(site, quantized="faithful")


def _check_width(site: Site) -> None:
    wide = site.input().dtype is DType.INT64 and site.operation.type in NOT_OF_64
    require(not wide, "TFLite computes it over narrower numbers alone")


@rule(*UNARY, check=_check_unary, layout=layout.follows_any)
def emit_unary(graph: Graph, site: Site) -> None:
    compute = partial(_computed, graph, site)
    if site.first and site.rank() == 3:
        graph.put(site, graph.through(graph.get(site), compute))
    else:
        graph.round(site, compute(graph.real(site)))


def _computed(graph: Graph, site: Site, x: Value) -> Value:
    kind = site.operation.type
    if kind in checks.CLAMPS:
        return graph.clip(x, *checks.CLAMPS[kind])
    if kind == "SQUARE":
        return graph.node("Mul", x, x)
    if kind == "ELU":
        return graph.node("Elu", x, alpha=1.0)
    made = graph.node(UNARY[kind], x)
    return graph.node("Reciprocal", made) if kind == "RSQRT" else made


@rule("GELU", check=_check_unary, layout=follows)
def emit_gelu(graph: Graph, site: Site) -> None:
    approximate = "tanh" if site.attributes.flag("approximate") else "none"
    graph.round(site, graph.node("Gelu", graph.real(site), approximate=approximate))


def _check_binary(site: Site) -> AccuracyClass:
    kind, dtype = site.operation.type, site.input().dtype
    checks.check_pair(site, WHOLE)
    _check_width(site)
    if kind in {"FLOOR_DIV", "FLOOR_MOD"}:
        require(dtype in WHOLE, "only whole numbers are divided so here")
    if kind in DIVIDES and dtype in WHOLE:
        # The engine does not check for these divisions. The processor traps, which ends the
        # process.
        divisor = site.value(1, "the divisor of whole numbers")
        require(not np.isin(divisor, (0, -1)).any(), "whole numbers divided by 0 or -1")
    accuracy = checks.numbers(site, WHOLE, "faithful" if kind in EXTREMES else "stepwise")
    if site.is_quantized and kind in EXTREMES:
        require(len(site.output_shape()) > 0, "a scalar of 8 bits")
        require(_one_grid(site), "values of several scales, which TFLite compares as they are")
    return accuracy


def _binary_layout(site: Site, values: Values) -> Layout:
    kind = site.operation.type
    if site.is_quantized and not values.real and kind in {"ADD", "SUB", "MUL"}:
        return layout.channels_last(site, values)
    if site.is_quantized and kind in EXTREMES and _one_grid(site):
        return layout.channels_last(site, values)
    sequences = site.rank(0) == 3 and site.shape(0) == site.shape(1)
    if sequences and kind in SIMPLE and site.activation == "NONE":
        return layout.layout_of(site, all(map(values.is_first, site.input_indexes)))
    return broadcasts(site, values)


@rule(*BINARY, check=_check_binary, layout=_binary_layout)
def emit_binary(graph: Graph, site: Site) -> None:
    kind, fused = site.operation.type, site.activation
    if site.is_quantized and not graph.portable and kind in {"ADD", "SUB", "MUL"}:
        node = _added(graph, site) if kind != "MUL" else _multiplied(graph, site)
        graph.put(site, graph.limit(node, site.output(), fused))
        return
    if site.is_quantized and kind in EXTREMES and _one_grid(site):
        graph.put(site, graph.node(BINARY[kind], graph.get(site, 0), graph.get(site, 1)))
        return
    a, b = (operand_of(graph, site, position) for position in (0, 1))
    if kind == "SQUARED_DIFFERENCE":
        difference = graph.node("Sub", a, b)
        node = graph.node("Mul", difference, difference)
    elif kind == "FLOOR_DIV":
        node = graph.node("Div", graph.node("Sub", a, graph.node("Mod", a, b)), b)
    elif kind == "MUL" and (scaled := scaled_bytes(graph, a, b)) is not None:
        node = scaled
    else:
        node = graph.node(BINARY[kind], a, b)
    graph.round(site, graph.activate(node, fused))


def _one_grid(site: Site) -> bool:
    return len({stored_grid(o) for o in (site.input(0), site.input(1), site.output())}) == 1


def _multiplied(graph: Graph, site: Site) -> Value:
    a, b = ((_spread(graph, site, p), *graph.grid(site.input(p))) for p in (0, 1))
    return graph.node("QLinearMul", *a, *b, *graph.grid(site.output()), domain=MICROSOFT)


def _added(graph: Graph, site: Site) -> Value:
    """A sum or difference in steps of the output. Scales are relative to the output's scale and
    rounded to the precision of LiteRT's kernels (XNNPACK's qs8-vadd), so that both round the same
    sums.
    """
    scale, zero = stored_grid(site.output())
    ratios = [np.float32(stored_grid(site.input(p))[0]) / np.float32(scale) for p in (0, 1)]
    unit = 2.0 ** (int(np.frexp(max(ratios))[1]) - 1 - ADDED_BITS)
    steps = [float(np.rint(r / unit)) * unit for r in ratios]
    # If sums can fall halfway between two steps, TFLite rounds them away from zero.
    halves = may_halve(*steps)
    if site.operation.type == "SUB":
        steps[1] = -steps[1]
    a, b = (
        (_spread(graph, site, p), graph.number(steps[p]), graph.grid(site.input(p))[1])
        for p in (0, 1)
    )
    made = graph.number(AWAY if halves else 1.0), graph.byte(zero)
    return graph.node("QLinearAdd", *a, *b, *made, domain=MICROSOFT)


def _spread(graph: Graph, site: Site, position: int) -> Value:
    """A stored input. A constant of short rows is broadcast: kernels restart with each row."""
    operand, shape = site.input(position), site.output_shape()
    if operand.is_constant and len(site.shape(position)) and len(shape):
        row = site.shape(position)[-1]
        if 1 < row < SHORT_ROW and math.prod(shape) <= MOST_SPREAD:
            spread = np.broadcast_to(graph.stored(operand), shape)
            return graph.constant(np.ascontiguousarray(spread))
    return graph.get(site, position)


def operand_of(graph: Graph, site: Site, position: int) -> Value:
    """The real value of an input that takes part in broadcasting."""
    return graph.broadcast(site, position, graph.real(site, position))


def _check_add_n(site: Site) -> AccuracyClass:
    site.shapes()
    require(site.output().dtype is checks.F32, "only float32 values are added here")
    return checks.activations(site)


@rule("ADD_N", check=_check_add_n, layout=broadcasts)
def emit_add_n(graph: Graph, site: Site) -> None:
    graph.put(site, graph.node("Sum", *(graph.get(site, p) for p in range(len(site.inputs)))))


@rule("LEAKY_RELU", check=_check_unary, layout=follows)
def emit_leaky_relu(graph: Graph, site: Site) -> None:
    alpha = float(site.attributes.number("alpha"))
    graph.round(site, graph.node("LeakyRelu", graph.real(site), alpha=alpha))


@rule("PRELU", check=checks.check_prelu, layout=broadcasts)
def emit_prelu(graph: Graph, site: Site) -> None:
    """max(x, 0) + alpha min(x, 0): three times as fast as ONNX Runtime's own PRelu."""
    alpha = site.value(1, "alpha")
    if site.first and not graph.portable and _by_channel(site, alpha):
        _emit_by_channel(graph, site, alpha.reshape(-1))
        return
    x, slope = (operand_of(graph, site, position) for position in (0, 1))
    if graph.portable:
        graph.round(site, graph.node("PRelu", x, slope))
        return
    below = graph.node("Mul", slope, graph.node("Min", x, graph.number(0.0)))
    graph.round(site, graph.node("Add", graph.node("Relu", x), below))


def _by_channel(site: Site, alpha: NDArray) -> bool:
    """Whether slopes are one a channel, and small: the sum of two products loses no digits."""
    channels = site.shape()[3]
    return (
        site.input().dtype is checks.F32
        and alpha.size == channels == alpha.shape[-1]
        and bool((np.abs(alpha) <= 1).all())
    )


def _emit_by_channel(graph: Graph, site: Site, alpha: NDArray) -> None:
    """Alpha x + (1 - alpha) max(x, 0), as depthwise convolutions, which keep the layout."""
    x, channels = graph.get(site), alpha.size
    named: dict[str, Any] = {"group": channels, "kernel_shape": [1, 1]}
    parts = [
        graph.node("Conv", value, graph.constant(slope.reshape(channels, 1, 1, 1)), **named)
        for value, slope in ((graph.node("Relu", x), 1 - alpha), (x, alpha))
    ]
    graph.put(site, graph.node("Add", *parts))


COMPARISONS: Final = {
    "EQUAL": "Equal", "NOT_EQUAL": "Equal", "GREATER": "Greater", "LESS": "Less",
    "GREATER_EQUAL": "GreaterOrEqual", "LESS_EQUAL": "LessOrEqual",
}  # fmt: skip


def _check_comparison(site: Site) -> AccuracyClass:
    site.shapes()
    known = site.input().dtype in {checks.F32, *WHOLE}
    require(known, "only float32 and whole numbers are compared here")
    return "exact"


@rule(*COMPARISONS, check=_check_comparison, layout=broadcasts)
def emit_comparison(graph: Graph, site: Site) -> None:
    a, b = (operand_of(graph, site, position) for position in (0, 1))
    node = graph.node(COMPARISONS[site.operation.type], a, b)
    graph.put(site, graph.node("Not", node) if site.operation.type == "NOT_EQUAL" else node)


LOGIC: Final = {"LOGICAL_AND": "And", "LOGICAL_OR": "Or", "LOGICAL_NOT": "Not"}


@rule(*LOGIC, check=checks.check_logic, layout=broadcasts)
def emit_logic(graph: Graph, site: Site) -> None:
    given = [operand_of(graph, site, p) for p in range(len(site.inputs))]
    graph.put(site, graph.node(LOGIC[site.operation.type], *given))


def _check_select(site: Site) -> AccuracyClass:
    checks.require_choice(site)
    quantized = site.output().dtype in QUANTIZED
    same = all(site.input(p).quantization == site.output().quantization for p in (1, 2))
    require(same or not quantized, "a choice between values of another scale")
    require(not quantized or len(site.output_shape()) > 0, "a scalar of 8 bits")
    require(site.input(1).dtype is site.input(2).dtype, "a choice between two types")
    return moves(site, 1)


@rule("SELECT", "SELECT_V2", check=_check_select)
def emit_select(graph: Graph, site: Site) -> None:
    """The condition of SELECT may be one boolean per row."""
    condition, shape = graph.get(site), site.shape()
    if site.operation.type == "SELECT" and len(shape) == 1:
        condition = graph.reshape(condition, (shape[0], *(1,) * (len(site.shape(1)) - 1)))
    a, b = (graph.get(site, p) for p in (1, 2))
    if site.output().dtype is not DType.BOOL:
        graph.put(site, graph.node("Where", condition, a, b))
        return
    # ONNX Runtime has no Where for booleans.
    chosen = graph.node("And", condition, a)
    other = graph.node("And", graph.node("Not", condition), b)
    graph.put(site, graph.node("Or", chosen, other))


@rule("ZEROS_LIKE", check=check_moved)
def emit_zeros_like(graph: Graph, site: Site) -> None:
    dtype = site.output().dtype
    zero = graph.byte(BIAS if dtype is DType.INT8 else 0)
    if not site.is_quantized:
        zero = graph.constant(np.zeros((), dtype.numpy))
    graph.put(site, graph.node("Expand", zero, graph.whole(site.shape())))
