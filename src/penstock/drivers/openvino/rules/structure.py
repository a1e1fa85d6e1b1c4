"""Operations that move values: reshapes, transpositions, joins, splits and padding."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.driverkit.checks import (
    MAX_PIECES,
    axis_of,
    joined,
    order_of,
    pads_of,
    require_mirrored,
    split_axis,
)
from penstock.driverkit.site import Site, require
from penstock.driverkit.types import F32, activation
from penstock.drivers.openvino.graph import FIRST_AXIS, TO_FIRST, TO_LAST, Graph, Node
from penstock.drivers.openvino.rules.rule import rule
from penstock.drivers.openvino.types import PLAIN, STEPPED, carried, moved, moves
from penstock.hal import AccuracyClass
from penstock.ir import DType


def _check_reshape(site: Site) -> AccuracyClass:
    site.shape(), site.output_shape()
    return carried(site, [site.input()])


@rule("RESHAPE", "SQUEEZE", "EXPAND_DIMS", check=_check_reshape)
def emit_reshape(graph: Graph, site: Site) -> None:
    index, shape = site.input_indexes[0], site.output_shape()
    order = _turned(site.shape(), shape) if graph.is_first(index) else None
    if order is None:
        graph.move(site, graph.reshape(graph.get(index), shape))
        return
    # Reshaped as it lies and turned behind that, where OpenVINO finds the next TRANSPOSE to do
    # without both.
    node = graph.reshape(graph.get(index, first=True), [shape[axis] for axis in order])
    if order != sorted(order):
        node = graph.transpose(node, [order.index(axis) for axis in range(len(shape))])
    graph.move(site, node)


def _turned(given: Sequence[int], wanted: Sequence[int]) -> list[int] | None:
    """The axes of *wanted* in the order in which they lie channels first, for an NHWC image *given*
    that is reshaped by dimensions of 1 alone; None for any other.
    """
    axes = [axis for axis, size in enumerate(wanted) if size != 1]
    kept = [axis for axis, size in enumerate(given) if size != 1]
    if [wanted[a] for a in axes] != [given[a] for a in kept]:
        return None
    of = dict(zip(kept, axes, strict=True))
    lying = iter([of[axis] for axis in TO_FIRST if axis in of])
    return [next(lying) if size != 1 else axis for axis, size in enumerate(wanted)]


def _check_transpose(site: Site) -> AccuracyClass:
    order_of(site)
    return moves(site)


@rule("TRANSPOSE", check=_check_transpose)
def emit_transpose(graph: Graph, site: Site) -> None:
    order = order_of(site)
    index = site.input_indexes[0]
    if tuple(order) == TO_LAST:
        # What is there is the result, channels first.
        graph.move(site, graph.get(index), first=True)
        return
    if tuple(order) == TO_FIRST and graph.is_first(index):
        graph.move(site, graph.get(index, first=True))
        return
    graph.move(site, graph.transpose(graph.get(site.input_indexes[0]), order))


def _check_concatenation(site: Site) -> AccuracyClass:
    require(activation(site, ["NONE"]) == "NONE", "")
    return carried(site, joined(site))


@rule("CONCATENATION", check=_check_concatenation)
def emit_concatenation(graph: Graph, site: Site) -> None:
    axis = axis_of(site.operation.attributes.integer("axis"), len(site.output_shape()))
    first = any(map(graph.is_first, site.input_indexes))
    parts = [graph.get(i, first=first) for i in site.input_indexes]
    node = graph.op.concat(parts, FIRST_AXIS[axis] if first else axis)
    graph.move(site, node, range(len(parts)), first=first)


def _check_pack(site: Site) -> AccuracyClass:
    return carried(site, joined(site))


@rule("PACK", check=_check_pack)
def emit_pack(graph: Graph, site: Site) -> None:
    shape = list(site.output_shape())
    axis = axis_of(site.operation.attributes.integer("axis"), len(shape))
    shape[axis] = 1
    parts = [graph.reshape(graph.get(i), shape) for i in site.input_indexes]
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
    pieces = graph.op.split(
        graph.get(site.input_indexes[0]), graph.op.constant(axis), len(site.outputs)
    )
    for position, piece in enumerate(pieces.outputs()):
        node = graph.reshape(piece, site.output_shape(position))
        graph.move(site, node, output=position)


def _check_split(site: Site) -> AccuracyClass:
    split_axis(site, 0, 1)
    return moves(site, 1)


@rule("SPLIT", check=_check_split)
def emit_split(graph: Graph, site: Site) -> None:
    axis = split_axis(site, 0, 1)
    sizes = [site.output_shape(p)[axis] for p in range(len(site.outputs))]
    _emit_pieces(graph, site, site.input_indexes[1], axis, sizes, source=1)


def _check_split_v(site: Site) -> AccuracyClass:
    split_axis(site, 2, 0)
    site.integers(1, "its sizes")
    for position in range(len(site.outputs)):
        site.output_shape(position)
    return moves(site)


@rule("SPLIT_V", check=_check_split_v)
def emit_split_v(graph: Graph, site: Site) -> None:
    axis = split_axis(site, 2, 0)
    sizes = [site.output_shape(p)[axis] for p in range(len(site.outputs))]
    _emit_pieces(graph, site, site.input_indexes[0], axis, sizes, source=0)


def _emit_pieces(
    graph: Graph, site: Site, index: int, axis: int, sizes: list[int], source: int
) -> None:
    first = graph.is_first(index)
    node: Node = graph.op.variadic_split(
        graph.get(index, first=first),
        graph.op.constant(FIRST_AXIS[axis] if first else axis),
        graph.whole(sizes),
    )
    for position, piece in enumerate(node.outputs()):
        graph.move(site, piece, (source,), first=first, output=position)


def _check_pad(site: Site) -> AccuracyClass:
    pads_of(site), site.output_shape()
    if site.operation.type == "PADV2":
        require(site.value(2, "its value").size == 1, "a padding of several values")
        require(site.input(2).dtype is site.input().dtype, "a padding value of another type")
        return moved(site, [site.input(0), site.input(2)])
    return moves(site)


@rule("PAD", "PADV2", check=_check_pad)
def emit_pad(graph: Graph, site: Site) -> None:
    value = graph.number(0.0)
    if site.operation.type == "PADV2":
        value = graph.reshape(graph.get(site.input_indexes[2]), ())
    elif site.input().quantization == site.output().quantization:
        before, after = pads_of(site)
        if len(before) == 4 and not any((before[0], after[0], before[3], after[3])):
            graph.note_padding(site, before[1:3], after[1:3])
    _emit_padding(graph, site, "constant", value)


def _check_mirror_pad(site: Site) -> AccuracyClass:
    require_mirrored(site)
    return moves(site)


@rule("MIRROR_PAD", check=_check_mirror_pad)
def emit_mirror_pad(graph: Graph, site: Site) -> None:
    _emit_padding(graph, site, site.operation.attributes.text("mode").lower(), None)


def _emit_padding(graph: Graph, site: Site, mode: str, value: Node | None) -> None:
    before, after = pads_of(site)
    first = graph.is_first(site.input_indexes[0])
    if first:
        before, after = ([side[a] for a in TO_FIRST] for side in (before, after))
    x = graph.get(site.input_indexes[0], first=first)
    if value is not None and len(before) == 1 and site.input().dtype in STEPPED:
        # OpenVINO (2026.4) pads a row in whole steps, and takes the value, which is real, for such
        # a step.
        around = [graph.op.broadcast(value, graph.whole(side)) for side in (before, after)]
        node = graph.op.concat([around[0], x, around[1]], 0)
    else:
        node = graph.op.pad(x, graph.whole(before), graph.whole(after), mode, value)
    graph.move(site, node, first=first)


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
