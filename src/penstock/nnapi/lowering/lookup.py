"""Embeddings, tables and hashes. | DENSIFY, which only experimental builds of NNAPI have."""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.errors import InvalidAttribute, LimitExceeded, NotLowerable
from penstock.ir import DType
from penstock.nnapi.description import EXPERIMENTAL
from penstock.nnapi.lowering.registry import lowers
from penstock.nnapi.lowering.site import Site

MAX_FUNCTIONS = 1 << 20
SPARSE_DEPRECATED, DENSE, SPARSE = 1, 2, 3


@lowers(
    "EMBEDDING_LOOKUP",
    level=1,
    form="lookups:i32 values:T -> rows:T",
    T="f32 i32@3 q8@3 f16@4 q8s@4",
)
def embedding_lookup(site: Site) -> None:
    site.require_rank("lookups", 1)
    site.require_same_quantization("values", "rows")
    site.finish("EMBEDDING_LOOKUP", [site.tensor("lookups"), site.tensor("values")])


@lowers(
    "HASHTABLE_LOOKUP",
    level=1,
    form="lookups:i32 keys:i32 values:T -> found:T hits:q8",
    T="f32 i32 q8",
)
def hashtable_lookup(site: Site) -> None:
    site.require_rank("lookups", 1)
    site.require_rank("keys", 1)
    site.require_same_quantization("values", "found")
    site.require_quantization("hits", 1, 0)
    site.finish("HASHTABLE_LOOKUP", [site.tensor(n) for n in ("lookups", "keys", "values")])


@lowers(
    "LSH_PROJECTION",
    level=1,
    form=(
        "hash:f32 input:I weight:f32? type:i -> output:i32",
        "hash:f16@3 input:I weight:f16? type:i -> output:i32",
    ),
    I="any",
)
def lsh_projection(site: Site) -> None:
    """The deprecated sparse form has no offset a hash function: it is taken off again. What is
    hashed are the bytes of float32 seeds.
    """
    site.require_rank("hash", 2)
    kind = site.integer("type")
    if kind not in {SPARSE_DEPRECATED, DENSE, SPARSE}:
        raise InvalidAttribute(f"type {kind} of LSH_PROJECTION is not in [1, 3]")
    if kind == SPARSE and site.feature_level < 3:
        raise InvalidAttribute("type 3 of LSH_PROJECTION needs feature level 3")
    inputs = [site.tensor(n) for n in ("hash", "input", "weight")]
    if site.dtype(inputs[0]) is DType.FLOAT16:
        real = (DType.FLOAT32, None)
        inputs = [
            site.emit("CAST", [x], real) if site.dtype(x) is DType.FLOAT16 and x != inputs[1] else x
            for x in inputs
        ]
    result = site.emit(
        "LSH_PROJECTION",
        inputs,
        (DType.INT32, None),
        type="DENSE" if kind == DENSE else "SPARSE",
    )
    if kind == SPARSE_DEPRECATED:
        shape = site.shape(inputs[0])
        if shape is None or shape[0] is None or shape[1] is None:
            raise NotLowerable("a sparse LSH_PROJECTION whose hash functions only a run tells")
        if shape[0] > MAX_FUNCTIONS:
            raise LimitExceeded(f"{shape[0]} hash functions; the limit is {MAX_FUNCTIONS}")
        offsets = np.arange(shape[0], dtype=np.int64) << shape[1]
        result = site.emit("SUB", [result, site.graph.constant(offsets.astype(np.int32))])
    site.bind(0, result)


MOST_LEVELS: Final = 16
"""Levels of a sparse tensor: its dimensions and blocks together."""


def _lists() -> str:
    """Segments and indices of the levels, in a form."""
    pairs = [f"segments_{at}:i32? indices_{at}:i32?" for at in range(MOST_LEVELS)]
    return "[" + " [".join(pairs) + "]" * MOST_LEVELS


@lowers(
    "DENSIFY",
    level=EXPERIMENTAL,
    form=f"values:T order:i32 blocks:i32? formats:i32 sizes:i32 {_lists()} -> output:T",
    T="f32 f16 i32 b8 q8 q8s q8y q16y q16a",
)
def densify(site: Site) -> None:
    names = [*site.match.inputs]
    for name in names:
        if site.given(name):
            site.require_rank(name, 1)
    order = site.shape(site.tensor("order"))
    levels, given = (len(names) - 5) // 2, None if order is None else order[0]
    site.require(given in {None, levels}, f"{levels} pairs of lists for {given} levels")
    site.require_same_quantization("values", "output")
    site.finish("DENSIFY_LEVELS", [site.tensor(name) for name in names])
