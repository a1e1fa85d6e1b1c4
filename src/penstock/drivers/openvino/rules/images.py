"""Pooling, resizing, and the moves between depth and space, over NHWC images."""

from __future__ import annotations

import importlib
import math
from typing import Any, Final

import numpy as np

from penstock.driverkit import checks
from penstock.driverkit.layout import channels_first
from penstock.driverkit.site import Site
from penstock.drivers.openvino.graph import Graph, Node
from penstock.drivers.openvino.rules.rule import check_moved, rule
from penstock.hal import AccuracyClass
from penstock.ir import NDArray

OPSET_OF_MAX_POOL: Final = "openvino.opset1"
"""The operation set whose MaxPool has one output."""


def _check_pool(site: Site) -> AccuracyClass:
    checks.pool_windows(site), checks.activation(site)
    return checks.activations(site, quantized="faithful" if _is_rounded_alike(site) else "stepwise")


def _is_rounded_alike(site: Site) -> bool:
    """Whether OpenVINO's 8-bit kernels round as TFLite's.

    They clamp an activation to quantised steps, and round halves of a mean to even. TFLite rounds
    halves away from zero. A mean of an odd number of values has no halves.
    """
    if site.activation not in {"NONE", "RELU"}:
        return False
    if site.operation.type == "MAX_POOL_2D":
        return True
    w = checks.pool_windows(site)
    return bool(math.prod(w.extents) % 2 and not any((*w.before, *w.after)))


@rule("AVERAGE_POOL_2D", check=_check_pool, layout=channels_first)
def emit_average_pool(graph: Graph, site: Site) -> None:
    w, x = checks.pool_windows(site), graph.get(site)
    node = graph.op.avg_pool(x, w.strides, w.before, w.after, w.extents, True)
    graph.define(site, graph.activate(node, site.activation))


@rule("MAX_POOL_2D", check=_check_pool, layout=channels_first)
def emit_max_pool(graph: Graph, site: Site) -> None:
    w, x = checks.pool_windows(site), graph.get(site)
    op: Any = importlib.import_module(OPSET_OF_MAX_POOL)
    node = op.max_pool(x, w.strides, w.before, w.after, w.extents)
    if site.activation == "NONE":
        graph.move(site, node)
    else:
        graph.define(site, graph.activate(node, site.activation))


def _interpolated(graph: Graph, site: Site, mode: str, coordinates: str) -> Node:
    return graph.op.interpolate(
        graph.get(site),
        graph.whole(site.integers(1, "its size")),
        mode,
        "sizes",
        axes=graph.whole([2, 3]),
        coordinate_transformation_mode=coordinates,
        nearest_mode="floor",
    )


@rule("RESIZE_BILINEAR", check=checks.check_bilinear, layout=channels_first)
def emit_resize_bilinear(graph: Graph, site: Site) -> None:
    graph.define(site, _interpolated(graph, site, "linear_onnx", checks.coordinates(site)))


@rule("RESIZE_NEAREST_NEIGHBOR", check=check_moved, layout=channels_first)
def emit_resize_nearest_neighbor(graph: Graph, site: Site) -> None:
    """Resizing by OpenVINO's own kernel if the sizes are whole multiples. Otherwise rows, then
    columns, are gathered by the positions that TFLite computes in float32.
    """
    sizes, positions = site.shape()[1:3], checks.nearest_positions(site)
    repeated = [_is_repeated(*each) for each in zip(positions, sizes, strict=True)]
    if all(repeated) and list(sizes) != site.integers(1, "its size"):
        graph.move(site, _interpolated(graph, site, "nearest", "asymmetric"))
        return
    node = graph.get(site)
    for axis, (size, each) in enumerate(zip(sizes, positions, strict=True), start=2):
        if not np.array_equal(each, np.arange(size)):
            node = graph.op.gather(node, graph.whole(each.tolist()), graph.whole([axis]))
    graph.move(site, node)


def _is_repeated(positions: NDArray, size: int) -> bool:
    """Whether each of *size* positions occurs equally often, one after another."""
    times, left = divmod(len(positions), size)
    return not left and np.array_equal(positions, np.repeat(np.arange(size), times))


@rule("SPACE_TO_DEPTH", "DEPTH_TO_SPACE", check=check_moved, layout=channels_first)
def emit_blocks(graph: Graph, site: Site) -> None:
    """TFLite puts the position in the block before the channel, as OpenVINO's blocks_first."""
    block = site.attributes.integer("block_size")
    is_deepened = site.operation.type == "SPACE_TO_DEPTH"
    deepen = graph.op.space_to_depth if is_deepened else graph.op.depth_to_space
    graph.rearrange(site, lambda x: deepen(x, "blocks_first", block))
