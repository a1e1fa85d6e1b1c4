"""Constant folding: computes values that are known before a model runs.

The reference evaluator of the `onnx` package computes them. A guard runs before each operator. It
accepts the element types for which the evaluator is correct, and bounds the memory that the
evaluator allocates. Functions of this module compute only what the evaluator computes incorrectly
or without bounds. Each of them states the reason.

Integer arrays with unknown elements (a shape with an unknown batch) are folded too, through
operators that move elements and through simple arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np
from msgspec import Struct

from penstock.errors import InvalidAttribute, ModelError
from penstock.ir.types import DType, NDArray, dtype_of
from penstock.loaders.onnx.engine import MAX_RANK, TYPES, Budget, evaluate
from penstock.loaders.onnx.graph import Node
from penstock.loaders.onnx.values import Value, is_uniform, reshaped, uniform

MAX_FOLDED: Final = 1 << 16
"""Greatest number of elements of a computed result. Larger operators are left to the devices."""

MAX_KNOWN: Final = 64
"""Greatest number of elements of a value with unknown elements."""

Folded: TypeAlias = "Sequence[NDArray] | None"


class Given(Struct):
    """A node, the values of its inputs, and the memory budget of its results."""

    node: Node
    arrays: Sequence[Any]
    budget: Budget


Rule: TypeAlias = Callable[[Given], Folded]
Guard: TypeAlias = "Callable[[Given], bool]"
"""Returns whether a node is evaluated. A guard charges the memory that the evaluator allocates."""

FAILED: Final = (
    ValueError, IndexError, TypeError, OverflowError, ZeroDivisionError, KeyError, RuntimeError,
    AttributeError, AssertionError,
)  # fmt: skip
"""Exceptions of the evaluator for a malformed node, whose lowering then names the defect."""


def fold(node: Node, inputs: Sequence[Value | None], budget: Budget) -> Sequence[NDArray] | None:
    """The known values of a node's outputs, or None. Object arrays have None if unknown."""
    if node.domain:
        return None
    if node.op in ("Shape", "Size"):
        return _shape(node, inputs)
    rule = FOLDS.get(node.op)
    if rule is None:
        return None
    arrays: list[NDArray | None] = []
    unknown = False
    for value in inputs:
        if value is None or value.array is not None:
            arrays.append(None if value is None else value.array)
        elif value.known is not None and node.op in PARTIAL:
            unknown = True
            arrays.append(value.known)
        else:
            return None
    try:
        with np.errstate(all="ignore"):
            given = Given(node, arrays, budget)
            if not unknown or all(a is None or a.dtype != object for a in arrays):
                return rule(given)
            return _partly(given, rule, DType.INT64 if inputs[0] is None else inputs[0].dtype)
    except ModelError:
        raise
    except FAILED:
        return None


def _shape(node: Node, inputs: Sequence[Value | None]) -> Folded:
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
    return [np.array(dims, object if None in dims else np.int64)]


def _partly(given: Given, rule: Rule, dtype: DType) -> Folded:
    """Folds integers of which some are unknown: values with 0 for these, and their masks."""
    node, arrays = given.node, given.arrays
    if node.op == "Cast":
        to = TYPES.get(node.integer("to"))
        return [arrays[0]] if to in {DType.INT32, DType.INT64} else None
    data = len(arrays) if node.op in PAIRS or node.op == "Concat" else 1
    if any(a is not None and a.dtype == object for a in arrays[data:]):
        return None
    values, masks = list(arrays), list(arrays)
    for index, array in enumerate(arrays[:data]):
        if array.size > MAX_KNOWN or array.dtype.kind not in "iuO":
            return None
        elements = array.reshape(-1).tolist()
        if any(isinstance(e, bytes) for e in elements):
            return None
        unknown = np.array([e is None for e in elements], np.int64).reshape(array.shape)
        known = np.array([e or 0 for e in elements], np.int64).reshape(array.shape)
        values[index], masks[index] = known, unknown
    found = rule(Given(node, values, given.budget))
    if node.op in PAIRS:
        mask: Folded = [np.logical_or(*masks)]
    else:
        mask = rule(Given(node, masks, given.budget))
    if found is None or mask is None or any(f.size > MAX_KNOWN for f in found):
        return None
    return [_masked(f, m.astype(bool), dtype) for f, m in zip(found, mask, strict=True)]


