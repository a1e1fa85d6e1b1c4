"""Rows of embeddings, key lookups, hashing and n-grams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.errors import InvalidAttribute, ShapeMismatch
from penstock.ir.operations.attributes import choice, flag, integer, integers
from penstock.ir.operations.rules import (
    BLOCK_SCALES,
    agree,
    at_least,
    check_blocks,
    constant_integers,
    declared,
    dimension,
    fill,
    ranked,
)
from penstock.ir.operations.spec import OperationSpec, Port, ShapeContext
from penstock.ir.operations.types import FLOAT, INT32, QUANT8, STRING, VALUE, WEIGHTS
from penstock.ir.types import Shape


def _embedding(context: ShapeContext) -> Sequence[Shape]:
    keys, values = ranked(context, 0, 1), at_least(context, 1, 2)
    check_blocks(context, 2)
    return (None if values is None else (dimension(keys, 0), *values[1:]),)


def _sparse_embedding(context: ShapeContext) -> Sequence[Shape]:
    """Inputs: ids [n], their index vectors [n, rank], dense shape [rank], weights [n], params."""
    ids, places = ranked(context, 0, 1), ranked(context, 1, 2)
    dense, weights, params = ranked(context, 2, 1), ranked(context, 3, 1), at_least(context, 4, 2)
    agree(dimension(ids, 0), dimension(places, 0), "ids and their indices")
    agree(dimension(ids, 0), dimension(weights, 0), "ids and their weights")
    agree(dimension(places, 1), dimension(dense, 0), "rank of indices and of the dense shape")
    sizes = constant_integers(context, 2)
    if sizes is None or params is None:
        return (None,)
    if not sizes or min(sizes) < 0:
        raise ShapeMismatch(f"{sizes} is not a dense shape")
    return ((*sizes[:-1], *params[1:]),)


def _hash_lookup(context: ShapeContext) -> Sequence[Shape]:
    queries, keys, values = ranked(context, 0, 1), ranked(context, 1, 1), at_least(context, 2, 1)
    agree(dimension(keys, 0), dimension(values, 0), "keys and values")
    count = dimension(queries, 0)
    return fill(context, None if values is None else (count, *values[1:]), (count,))


def _projection(context: ShapeContext) -> Sequence[Shape]:
    """Hash [functions, bits]; sparse: one number a function, dense: one a bit."""
    table = ranked(context, 0, 2)
    kind = context.attributes.text("type")
    if kind == "UNKNOWN":
        raise InvalidAttribute("attribute 'type' of LSH_PROJECTION must be SPARSE or DENSE")
    functions, bits = dimension(table, 0), dimension(table, 1)
    if bits is not None and bits > 32:
        raise ShapeMismatch(f"{bits} bits of a hash; 32 is the limit")
    if context.has(2):
        agree(
            dimension(ranked(context, 2, 1), 0),
            dimension(at_least(context, 1, 1), 0),
            "weights and input",
        )
    if kind == "DENSE":
        functions = None if functions is None or bits is None else functions * bits
    return ((functions,),)


ROWS: Final = (
    OperationSpec(
        "EMBEDDING_LOOKUP",
        (Port("ids", INT32), Port("params", WEIGHTS | VALUE), BLOCK_SCALES),
        (Port("rows", VALUE),),
        _embedding,
        feature_level=1,
        doc="Rows of params, picked by id. Integer rows may have a scale for each block of their elements.",
    ),
    OperationSpec(
        "EMBEDDING_LOOKUP_SPARSE",
        (
            Port("ids", INT32),
            Port("indices", INT32),
            Port("dense_shape", INT32),
            Port("weights", FLOAT),
            Port("params", FLOAT),
        ),
        (Port("output", FLOAT),),
        _sparse_embedding,
        (choice("combiner", "SUM", "MEAN", "SQRTN"),),
        doc="Weighted combinations of the rows of params that share an index vector up to its last element.",
    ),
    OperationSpec(
        "HASHTABLE_LOOKUP",
        (Port("queries", INT32), Port("keys", INT32), Port("values", VALUE, "T")),
        (Port("found", VALUE, "T"), Port("hits", QUANT8)),
        _hash_lookup,
        feature_level=1,
        doc="The values of the queried keys, which stand sorted; zeros where there is none, and whether there was.",
    ),
    OperationSpec(
        "LSH_PROJECTION",
        (Port("hash", FLOAT), Port("input"), Port("weight", FLOAT, optional=True)),
        (Port("output", INT32),),
        _projection,
        (choice("type", "UNKNOWN", "SPARSE", "DENSE"),),
        feature_level=1,
        doc="Locality-sensitive hash of the input's rows: a number a hash function, or a number a bit.",
    ),
    OperationSpec(
        "SKIP_GRAM",
        (Port("input", STRING),),
        (Port("output", STRING),),
        lambda _: ((None,),),
        (integer("ngram_size"), integer("max_skip_size"), flag("include_all_ngrams")),
        doc="The n-grams of a string's words, with words skipped in between.",
    ),
    OperationSpec(
        "CONCAT_EMBEDDINGS",
        (Port("inputs", variadic=True),),
        (Port("output"),),
        declared,
        (
            integer("num_channels"),
            integers("num_columns_per_channel"),
            integers("embedding_dim_per_channel"),
        ),
        doc="A name of the format's early days, which no kernel implements.",
    ),
)
