"""Operations that move values: reshapes, transpositions, joins, splits, padding, slices."""

from __future__ import annotations

import numpy as np

from penstock.driverkit import checks, layout, moving
from penstock.driverkit.layout import TO_FIRST, Values, computed_axis, follows
from penstock.driverkit.site import QUANTIZED, Layout, Site, require
from penstock.drivers.onnxruntime.graph import Graph, Value
from penstock.drivers.onnxruntime.rules.images import zero_of
from penstock.drivers.onnxruntime.rules.rule import PLAIN, WHOLE, check_moved, moved, moves, rule
from penstock.hal import AccuracyClass
from penstock.ir import DType


def _reshape_layout(site: Site, values: Values) -> Layout:
    """Channels first if a RESHAPE removes an image's only row, or adds one to a sequence."""
    shape, made = site.shape(), site.output_shape()
    loses_row = len(shape) == 4 and shape[1] == 1 and made == (shape[0], *shape[2:])
    gains_row = len(shape) == 3 and made == (shape[0], 1, *shape[1:])
    is_sequence = gains_row or (loses_row and site.output().dtype is checks.F32)
    return layout.layout_of(site, is_sequence and values.is_first(site.input_indexes[0]), [0])


@rule("RESHAPE", "SQUEEZE", "EXPAND_DIMS", check=check_moved, layout=_reshape_layout)
def emit_reshape(graph: Graph, site: Site) -> None:
    """Reshapes. A sequence as an image of one row, or back, stays channels first."""
    if not site.first:
        graph.put(site, graph.reshape(graph.source(site), site.output_shape()))
        return
    rows, *_, steps, channels = site.shape()
    x, image, sequence = graph.get(site), (rows, channels, 1, steps), (rows, channels, steps)
    if site.rank() == 4:
        graph.put(site, graph.reshape(graph.shaped(x, image), sequence))
    else:
        graph.put(site, graph.reshape(x, image))


def _transpose_layout(site: Site, values: Values) -> Layout:
    free = site.rank() == 4 or site.output().dtype is checks.F32
    return layout.transposes(site, values, moving.order_of(site), free=free)


@rule("TRANSPOSE", check=check_moved, layout=_transpose_layout)
def emit_transpose(graph: Graph, site: Site) -> None:
    x, order, shape = graph.source(site), moving.order_of(site), site.shape()
    long = [axis for axis in order if shape[axis] != 1]
    if long == sorted(long) and not layout.is_renamed(site):
        x = graph.reshape(x, site.output_shape())
    elif not layout.is_renamed(site):
        x = graph.transpose(x, order)
    graph.put(site, x)


@rule("CONCATENATION", check=check_moved, layout=layout.joins)
def emit_concatenation(graph: Graph, site: Site) -> None:
    parts = [graph.source(site, p) for p in range(len(site.inputs))]
    graph.put(site, graph.node("Concat", *parts, axis=computed_axis(site, moving.join_axis(site))))


@rule("PACK", check=check_moved)
def emit_pack(graph: Graph, site: Site) -> None:
    shape, axis = list(site.output_shape()), moving.join_axis(site)
    shape[axis] = 1
    parts = [graph.reshape(graph.source(site, p), shape) for p in range(len(site.inputs))]
    graph.put(site, graph.node("Concat", *parts, axis=axis))


def _check_pieces(site: Site) -> AccuracyClass:
    (given,) = moving.moved_operands(site)
    alike = all(output.dtype is given.dtype for output in site.outputs)
    require(alike, "pieces of another type")
    return moved(site, [given], unscaled=True)


@rule("UNPACK", check=_check_pieces)
@rule("SPLIT", check=_check_pieces, layout=layout.follows_last_input)
@rule("SPLIT_V", check=_check_pieces, layout=follows)
def emit_pieces(graph: Graph, site: Site) -> None:
    """Splits the input; each piece is on the grid of its output."""
    source, axis = moving.split_of(site)
    given, is_unpacked = site.input(source), site.operation.type == "UNPACK"
    sizes = [1 if is_unpacked else site.output_shape(p)[axis] for p in range(len(site.outputs))]
    same = all(o.quantization == given.quantization for o in site.outputs)
    x = graph.get(site, source) if same else graph.real(site, source)
    pieces, along = [x], computed_axis(site, axis)
    if len(sizes) > 1:
        pieces = graph.node_of("Split", [x, graph.whole(sizes)], len(sizes), axis=along)
    if not same and given.dtype in QUANTIZED:
        pieces = [
            graph.node("QuantizeLinear", piece, *graph.target(output))
            for piece, output in zip(pieces, site.outputs, strict=True)
        ]
    for at, piece in enumerate(pieces):
        graph.put(site, graph.reshape(piece, site.output_shape(at)) if is_unpacked else piece, at)


