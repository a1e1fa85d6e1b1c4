"""Rows of operations that describe, create or change shapes without changing elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from penstock.errors import ShapeMismatch
from penstock.ir.operations import rules
from penstock.ir.operations.requirements import same_quantization
from penstock.ir.operations.signature import row
from penstock.ir.operations.spec import ShapeContext
from penstock.ir.types import DType, NDArray, Shape


def target_shape(context: ShapeContext, index: int) -> Shape:
    """The shape that is the value of input *index*: its dimensions if the value is known, otherwise
    its rank.
    """
    target = rules.constant_integers(context, index)
    if target is not None:
        if any(d < 0 for d in target):
            raise ShapeMismatch(f"{target} is not a shape")
        return target
    return rules.of_rank(rules.length(context, index))


def _reshape_target(context: ShapeContext) -> Shape:
    """A shape vector overrides the attribute, in which [0] means a scalar. As in TFLite, a vector
    that is not int32 is ignored if the attribute exists.
    """
    attribute = context.attributes.integers("new_shape")
    if context.has(1) and (context.dtype(1) is DType.INT32 or not attribute):
        shape = context.shape(1)
        if shape is None or len(shape) == 1:
            target = rules.constant_integers(context, 1)
            return rules.of_rank(shape and shape[0]) if target is None else target
    return () if attribute == (0,) else attribute


def _reshape(context: ShapeContext) -> Sequence[Shape]:
    """A target dimension of -1 is the remainder; element counts are equal.

    For an empty input, -1 is the remainder of the product of the dimensions that are not zero.
    """
    target = _reshape_target(context)
    if target is None or None in target:
        return (target,)
    if len(target) > rules.MAX_RANK:
        raise ShapeMismatch(
            f"a target shape of {len(target)} dimensions; the limit is {rules.MAX_RANK}"
        )
    known = [d for d in target if d is not None and d != -1]
    if len(known) < len(target) - 1 or min(known, default=0) < 0:
        raise ShapeMismatch(f"{target} is not a target shape: at most one dimension may be -1")
    shape = context.shape(0)
    elements = None if shape is None else rules.product(shape)
    rest = math.prod(known)
    if elements is not None and (elements % rest if rest and -1 in target else elements != rest):
        raise ShapeMismatch(f"an input of shape {shape} does not have the elements of {target}")
    if -1 not in target or shape is None or elements is None:
        return (tuple(None if d == -1 else d for d in target),)
    if rest:
        stretched: rules.Dimension = elements // rest
    else:
        whole = rules.product([d for d in shape if d != 0])
        stretched = None if whole is None else whole // math.prod(d for d in known if d)
    return (tuple(stretched if d == -1 else d for d in target),)


def _squeeze(context: ShapeContext) -> Sequence[Shape]:
    """Without axes, every dimension of size 1 is removed."""
    shape = context.shape(0)
    if shape is None:
        return (None,)
    axes = {
        rules.normalize_axis(a, len(shape)) for a in context.attributes.integers("squeeze_dims")
    }
    if not axes:
        return (None if None in shape else tuple(d for d in shape if d != 1),)
    for axis in axes:
        if shape[axis] not in (None, 1):
            raise ShapeMismatch(
                f"dimension {axis} of shape {shape} is not 1 and cannot be squeezed"
            )
    return (tuple(d for at, d in enumerate(shape) if at not in axes),)


def _expand_dims(context: ShapeContext) -> Sequence[Shape]:
    shape = context.shape(0)
    if shape is None:
        return (None,)
    axis = rules.constant_integer(context, 1)
    if axis is None:
        return ((None,) * (len(shape) + 1),)
    axis = rules.normalize_axis(axis, len(shape) + 1)
    return ((*shape[:axis], 1, *shape[axis:]),)


def _shape_of(context: ShapeContext) -> Sequence[Shape]:
    shape = context.shape(0)
    return ((None if shape is None else len(shape),),)


def _fold_shape(context: ShapeContext) -> Sequence[NDArray] | None:
    shape = context.shape(0)
    if shape is None or None in shape:
        return None
    return (np.array(shape, context.output_dtype(0).numpy),)


def _fold_rank(context: ShapeContext) -> Sequence[NDArray] | None:
    shape = context.shape(0)
    return None if shape is None else (np.array(len(shape), np.int32),)


def _broadcast_to(context: ShapeContext) -> Sequence[Shape]:
    target, shape = target_shape(context, 1), context.shape(0)
    if target is not None and shape is not None:
        tail = target[max(len(target) - len(shape), 0) :]
        if len(shape) > len(target) or any(
            d not in (None, 1, t) and t is not None for d, t in zip(shape, tail, strict=True)
        ):
            raise ShapeMismatch(f"shape {shape} does not broadcast to {target}")
    return (target,)


def _broadcast_arguments(context: ShapeContext) -> Sequence[Shape]:
    a, b = rules.length(context, 0), rules.length(context, 1)
    return ((None if a is None or b is None else max(a, b),),)


def _fold_broadcast_arguments(a: NDArray, b: NDArray) -> NDArray:
    rank = max(a.size, b.size)
    a, b = (np.concatenate([np.ones(rank - v.size, v.dtype), v.reshape(-1)]) for v in (a, b))
    if not np.all((a == b) | (a == 1) | (b == 1)):
        raise ShapeMismatch(f"shapes {a.tolist()} and {b.tolist()} do not broadcast")
    return np.where(a == 1, b, a)


def _fill(context: ShapeContext) -> Sequence[Shape]:
    rules.ranked(context, 1, 0)
    return (target_shape(context, 0),)


def _fold_fill(dims: NDArray, value: NDArray) -> NDArray | None:
    shape = [int(d) for d in dims.reshape(-1)]
    return np.full(shape, value) if rules.fits(*shape) else None


def _range_values(context: ShapeContext) -> tuple[float, float, float] | None:
    if any(context.shape(i) not in {(), (1,)} for i in range(3)):
        return None
    values = [context.value(i) for i in range(3)]
    if any(v is None for v in values):
        return None
    start, limit, delta = (v.reshape(-1)[0].item() for v in values if v is not None)
    return start, limit, delta


def _range(context: ShapeContext) -> Sequence[Shape]:
    """The number of elements: the distance from start to limit over the magnitude of delta, rounded
    up.
    """
    for index in range(3):
        rules.ranked(context, index, 0, 1)
    values = _range_values(context)
    if values is None:
        return ((None,),)
    start, limit, delta = values
    if delta == 0 or (limit - start) * delta < 0:
        raise ShapeMismatch(f"steps of {delta} do not lead from {start} to {limit}")
    if isinstance(start, int) and isinstance(limit, int) and isinstance(delta, int):
        return ((rules.bounded(-(-abs(limit - start) // abs(delta))),),)
    count = abs((limit - start) / delta)
    if not math.isfinite(count):
        raise ShapeMismatch(f"steps of {delta} from {start} to {limit} have no number")
    return ((rules.bounded(math.ceil(count)),),)


def _fold_range(context: ShapeContext) -> Sequence[NDArray] | None:
    values, (shape,) = _range_values(context), _range(context)
    if values is None or shape is None or shape[0] is None or not rules.fits(shape[0]):
        return None
    start, _, delta = values
    return ((start + np.arange(shape[0]) * delta).astype(context.output_dtype(0).numpy),)


ROWS: Final = (
    row("""RESHAPE(input: value T, shape?: sizes; new_shape: ints) -> output: value T; NNAPI 1
        # The same elements in another shape, one dimension of which may be -1 (whatever remains).
        """)(_reshape, fold=rules.relabelling(_reshape)),
    row("""SQUEEZE(input: value T; squeeze_dims: ints) -> output: value T; version 2; NNAPI 2
        # The input without the named dimensions of size 1, or without all of them.
        """)(_squeeze, fold=rules.relabelling(_squeeze)),
    row("""EXPAND_DIMS(input: value T, axis: index) -> output: value T; NNAPI 3
        # The input with a dimension of size 1 inserted at an axis.
        """)(_expand_dims, fold=rules.relabelling(_expand_dims), require=same_quantization),
    row("""SHAPE(input: any; out_type: type) -> shape: index
        # The dimensions of the input, as a vector.""")(_shape_of, fold=_fold_shape),
    row("""RANK(input: any) -> rank: index; NNAPI 4
        # The number of dimensions of the input, as a scalar.""")(rules.fixed(()), fold=_fold_rank),
    row("""BROADCAST_TO(input: value T, shape: index) -> output: value T; version 4
        # The input repeated along dimensions of size 1, and along new leading ones, to a shape.
        """)(_broadcast_to),
    row("""BROADCAST_ARGS(a: index T, b: index T) -> shape: index T
        # The shape that operands of two given shapes broadcast to.
        """)(_broadcast_arguments, fold=rules.folding(_fold_broadcast_arguments)),
    row("""FILL(shape: index, value: value T) -> output: value T; version 5; NNAPI 4
        # A tensor of a given shape, every element one scalar.
        """)(_fill, fold=rules.folding(_fold_fill)),
    row("""RANGE(start: number T, limit: number T, delta: number T) -> values: number T; version 2
        # start, start + delta, ... up to the limit, which is left out.
        """)(_range, fold=_fold_range),
)
