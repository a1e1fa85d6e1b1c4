"""MEAN, SUM, REDUCE_MAX and REDUCE_MIN over constant axes."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from penstock.drivers.openvino.graph import FIRST_AXIS, Graph, Node
from penstock.drivers.openvino.rules.rounding import leave_zero, rounded_twice
from penstock.drivers.openvino.rules.rule import rule
from penstock.engines.computing import reduced_axes
from penstock.engines.site import Site
from penstock.engines.types import activations, one_scale
from penstock.hal import AccuracyClass


def _check(site: Site) -> AccuracyClass:
    reduced_axes(site), site.output_shape()
    return activations(site, [0])


EXTREMES: Final = frozenset({"REDUCE_MAX", "REDUCE_MIN"})


PICTURE: Final = [2, 3]
"""The axes of height and width, channels first."""


def _mean_of_picture(graph: Graph, site: Site, x: Node, *, keep: bool) -> Node:
    """The mean of each channel as one window of a pool. A reduction adds the channels beyond the last 8 or 16 in another
    order than the others, so that channels that are alike get means that are not.
    """
    window = list(site.shape()[1:3])
    node = graph.op.avg_pool(x, [1, 1], [0, 0], [0, 0], window, True)
    return node if keep else graph.op.squeeze(node, graph.whole(PICTURE))


@rule("MEAN", "SUM", *EXTREMES, check=_check)
def emit_reduction(graph: Graph, site: Site) -> None:
    index, axes = site.input_indexes[0], reduced_axes(site)
    reduce = {
        "MEAN": graph.op.reduce_mean,
        "SUM": graph.op.reduce_sum,
        "REDUCE_MAX": graph.op.reduce_max,
        "REDUCE_MIN": graph.op.reduce_min,
    }[site.operation.type]
    keep = site.operation.attributes.flag("keep_dims")
    # Without the two dimensions of the picture, NHWC and NCHW are the same.
    first = graph.is_first(index) and (keep or axes == [1, 2])
    if first:
        axes = sorted(FIRST_AXIS[a] for a in axes)
    x = graph.get(index, first=first)
    if first and site.operation.type == "MEAN" and axes == PICTURE and not site.is_quantized:
        node = _mean_of_picture(graph, site, x, keep=keep)
    else:
        node = reduce(x, graph.whole(axes), keep) if axes else x
    if site.is_quantized and site.operation.type not in EXTREMES:
        count = math.prod(site.shape()[a] for a in reduced_axes(site))
        divided = count if site.operation.type == "MEAN" else 1
        ratio = np.array(one_scale(site.input())[0] / one_scale(site.output())[0])
        node = leave_zero(graph, site, node, rounded_twice(site, ratio, divided.bit_length() - 1))
    graph.define(site, node, first=first and keep)
