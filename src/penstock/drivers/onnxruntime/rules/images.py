"""Pooling, resizing, and the moves between depth, space and batch, over NHWC images."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.driverkit import checks, layout
from penstock.driverkit.layout import TO_LAST, Values, computed_axis, follows
from penstock.driverkit.site import Layout, Site, require
from penstock.drivers.onnxruntime.graph import MICROSOFT, Graph, Value, stored_grid
from penstock.drivers.onnxruntime.rules.rule import check_moved, moves, rule
from penstock.hal import AccuracyClass
from penstock.ir import DType


def _check_pool(site: Site) -> AccuracyClass:
    checks.pool_windows(site), checks.activation(site)
    if site.operation.type == "L2_POOL_2D":
        checks.require_float(site)
    elif site.input().dtype is not checks.F32:
        same = site.input().quantization == site.output().quantization
        require(same, "a quantised pool whose output has another scale")
    return checks.activations(site, quantized="faithful")


def _attributes(site: Site) -> dict[str, Any]:
    w = checks.pool_windows(site)
    return {"kernel_shape": w.extents, "strides": w.strides, "pads": [*w.before, *w.after]}


def _average_layout(site: Site, values: Values) -> Layout:
    """Computed channels first. Integer results are stored channels last."""
    return layout.layout_of(site, True, [0], outputs=values.real or not site.is_quantized)


@rule("AVERAGE_POOL_2D", check=_check_pool, layout=_average_layout)
def emit_average_pool(graph: Graph, site: Site) -> None:
    is_real = graph.portable or not site.is_quantized
    x = graph.real(site) if is_real else graph.cast(graph.get(site), checks.F32)
    node = graph.node("AveragePool", x, count_include_pad=0, **_attributes(site))
    if is_real:
        graph.round(site, graph.activate(node, site.activation))
        return
    node = graph.transpose(rounded(graph, node, site), TO_LAST[4])
    graph.put(site, graph.limit(node, site.output(), site.activation))


def rounded(graph: Graph, mean: Value, site: Site) -> Value:
    """A mean of stored values as a stored value. Halves round away from TFLite's stored zero."""
    half = graph.number(0.5)
    if site.input().dtype is DType.UINT8:
        return graph.cast(graph.node("Floor", graph.node("Add", mean, half)), DType.UINT8)
    offset = graph.number(128.0)
    value = graph.node("Sub", mean, offset)
    size = graph.node("Floor", graph.node("Add", graph.node("Abs", value), half))
    signed = graph.node("Mul", graph.node("Sign", value), size)
    return graph.cast(graph.node("Add", signed, offset), DType.UINT8)


@rule("MAX_POOL_2D", check=_check_pool, layout=layout.first_if_real)
def emit_max_pool(graph: Graph, site: Site) -> None:
    named, fused = _attributes(site), site.activation
    if graph.portable or not site.is_quantized:
        node = graph.node("MaxPool", graph.real(site), **named)
        graph.round(site, graph.activate(node, fused))
        return
    node = graph.node("NhwcMaxPool", graph.get(site), domain=MICROSOFT, **named)
    graph.put(site, graph.limit(node, site.output(), fused))


@rule("L2_POOL_2D", check=_check_pool, layout=layout.channels_first)
def emit_l2_pool(graph: Graph, site: Site) -> None:
    x = graph.get(site)
    squares = graph.node("Mul", x, x)
    node = graph.node("AveragePool", squares, count_include_pad=0, **_attributes(site))
    graph.round(site, graph.activate(graph.node("Sqrt", node), site.activation))


@rule("RESIZE_BILINEAR", check=checks.check_bilinear)
def emit_resize_bilinear(graph: Graph, site: Site) -> None:
    """Computed channels last, which is several times faster in ONNX Runtime."""
    image, (height, width) = site.shape(), site.integers(1, "its size")
    sizes = graph.whole([image[0], height, width, image[3]])
    mode = {"mode": "linear", "coordinate_transformation_mode": checks.coordinates(site)}
    graph.round(site, graph.node("Resize", graph.real(site), "", "", sizes, **mode))


