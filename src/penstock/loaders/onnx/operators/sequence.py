"""Sequences of known length, and strings."""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.ir.types import DType
from penstock.loaders.onnx.calls import Call, Tensor
from penstock.loaders.onnx.emitter import Emitter
from penstock.loaders.onnx.operators import operator
from penstock.loaders.onnx.operators.elementwise import strings
from penstock.loaders.onnx.values import Value, constant, sequence

MAX_ITEMS: Final = 4096


def _items(call: Call, index: int = 0) -> list[Value]:
    items = call.value(index).items
    if items is None:
        raise call.refuse("a sequence computed while running")
    return items


def _place(call: Call, index: int, size: int, limit: int) -> int:
    """The position that input *index* gives, below *limit*, counted from the front of *size*."""
    place = call.integers(index, "the position")[0]
    place = place + size if place < 0 else place
    if not 0 <= place < limit:
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
    size = len(items)
    place = _place(call, 2, size, size + 1) if call.has(2) else size
    items.insert(place, call.value(1))
    return sequence(items)


@operator("SequenceErase")
def erase(call: Call) -> Value:
    items = list(_items(call))
    if not items:
        raise call.mismatch("nothing is left to take out")
    del items[_place(call, 1, len(items), len(items)) if call.has(1) else -1]
    return sequence(items)


@operator("SequenceAt")
def at(call: Call) -> Value:
    items = _items(call)
    if not items:
        raise call.mismatch("an element of an empty sequence")
    return items[_place(call, 1, len(items), len(items))]


@operator("SequenceLength")
def count(call: Call) -> Value:
    return constant(np.array(len(_items(call)), np.int64))


@operator("SplitToSequence")
def split(call: Call) -> Value:
    x = call.tensor(0)
    axis, given, keep = call.own_axis(x), call.optional(1), True
    size = (x.shape or ())[axis]
    if given is not None and given.array is None:
        count = (given.shape or ())[0] if given.rank == 1 else None
        if count is None or count > MAX_ITEMS:
            raise call.refuse("the number of parts is unknown")
        return sequence([m.value() for m in _split(call, x, call.get(given), axis, count)])
    if given is not None and given.array is not None and given.array.ndim:
        parts = [int(v) for v in given.array.tolist()]
    else:
        each = 1 if given is None else int(np.asarray(given.array))
        if size is None or each < 1:
            raise call.refuse("equal parts of a dimension of unknown size")
        if size // each > MAX_ITEMS:
            raise call.refuse(f"a sequence of {size // each}")
        keep = given is not None or bool(call.node.integer("keepdims", 1))
        parts = [min(each, size - i) for i in range(0, size, each)]
    if len(parts) > MAX_ITEMS or (size is not None and sum(parts) != size):
        raise call.mismatch(f"{len(parts)} parts of a dimension of {size}")
    made = _split(call, x, call.vector(parts), axis, len(parts))
    return sequence([(m if keep else m.squeeze(axis)).value() for m in made])


def _split(call: Call, x: Value, lengths: Tensor, axis: int, count: int) -> list[Tensor]:
    inputs = [call.get(x), lengths, call.place(axis)]
    return call.emit_all("SPLIT_V", inputs, [x.dtype] * count, num_splits=count)


@operator("ConcatFromSequence")
def join(call: Call) -> Value:
    items = _items(call)
    if not items:
        raise call.mismatch("an empty sequence is joined")
    new = bool(call.node.integer("new_axis", 0))
    axis = call.axis(call.node.integer("axis"), (items[0].rank or 0) + new)
    operands = [call.get(i).expand(axis) if new else call.get(i) for i in items]
    return call.concatenate(operands, axis).value()


@operator("StringNormalizer")
def normalizer(call: Call) -> Value:
    """Stop words left out of a vector or of the one row of a matrix. One empty string stays where
    nothing else does.
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
    operand = call.get(x)
    if x.rank == 2:
        operand = operand.squeeze(0)
    found = operand.expand(1).equals(call.literal(strings(words).reshape(1, -1)))
    kept = found.reduced("REDUCE_ANY", [1]).fn("LOGICAL_NOT")
    left = operand.gather(kept.fn("WHERE", DType.INT64).squeeze(1))
    made = _one_at_least(kept.reduced("REDUCE_ANY", [0]), left.value())
    return (made.expand(0) if x.rank == 2 else made).value()


def _one_at_least(some: Tensor, left: Value) -> Tensor:
    call, made = some.call, []
    for value in (left, constant(strings([b""]))):
        emitter = Emitter(call.emitter.shared, call.emitter)
        made.append((emitter, [emitter.local(value)]))
    return call.get(call.body.emit_if(call.node, some.value(), made)[0])
