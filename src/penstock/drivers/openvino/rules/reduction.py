"""Reductions over constant axes, and normalisation along the last dimension."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from penstock.driverkit import checks
from penstock.driverkit.layout import channels_first, computed_axis, reduces
from penstock.driverkit.site import Site, require
from penstock.drivers.openvino.graph import Graph, is_above_zero
from penstock.drivers.openvino.rules.rounding import away_from_zero, rounded_twice, step_ratio
from penstock.drivers.openvino.rules.rule import rule
from penstock.hal import AccuracyClass


def _check(site: Site) -> AccuracyClass:
    axes, _ = checks.reduced_axes(site), site.output_shape()
    accuracy = checks.activations(site, [0], "faithful")
    if site.is_quantized and not axes and step_ratio(site) > 1:
        # No axis is reduced: the values are clamped to the output's limits on the input's grid.
        return "relaxed"
    kind = site.operation.type
    if kind == "SUM" or not site.is_quantized:
        return accuracy
    return accuracy if kind == "MEAN" and is_above_zero(site.output()) else "stepwise"


EXTREMES: Final = frozenset({"REDUCE_MAX", "REDUCE_MIN"})


PICTURE: Final = [2, 3]
"""The axes of height and width, channels first."""


@rule("MEAN", "SUM", *EXTREMES, check=_check, layout=reduces)
def emit_reduction(graph: Graph, site: Site) -> None:
    axes = sorted(computed_axis(site, axis) for axis in checks.reduced_axes(site))
    keep, kind = site.attributes.flag("keep_dims"), site.operation.type
    node = graph.get(site)
    if site.first and kind == "MEAN" and axes == PICTURE and not site.is_quantized:
        # A reduction adds the channels beyond the last 8 or 16 in another order, so that equal
        # channels get different means. A pool does not.
        node = graph.op.avg_pool(node, [1, 1], [0, 0], [0, 0], list(site.shape()[1:3]), True)
        node = node if keep else graph.op.squeeze(node, graph.whole(PICTURE))
    elif axes:
        reduce = getattr(graph.op, f"reduce_{kind.removeprefix('REDUCE_').lower()}")
        node = reduce(node, graph.whole(axes), keep)
    if site.is_quantized and kind not in EXTREMES:
        count = math.prod(site.shape()[a] for a in checks.reduced_axes(site))
        divided = count if kind == "MEAN" else 1
        ratio = np.array(step_ratio(site))
        distance = rounded_twice(site, ratio, divided.bit_length() - 1)
        node, raised = away_from_zero(graph, site, node, distance)
        if raised.any():
            # OpenVINO's kernel ignores FakeQuantize limits that are shifted by so little.
            node = graph.op.add(node, graph.constant(raised))
    graph.define(site, node)


@rule("L2_NORMALIZATION", check=checks.check_l2)
def emit_l2(graph: Graph, site: Site) -> None:
    axis = graph.whole([len(site.shape()) - 1])
    x = graph.get(site)
    length = graph.op.sqrt(graph.op.reduce_sum(graph.op.multiply(x, x), axis, True))
    graph.define(
        site, graph.op.divide(x, graph.op.maximum(length, graph.number(checks.LEAST_LENGTH)))
    )


def _check_local(site: Site) -> AccuracyClass:
    require(site.attributes.number("bias") > 0, "a bias that is not positive")
    return checks.check_local(site)


@rule("LOCAL_RESPONSE_NORMALIZATION", check=_check_local, layout=channels_first)
def emit_local(graph: Graph, site: Site) -> None:
    """LOCAL_RESPONSE_NORMALIZATION in a form that OpenVINO computes correctly.

    OpenVINO divides alpha by the number of neighbours. On the CPU (2026.4) it uses a bias of 1
    always. So x / (bias + alpha s)**beta becomes bias**-beta x / (1 + alpha / bias s)**beta.
    """
    attributes = site.attributes
    size = 2 * attributes.integer("radius") + 1
    bias, beta = attributes.number("bias"), float(attributes.number("beta"))
    alpha, axes = attributes.number("alpha") / bias * size, graph.whole([1])
    node = graph.op.lrn(graph.get(site), axes, alpha=alpha, beta=beta, bias=1.0, size=size)
    if bias != 1.0:
        node = graph.op.multiply(node, graph.number(bias**-beta))
    graph.define(site, node)
