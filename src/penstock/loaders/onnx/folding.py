"""Values known before running: operators on constants, computed by NumPy, their sizes bounded.

Integers of which some are unknown are followed as objects, None for the unknown ones, through
operators that only move elements about, and through sums and products: what a graph computes of
shapes is often known but for the batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from msgspec import Struct

from penstock.errors import InvalidAttribute, ModelError
from penstock.ir.types import DType, NDArray, dtype_of
from penstock.loaders.onnx.constants import is_uniform, reshaped, uniform
from penstock.loaders.onnx.graph import Node
from penstock.loaders.onnx.tensors import MAX_RANK, TYPES, Budget
from penstock.loaders.onnx.values import Value

MAX_FOLDED: Final = 1 << 16
"""Elements of results that are computed, rather than moved about; what is larger is left to the
devices.
"""

MAX_KNOWN: Final = 64

Folded: TypeAlias = "Sequence[NDArray] | None"


class Given(Struct):
    """What a rule is given: a node, the values of its inputs, and the bytes that results may take."""

    node: Node
    arrays: Sequence[Any]
    budget: Budget


Fold: TypeAlias = Callable[[Given], Folded]


def fold(node: Node, inputs: Sequence[Value | None], budget: Budget) -> Sequence[NDArray] | None:
    """The values of the outputs of *node*, where those of its inputs are known; arrays of objects
    where they are known in part.
    """
    if node.domain:
        return None
    if node.op in ("Shape", "Size"):
        return _shape(node, inputs)
    rule = FOLDS.get(node.op)
    if rule is None:
        return None
    arrays: list[NDArray | None] = []
    partial = False
    for value in inputs:
        if value is None:
            arrays.append(None)
        elif value.array is not None:
            arrays.append(value.array)
        elif value.known is not None and node.op in PARTIAL:
            partial = True
            arrays.append(value.known)
        else:
            return None
    try:
        with np.errstate(all="ignore"):
            found = rule(Given(node, arrays, budget))
    except ModelError:
        raise
    except (ValueError, IndexError, TypeError, OverflowError, ZeroDivisionError, KeyError):
        return None
    if found is None or not partial:
        return found
    if any(f.size > MAX_KNOWN for f in found):
        return None
    return [_settled(f, node, inputs) for f in found]


def _settled(found: NDArray, node: Node, inputs: Sequence[Value | None]) -> NDArray:
    """An array of objects as numbers, where none is unknown."""
    if any(v is None for v in found.reshape(-1).tolist()):
        return found
    dtype = DType.INT64 if inputs[0] is None else inputs[0].dtype
    if node.op == "Cast":
        dtype = TYPES[node.integer("to")]
    elif node.op in ("Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual"):
        dtype = DType.BOOL
    return found.astype(dtype.numpy)


def _shape(node: Node, inputs: Sequence[Value | None]) -> Sequence[NDArray] | None:
    value = inputs[0] if inputs else None
    if value is None or value.shape is None:
        return None
    if node.op == "Size":
        if None in value.shape:
            return None
        return [np.array(math.prod(d for d in value.shape if d is not None), np.int64)]
    rank = len(value.shape)
    start, end = node.integer("start", 0), node.integer("end", rank)
    start, end = (min(max(e + rank if e < 0 else e, 0), rank) for e in (start, end))
    dims = value.shape[start:end]
    if None in dims:
        known = np.empty(len(dims), object)
        known[:] = dims
        return [known]
    return [np.array(dims, np.int64)]


def _bounded(shape: Sequence[int], dtype: np.dtype[Any], budget: Budget, node: Node) -> None:
    if len(shape) > MAX_RANK or any(d < 0 for d in shape):
        raise ValueError("no shape")
    budget.take(math.prod(shape) * dtype.itemsize, node.where)


def _small(*arrays: NDArray | None) -> bool:
    return all(a is None or a.size <= MAX_FOLDED for a in arrays)


def _pair(function: Callable[[Any, Any], Any], result: Any = None) -> Fold:
    def rule(given: Given) -> Folded:
        if len(given.arrays) != 2 or (
            given.node.version < 7 and given.node.integer("broadcast", 0)
        ):
            return None
        a, b = given.arrays
        if object in {a.dtype, b.dtype}:
            return _unknown_pair(function, a, b)
        shape = np.broadcast_shapes(a.shape, b.shape)
        if math.prod(shape) > MAX_FOLDED or a.dtype != b.dtype:
            return None
        return [np.asarray(function(a, b)).astype(result or a.dtype)]

    return rule


def _unknown_pair(function: Callable[[Any, Any], Any], a: Any, b: Any) -> Sequence[NDArray] | None:
    if a.size > MAX_KNOWN or b.size > MAX_KNOWN:
        return None
    a, b = np.broadcast_arrays(a, b)
    found = np.empty(a.shape, object)
    for place in np.ndindex(a.shape):
        x, y = a[place], b[place]
        if isinstance(x, bytes) or isinstance(y, bytes):
            return None
        if x is not None and y is not None:
            found[place] = function(np.int64(x), np.int64(y)).item()
    return [found]


def _divided(a: Any, b: Any) -> Any:
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype.kind == "f":
        return a / b
    if not b.all():
        raise ZeroDivisionError
    quotient = a // b
    return np.where((quotient * b != a) & ((a < 0) != (b < 0)), quotient + 1, quotient)


def _modulo(given: Given) -> Folded:
    a, b = given.arrays
    if not _small(*given.arrays) or a.dtype.kind not in "iu" or not b.all():
        return None
    return [np.fmod(a, b) if given.node.integer("fmod", 0) else np.mod(a, b)]


def _one(function: Callable[[Any], Any], kinds: str = "fiu") -> Fold:
    def rule(given: Given) -> Folded:
        (x,) = given.arrays
        if x.dtype.kind not in kinds or not _small(x):
            return None
        return [np.asarray(function(x)).astype(x.dtype)]

    return rule


def _same(given: Given) -> Folded:
    return [given.arrays[0]]


def _cast(given: Given) -> Folded:
    (x,), target = given.arrays, TYPES.get(given.node.integer("to"))
    if target is None or (dtype_of(x.dtype) is DType.STRING and x.dtype != object):
        return None
    if x.dtype == object:
        return (
            [x] if target in {DType.INT64, DType.INT32} and None in x.reshape(-1).tolist() else None
        )
    if target is DType.STRING or x.dtype == target.numpy:
        return [x] if x.dtype == target.numpy else None
    if is_uniform(x):
        return [uniform(x[(0,) * x.ndim].astype(target.numpy), x.shape)]
    if x.dtype.kind == "f" and target.is_integer and not np.isfinite(x).all():
        return None
    given.budget.take(x.size * target.numpy.itemsize, given.node.where)
    return [x.astype(target.numpy)]


def _filled(given: Given) -> Folded:
    shape = tuple(int(d) for d in given.arrays[0].reshape(-1).tolist())
    value = given.node.attributes.get("value")
    if value is None:
        value = np.zeros(1, np.float32)
    if value.size != 1:
        raise InvalidAttribute(
            "the value of a filled tensor is one element", where=given.node.where
        )
    _bounded(shape, np.dtype(np.uint8), Budget(2**46), given.node)
    if value.dtype == object:
        return None
    given.budget.take(value.itemsize, given.node.where)
    return [uniform(value, shape)]


def _gather(given: Given) -> Folded:
    data, indices = given.arrays
    axis = given.node.integer("axis", 0)
    size = data.shape[axis]
    if indices.dtype.kind not in "iu" or ((indices < -size) | (indices >= size)).any():
        return None
    count = indices.size * (data.size // max(size, 1))
    given.budget.take(count * data.itemsize, given.node.where)
    return [np.asarray(np.take(data, np.where(indices < 0, indices + size, indices), axis))]


def _concat(given: Given) -> Folded:
    if any(a.dtype == object for a in given.arrays):
        if any(a.size > MAX_KNOWN for a in given.arrays) or any(
            isinstance(v, bytes) for a in given.arrays for v in a.reshape(-1).tolist()
        ):
            return None
        given.arrays = [a.astype(object) for a in given.arrays]
    elif len({a.dtype for a in given.arrays}) != 1:
        return None
    given.budget.take(sum(a.nbytes for a in given.arrays), given.node.where)
    return [
        np.concatenate(
            given.arrays, axis=given.node.integer("axis", 1 if given.node.version < 4 else None)
        )
    ]


def axes_of(node: Node, arrays: Sequence[Any], index: int = 1) -> tuple[int, ...] | None:
    """Axes from the attribute of older versions, or from the input of newer ones."""
    if index < len(arrays) and arrays[index] is not None:
        return tuple(int(a) for a in arrays[index].reshape(-1).tolist())
    return node.integers("axes") if node.has("axes") else None


def _counted(axes: Sequence[int], rank: int) -> list[int] | None:
    """*axes* from the front; None where one is out of range or named twice, of which the lowering
    tells.
    """
    found = [a + rank if a < 0 else a for a in axes]
    return found if len({*found}.intersection(range(rank))) == len(found) else None


def _squeeze(given: Given) -> Folded:
    axes = axes_of(given.node, given.arrays)
    x = given.arrays[0]
    ones = [i for i, d in enumerate(x.shape) if d == 1]
    gone = ones if axes is None else _counted(axes, x.ndim)
    if gone is None or not set(gone) <= set(ones):
        return None
    return [reshaped(x, tuple(d for i, d in enumerate(x.shape) if i not in gone))]


def _unsqueeze(given: Given) -> Folded:
    axes = axes_of(given.node, given.arrays)
    if axes is None:
        return None
    x = given.arrays[0]
    rank = x.ndim + len(axes)
    new = _counted(axes, rank)
    if new is None:
        return None
    dims = iter(x.shape)
    return [reshaped(x, tuple(1 if i in new else next(dims) for i in range(rank)))]


def _reshape(given: Given) -> Folded:
    x, target = given.arrays[0], [int(d) for d in given.arrays[1].reshape(-1).tolist()]
    keep = not given.node.integer("allowzero", 0)
    shape = [x.shape[i] if d == 0 and keep else d for i, d in enumerate(target)]
    if -1 in shape:
        rest = math.prod(d for d in shape if d != -1)
        shape[shape.index(-1)] = x.size // rest
    if math.prod(shape) != x.size:
        return None
    return [reshaped(x, tuple(shape))]


def _transpose(given: Given) -> Folded:
    order = given.node.integers("perm") if given.node.has("perm") else None
    return [given.arrays[0].transpose(order)]


def _slice(given: Given) -> Folded:
    bounds = slice_bounds(given.node, given.arrays)
    if bounds is None:
        return None
    x = given.arrays[0]
    axes = _counted(bounds[0], x.ndim)
    if axes is None:
        return None
    places = [slice(None)] * x.ndim
    for axis, start, end, step in zip(axes, *bounds[1:], strict=True):
        places[axis] = clamped(start, end, step, x.shape[axis])
    return [x[tuple(places)]]


def slice_bounds(
    node: Node, arrays: Sequence[Any]
) -> tuple[list[int], list[int], list[int], list[int]] | None:
    """(axes, starts, ends, steps) of a Slice whose bounds are known."""
    if node.version < 10:
        starts, ends = list(node.integers("starts")), list(node.integers("ends"))
        axes = list(node.integers("axes")) if node.has("axes") else list(range(len(starts)))
        return axes, starts, ends, [1] * len(starts)
    if any(a is None for a in arrays[1:3]) or len(arrays) < 3:
        return None
    starts, ends = ([int(v) for v in a.reshape(-1).tolist()] for a in arrays[1:3])
    given = [
        None if i >= len(arrays) or arrays[i] is None else [int(v) for v in arrays[i].reshape(-1).tolist()]
        for i in (3, 4)
    ]  # fmt: skip
    axes = given[0] if given[0] is not None else list(range(len(starts)))
    steps = given[1] if given[1] is not None else [1] * len(starts)
    return axes, starts, ends, steps


def clamped(start: int, end: int, step: int, size: int) -> slice:
    """ONNX's bounds of one dimension as Python's."""
    if step == 0:
        raise ValueError("a step of 0")
    start = start + size if start < 0 else start
    end = end + size if end < 0 else end
    if step > 0:
        return slice(min(max(start, 0), size), min(max(end, 0), size), step)
    start, end = min(max(start, 0), size - 1), min(max(end, -1), size - 1)
    if size == 0:
        return slice(0, 0, 1)
    return slice(start, None if end < 0 else end, step)


def _where(given: Given) -> Folded:
    if (
        not _small(*given.arrays)
        or math.prod(np.broadcast_shapes(*(a.shape for a in given.arrays))) > MAX_FOLDED
    ):
        return None
    return [np.where(*given.arrays)] if given.arrays[1].dtype == given.arrays[2].dtype else None


def _range(given: Given) -> Folded:
    start, limit, delta = (a.reshape(-1)[0] for a in given.arrays)
    count = max(math.ceil((limit - start) / delta), 0) if delta else 0
    if count > MAX_FOLDED:
        return None
    return [(start + np.arange(count) * delta).astype(given.arrays[0].dtype)]


def _expand(given: Given) -> Folded:
    x, target = given.arrays[0], tuple(int(d) for d in given.arrays[1].reshape(-1).tolist())
    shape = np.broadcast_shapes(x.shape, target)
    if x.size == 1:
        return [uniform(x, shape)]
    if math.prod(shape) > MAX_FOLDED:
        return None
    return [np.broadcast_to(x, shape).copy()]


def _tile(given: Given) -> Folded:
    repeats = tuple(int(d) for d in given.arrays[1].reshape(-1).tolist())
    if len(given.arrays) != 2 or given.arrays[0].size * math.prod(repeats) > MAX_FOLDED:
        return None
    return [np.tile(given.arrays[0], repeats)]


def _reduced(function: Callable[..., Any]) -> Fold:
    def rule(given: Given) -> Folded:
        x = given.arrays[0]
        if x.dtype.kind not in "iu" or not _small(x):
            return None
        axes = axes_of(given.node, given.arrays)
        if not axes and given.node.integer("noop_with_empty_axes", 0):
            return [x]
        keep = bool(given.node.integer("keepdims", 1))
        return [np.asarray(function(x, axis=axes or None, keepdims=keep)).astype(x.dtype)]

    return rule


def _many(function: Callable[[Any, Any], Any]) -> Fold:
    def rule(given: Given) -> Folded:
        if len({a.dtype for a in given.arrays}) != 1 or not _small(*given.arrays):
            return None
        result = given.arrays[0]
        for other in given.arrays[1:]:
            if math.prod(np.broadcast_shapes(result.shape, other.shape)) > MAX_FOLDED:
                return None
            result = function(result, other)
        return [np.asarray(result)]

    return rule


def _split(given: Given) -> Folded:
    x, axis = given.arrays[0], given.node.integer("axis", 0)
    size, count = x.shape[axis], len(given.node.outputs)
    if len(given.arrays) > 1 and given.arrays[1] is not None:
        sizes = [int(s) for s in given.arrays[1].reshape(-1).tolist()]
    elif given.node.has("split"):
        sizes = list(given.node.integers("split"))
    else:
        each = -(-size // count)
        sizes = [min(each, size - i * each) for i in range(count)]
    if sum(sizes) != size or len(sizes) != count:
        return None
    return np.split(x, np.cumsum(sizes)[:-1], axis)


PARTIAL: Final = frozenset({
    "Identity", "Cast", "Gather", "Concat", "Squeeze", "Unsqueeze", "Reshape", "Slice", "Transpose",
    "Split", "Add", "Sub", "Mul", "Equal", "Greater", "Less",
})  # fmt: skip
"""Operators that are followed where elements are unknown."""

FOLDS: Final[dict[str, Fold]] = {
    "Identity": _same,
    "Cast": _cast,
    "ConstantOfShape": _filled,
    "Gather": _gather,
    "Concat": _concat,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Reshape": _reshape,
    "Transpose": _transpose,
    "Slice": _slice,
    "Where": _where,
    "Range": _range,
    "Expand": _expand,
    "Tile": _tile,
    "Split": _split,
    "Add": _pair(np.add),
    "Sub": _pair(np.subtract),
    "Mul": _pair(np.multiply),
    "Div": _pair(_divided),
    "Mod": _modulo,
    "Equal": _pair(np.equal, np.bool_),
    "Greater": _pair(np.greater, np.bool_),
    "Less": _pair(np.less, np.bool_),
    "GreaterOrEqual": _pair(np.greater_equal, np.bool_),
    "LessOrEqual": _pair(np.less_equal, np.bool_),
    "And": _pair(np.logical_and),
    "Or": _pair(np.logical_or),
    "Not": _one(np.logical_not, "b"),
    "Neg": _one(np.negative, "fi"),
    "Abs": _one(np.abs),
    "Floor": _one(np.floor, "f"),
    "Ceil": _one(np.ceil, "f"),
    "Sqrt": _one(np.sqrt, "f"),
    "Exp": _one(np.exp, "f"),
    "Log": _one(np.log, "f"),
    "Reciprocal": _one(lambda x: 1 / x, "f"),
    "ReduceSum": _reduced(np.sum),
    "ReduceProd": _reduced(np.prod),
    "ReduceMax": _reduced(np.max),
    "ReduceMin": _reduced(np.min),
    "Max": _many(np.maximum),
    "Min": _many(np.minimum),
}