@rule("RESIZE_NEAREST_NEIGHBOR", check=check_moved, layout=follows)
def emit_resize_nearest_neighbor(graph: Graph, site: Site) -> None:
    """Rows, then columns, gathered by the positions that TFLite computes in float32."""
    node = graph.source(site)
    for axis, positions in enumerate(checks.nearest_positions(site), start=1):
        if not np.array_equal(positions, np.arange(site.shape()[axis])):
            node = graph.gather(node, positions, computed_axis(site, axis))
    graph.put(site, node)


@rule("DEPTH_TO_SPACE", check=check_moved, layout=follows)
def emit_depth_to_space(graph: Graph, site: Site) -> None:
    """The position in the block precedes the channel."""
    block, (n, h, w, c) = site.attributes.integer("block_size"), site.output_shape()
    if site.first:
        node = graph.node("DepthToSpace", graph.get(site), blocksize=block, mode="DCR")
    else:
        node = graph.reshape(graph.source(site), (n, h // block, w // block, block, block, c))
        node = graph.reshape(graph.transpose(node, (0, 1, 3, 2, 4, 5)), (n, h, w, c))
    graph.put(site, node)


@rule("SPACE_TO_DEPTH", check=check_moved)
def emit_space_to_depth(graph: Graph, site: Site) -> None:
    block, (n, h, w, c) = site.attributes.integer("block_size"), site.shape()
    node = graph.reshape(graph.source(site), (n, h // block, block, w // block, block, c))
    node = graph.transpose(node, (0, 1, 3, 2, 4, 5))
    graph.put(site, graph.reshape(node, site.output_shape()))


def _check_batches(site: Site) -> AccuracyClass:
    blocks, edges = site.integers(1, "its blocks"), site.integers(2, "its edges")
    require(len(site.shape()) > len(blocks) and min(blocks, default=1) >= 1, f"blocks {blocks}")
    require(len(edges) == 2 * len(blocks) and min(edges, default=0) >= 0, f"edges {edges}")
    return moves(site)


@rule("SPACE_TO_BATCH_ND", check=_check_batches)
def emit_space_to_batch(graph: Graph, site: Site) -> None:
    """The image is padded and cut into blocks; the position in a block moves before the batch."""
    blocks, edges = site.integers(1, "its blocks"), site.integers(2, "its edges")
    shape, k, output = site.shape(), len(blocks), site.output_shape()
    rest = len(shape) - 1 - k
    pads = [0, *edges[::2], *[0] * rest, 0, *edges[1::2], *[0] * rest]
    node = graph.source(site)
    if any(pads):
        node = graph.node("Pad", node, graph.whole(pads), zero_of(graph, site))
    cut = [n for pair in zip(output[1 : k + 1], blocks, strict=True) for n in pair]
    node = graph.reshape(node, (shape[0], *cut, *shape[k + 1 :]))
    order = (*range(2, 2 * k + 2, 2), 0, *range(1, 2 * k + 1, 2))
    order = (*order, *range(2 * k + 1, 2 * k + 1 + rest))
    graph.put(site, graph.reshape(graph.transpose(node, order), output))


@rule("BATCH_TO_SPACE_ND", check=_check_batches)
def emit_batch_to_space(graph: Graph, site: Site) -> None:
    blocks, edges = site.integers(1, "its blocks"), site.integers(2, "its edges")
    shape, k, output = site.shape(), len(blocks), site.output_shape()
    rest, batch = len(shape) - 1 - k, output[0]
    node = graph.reshape(graph.source(site), (*blocks, batch, *shape[1:]))
    pairs = [axis for i in range(k) for axis in (k + 1 + i, i)]
    node = graph.transpose(node, (k, *pairs, *range(2 * k + 1, 2 * k + 1 + rest)))
    whole = [s * b for s, b in zip(shape[1 : k + 1], blocks, strict=True)]
    node = graph.reshape(node, (batch, *whole, *shape[k + 1 :]))
    if any(edges):
        ends = [e + n for e, n in zip(edges[::2], output[1 : k + 1], strict=True)]
        axes = graph.whole(range(1, k + 1))
        node = graph.node("Slice", node, graph.whole(edges[::2]), graph.whole(ends), axes)
    graph.put(site, node)


def zero_of(graph: Graph, site: Site) -> Value:
    """The stored zero of the output, which is the padding value."""
    if site.is_quantized:
        return graph.byte(stored_grid(site.output())[1])
    return graph.constant(np.zeros((), site.output().dtype.numpy))
