"""Rows of StableHLO operations with dimension numbers or with regions, which are subgraphs here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.errors import InvalidOperation, ShapeMismatch
from penstock.ir.operations import rules
from penstock.ir.operations.control_flow import (
    argument_shapes,
    called,
    loop_shapes,
    meet,
    same_count,
)
from penstock.ir.operations.signature import flag, integer, integers, row, subgraph, subgraphs
from penstock.ir.operations.spec import AttributeSpec, ShapeContext
from penstock.ir.types import Shape


def _pairs(context: ShapeContext, name: str, rank: int) -> list[tuple[int, int]]:
    """A flattened [rank, 2] attribute; zeros if it is absent."""
    values = context.attributes.integers(name) or (0,) * (2 * rank)
    rules.agree(len(values), 2 * rank, f"length of {name}")
    return list(zip(values[::2], values[1::2], strict=True))


def _factors(context: ShapeContext, name: str, rank: int) -> tuple[int, ...]:
    """One positive number for each dimension; ones if the attribute is absent."""
    values = context.attributes.integers(name) or (1,) * rank
    rules.agree(len(values), rank, f"length of {name}")
    if min(values, default=1) < 1:
        raise ShapeMismatch(f"{name} {values} must be positive")
    return values


def _distinct(numbers: Sequence[int], shape: Shape, what: str) -> None:
    """Requires that dimension numbers name different dimensions of *shape*, counted from the
    front.
    """
    rank = rules.MAX_RANK if shape is None else len(shape)
    if len(set(numbers)) != len(numbers) or any(not 0 <= n < rank for n in numbers):
        raise ShapeMismatch(f"{what} {tuple(numbers)} are not distinct dimensions of {shape}")


def _at(shape: Shape, axis: int) -> rules.Dimension:
    return None if shape is None else shape[rules.normalize_axis(axis, len(shape))]


def _dilated(size: rules.Dimension, factor: int) -> rules.Dimension:
    """The size of a dimension with *factor* - 1 holes between its elements."""
    return size if size is None or size == 0 else rules.bounded((size - 1) * factor + 1)


def _padded(size: rules.Dimension, base: int, pads: tuple[int, int]) -> rules.Dimension:
    inner = _dilated(size, base)
    return None if inner is None else rules.bounded(inner + sum(pads))


def _convolution(context: ShapeContext) -> Sequence[Shape]:
    image, kernel, attributes = context.shape(0), context.shape(1), context.attributes
    places = attributes.integers("output_spatial_dimensions")
    rank = len(places)
    strides, holes = (
        _factors(context, "window_strides", rank),
        _factors(context, "rhs_dilation", rank),
    )
    base, pads = _factors(context, "lhs_dilation", rank), _pairs(context, "padding", rank)
    sources = attributes.integers("input_spatial_dimensions")
    extents = attributes.integers("kernel_spatial_dimensions")
    if not len(sources) == len(extents) == rank:
        raise ShapeMismatch("input, kernel and output differ in spatial dimensions")
    for name, shape, first, second, spatial in (
        ("input", image, "batch", "feature", sources),
        ("kernel", kernel, "output_feature", "input_feature", extents),
    ):
        ends = (attributes.integer(f"{name}_{end}_dimension") for end in (first, second))
        _distinct((*ends, *spatial), shape, f"{name} dimension numbers")
        if shape is not None:
            rules.agree(len(shape), rank + 2, f"rank of the {name} and its dimension numbers")
    batch = _at(image, attributes.integer("input_batch_dimension"))
    groups = attributes.integer("batch_group_count") or 1
    if groups < 1 or attributes.integer("feature_group_count") < 0:
        raise ShapeMismatch("a negative number of groups")
    result: dict[int, rules.Dimension] = {
        attributes.integer("output_batch_dimension"): None if batch is None else batch // groups,
        attributes.integer("output_feature_dimension"): _at(
            kernel, attributes.integer("kernel_output_feature_dimension")
        ),
    }
    for at, place in enumerate(places):
        size = _padded(_at(image, sources[at]), base[at], pads[at])
        result[place] = rules.positions(size, _at(kernel, extents[at]), strides[at], holes[at])
    if sorted(result) != list(range(rank + 2)):
        raise ShapeMismatch(
            "output dimension numbers are not those of batch, feature and spatial dimensions"
        )
    return (tuple(result[axis] for axis in range(rank + 2)),)


def _dot_general(context: ShapeContext) -> Sequence[Shape]:
    """Batching dimensions, then the free dimensions of both sides."""
    a, b, attributes = context.shape(0), context.shape(1), context.attributes
    pairs = {
        kind: tuple(attributes.integers(f"{side}_{kind}_dimensions") for side in ("lhs", "rhs"))
        for kind in ("batching", "contracting")
    }
    for left, right in pairs.values():
        rules.agree(len(left), len(right), "dimension numbers of the two operands")
    for side, shape in enumerate((a, b)):
        numbers = [n for kind in pairs.values() for n in kind[side]]
        _distinct(numbers, shape, "batching and contracting dimensions")
    if a is None or b is None:
        return (None,)
    for left, right in pairs.values():
        for x, y in zip(left, right, strict=True):
            rules.agree(_at(a, x), _at(b, y), "batching or contracting dimensions")
    (batch_a, batch_b), (inner_a, inner_b) = pairs["batching"], pairs["contracting"]
    free_a = [size for at, size in enumerate(a) if at not in (*batch_a, *inner_a)]
    free_b = [size for at, size in enumerate(b) if at not in (*batch_b, *inner_b)]
    return (
        (
            *(
                rules.agree(_at(a, x), _at(b, y), "batch")
                for x, y in zip(batch_a, batch_b, strict=True)
            ),
            *free_a,
            *free_b,
        ),
    )


def _gather(context: ShapeContext) -> Sequence[Shape]:
    """offset_dims have the slice sizes that are not collapsed, the others the batch of the
    indices.
    """
    operand, indices, attributes = context.shape(0), context.shape(1), context.attributes
    sizes, offsets = attributes.integers("slice_sizes"), attributes.integers("offset_dims")
    collapsed = attributes.integers("collapsed_slice_dims")
    for at, size in enumerate(sizes):
        whole = _at(operand, at)
        if size < 0 or (whole is not None and size > whole):
            raise ShapeMismatch(f"slices of {sizes} of an operand of shape {operand}")
    kept = [rules.bounded(size) for at, size in enumerate(sizes) if at not in collapsed]
    rules.agree(len(kept), len(offsets), "slice sizes that stay and offset_dims")
    if indices is None:
        return (None,)
    vector = attributes.integer("index_vector_dim")
    batch = iter([size for at, size in enumerate(indices) if at != vector])
    slices = iter(kept)
    rank = len(indices) - (vector < len(indices)) + len(kept)
    if any(not 0 <= place < rank for place in offsets):
        raise ShapeMismatch(f"offset_dims {offsets} of a result of rank {rank}")
    return (tuple(next(slices) if at in offsets else next(batch, None) for at in range(rank)),)


def _half(context: ShapeContext) -> list[Shape]:
    """Shapes of the operands of an operation whose inputs are operands, followed by an equal number
    of initial values.
    """
    count = context.input_count // 2
    if context.input_count != 2 * count or count != context.output_count:
        raise InvalidOperation(f"{context.input_count} inputs for {context.output_count} outputs")
    shape: Shape = None
    for index in range(count):
        shape = rules.agree_shapes(shape, context.shape(index), "reduced operands")
    return [shape] * count


def _reduce(context: ShapeContext) -> Sequence[Shape]:
    results: list[Shape] = []
    for shape in _half(context):
        if shape is None:
            results.append(None)
            continue
        axes = {
            rules.normalize_axis(axis, len(shape))
            for axis in context.attributes.integers("dimensions")
        }
        results.append(tuple(size for at, size in enumerate(shape) if at not in axes))
    return results


def _reduce_window(context: ShapeContext) -> Sequence[Shape]:
    extents = context.attributes.integers("window_dimensions")
    rank = len(extents)
    if min(extents, default=1) < 1:
        raise ShapeMismatch(f"window_dimensions {extents} must be positive")
    strides, base = (
        _factors(context, "window_strides", rank),
        _factors(context, "base_dilations", rank),
    )
    holes, pads = _factors(context, "window_dilations", rank), _pairs(context, "padding", rank)
    results: list[Shape] = []
    for shape in _half(context):
        if shape is not None:
            rules.agree(len(shape), rank, "rank and window")
        results.append(
            tuple(
                rules.positions(
                    _padded(_at(shape, at), base[at], pads[at]), extents[at], strides[at], holes[at]
                )
                for at in range(rank)
            )
        )
    return results


def _sort(context: ShapeContext) -> Sequence[Shape]:
    shapes = argument_shapes(context)
    same_count(context, shapes, "the list of operands")
    shape: Shape = None
    for other in shapes:
        shape = rules.agree_shapes(shape, other, "sorted operands")
    return [shape] * len(shapes)


def _case(context: ShapeContext) -> Sequence[Shape]:
    """The last branch also handles every index out of range."""
    branches = context.attributes.integers("branch_subgraph_indices")
    if not branches:
        raise InvalidOperation("STABLEHLO_CASE without branches")
    shapes: list[Shape] = []
    for at, index in enumerate(branches):
        results = list(context.subgraph_outputs(index, argument_shapes(context, 1)))
        same_count(context, results, "a branch")
        shapes = [meet(a, b) for a, b in zip(shapes, results, strict=True)] if at else results
    return shapes


def _composite(context: ShapeContext) -> Sequence[Shape]:
    shapes = called(context, "decomposition_subgraph_index")
    same_count(context, shapes, "the decomposition")
    return shapes


def _scatter(context: ShapeContext) -> Sequence[Shape]:
    return (context.shape(0),) * context.output_count


ROWS: Final = (
    row(
        "STABLEHLO_CONVOLUTION",
        "input: any_number, kernel: any_number -> result: any_number",
        _convolution,
        (
            integers("window_strides"),
            integers("padding"),
            integers("lhs_dilation"),
            integers("rhs_dilation"),
            AttributeSpec("window_reversal", "ints", (), doc="0 or 1 a spatial dimension."),
            integer("input_batch_dimension"),
            integer("input_feature_dimension"),
            integers("input_spatial_dimensions"),
            integer("kernel_input_feature_dimension"),
            integer("kernel_output_feature_dimension"),
            integers("kernel_spatial_dimensions"),
            integer("output_batch_dimension"),
            integer("output_feature_dimension"),
            integers("output_spatial_dimensions"),
            integer("feature_group_count"),
            integer("batch_group_count"),
            integers("precision_config"),
        ),
        doc="Convolution in any layout, with dilation of either side and groups.",
    ),
    row(
        "STABLEHLO_DOT_GENERAL",
        "a: any_number, b: any_number -> result: any_number",
        _dot_general,
        (
            integers("lhs_batching_dimensions"),
            integers("rhs_batching_dimensions"),
            integers("lhs_contracting_dimensions"),
            integers("rhs_contracting_dimensions"),
            integers("precision_config"),
        ),
        doc="Products summed over contracting dimensions, side by side over batching dimensions.",
    ),
    row(
        "STABLEHLO_GATHER",
        "operand: any_number T, start_indices: int -> result: any_number T",
        _gather,
        (
            integers("offset_dims"),
            integers("collapsed_slice_dims"),
            integers("start_index_map"),
            integer("index_vector_dim"),
            integers("slice_sizes"),
            flag("indices_are_sorted"),
        ),
        doc="Slices of the operand at index vectors.",
    ),
    row(
        "STABLEHLO_SCATTER",
        "operand: any_number, scatter_indices: int, updates: any_number -> results...: any",
        _scatter,
        (
            flag("indices_are_sorted"),
            integers("update_window_dims"),
            integers("inserted_window_dims"),
            integers("scatter_dims_to_operand_dims"),
            integer("index_vector_dim"),
            flag("unique_indices"),
            subgraph("update_computation_subgraph_index"),
        ),
        doc="The operand with updates combined into it at index vectors by a subgraph.",
    ),
    row(
        "STABLEHLO_REDUCE",
        "inputs...: any -> results...: any",
        _reduce,
        (integers("dimensions"), subgraph("body_subgraph_index")),
        doc="Operands reduced along dimensions by a subgraph, from initial values, which follow "
        "the operands.",
    ),
    row(
        "STABLEHLO_REDUCE_WINDOW",
        "inputs...: any -> results...: any",
        _reduce_window,
        (
            integers("window_dimensions"),
            integers("window_strides"),
            integers("base_dilations"),
            integers("window_dilations"),
            integers("padding"),
            subgraph("body_subgraph_index"),
        ),
        doc="Windows of operands reduced by a subgraph, from initial values, which follow the "
        "operands.",
    ),
    row(
        "STABLEHLO_SORT",
        "inputs...: any -> results...: any",
        _sort,
        (integer("dimension"), flag("is_stable"), subgraph("comparator_subgraph_index")),
        doc="Operands sorted together along a dimension, by a subgraph that compares.",
    ),
    row(
        "STABLEHLO_WHILE",
        "inputs...: any -> results...: any",
        loop_shapes,
        (subgraph("cond_subgraph_index"), subgraph("body_subgraph_index")),
        doc="The body subgraph applied again and again, while the condition subgraph says true.",
    ),
    row(
        "STABLEHLO_CASE",
        "index: int|bool, inputs...: any -> results...: any",
        _case,
        (subgraphs("branch_subgraph_indices"),),
        doc="One of several subgraphs applied to the inputs, by an index; out of range, the last.",
    ),
    row(
        "STABLEHLO_COMPOSITE",
        "inputs...: any -> results...: any",
        _composite,
        (
            AttributeSpec("name", "str", ""),
            subgraph("decomposition_subgraph_index"),
            AttributeSpec("composite_attributes", "bytes", b""),
            AttributeSpec("composite_attributes_format", "enum", "FLEXBUFFERS", ("FLEXBUFFERS",)),
            integer("version"),
        ),
        doc="A named operation that a driver may know; its decomposition subgraph computes the "
        "same.",
    ),
)