def _masked(values: NDArray, unknown: NDArray, dtype: DType) -> NDArray:
    """*values* of *dtype*. If there are *unknown* elements, objects with None for these."""
    if not unknown.any():
        return values if values.dtype == bool else values.astype(dtype.numpy)
    objects = values.astype(object)
    objects[unknown] = None
    return objects


def _evaluated(given: Given, guard: Guard | None = None) -> Folded:
    """The evaluator's result, if *guard*, which bounds its memory, accepts the node."""
    node = given.node
    if guard is not None and not guard(given):
        return None
    attributes = {k: v for k, v in node.attributes.items() if k in ATTRIBUTES and v != []}
    found = evaluate(node.op, node.version, given.arrays, len(node.outputs), attributes)
    return found if len(found) == len(node.outputs) else None


ATTRIBUTES: Final = frozenset({
    "axis", "axes", "keepdims", "noop_with_empty_axes", "perm", "allowzero", "fmod", "split",
    "num_outputs", "starts", "ends",
})  # fmt: skip
"""Attributes that are passed to the evaluator. It makes each attribute a field of its object."""


def _computed(kinds: str = "biufcV", *, compares: bool = False) -> Guard:
    """Guards an elementwise operator whose inputs have one type and broadcast."""

    def guard(given: Given) -> bool:
        arrays = given.arrays
        if given.node.version < 7 and given.node.integer("broadcast", 0):
            return False
        if any(a.dtype.kind not in kinds or a.dtype != arrays[0].dtype for a in arrays):
            return False
        itemsize = 1 if compares else arrays[0].itemsize
        return _charged(given, np.broadcast_shapes(*(a.shape for a in arrays)), itemsize)

    return guard


def _charged(given: Given, shape: Sequence[int], itemsize: int) -> bool:
    """Charges the bytes of a computed result of *shape*. Returns False if they are too many."""
    count = math.prod(shape)
    sizes = [a.size for a in given.arrays if a is not None]
    return max(count, *sizes) <= MAX_FOLDED and given.budget.offers(count * itemsize)


def _divided(given: Given) -> bool:
    """Guards Div and Mod: integer division by zero is not evaluated."""
    divisor = given.arrays[1]
    if divisor.dtype.kind != "f" and not divisor.all():
        return False
    return _computed("iuf" if given.node.op == "Div" else "iu")(given)


def _reduced(given: Given) -> bool:
    """Guards reductions of integers. Sums of floats depend on the order and are not folded."""
    x = given.arrays[0]
    return x.dtype.kind in "iu" and _charged(given, x.shape, x.itemsize)


def _chosen(given: Given) -> bool:
    _, x, y = given.arrays
    shape = np.broadcast_shapes(*(a.shape for a in given.arrays))
    return x.dtype == y.dtype and _charged(given, shape, x.itemsize)


def _tiled(given: Given) -> bool:
    x, repeats = given.arrays
    counts = repeats.reshape(-1).tolist()
    return min(counts, default=0) >= 0 and _charged(given, [x.size, *counts], x.itemsize)


def _concatenated(given: Given) -> bool:
    if len({a.dtype for a in given.arrays}) != 1 or given.arrays[0].dtype == object:
        return False
    given.budget.take(sum(a.nbytes for a in given.arrays), given.node.where)
    return True


def _sliced(given: Given) -> Folded:
    """Folds Slice. The evaluator slices as Python does, which differs before the beginning."""
    bounds, x = slice_bounds(given.node, given.arrays), given.arrays[0]
    axes = None if bounds is None else counted(bounds[0], x.ndim)
    if bounds is None or axes is None:
        return None
    places = [slice(None)] * x.ndim
    for axis, start, end, step in zip(axes, *bounds[1:], strict=True):
        places[axis] = clamped(start, end, step, x.shape[axis])
    return [x[tuple(places)]]


