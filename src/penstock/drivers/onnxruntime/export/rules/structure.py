"""Operations that move values: reshapes, transpositions, joins, splits and padding."""

from __future__ import annotations

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
from penstock.driverkit.site import QUANTIZED, Site, require
from penstock.driverkit.types import F32, activation
from penstock.drivers.onnxruntime.export.graph import (
    FIRST_AXIS,
    TO_FIRST,
    TO_LAST,
    TURNED,
    Graph,
    Value,
)
from penstock.drivers.onnxruntime.export.rules.images import zero_of
from penstock.drivers.onnxruntime.export.rules.rule import rule
from penstock.drivers.onnxruntime.export.types import PLAIN, moved, moves
from penstock.hal import AccuracyClass
from penstock.ir import DType


def _check_reshape(site: Site) -> AccuracyClass:
    site.shape(), site.output_shape()
    return moves(site, unscaled=True)


@rule("RESHAPE", "SQUEEZE", "EXPAND_DIMS", check=_check_reshape)
def emit_reshape(graph: Graph, site: Site) -> None:
    """Sequences are convolved as images of one row: what takes that row away, or gives it back,
    keeps the channels before the steps.
    """
    index, shape, made = site.input_indexes[0], site.shape(), site.output_shape()
    turned = graph.turned(index)
    row = len(shape) == 4 and shape[1] == 1 and made == (shape[0], *shape[2:])
    if row and site.output().dtype is F32 and graph.is_first(index):
        rows, _, steps, channels = shape
        image = graph.shaped(graph.get(index, first=True), (rows, channels, 1, steps))
        graph.turn(site, graph.reshape(image, (rows, channels, steps)))
        return
    if turned is not None and made == (*shape[:1], 1, *shape[1:]):
        rows, steps, channels = shape
        graph.define(site, graph.reshape(turned, (rows, channels, 1, steps)), first=True)
        return
    graph.define(site, graph.reshape(graph.source(site), made))


def _check_transpose(site: Site) -> AccuracyClass:
    order_of(site)
    return moves(site, unscaled=True)


@rule("TRANSPOSE", check=_check_transpose)
def emit_transpose(graph: Graph, site: Site) -> None:
    order = order_of(site)
    if tuple(order) == TO_LAST:
        # What is there is the result, channels first.
        graph.define(site, graph.source(site), first=True)
        return
    if tuple(order) == TO_FIRST and graph.is_first(site.input_indexes[0]):
        graph.define(site, graph.source(site, first=True))
        return
    shape = site.shape()
    if tuple(order) == TURNED and site.output().dtype is F32:
        turned = graph.turned(site.input_indexes[0])
        if turned is None:
            graph.turn(site, graph.source(site))
        else:
            graph.define(site, turned)
        return
    long = [axis for axis in order if shape[axis] != 1]
    if long == sorted(long):
        graph.define(site, graph.reshape(graph.source(site), site.output_shape()))
        return
    graph.define(site, graph.transpose(graph.source(site), order))


def _check_concatenation(site: Site) -> AccuracyClass:
    require(activation(site, ["NONE"]) == "NONE", "")
    return moved(site, joined(site), unscaled=True)


@rule("CONCATENATION", check=_check_concatenation)
def emit_concatenation(graph: Graph, site: Site) -> None:
    axis = axis_of(site.operation.attributes.integer("axis"), len(site.output_shape()))
    first = any(map(graph.is_first, site.input_indexes))
    parts = [graph.source(site, p, first=first) for p in range(len(site.inputs))]
    node = graph.node("Concat", *parts, axis=FIRST_AXIS[axis] if first else axis)
    graph.define(site, node, first=first)


def _check_pack(site: Site) -> AccuracyClass:
    return moved(site, joined(site), unscaled=True)


@rule("PACK", check=_check_pack)
def emit_pack(graph: Graph, site: Site) -> None:
    shape = list(site.output_shape())
    axis = axis_of(site.operation.attributes.integer("axis"), len(shape))
    shape[axis] = 1
    parts = [graph.reshape(graph.source(site, p), shape) for p in range(len(site.inputs))]
    graph.define(site, graph.node("Concat", *parts, axis=axis))


def _check_unpack(site: Site) -> AccuracyClass:
    require(len(site.outputs) <= MAX_PIECES, f"more than {MAX_PIECES} outputs")
    axis_of(site.operation.attributes.integer("axis"), len(site.shape()))
    return _pieces(site, 0)


def _pieces(site: Site, source: int) -> AccuracyClass:
    for position in range(len(site.outputs)):
        site.output_shape(position)
    for output in site.outputs:
        require(output.dtype is site.input(source).dtype, "pieces of another type")
    return moves(site, source, unscaled=True)


@rule("UNPACK", check=_check_unpack)
def emit_unpack(graph: Graph, site: Site) -> None:
    axis = axis_of(site.operation.attributes.integer("axis"), len(site.shape()))
    sizes = [1] * len(site.outputs)
    for position, piece in enumerate(_split(graph, site, 0, axis, sizes, first=False)):
        value = graph.reshape(piece, site.output_shape(position))
        graph.define(site, value, output=position)


def _split(
    graph: Graph, site: Site, source: int, axis: int, sizes: list[int], *, first: bool
) -> list[Value]:
    """The pieces of an input, each on the grid of its output."""
    index, given = site.input_indexes[source], site.input(source)
    same = all(o.quantization == given.quantization for o in site.outputs)
    along = FIRST_AXIS[axis] if first else axis
    x = graph.get(index, first=first) if same else graph.real(index, first=first)
    if len(sizes) == 1:
        pieces = [x]
    else:
        pieces = graph.node_of("Split", [x, graph.whole(sizes)], len(sizes), axis=along)
    if same or given.dtype not in QUANTIZED:
        return pieces
    return [
        graph.node("QuantizeLinear", piece, *graph.target(output))
        for piece, output in zip(pieces, site.outputs, strict=True)
    ]


