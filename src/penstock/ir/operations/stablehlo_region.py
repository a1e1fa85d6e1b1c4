"""Rows of StableHLO operations with dimension numbers or with regions, which are subgraphs here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.errors import InvalidOperation, ShapeMismatch
from penstock.ir.operations import rules
from penstock.ir.operations.control_flow import (
    argument_shapes,
    branch_shapes,
    calling,
    loop_shapes,
    same_count,
)
from penstock.ir.operations.signature import row
from penstock.ir.operations.spec import ShapeContext
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


def _padded(size: rules.Dimension, base: int, pads: tuple[int, int]) -> rules.Dimension:
    inner = rules.dilated(size, base)
    return None if inner is None else rules.bounded(inner + sum(pads))


def _convolution(context: ShapeContext) -> Sequence[Shape]:
    image, kernel, attributes = context.shape(0), context.shape(1), context.attributes
    places = attributes.integers("output_spatial_dimensions")
    rank = len(places)
    strides = _factors(context, "window_strides", rank)
    holes = _factors(context, "rhs_dilation", rank)
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
    batch = [
        rules.agree(_at(a, x), _at(b, y), "batch") for x, y in zip(batch_a, batch_b, strict=True)
    ]
    return ((*batch, *free_a, *free_b),)


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
    return [rules.common_shape(context, 0, count)] * count


def _reduce(context: ShapeContext) -> Sequence[Shape]:
    results: list[Shape] = []
    for shape in _half(context):
        if shape is None:
            results.append(None)
            continue
        numbers = context.attributes.integers("dimensions")
        axes = {rules.normalize_axis(axis, len(shape)) for axis in numbers}
        results.append(tuple(size for at, size in enumerate(shape) if at not in axes))
    return results


def _reduce_window(context: ShapeContext) -> Sequence[Shape]:
    extents = context.attributes.integers("window_dimensions")
    rank = len(extents)
    if min(extents, default=1) < 1:
        raise ShapeMismatch(f"window_dimensions {extents} must be positive")
    strides = _factors(context, "window_strides", rank)
    base = _factors(context, "base_dilations", rank)
    holes, pads = _factors(context, "window_dilations", rank), _pairs(context, "padding", rank)
    operands = _half(context)
    for shape in operands:
        if shape is not None:
            rules.agree(len(shape), rank, "rank and window")
    padded = [[_padded(_at(s, at), base[at], pads[at]) for at in range(rank)] for s in operands]
    return [tuple(map(rules.positions, sizes, extents, strides, holes)) for sizes in padded]


def _sort(context: ShapeContext) -> Sequence[Shape]:
    shapes = argument_shapes(context)
    same_count(context, shapes, "the list of operands")
    return [rules.common_shape(context)] * len(shapes)


def _case(context: ShapeContext) -> Sequence[Shape]:
    """The last branch also handles every index out of range."""
    branches = context.attributes.integers("branch_subgraph_indices")
    if not branches:
        raise InvalidOperation("STABLEHLO_CASE without branches")
    return branch_shapes(context, branches)


def _scatter(context: ShapeContext) -> Sequence[Shape]:
    return (context.shape(0),) * context.output_count


ROWS: Final = (
    row("""STABLEHLO_CONVOLUTION(input: any_number, kernel: any_number; window_strides: ints,
        padding: ints, lhs_dilation: ints, rhs_dilation: ints, window_reversal: ints,
        input_batch_dimension: int, input_feature_dimension: int, input_spatial_dimensions: ints,
        kernel_input_feature_dimension: int, kernel_output_feature_dimension: int,
        kernel_spatial_dimensions: ints, output_batch_dimension: int, output_feature_dimension: int,
        output_spatial_dimensions: ints, feature_group_count: int, batch_group_count: int,
        precision_config: ints) -> result: any_number
        # Convolution in any layout, with dilation of either side and groups. window_reversal
        has 0 or 1 for each spatial dimension.""")(_convolution),
    row("""STABLEHLO_DOT_GENERAL(a: any_number, b: any_number; lhs_batching_dimensions: ints,
        rhs_batching_dimensions: ints, lhs_contracting_dimensions: ints,
        rhs_contracting_dimensions: ints, precision_config: ints) -> result: any_number
        # Products summed over contracting dimensions, side by side over batching dimensions.
        """)(_dot_general),
    row("""STABLEHLO_GATHER(operand: any_number T, start_indices: int; offset_dims: ints,
        collapsed_slice_dims: ints, start_index_map: ints, index_vector_dim: int, slice_sizes: ints,
        indices_are_sorted: bool) -> result: any_number T
        # Slices of the operand at index vectors.""")(_gather),
    row("""STABLEHLO_SCATTER(operand: any_number, scatter_indices: int, updates: any_number;
        indices_are_sorted: bool, update_window_dims: ints, inserted_window_dims: ints,
        scatter_dims_to_operand_dims: ints, index_vector_dim: int, unique_indices: bool,
        update_computation_subgraph_index: subgraph) -> results...: any
        # The operand with updates combined into it at index vectors by a subgraph.""")(_scatter),
    row("""STABLEHLO_REDUCE(inputs...: any; dimensions: ints, body_subgraph_index: subgraph)
        -> results...: any
        # Operands reduced along dimensions by a subgraph, from initial values, which follow the
        operands.""")(_reduce),
    row("""STABLEHLO_REDUCE_WINDOW(inputs...: any; window_dimensions: ints, window_strides: ints,
        base_dilations: ints, window_dilations: ints, padding: ints, body_subgraph_index: subgraph)
        -> results...: any
        # Windows of operands reduced by a subgraph, from initial values, which follow the operands.
        """)(_reduce_window),
    row("""STABLEHLO_SORT(inputs...: any; dimension: int, is_stable: bool,
        comparator_subgraph_index: subgraph) -> results...: any
        # Operands sorted together along a dimension, by a subgraph that compares.""")(_sort),
    row("""STABLEHLO_WHILE(inputs...: any; cond_subgraph_index: subgraph,
        body_subgraph_index: subgraph) -> results...: any
        # The body subgraph applied again and again, while the condition subgraph says true.
        """)(loop_shapes),
    row("""STABLEHLO_CASE(index: int|bool, inputs...: any; branch_subgraph_indices: subgraphs)
        -> results...: any
        # One of several subgraphs applied to the inputs, by an index; out of range, the last.
        """)(_case),
    row("""STABLEHLO_COMPOSITE(inputs...: any; name: str, decomposition_subgraph_index: subgraph,
        composite_attributes: bytes, composite_attributes_format: FLEXBUFFERS, version: int)
        -> results...: any
        # A named operation that a driver may know; its decomposition subgraph computes the same.
        """)(calling("decomposition_subgraph_index")),
)
