"""Rows of StableHLO operations without regions: elementwise operations, and operations that move
data.

Operands do not broadcast: they have one shape (StableHLO specification). If the specification
derives the result's shape from its type, the declared shape is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.errors import ShapeMismatch
from penstock.ir.operations import rules
from penstock.ir.operations.signature import row
from penstock.ir.operations.slicing import concatenated
from penstock.ir.operations.spec import OperationSpec, ShapeContext
from penstock.ir.types import Shape


def _clamp(context: ShapeContext) -> Sequence[Shape]:
    shape = context.shape(1)
    for index in (0, 2):
        if context.shape(index) != ():
            shape = rules.agree_shapes(shape, context.shape(index), "operand and bounds")
    return (shape,)


def _select(context: ShapeContext) -> Sequence[Shape]:
    shape = rules.agree_shapes(context.shape(1), context.shape(2), "the two values")
    if context.shape(0) != ():
        shape = rules.agree_shapes(shape, context.shape(0), "condition and values")
    return (shape,)


def _reshape(context: ShapeContext) -> Sequence[Shape]:
    shape, target = context.shape(0), context.declared(0)
    if shape is not None and target is not None:
        rules.agree(
            rules.product(shape), rules.product(target), f"elements of {shape} and {target}"
        )
    return (target,)


def _broadcast_in_dim(context: ShapeContext) -> Sequence[Shape]:
    shape, target = context.shape(0), context.declared(0)
    places = context.attributes.integers("broadcast_dimensions")
    if shape is not None:
        rules.agree(len(places), len(shape), "broadcast_dimensions and rank")
        for size, place in zip(shape, places, strict=True):
            if target is not None:
                whole = target[rules.normalize_axis(place, len(target))]
                if size not in (None, 1) and whole not in (None, size):
                    raise ShapeMismatch(f"shape {shape} does not broadcast to {target}")
    return (target,)


def _concatenate(context: ShapeContext) -> Sequence[Shape]:
    axis = context.attributes.integer("dimension")
    if axis < 0 or not context.input_count:
        raise ShapeMismatch(f"{context.input_count} operands concatenated along dimension {axis}")
    shape = concatenated(context, axis)
    unknown = any(context.shape(index) is None for index in range(context.input_count))
    return (None if unknown else shape,)


def _slice(context: ShapeContext) -> Sequence[Shape]:
    shape = context.shape(0)
    starts, limits, strides = (
        context.attributes.integers(name) for name in ("start_indices", "limit_indices", "strides")
    )
    if not len(starts) == len(limits) == len(strides):
        raise ShapeMismatch("start_indices, limit_indices and strides differ in length")
    if shape is not None:
        rules.agree(len(shape), len(starts), "rank and sliced dimensions")
    result: list[rules.Dimension] = []
    for at, (start, limit, stride) in enumerate(zip(starts, limits, strides, strict=True)):
        size = None if shape is None else shape[at]
        if stride < 1 or not 0 <= start <= limit or (size is not None and limit > size):
            raise ShapeMismatch(
                f"slice [{start}:{limit}:{stride}] of dimension {at} of shape {shape}"
            )
        result.append(-(-(limit - start) // stride))
    return (tuple(result),)


def _dynamic_slice(context: ShapeContext) -> Sequence[Shape]:
    shape, sizes = context.shape(0), context.attributes.integers("slice_sizes")
    if min(sizes, default=0) < 0:
        raise ShapeMismatch(f"slice sizes {sizes} are negative")
    if shape is not None:
        rules.agree(len(shape), len(sizes), "rank and slice sizes")
        if any(
            whole is not None and size > whole for size, whole in zip(sizes, shape, strict=True)
        ):
            raise ShapeMismatch(f"a slice of {sizes} of an operand of shape {shape}")
    return (tuple(rules.bounded(size) for size in sizes),)


def _pad(context: ShapeContext) -> Sequence[Shape]:
    """Negative edges crop; interior padding is inserted between adjacent elements."""
    shape = context.shape(0)
    low, high, interior = (
        context.attributes.integers(f"{name}")
        for name in ("edge_padding_low", "edge_padding_high", "interior_padding")
    )
    if not len(low) == len(high) == len(interior):
        raise ShapeMismatch("low, high and interior paddings differ in length")
    if min(interior, default=0) < 0:
        raise ShapeMismatch(f"interior paddings {interior} are negative")
    if shape is None:
        return ((None,) * len(low),)
    rules.agree(len(shape), len(low), "rank and paddings")
    return (
        tuple(
            None if size is None else rules.bounded(size + max(size - 1, 0) * i + a + b)
            for size, a, b, i in zip(shape, low, high, interior, strict=True)
        ),
    )


def _transpose(context: ShapeContext) -> Sequence[Shape]:
    shape, order = context.shape(0), context.attributes.integers("permutation")
    if sorted(order) != list(range(len(order))):
        raise ShapeMismatch(f"{order} is not a permutation")
    if shape is None:
        return ((None,) * len(order),)
    rules.agree(len(shape), len(order), "rank and permutation")
    return (tuple(shape[axis] for axis in order),)


def _unary(name: str, doc: str) -> OperationSpec:
    text = f"STABLEHLO_{name}(x: any_number T) -> result: any_number T # {doc}"
    return row(text)(rules.like(0))


def _binary(name: str, doc: str) -> OperationSpec:
    text = f"STABLEHLO_{name}(a: any_number T, b: any_number T) -> result: any_number T"
    return row(f"{text} # {doc}, operands of one shape.")(rules.same_shapes)


def _choices(prefix: str, names: str) -> str:
    return "|".join(f"STABLEHLO_COMPARISON_{prefix}_{name}" for name in names.split())


ROWS: Final = (
    _unary("ABS", "|x|."),
    _unary("NEGATE", "-x."),
    _unary("CBRT", "The cube root of x."),
    _unary("COSINE", "The cosine of x radians."),
    _unary("EXPONENTIAL", "e to the power of x."),
    _unary("FLOOR", "The largest integer that is not above x."),
    _unary("LOG", "The natural logarithm of x."),
    _unary("LOGISTIC", "1 / (1 + exp(-x))."),
    _unary("RSQRT", "1 / sqrt(x)."),
    _unary("TANH", "The hyperbolic tangent of x."),
    _binary("ADD", "a + b"),
    _binary("SUBTRACT", "a - b"),
    _binary("MULTIPLY", "a * b"),
    _binary("DIVIDE", "a / b, integers truncated toward zero"),
    _binary("REMAINDER", "The remainder of a / b with the sign of a"),
    _binary("POWER", "a to the power of b"),
    _binary("MAXIMUM", "The larger of a and b"),
    _binary("MINIMUM", "The smaller of a and b"),
    _binary("AND", "a and b, bit by bit"),
    _binary("OR", "a or b, bit by bit"),
    _binary("SHIFT_LEFT", "a shifted left by b bits"),
    row(f"""STABLEHLO_COMPARE(a: any_number T, b: any_number T;
        comparison_direction: {_choices("DIRECTION", "EQ NE GE GT LE LT")},
        compare_type: {_choices("TYPE", "NOTYPE FLOAT FLOAT_TOTAL_ORDER SIGNED UNSIGNED")})
        -> truth: bool
        # a compared with b, operands of one shape.""")(rules.same_shapes),
    row("""STABLEHLO_CONVERT(x: any_number) -> y: any_number
        # x converted to the output's type.""")(rules.like(0)),
    row("""STABLEHLO_CLAMP(minimum: any_number T, x: any_number T, maximum: any_number T)
        -> result: any_number T
        # x held between two bounds, each a scalar or of the shape of x.""")(_clamp),
    row("""STABLEHLO_SELECT(condition: bool, a: any_number T, b: any_number T)
        -> result: any_number T
        # a where the condition holds, else b; the condition may be a scalar.""")(_select),
    row("""STABLEHLO_RESHAPE(x: any_number T) -> result: any_number T
        # The same elements in the shape of the output.""")(_reshape),
    row("""STABLEHLO_BROADCAST_IN_DIM(x: any_number T; broadcast_dimensions: ints)
        -> result: any_number T
        # x repeated to the shape of the output, its dimension i becoming dimension
        broadcast_dimensions[i].""")(_broadcast_in_dim),
    row("""STABLEHLO_CONCATENATE(inputs...: any_number T; dimension: int) -> result: any_number T
        # The operands one after another along a dimension.""")(_concatenate),
    row("""STABLEHLO_SLICE(x: any_number T; start_indices: ints, limit_indices: ints, strides: ints)
        -> result: any_number T
        # Every stride-th element from a start to a limit in each dimension.""")(_slice),
    row("""STABLEHLO_DYNAMIC_SLICE(x: any_number T, start_indices...: int; slice_sizes: ints)
        -> result: any_number T
        # A block of given sizes from start indices, one scalar a dimension, clamped so that the
        block fits.""")(_dynamic_slice),
    row("""STABLEHLO_DYNAMIC_UPDATE_SLICE(x: any_number T, update: any_number T,
        start_indices...: int) -> result: any_number T
        # x with a block replaced at start indices, one scalar a dimension, clamped so that the
        block fits.""")(rules.like(0)),
    row("""STABLEHLO_PAD(x: any_number T, padding_value: any_number T; edge_padding_low: ints,
        edge_padding_high: ints, interior_padding: ints) -> result: any_number T
        # x with a scalar added, or elements taken, at the edges, and a scalar put between
        neighbours.""")(_pad),
    row("""STABLEHLO_TRANSPOSE(x: any_number T; permutation: ints) -> result: any_number T
        # x with its dimensions in another order.""")(_transpose),
    row("""STABLEHLO_IOTA(; iota_dimension: int) -> result: any_number T
        # 0, 1, 2, ... along a dimension, in the shape of the output.""")(rules.declared),
    row("""STABLEHLO_RNG_BIT_GENERATOR(state: int; algorithm: DEFAULT|PHILOX|THREEFRY)
        -> new_state: int, bits: any_number
        # Random bits in the shape of the output, and the generator's next state.
        """)(lambda context: rules.fill(context, context.shape(0), context.declared(1))),
    row("""STABLEHLO_CUSTOM_CALL(inputs...: any; call_target_name: str, has_side_effect: bool,
        backend_config: str, api_version: int, called_computations: ints, custom_attributes: bytes)
        -> results...: any
        # A call of something the model does not contain.""")(rules.declared),
)