def _split(given: Given) -> Folded:
    """Folds Split. The evaluator does not check that the sizes of the parts add up to the whole."""
    x, axis = given.arrays[0], given.node.integer("axis", 0)
    sizes = given.arrays[1] if len(given.arrays) > 1 else None
    if sizes is None and given.node.has("split"):
        sizes = np.array(given.node.integers("split"))
    if sizes is not None and (sizes.sum() != x.shape[axis] or (sizes < 0).any()):
        return None
    found = _evaluated(given)
    whole = 0 if found is None else sum(f.shape[axis] for f in found)
    return found if whole == x.shape[axis] else None


def _gathered(given: Given) -> Folded:
    """Folds Gather. The evaluator copies a repeated element, whatever the number of copies."""
    data, indices = given.arrays
    axis = given.node.integer("axis", 0)
    size = data.shape[axis]
    if indices.dtype.kind not in "iu" or ((indices < -size) | (indices >= size)).any():
        return None
    axis %= data.ndim
    shape = (*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :])
    if is_uniform(data):
        return [uniform(data[(0,) * data.ndim], shape)]
    copied = 0 if data.flags.c_contiguous else data.nbytes
    given.budget.take(math.prod(shape) * data.itemsize + copied, given.node.where)
    return _evaluated(given)


def _reshaped(given: Given) -> Folded:
    """Folds Reshape. Repeated elements stay in the memory of one; a view is copied."""
    x = given.arrays[0]
    if not is_uniform(x) and not x.flags.c_contiguous:
        given.budget.take(x.nbytes, given.node.where)
    found = _evaluated(given)
    return None if found is None else [reshaped(x, found[0].shape)]


def _squeezed(given: Given) -> Folded:
    """Folds Squeeze. The evaluator applies the axes of older opsets one after another."""
    axes, x = axes_of(given.node, given.arrays), given.arrays[0]
    ones = [i for i, d in enumerate(x.shape) if d == 1]
    dropped = ones if axes is None else counted(axes, x.ndim)
    if dropped is None or not set(dropped) <= set(ones):
        return None
    return [reshaped(x, tuple(d for i, d in enumerate(x.shape) if i not in dropped))]


def _unsqueezed(given: Given) -> Folded:
    """Folds Unsqueeze; not by the evaluator, for the reason of `_squeezed`."""
    axes, x = axes_of(given.node, given.arrays), given.arrays[0]
    added = None if axes is None else counted(axes, x.ndim + len(axes))
    if axes is None or added is None:
        return None
    dims = iter(x.shape)
    return [reshaped(x, tuple(1 if i in added else next(dims) for i in range(x.ndim + len(axes))))]


def _cast(given: Given) -> Folded:
    """Folds Cast. The evaluator accepts floats that no integer can hold, and copies repeats."""
    (x,), target = given.arrays, TYPES.get(given.node.integer("to"))
    if target is None or dtype_of(x.dtype) is DType.STRING or target is DType.STRING:
        return [x] if target is DType.STRING and x.dtype == object else None
    if x.dtype == target.numpy:
        return [x]
    if is_uniform(x):
        return [uniform(x[(0,) * x.ndim].astype(target.numpy), x.shape)]
    if x.dtype.kind == "f" and target.is_integer and not np.isfinite(x).all():
        return None
    given.budget.take(x.size * target.numpy.itemsize, given.node.where)
    return [x.astype(target.numpy)]


def _filled(given: Given) -> Folded:
    """Folds ConstantOfShape. The evaluator allocates every element."""
    shape = tuple(int(d) for d in given.arrays[0].reshape(-1).tolist())
    value = given.node.attributes.get("value", np.zeros(1, np.float32))
    if value.size != 1:
        raise InvalidAttribute(
            "the value of a filled tensor must have one element", where=given.node.where
        )
    if len(shape) > MAX_RANK or any(d < 0 for d in shape):
        return None
    Budget(MAX_FILLED).take(math.prod(shape), given.node.where)
    if value.dtype == object:
        return None
    given.budget.take(value.itemsize, given.node.where)
    return [uniform(value, shape)]


MAX_FILLED: Final = 1 << 46
"""Greatest number of elements of a filled tensor. With it, byte counts fit in 64 bits."""


