"""Sequences whose length is known before running: they are lists here, and nothing of them runs."""

from __future__ import annotations

import numpy as np

from penstock.loaders.onnx.calls import Call, operator
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
