"""Embeddings, tables, hashes, and dense forms of sparse tensors."""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.errors import InvalidAttribute, LimitExceeded, NotLowerable
from penstock.ir import DType
from penstock.nnapi.lowering.operation import OperationLowering
from penstock.nnapi.lowering.registry import lowers, maps

MAX_FUNCTIONS: Final = 1 << 20

MOST_LEVELS: Final = 16
"""Levels of a sparse tensor: its dimensions and blocks together."""

_EMBEDDING: Final = "lookups:i32/1 values:T -> rows:T"
maps("EMBEDDING_LOOKUP", _EMBEDDING, same="values rows", T="f32 i32@3 q8@3 f16@4 q8s@4")

_TABLE: Final = "lookups:i32/1 keys:i32/1 values:T -> found:T hits:q8=1,0"
maps("HASHTABLE_LOOKUP", _TABLE, same="values found", T="f32 i32 q8")


@lowers(
    "LSH_PROJECTION",
    "hash:f32/2 input:I weight:f32? type:i -> output:i32",
    "hash:f16/2@3 input:I weight:f16? type:i -> output:i32",
    I="any",
)
def lsh_projection(op: OperationLowering) -> None:
    """Hashes the bytes of float32 seeds.

    The deprecated sparse form has no offset for each hash function, so the IR's offset is
    subtracted.
    """
    kind = op.choice("type", {1: "SPARSE_DEPRECATED", 2: "DENSE", 3: "SPARSE"})
    if kind == "SPARSE" and op.feature_level < 3:
        raise InvalidAttribute("type 3 of LSH_PROJECTION needs feature level 3")
    hashes, values, weight = op.named_tensors(("hash", "input", "weight"))
    if op.dtype(hashes) is DType.FLOAT16:
        hashes = op.cast(hashes, DType.FLOAT32)
        weight = op.cast(weight, DType.FLOAT32) if op.given("weight") else weight
    form, inputs = kind.removesuffix("_DEPRECATED"), [hashes, values, weight]
    result = op.emit("LSH_PROJECTION", inputs, (DType.INT32, None), type=form)
    if kind == "SPARSE_DEPRECATED":
        shape = op.shape(hashes)
        if shape is None or shape[0] is None or shape[1] is None:
            raise NotLowerable("a sparse LSH_PROJECTION needs hash functions of known shape")
        if shape[0] > MAX_FUNCTIONS:
            raise LimitExceeded(f"{shape[0]} hash functions; the limit is {MAX_FUNCTIONS}")
        offsets = np.arange(shape[0], dtype=np.int64) << shape[1]
        result = op.emit("SUB", [result, op.graph.constant(offsets.astype(np.int32))])
    op.bind(0, result)


def _levels() -> str:
    """Segments and indices of the levels, in a form."""
    pairs = [f"segments_{at}:i32/1? indices_{at}:i32/1?" for at in range(MOST_LEVELS)]
    return "[" + " [".join(pairs) + "]" * MOST_LEVELS


@lowers(
    "DENSIFY",
    f"values:T/1 order:i32/1 blocks:i32/1? formats:i32/1 sizes:i32/1 {_levels()} -> output:T",
    same="values output",
    T="f32 f16 i32 b8 q8 q8s q8y q16y q16a",
)
def densify(op: OperationLowering) -> None:
    names = [*op.match.inputs]
    levels, given = (len(names) - 5) // 2, op.dimension("order", 0)
    op.require(given in {None, levels}, f"{levels} pairs of lists for {given} levels")
    op.finish("DENSIFY_LEVELS", op.named_tensors(names))