def _range(given: Given) -> Folded:
    """Folds Range. The evaluator counts float steps in another precision than ONNX's formula."""
    start, limit, delta = (a.reshape(-1)[0] for a in given.arrays)
    count = max(math.ceil((limit - start) / delta), 0) if delta else 0
    if not _charged(given, [count], given.arrays[0].itemsize):
        return None
    return [(start + np.arange(count) * delta).astype(given.arrays[0].dtype)]


def _expanded(given: Given) -> Folded:
    """Folds Expand. The evaluator allocates repeated elements, and fails for strings."""
    x, target = given.arrays[0], tuple(int(d) for d in given.arrays[1].reshape(-1).tolist())
    shape = np.broadcast_shapes(x.shape, target)
    if x.size == 1:
        return [uniform(x, shape)]
    if not _charged(given, shape, x.itemsize):
        return None
    return [np.broadcast_to(x, shape).copy()]


def axes_of(node: Node, arrays: Sequence[Any]) -> tuple[int, ...] | None:
    """Axes from the attribute of older versions, or from the input of newer ones."""
    if len(arrays) > 1 and arrays[1] is not None:
        return tuple(int(a) for a in arrays[1].reshape(-1).tolist())
    return node.integers("axes") if node.has("axes") else None


def counted(axes: Sequence[int], rank: int) -> list[int] | None:
    """*axes* counted from the front; None if one is out of range or occurs twice."""
    found = [a + rank if a < 0 else a for a in axes]
    return found if len({*found}.intersection(range(rank))) == len(found) else None


def slice_bounds(
    node: Node, arrays: Sequence[Any]
) -> tuple[list[int], list[int], list[int], list[int]] | None:
    """(axes, starts, ends, steps) of a Slice with known bounds."""
    if node.version < 10:
        given: list[list[int] | None] = [list(node.integers(n)) for n in ("starts", "ends")]
        given.append(list(node.integers("axes")) if node.has("axes") else None)
    else:
        given = [None if a is None else [int(v) for v in a.reshape(-1)] for a in arrays[1:5]]
    given += [None] * (4 - len(given))
    starts, ends, axes, steps = given
    if starts is None or ends is None:
        return None
    axes = list(range(len(starts))) if axes is None else axes
    return axes, starts, ends, [1] * len(starts) if steps is None else steps


def clamped(start: int, end: int, step: int, size: int) -> slice:
    """ONNX's bounds of one dimension as a Python slice."""
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


PAIRS: Final = frozenset({"Add", "Sub", "Mul", "Equal", "Greater", "Less"})
"""Operators with two inputs that are folded over unknown elements."""

PARTIAL: Final = PAIRS | {
    "Identity", "Cast", "Gather", "Concat", "Squeeze", "Unsqueeze", "Reshape", "Slice",
    "Transpose", "Split",
}  # fmt: skip
"""Operators that are folded over unknown elements."""

GUARDS: Final[dict[str, Guard]] = {
    **dict.fromkeys(("Add", "Sub", "Mul", "Max", "Min"), _computed()),
    **dict.fromkeys(
        ("Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual"),
        _computed("biufcVO", compares=True),
    ),
    **dict.fromkeys(("And", "Or", "Not"), _computed("b")),
    **dict.fromkeys(("Floor", "Ceil", "Sqrt", "Exp", "Log", "Reciprocal"), _computed("f")),
    **dict.fromkeys(("ReduceSum", "ReduceProd", "ReduceMax", "ReduceMin"), _reduced),
    "Neg": _computed("fi"),
    "Abs": _computed("fiu"),
    "Div": _divided,
    "Mod": _divided,
    "Where": _chosen,
    "Tile": _tiled,
    "Concat": _concatenated,
    "Transpose": lambda _: True,
}
"""Operators that the evaluator computes."""

FOLDS: Final[dict[str, Rule]] = {
    **{op: partial(_evaluated, guard=guard) for op, guard in GUARDS.items()},
    "Identity": lambda given: [given.arrays[0]],  # the evaluator would copy it
    "Cast": _cast,
    "ConstantOfShape": _filled,
    "Expand": _expanded,
    "Gather": _gathered,
    "Range": _range,
    "Reshape": _reshaped,
    "Slice": _sliced,
    "Split": _split,
    "Squeeze": _squeezed,
    "Unsqueeze": _unsqueezed,
}
