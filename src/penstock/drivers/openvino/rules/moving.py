"""Operations that move values: reshapes, transpositions, joins, splits, padding, slices, gathers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.driverkit.checks import (
    MAX_PIECES,
    axis_of,
    bounds_of,
    gather_axis,
    joined,
    order_of,
    pads_of,
    require_mirrored,
    split_axis,
)
from penstock.driverkit.layout import (
    TO_FIRST,
    Values,
    channels_last,
    computed_axis,
    follows,
    follows_last_input,
    in_computed_order,
    joins,
    layout_of,
    transposes,
)
from penstock.driverkit.site import Layout, Site, require
from penstock.driverkit.types import F32, activation
from penstock.drivers.openvino.graph import PLAIN, STEPPED, Graph, Node
from penstock.drivers.openvino.rules.rule import carried, moved, moves, rule
from penstock.hal import AccuracyClass
from penstock.ir import DType


def _check_reshape(site: Site) -> AccuracyClass:
    site.shape(), site.output_shape()
    return carried(site, [site.input()])


def _reshape_layout(site: Site, values: Values) -> Layout:
    is_first = values.is_first(site.input_indexes[0])
    if is_first:
        is_first = _kept_order(site.shape(), site.output_shape()) is not None
    return layout_of(site, is_first, [0], outputs=False)


@rule("RESHAPE", "SQUEEZE", "EXPAND_DIMS", check=_check_reshape, layout=_reshape_layout)
def emit_reshape(graph: Graph, site: Site) -> None:
    shape = site.output_shape()
    order = _kept_order(site.shape(), shape) if site.first else None
    if order is None:
        graph.move(site, graph.reshape(graph.get(site), shape))
        return
    # The transposition follows the reshape, where OpenVINO can cancel it with the next one.
    node = graph.reshape(graph.get(site), [shape[axis] for axis in order])
    if order != sorted(order):
        node = graph.transpose(node, [order.index(axis) for axis in range(len(shape))])
    graph.move(site, node)


def _kept_order(given: Sequence[int], wanted: Sequence[int]) -> list[int] | None:
    """The axes of *wanted* in the order in which they lie channels first, for an NHWC image *given*
    that is reshaped by dimensions of 1 alone; None for any other.
    """
    axes = [axis for axis, size in enumerate(wanted) if size != 1]
    kept = [axis for axis, size in enumerate(given) if size != 1]
    if [wanted[a] for a in axes] != [given[a] for a in kept]:
        return None
    of = dict(zip(kept, axes, strict=True))
    lying = iter([of[axis] for axis in TO_FIRST[4] if axis in of])
    return [next(lying) if size != 1 else axis for axis, size in enumerate(wanted)]


def _check_transpose(site: Site) -> AccuracyClass:
    order_of(site)
    return moves(site)


def _transpose_layout(site: Site, values: Values) -> Layout:
    found = transposes(site, values, order_of(site)) if site.rank() == 4 else None
    return found or channels_last(site, values)


@rule("TRANSPOSE", check=_check_transpose, layout=_transpose_layout)
def emit_transpose(graph: Graph, site: Site) -> None:
    node, layout = graph.get(site), site.layout
    is_free = layout.inputs[0] != layout.outputs[0]
    graph.move(site, node if is_free else graph.transpose(node, order_of(site)))


def _check_concatenation(site: Site) -> AccuracyClass:
    require(activation(site, ["NONE"]) == "NONE", "")
    return carried(site, joined(site))


@rule("CONCATENATION", check=_check_concatenation, layout=joins)
def emit_concatenation(graph: Graph, site: Site) -> None:
    axis = axis_of(site.operation.attributes.integer("axis"), len(site.output_shape()))
    parts = [graph.get(site, position) for position in range(len(site.inputs))]
    node = graph.op.concat(parts, computed_axis(site, axis))
    graph.move(site, node, range(len(parts)))


def _check_pack(site: Site) -> AccuracyClass:
    return carried(site, joined(site))


@rule("PACK", check=_check_pack)
def emit_pack(graph: Graph, site: Site) -> None:
    shape = list(site.output_shape())
    axis = axis_of(site.operation.attributes.integer("axis"), len(shape))
    shape[axis] = 1
    parts = [graph.reshape(graph.get(site, p), shape) for p in range(len(site.inputs))]
    graph.move(site, graph.op.concat(parts, axis), range(len(parts)))


def _check_unpack(site: Site) -> AccuracyClass:
    require(len(site.outputs) <= MAX_PIECES, f"more than {MAX_PIECES} outputs")
    axis_of(site.operation.attributes.integer("axis"), len(site.shape()))
    for position in range(len(site.outputs)):
        site.output_shape(position)
    return moves(site)


@rule("UNPACK", check=_check_unpack)
def emit_unpack(graph: Graph, site: Site) -> None:
    axis = axis_of(site.operation.attributes.integer("axis"), len(site.shape()))
    pieces = graph.op.split(graph.get(site), graph.op.constant(axis), len(site.outputs))
    for position, piece in enumerate(pieces.outputs()):
        node = graph.reshape(piece, site.output_shape(position))
        graph.move(site, node, output=position)


def _check_split(site: Site) -> AccuracyClass:
    split_axis(site, 0, 1)
    return moves(site, 1)


@rule("SPLIT", check=_check_split, layout=follows_last_input)
def emit_split(graph: Graph, site: Site) -> None:
    _emit_pieces(graph, site, split_axis(site, 0, 1), 1)


def _check_split_v(site: Site) -> AccuracyClass:
    split_axis(site, 2, 0)
    site.integers(1, "its sizes")
    for position in range(len(site.outputs)):
        site.output_shape(position)
    return moves(site)


@rule("SPLIT_V", check=_check_split_v, layout=follows)
def emit_split_v(graph: Graph, site: Site) -> None:
    _emit_pieces(graph, site, split_axis(site, 2, 0), 0)


def _emit_pieces(graph: Graph, site: Site, axis: int, source: int) -> None:
    sizes = [site.output_shape(p)[axis] for p in range(len(site.outputs))]
    node: Node = graph.op.variadic_split(
        graph.get(site, source),
        graph.op.constant(computed_axis(site, axis)),
        graph.whole(sizes),
    )
    for position, piece in enumerate(node.outputs()):
        graph.move(site, piece, (source,), output=position)


def _check_pad(site: Site) -> AccuracyClass:
    pads_of(site), site.output_shape()
    if site.operation.type == "PADV2":
        require(site.value(2, "its value").size == 1, "a padding of several values")
        require(site.input(2).dtype is site.input().dtype, "a padding value of another type")
        return moved(site, [site.input(0), site.input(2)])
    return moves(site)


@rule("PAD", "PADV2", check=_check_pad, layout=follows)
def emit_pad(graph: Graph, site: Site) -> None:
    value = graph.number(0.0)
    if site.operation.type == "PADV2":
        value = graph.reshape(graph.get(site, 2), ())
    elif site.input().quantization == site.output().quantization:
        before, after = pads_of(site)
        if len(before) == 4 and not any((before[0], after[0], before[3], after[3])):
            graph.note_padding(site, before[1:3], after[1:3])
    _emit_padding(graph, site, "constant", value)


def _check_mirror_pad(site: Site) -> AccuracyClass:
    require_mirrored(site)
    return moves(site)


@rule("MIRROR_PAD", check=_check_mirror_pad, layout=follows)
def emit_mirror_pad(graph: Graph, site: Site) -> None:
    _emit_padding(graph, site, site.operation.attributes.text("mode").lower(), None)


def _emit_padding(graph: Graph, site: Site, mode: str, value: Node | None) -> None:
    before, after = (in_computed_order(site, side) for side in pads_of(site))
    x = graph.get(site)
    if value is not None and len(before) == 1 and site.input().dtype in STEPPED:
        # OpenVINO (2026.4) pads a row in whole steps, and takes the value, which is real, for such
        # a step.
        around = [graph.op.broadcast(value, graph.whole(side)) for side in (before, after)]
        node = graph.op.concat([around[0], x, around[1]], 0)
    else:
        node = graph.op.pad(x, graph.whole(before), graph.whole(after), mode, value)
    graph.move(site, node)


def _check_shape(site: Site) -> AccuracyClass:
    site.shape()
    if site.input().dtype not in PLAIN | STEPPED | {F32}:
        site.refuse_types()
    require(site.output().dtype is DType.INT32, "a shape of another type")
    return "exact"


@rule("SHAPE", check=_check_shape)
def emit_shape(graph: Graph, site: Site) -> None:
    """Known already."""
    graph.define(site, graph.constant(np.array(site.shape(), np.int32)))


def _check_slice(site: Site) -> AccuracyClass:
    require(min(bounds_of(site).step) > 0, "a slice that runs backwards")
    site.output_shape()
    return carried(site, [site.input()])


@rule("SLICE", "STRIDED_SLICE", check=_check_slice)
def emit_slice(graph: Graph, site: Site) -> None:
    bounds, shape = bounds_of(site), site.shape()
    node = graph.op.slice(
        graph.get(site),
        graph.whole(bounds.begin),
        graph.whole(bounds.end),
        graph.whole(bounds.step),
        graph.whole(range(len(shape))),
    )
    if len(site.output_shape()) != len(shape):
        node = graph.reshape(node, site.output_shape())
    graph.move(site, node)


def _check_gather(site: Site) -> AccuracyClass:
    attributes = site.operation.attributes
    require(attributes.integer("batch_dims") == 0, "a gather by batches")
    indices, axis = site.integers(1, "its indexes"), gather_axis(site)
    size = site.shape()[axis]
    require(all(0 <= i < size for i in indices), f"an index outside the {size} there are")
    site.output_shape()
    return moves(site)


@rule("GATHER", check=_check_gather)
def emit_gather(graph: Graph, site: Site) -> None:
    """Constant indexes of any shape along one dimension."""
    node = graph.op.gather(
        graph.get(site),
        graph.whole(site.integers(1, "its indexes")),
        graph.whole([gather_axis(site)]),
    )
    graph.move(site, graph.reshape(node, site.output_shape()))
