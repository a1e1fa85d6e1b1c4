"""Operations that move values: reshapes, transpositions, joins, splits, padding, slices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from penstock.driverkit import checks, layout, moving
from penstock.driverkit.layout import TO_FIRST, Values, computed_axis, follows
from penstock.driverkit.site import Layout, Site, require
from penstock.drivers.openvino.graph import PLAIN, STEPPED, Graph, Node, Padded
from penstock.drivers.openvino.rules.rule import check_moved, moved, moved_or_plain, rule
from penstock.hal import AccuracyClass
from penstock.ir import DType

RESHAPES: Final = ("RESHAPE", "SQUEEZE", "EXPAND_DIMS")
SLICES: Final = ("SLICE", "STRIDED_SLICE")


def _check_plain(site: Site) -> AccuracyClass:
    operands = moving.moved_operands(site)
    if site.operation.type in SLICES:
        require(min(moving.bounds_of(site).step) > 0, "a slice that runs backwards")
    return moved_or_plain(site, operands)


def _reshape_layout(site: Site, values: Values) -> Layout:
    is_first = values.is_first(site.input_indexes[0])
    is_first = is_first and _kept_order(site.shape(), site.output_shape()) is not None
    return layout.layout_of(site, is_first, [0], outputs=False)


@rule(*RESHAPES, check=_check_plain, layout=_reshape_layout)
def emit_reshape(graph: Graph, site: Site) -> None:
    shape = site.output_shape()
    order = _kept_order(site.shape(), shape) if site.first else None
    if order is None:
        graph.move(site, graph.reshape(graph.get(site), shape))
        return
    # The transposition is placed after the reshape, where OpenVINO can cancel it with the next one.
    node = graph.reshape(graph.get(site), [shape[axis] for axis in order])
    if order != sorted(order):
        node = graph.transpose(node, [order.index(axis) for axis in range(len(shape))])
    graph.move(site, node)


def _kept_order(given: Sequence[int], wanted: Sequence[int]) -> list[int] | None:
    """The axes of *wanted* in the channels-first order of the NHWC image *given*, if the reshape
    only adds or removes dimensions of size 1; otherwise None.
    """
    axes = [axis for axis, size in enumerate(wanted) if size != 1]
    kept = [axis for axis, size in enumerate(given) if size != 1]
    if [wanted[a] for a in axes] != [given[a] for a in kept]:
        return None
    of = dict(zip(kept, axes, strict=True))
    lying = iter([of[axis] for axis in TO_FIRST[4] if axis in of])
    return [next(lying) if size != 1 else axis for axis, size in enumerate(wanted)]


def _transpose_layout(site: Site, values: Values) -> Layout:
    return layout.transposes(site, values, moving.order_of(site), free=site.rank() == 4)


@rule("TRANSPOSE", check=check_moved, layout=_transpose_layout)
def emit_transpose(graph: Graph, site: Site) -> None:
    x = graph.get(site)
    graph.move(site, x if layout.is_renamed(site) else graph.transpose(x, moving.order_of(site)))


@rule("CONCATENATION", check=_check_plain, layout=layout.joins)
def emit_concatenation(graph: Graph, site: Site) -> None:
    parts = [graph.get(site, position) for position in range(len(site.inputs))]
    node = graph.op.concat(parts, computed_axis(site, moving.join_axis(site)))
    graph.move(site, node, range(len(parts)))


@rule("PACK", check=_check_plain)
def emit_pack(graph: Graph, site: Site) -> None:
    shape, axis = list(site.output_shape()), moving.join_axis(site)
    shape[axis] = 1
    parts = [graph.reshape(graph.get(site, p), shape) for p in range(len(site.inputs))]
    graph.move(site, graph.op.concat(parts, axis), range(len(parts)))


@rule("UNPACK", check=check_moved)
def emit_unpack(graph: Graph, site: Site) -> None:
    _, axis = moving.split_of(site)
    pieces = graph.op.split(graph.get(site), graph.op.constant(axis), len(site.outputs))
    for position, piece in enumerate(pieces.outputs()):
        node = graph.reshape(piece, site.output_shape(position))
        graph.move(site, node, output=position)


@rule("SPLIT", check=check_moved, layout=layout.follows_last_input)
@rule("SPLIT_V", check=check_moved, layout=follows)
def emit_split(graph: Graph, site: Site) -> None:
    source, axis = moving.split_of(site)
    sizes = [site.output_shape(p)[axis] for p in range(len(site.outputs))]
    along = graph.op.constant(computed_axis(site, axis))
    node: Node = graph.op.variadic_split(graph.get(site, source), along, graph.whole(sizes))
    for position, piece in enumerate(node.outputs()):
        graph.move(site, piece, (source,), output=position)


def _check_pad(site: Site) -> AccuracyClass:
    operands = moving.moved_operands(site)
    alike = all(operand.dtype is site.input().dtype for operand in operands)
    require(alike, "a padding value of another type")
    return moved(site, operands)


@rule("PAD", "PADV2", check=_check_pad, layout=follows)
def emit_pad(graph: Graph, site: Site) -> None:
    value = graph.number(0.0)
    if site.operation.type == "PADV2":
        value = graph.reshape(graph.get(site, 2), ())
    elif site.input().quantization == site.output().quantization:
        before, after = moving.pads_of(site)
        if len(before) == 4 and not any((before[0], after[0], before[3], after[3])):
            (above, left), (below, right) = before[1:3], after[1:3]
            padded = Padded(site.input_indexes[0], (above, left), (below, right))
            graph.padded[site.output_indexes[0]] = padded
    _emit_padding(graph, site, "constant", value)


@rule("MIRROR_PAD", check=check_moved, layout=follows)
def emit_mirror_pad(graph: Graph, site: Site) -> None:
    _emit_padding(graph, site, site.attributes.text("mode").lower(), None)


def _emit_padding(graph: Graph, site: Site, mode: str, value: Node | None) -> None:
    before, after = (layout.in_computed_order(site, side) for side in moving.pads_of(site))
    x = graph.get(site)
    if value is not None and len(before) == 1 and site.input().dtype in STEPPED:
        # OpenVINO (2026.4) pads a row in quantised steps, and mistakes the real padding value for a
        # step.
        around = [graph.op.broadcast(value, graph.whole(side)) for side in (before, after)]
        node = graph.op.concat([around[0], x, around[1]], 0)
    else:
        node = graph.op.pad(x, graph.whole(before), graph.whole(after), mode, value)
    graph.move(site, node)


def _check_shape(site: Site) -> AccuracyClass:
    return checks.check_shape(site, PLAIN | STEPPED | {checks.F32}, {DType.INT32})


@rule("SHAPE", check=_check_shape)
def emit_shape(graph: Graph, site: Site) -> None:
    """The shape as a constant: it is known."""
    graph.define(site, graph.constant(np.array(site.shape(), np.int32)))


@rule(*SLICES, check=_check_plain)
def emit_slice(graph: Graph, site: Site) -> None:
    bounds, shape = moving.bounds_of(site), site.shape()
    sides = (bounds.begin, bounds.end, bounds.step, range(len(shape)))
    node = graph.op.slice(graph.get(site), *map(graph.whole, sides))
    if len(site.output_shape()) != len(shape):
        node = graph.reshape(node, site.output_shape())
    graph.move(site, node)


def _check_gather(site: Site) -> AccuracyClass:
    site.value(1, "its indexes")
    moving.require_inside(site)
    return moved(site, [site.input()])


@rule("GATHER", check=_check_gather)
def emit_gather(graph: Graph, site: Site) -> None:
    """Constant indexes of any shape along one dimension."""
    indexes, axis = site.integers(1, "its indexes"), moving.gather_axis(site)
    node = graph.op.gather(graph.get(site), graph.whole(indexes), graph.whole([axis]))
    graph.move(site, graph.reshape(node, site.output_shape()))
