"""Comparisons, truth values and what is chosen by them, conversions, and positions of the largest
and smallest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from penstock.driverkit.checks import axis_of, check_logic, require_choice
from penstock.driverkit.layout import Values, broadcasts, channels_last, follows
from penstock.driverkit.site import QUANTIZED, Layout, Site, require
from penstock.driverkit.types import F32, one_scale
from penstock.drivers.openvino.graph import Graph, Node
from penstock.drivers.openvino.rules.elementwise import operand_of
from penstock.drivers.openvino.rules.rule import rule
from penstock.drivers.openvino.types import carried
from penstock.hal import AccuracyClass
from penstock.ir import DType

EQUALITIES: Final = frozenset({"EQUAL", "NOT_EQUAL"})
COMPARISONS: Final[dict[str, Callable[[Any, Node, Node], Node]]] = {
    "EQUAL": lambda op, a, b: op.equal(a, b),
    "NOT_EQUAL": lambda op, a, b: op.not_equal(a, b),
    "GREATER": lambda op, a, b: op.greater(a, b),
    "GREATER_EQUAL": lambda op, a, b: op.greater_equal(a, b),
    "LESS": lambda op, a, b: op.less(a, b),
    "LESS_EQUAL": lambda op, a, b: op.less_equal(a, b),
}


def _check_comparison(site: Site) -> AccuracyClass:
    site.shape(0), site.shape(1)
    dtype = site.input().dtype
    if dtype is DType.INT32:
        equal = site.operation.type in EQUALITIES
        require(
            equal, "whole numbers are put in order as float32, which does not tell large ones apart"
        )
    else:
        require(dtype is F32, "only float32 and int32 values are compared here")
    return "exact"


@rule(*COMPARISONS, check=_check_comparison, layout=broadcasts)
def emit_comparison(graph: Graph, site: Site) -> None:
    a, b = (operand_of(graph, site, position) for position in (0, 1))
    if site.input().dtype is DType.INT32:
        # Compared as float32; a difference that is not 0 is not 0 as float32 either.
        a, b = graph.op.subtract(a, b), graph.op.constant(np.array(0, np.int32))
    graph.define(site, COMPARISONS[site.operation.type](graph.op, a, b))


LOGIC: Final[dict[str, Callable[..., Node]]] = {
    "LOGICAL_AND": lambda op, a, b: op.logical_and(a, b),
    "LOGICAL_OR": lambda op, a, b: op.logical_or(a, b),
    "LOGICAL_NOT": lambda op, a: op.logical_not(a),
}


@rule(*LOGIC, check=check_logic, layout=broadcasts)
def emit_logic(graph: Graph, site: Site) -> None:
    given = [operand_of(graph, site, p) for p in range(len(site.inputs))]
    graph.define(site, LOGIC[site.operation.type](graph.op, *given))


def _check_select(site: Site) -> AccuracyClass:
    require_choice(site)
    return carried(site, [site.input(1), site.input(2)])


def _chooses_rows(site: Site) -> bool:
    return site.operation.type == "SELECT" and len(site.shape(0)) < len(site.shape(1))


def _select_layout(site: Site, values: Values) -> Layout:
    return (channels_last if _chooses_rows(site) else broadcasts)(site, values)


@rule("SELECT", "SELECT_V2", check=_check_select, layout=_select_layout)
def emit_select(graph: Graph, site: Site) -> None:
    """The condition of SELECT may be one truth value a row."""
    condition, a, b = (operand_of(graph, site, p) for p in range(3))
    if _chooses_rows(site):
        condition = graph.reshape(condition, (*site.shape(0), *(1,) * (len(site.shape(1)) - 1)))
    graph.move(site, graph.op.select(condition, a, b), (1, 2))


CONVERTED: Final = {F32: "f32", DType.INT32: "i32", DType.BOOL: "boolean"}


def _check_cast(site: Site) -> AccuracyClass:
    site.shape()
    source, target = site.input(), site.output().dtype
    stored = source.dtype in QUANTIZED and source.quantization is None
    if target not in CONVERTED or (source.dtype not in CONVERTED and not stored):
        site.refuse_types()
    require(source.dtype is not F32 or target is F32, "a float32 cut to a whole number")
    require(not (stored and source.is_constant), "a constant of 8 bits without a scale")
    return "exact"


@rule("CAST", check=_check_cast, layout=follows)
def emit_cast(graph: Graph, site: Site) -> None:
    x = graph.get(site)
    graph.define(site, graph.op.convert(x, CONVERTED[site.output().dtype]))


def _check_position(site: Site) -> AccuracyClass:
    axes = site.integers(1, "its axis")
    require(len(axes) == 1, f"{len(axes)} axes")
    axis_of(axes[0], len(site.shape()))
    require(site.output().dtype is DType.INT32, "positions of another type")
    if site.input().dtype is F32:
        return "exact"
    if site.input().dtype not in QUANTIZED:
        site.refuse_types()
    one_scale(site.input())
    return "relaxed"


@rule("ARG_MAX", "ARG_MIN", check=_check_position)
def emit_position(graph: Graph, site: Site) -> None:
    """The first of equals, which is what a stable order begins with."""
    axis = axis_of(site.integers(1, "its axis")[0], len(site.shape()))
    node = graph.op.topk(
        graph.get(site),
        graph.op.constant(np.array(1, np.int32)),
        axis,
        "max" if site.operation.type == "ARG_MAX" else "min",
        "value",
        index_element_type="i32",
        stable=True,
    )
    graph.define(site, graph.reshape(node.output(1), site.output_shape()))