def _check_pad(site: Site) -> AccuracyClass:
    operands = moving.moved_operands(site)
    is_truth = site.operation.type == "PADV2" and site.input().dtype is DType.BOOL
    require(not is_truth, "a padding with truth values")
    return moved(site, operands)


@rule("PAD", "PADV2", check=_check_pad, layout=follows)
def emit_pad(graph: Graph, site: Site) -> None:
    """Pads; booleans are padded as int32."""
    before, after = (layout.in_computed_order(site, side) for side in moving.pads_of(site))
    value = zero_of(graph, site)
    if site.operation.type == "PADV2":
        value = graph.reshape(graph.source(site, 2), ())
    node = graph.source(site)
    if any(before) or any(after):
        pads = graph.whole([*before, *after])
        if site.output().dtype is DType.BOOL:
            padded = graph.node("Pad", graph.cast(node, DType.INT32), pads)
            node = graph.cast(padded, DType.BOOL)
        else:
            node = graph.node("Pad", node, pads, value)
    graph.put(site, node)


@rule("MIRROR_PAD", check=check_moved, layout=follows)
def emit_mirror_pad(graph: Graph, site: Site) -> None:
    """Each padded axis gathered at mirrored positions."""
    before, after = moving.pads_of(site)
    mode = "reflect" if site.attributes.text("mode") == "REFLECT" else "symmetric"
    node = graph.source(site)
    for axis, (size, b, a) in enumerate(zip(site.shape(), before, after, strict=True)):
        if a or b:
            positions = np.pad(np.arange(size), (b, a), mode=mode)  # type: ignore[call-overload]
            node = graph.gather(node, positions, computed_axis(site, axis))
    graph.put(site, node)


@rule("TILE", check=check_moved)
def emit_tile(graph: Graph, site: Site) -> None:
    repeats = graph.whole(site.integers(1, "its multiples"))
    graph.put(site, graph.node("Tile", graph.source(site), repeats))


def _check_fill(site: Site) -> AccuracyClass:
    require(site.input(1).shape == (), "a value that is no scalar")
    return moves(site, 1, unscaled=True)


@rule("BROADCAST_TO", check=check_moved)
@rule("FILL", check=_check_fill)
def emit_broadcast(graph: Graph, site: Site) -> None:
    """The shape as a constant: it is known."""
    source = graph.source(site, 1 if site.operation.type == "FILL" else 0)
    graph.put(site, graph.node("Expand", source, graph.whole(site.output_shape())))


@rule("REVERSE_V2", check=check_moved)
def emit_reverse(graph: Graph, site: Site) -> None:
    shape, node = site.shape(), graph.source(site)
    for axis in moving.reversed_axes(site):
        node = graph.gather(node, np.arange(shape[axis])[::-1], axis)
    graph.put(site, node)


def _check_shape(site: Site) -> AccuracyClass:
    return checks.check_shape(site, PLAIN | QUANTIZED, WHOLE)


@rule("SHAPE", check=_check_shape)
def emit_shape(graph: Graph, site: Site) -> None:
    """The shape as a constant: it is known."""
    graph.hold(site, np.array(site.shape(), site.output().dtype.numpy))


def _slice_layout(site: Site, values: Values) -> Layout:
    is_kept = site.rank() == 3 == len(site.output_shape())
    return layout.layout_of(site, is_kept and values.is_first(site.input_indexes[0]), [0])


@rule("SLICE", "STRIDED_SLICE", check=check_moved, layout=_slice_layout)
def emit_slice(graph: Graph, site: Site) -> None:
    bounds, shape = moving.bounds_of(site), site.shape()
    rows = zip(bounds.begin, bounds.end, bounds.step, shape, strict=True)
    axes = [axis for axis, (*row, size) in enumerate(rows) if row != [0, size, 1]]
    node = graph.get(site) if site.first else graph.source(site)
    if axes:
        begin, end, step = (
            graph.whole([side[axis] for axis in axes])
            for side in (bounds.begin, bounds.end, bounds.step)
        )
        along = graph.whole([TO_FIRST[3][axis] for axis in axes] if site.first else axes)
        node = graph.node("Slice", node, begin, end, along, step)
    if len(site.output_shape()) != len(shape):
        node = graph.reshape(node, site.output_shape())
    graph.put(site, node)


def _check_update(site: Site) -> AccuracyClass:
    """Supported if the block differs from the whole in one dimension, at a known position."""
    _update_of(site)
    return moved(site, [site.input(0), site.input(1)], unscaled=True)


def _update_of(site: Site) -> tuple[int, int, int] | None:
    """The axis, begin and end of the part that a block replaces; None if it replaces all."""
    whole, part = site.shape(0), site.shape(1)
    require(len(whole) == len(part), "a block of another rank")
    starts = site.integers(2, "where it begins")
    axes = [axis for axis, size in enumerate(whole) if part[axis] != size]
    if not axes:
        return None
    require(len(axes) == 1, "a block smaller in several dimensions")
    axis = axes[0]
    begin = min(max(starts[axis], 0), whole[axis] - part[axis])
    return axis, begin, begin + part[axis]