def _check_split(site: Site) -> AccuracyClass:
    split_axis(site, 0, 1)
    return _pieces(site, 1)


@rule("SPLIT", check=_check_split)
def emit_split(graph: Graph, site: Site) -> None:
    _emit_pieces(graph, site, split_axis(site, 0, 1), source=1)


def _check_split_v(site: Site) -> AccuracyClass:
    split_axis(site, 2, 0)
    site.integers(1, "its sizes")
    return _pieces(site, 0)


@rule("SPLIT_V", check=_check_split_v)
def emit_split_v(graph: Graph, site: Site) -> None:
    _emit_pieces(graph, site, split_axis(site, 2, 0), source=0)


def _emit_pieces(graph: Graph, site: Site, axis: int, source: int) -> None:
    first = graph.is_first(site.input_indexes[source])
    sizes = [site.output_shape(p)[axis] for p in range(len(site.outputs))]
    for position, piece in enumerate(_split(graph, site, source, axis, sizes, first=first)):
        graph.define(site, piece, first=first, output=position)


def _check_pad(site: Site) -> AccuracyClass:
    pads_of(site), site.output_shape()
    if site.operation.type == "PADV2":
        require(site.value(2, "its value").size == 1, "a padding of several values")
        require(site.input().dtype is not DType.BOOL, "a padding with truth values")
        return moved(site, [site.input(0), site.input(2)])
    return moves(site)


@rule("PAD", "PADV2", check=_check_pad)
def emit_pad(graph: Graph, site: Site) -> None:
    before, after = pads_of(site)
    first = graph.is_first(site.input_indexes[0])
    if first:
        before, after = ([side[a] for a in TO_FIRST] for side in (before, after))
    value = zero_of(graph, site)
    if site.operation.type == "PADV2":
        value = graph.reshape(graph.source(site, 2), ())
    node = graph.source(site, first=first)
    if any(before) or any(after):
        pads = graph.whole([*before, *after])
        truth = site.output().dtype is DType.BOOL
        node = graph.node("Pad", node, pads, value) if not truth else _padded(graph, node, pads)
    graph.define(site, node, first=first)


def _padded(graph: Graph, node: Value, pads: Value) -> Value:
    """Truth values, padded as bytes."""
    stored = graph.node("Cast", node, to=6)
    return graph.node("Cast", graph.node("Pad", stored, pads), to=9)


def _check_mirror_pad(site: Site) -> AccuracyClass:
    require_mirrored(site)
    return moves(site, unscaled=True)


@rule("MIRROR_PAD", check=_check_mirror_pad)
def emit_mirror_pad(graph: Graph, site: Site) -> None:
    """Each padded axis gathered at mirrored positions."""
    before, after = pads_of(site)
    first = graph.is_first(site.input_indexes[0])
    mode = "reflect" if site.operation.attributes.text("mode") == "REFLECT" else "symmetric"
    node = graph.source(site, first=first)
    for axis, (size, b, a) in enumerate(zip(site.shape(), before, after, strict=True)):
        if a or b:
            positions = np.pad(np.arange(size, dtype=np.int64), (b, a), mode=mode)  # type: ignore[call-overload]  # two literals
            along = FIRST_AXIS[axis] if first else axis
            node = graph.node("Gather", node, graph.constant(positions), axis=along)
    graph.define(site, node, first=first)


def _check_repeats(site: Site) -> AccuracyClass:
    site.shape(), site.output_shape()
    site.integers(1, "its second input")
    return moves(site, unscaled=True)


@rule("TILE", check=_check_repeats)
def emit_tile(graph: Graph, site: Site) -> None:
    repeats = graph.whole(site.integers(1, "its multiples"))
    graph.define(site, graph.node("Tile", graph.source(site), repeats))


@rule("BROADCAST_TO", check=_check_repeats)
def emit_broadcast(graph: Graph, site: Site) -> None:
    shape = graph.whole(site.output_shape())
    graph.define(site, graph.node("Expand", graph.source(site), shape))


def _check_fill(site: Site) -> AccuracyClass:
    site.output_shape()
    require(site.input(1).shape == (), "a value that is no scalar")
    return moves(site, 1, unscaled=True)


@rule("FILL", check=_check_fill)
def emit_fill(graph: Graph, site: Site) -> None:
    """Its shape is known already."""
    shape = graph.whole(site.output_shape())
    graph.define(site, graph.node("Expand", graph.source(site, 1), shape))


def _check_reverse(site: Site) -> AccuracyClass:
    for axis in site.integers(1, "its axes"):
        axis_of(axis, len(site.shape()))
    return moves(site, unscaled=True)


@rule("REVERSE_V2", check=_check_reverse)
def emit_reverse(graph: Graph, site: Site) -> None:
    shape, node = site.shape(), graph.source(site)
    for axis in {axis_of(a, len(shape)) for a in site.integers(1, "its axes")}:
        positions = graph.whole(range(shape[axis] - 1, -1, -1))
        node = graph.node("Gather", node, positions, axis=axis)
    graph.define(site, node)


def _check_shape(site: Site) -> AccuracyClass:
    site.shape()
    if site.input().dtype not in PLAIN | QUANTIZED:
        site.refuse_types()
    require(site.output().dtype in {DType.INT32, DType.INT64}, "a shape of another type")
    return "exact"


@rule("SHAPE", check=_check_shape)
def emit_shape(graph: Graph, site: Site) -> None:
    """Known already."""
    graph.hold(site, np.array(site.shape(), site.output().dtype.numpy))
