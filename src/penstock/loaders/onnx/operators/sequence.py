"""Sequences of known length, and strings."""

from __future__ import annotations

import numpy as np

from penstock.ir.types import DType
from penstock.loaders.onnx.calls import Call, operator
from penstock.loaders.onnx.emitter import Emitter
from penstock.loaders.onnx.operators.common import concatenate, expand, squeeze
from penstock.loaders.onnx.values import Value, constant, sequence

MAX_ITEMS = 4096


def _items(call: Call, index: int = 0) -> list[Value]:
    items = call.value(index).items
    if items is None:
        raise call.refuse("a sequence computed while running")
    return items


def _place(call: Call, index: int, size: int) -> int:
    place = int(call.integers(index, "the position")[0])
    place = place + size if place < 0 else place
    if not 0 <= place < max(size, 1):
        raise call.mismatch(f"position {place} of a sequence of {size}")
    return place


@operator("SequenceEmpty")
def empty(_: Call) -> Value:
    return sequence([])


@operator("SequenceConstruct")
def construct(call: Call) -> Value:
    return sequence([call.value(i) for i in range(len(call.inputs))])


@operator("SequenceInsert")
def insert(call: Call) -> Value:
    items = list(_items(call))
    place = len(items)
    if call.has(2):
        place = int(call.integers(2, "the position")[0])
        place = place + len(items) if place < 0 else place
        if not 0 <= place <= len(items):
            raise call.mismatch(f"position {place} of a sequence of {len(items)}")
    items.insert(place, call.value(1))
    return sequence(items)


@operator("SequenceErase")
def erase(call: Call) -> Value:
    items = list(_items(call))
    if not items:
        raise call.mismatch("nothing is left to take out")
    del items[_place(call, 1, len(items)) if call.has(1) else -1]
    return sequence(items)


@operator("SequenceAt")
def at(call: Call) -> Value:
    items = _items(call)
    if not items:
        raise call.mismatch("an element of an empty sequence")
    return items[_place(call, 1, len(items))]


@operator("SequenceLength")
def count(call: Call) -> Value:
    return constant(np.array(len(_items(call)), np.int64))


@operator("SplitToSequence")
def split(call: Call) -> Value:
    x = call.tensor(0)
    rank = x.rank or 0
    axis = call.axis(call.node.integer("axis", 0), rank)
    size = (x.shape or ())[axis]
    keep = True
    if call.has(1):
        given = call.value(1)
        if given.array is None:
            return _unknown_parts(call, x, given)
        if given.array.ndim:
            parts = [int(v) for v in given.array.tolist()]
        else:
            each = int(given.array)
            if size is None or each < 1:
                raise call.refuse("equal parts of a dimension of unknown size")
            if size // each > MAX_ITEMS:
                raise call.refuse(f"a sequence of {size // each}")
            parts = [min(each, size - i) for i in range(0, size, each)]
    else:
        if size is None:
            raise call.refuse("single elements of a dimension of unknown size")
        if size > MAX_ITEMS:
            raise call.refuse(f"a sequence of {size}")
        keep, parts = bool(call.node.integer("keepdims", 1)), [1] * size
    if len(parts) > MAX_ITEMS or (size is not None and sum(parts) != size):
        raise call.mismatch(f"{len(parts)} parts of a dimension of {size}")
    lengths = call.emitter.integers(parts)
    place = call.emitter.constant(np.array(axis, np.int32))
    made = call.emitter.emit(
        "SPLIT_V", [call.get(x), lengths, place], [x.dtype] * len(parts), {"num_splits": len(parts)}
    )
    return sequence([call.wrap(m if keep else squeeze(call, m, [axis])) for m in made])


def _unknown_parts(call: Call, x: Value, given: Value) -> Value:
    """As many parts as the vector of their sizes has elements."""
    count = (given.shape or ())[0] if given.rank == 1 else None
    if count is None or count > MAX_ITEMS:
        raise call.refuse("the number of parts is unknown")
    axis = call.axis(call.node.integer("axis", 0), x.rank or 0)
    place = call.emitter.constant(np.array(axis, np.int32))
    made = call.emitter.emit(
        "SPLIT_V",
        [call.get(x), call.get(given), place],
        [x.dtype] * count,
        {"num_splits": count},
    )
    return sequence([call.wrap(m) for m in made])


@operator("ConcatFromSequence")
def join(call: Call) -> Value:
    items = _items(call)
    if not items:
        raise call.mismatch("an empty sequence is joined")
    new = bool(call.node.integer("new_axis", 0))
    rank = (items[0].rank or 0) + new
    axis = call.axis(call.node.integer("axis"), rank)
    operands = [expand(call, call.get(i), axis) if new else call.get(i) for i in items]
    return call.wrap(concatenate(call, operands, axis))


@operator("StringNormalizer")
def normalizer(call: Call) -> Value:
    """Stop words left out of a vector, or of the one row of a matrix; one empty string where none
    is left.
    """
    x = call.tensor(0)
    if x.dtype is not DType.STRING:
        raise call.node.invalid(f"strings are taken, not {x.dtype.value}")
    if call.node.text("case_change_action", "NONE") != "NONE":
        raise call.refuse("a change of case")
    words = call.node.strings("stopwords", ())
    if not words:
        return x
    if not call.node.integer("is_case_sensitive", 0):
        raise call.refuse("stop words in any case")
    if x.rank not in (1, 2):
        raise call.mismatch(f"strings of shape {x.shape}")
    listed = np.empty(len(words), object)
    listed[:] = words
    operand = call.get(x)
    if x.rank == 2:
        operand = squeeze(call, operand, [0])
    known = call.emitter.constant(listed.reshape(1, -1))
    found = call.emit("EQUAL", [expand(call, operand, 1), known], DType.BOOL)
    stopped = call.emit("REDUCE_ANY", [found, call.emitter.integers([1])], DType.BOOL)
    kept = call.emit("LOGICAL_NOT", [stopped], DType.BOOL)
    places = squeeze(call, call.emit("WHERE", [kept], DType.INT64), [1])
    left = call.emit("GATHER", [operand, places], x.dtype)
    some = call.emit("REDUCE_ANY", [kept, call.emitter.integers([0])], DType.BOOL)
    made = _one_at_least(call, some, call.wrap(left))
    return call.wrap(expand(call, made, 0) if x.rank == 2 else made)


def _one_at_least(call: Call, some: int, left: Value) -> int:
    single = np.empty(1, object)
    single[:] = [b""]

    made = []
    for value in (left, constant(single)):
        emitter = Emitter(call.emitter.shared, call.emitter)
        made.append((emitter, [emitter.local(value)]))
    return call.emitter.get(call.body.emit_if(call.node, call.wrap(some), made)[0])