@rule("DYNAMIC_UPDATE_SLICE", check=_check_update)
def emit_update(graph: Graph, site: Site) -> None:
    """Concatenates the part before the block, the block, and the part behind it."""
    block, place = graph.source(site, 1), _update_of(site)
    if place is None:
        graph.put(site, block)
        return
    axis, begin, end = place
    parts = [block]
    for at, start, stop in ((0, 0, begin), (2, end, site.shape(0)[axis])):
        if start < stop:
            bounds = [graph.whole([v]) for v in (start, stop, axis)]
            parts.insert(at, graph.node("Slice", graph.source(site), *bounds))
    graph.put(site, graph.node("Concat", *parts, axis=axis))


def _check_indices(site: Site, position: int) -> None:
    require(site.input(position).dtype in WHOLE, "indexes of another type")
    site.shape(position)


def _check_gather(site: Site) -> AccuracyClass:
    _check_indices(site, 1)
    moving.require_inside(site)
    return moves(site, unscaled=True)


@rule("GATHER", check=_check_gather)
def emit_gather(graph: Graph, site: Site) -> None:
    """Indexes of any shape along one dimension."""
    x, axis = graph.source(site), moving.gather_axis(site)
    if _gathers_all(site):
        graph.put(site, graph.reshape(x, site.output_shape()))
    else:
        graph.put(site, graph.node("Gather", x, _indices(graph, site), axis=axis))


def _gathers_all(site: Site) -> bool:
    """Whether the axis has size 1 and its only element is gathered."""
    known, size = site.constant(1), site.shape()[moving.gather_axis(site)]
    return known is not None and size == 1 and np.array_equal(known.reshape(-1), [0])


def _indices(graph: Graph, site: Site) -> Value:
    known = site.constant(1)
    return graph.get(site, 1) if known is None else graph.constant(known.astype("int64"))


def _check_gather_nd(site: Site) -> AccuracyClass:
    _check_indices(site, 1)
    depth = site.shape(1)[-1] if site.shape(1) else 1
    require(1 <= depth <= len(site.shape()), f"indexes of {depth} numbers")
    site.output_shape()
    same = site.input().quantization == site.output().quantization
    require(same, "values of another scale, which TFLite moves as they are")
    return moves(site, unscaled=True)


@rule("GATHER_ND", check=_check_gather_nd)
def emit_gather_nd(graph: Graph, site: Site) -> None:
    indices = _indices(graph, site)
    if not site.input(1).is_constant:
        indices = graph.cast(indices, DType.INT64)
    graph.put(site, graph.node("GatherND", graph.source(site), indices))


def _check_one_hot(site: Site) -> AccuracyClass:
    _check_indices(site, 0)
    depth = site.integers(1, "its depth")
    require(len(depth) == 1 and depth[0] >= 1, f"a depth of {depth}")
    for position in (2, 3):
        require(site.value(position, "a value of it").size == 1, "several values")
    require(site.output().dtype in {checks.F32, *WHOLE}, "marks of another type")
    return "exact"


@rule("ONE_HOT", check=_check_one_hot)
def emit_one_hot(graph: Graph, site: Site) -> None:
    """Indexes outside the depth set nothing; ONNX's OneHot counts negative ones from the end."""
    (depth,), axis = site.integers(1, "its depth"), site.attributes.integer("axis")
    shape, rank = site.shape(), len(site.shape())
    axis = rank if axis == -1 else axis
    x = graph.reshape(graph.get(site), (*shape[:axis], 1, *shape[axis:]))
    places = [1] * axis + [depth] + [1] * (rank - axis)
    marks = np.arange(depth, dtype=site.input().dtype.numpy)
    known = graph.constant(marks.reshape(places))
    on, off = (graph.reshape(graph.get(site, p), ()) for p in (2, 3))
    graph.put(site, graph.node("Where", graph.node("Equal", x, known), on, off))


def _check_top_k(site: Site) -> AccuracyClass:
    k, shape = site.integers(1, "its number"), site.shape()
    require(len(k) == 1 and len(shape) >= 1 and 1 <= k[0] <= shape[-1], f"the best {k}")
    known = site.input().dtype in {checks.F32, *WHOLE}
    require(known, "only float32 and whole numbers are ordered here")
    require(site.output(1).dtype is DType.INT32, "positions of another type")
    return "exact"


@rule("TOPK_V2", check=_check_top_k)
def emit_top_k(graph: Graph, site: Site) -> None:
    given = [graph.get(site), graph.whole(site.integers(1, "its number"))]
    values, positions = graph.node_of("TopK", given, 2, axis=-1, largest=1, sorted=1)
    graph.put(site, values)
    graph.put(site, graph.cast(positions, DType.INT32), 1)
