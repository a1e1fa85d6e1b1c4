"""Strings."""

from __future__ import annotations

import numpy as np

from penstock.ir.types import DType
from penstock.loaders.onnx.calls import Call, operator
from penstock.loaders.onnx.emitter import Emitter
from penstock.loaders.onnx.operators.common import expand, squeeze
from penstock.loaders.onnx.values import Value, constant


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
