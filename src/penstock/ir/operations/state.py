"""Rows of operations with state between runs: variables, hash tables and random numbers.

Loaders lower variables and tables to state inputs and outputs of the model. Of these operations, a
lowered model has only HASHTABLE_FIND and HASHTABLE_SIZE, which read a table as two tensors.

Seeds of 0 and 0 request a different sequence in each run. The position of a random generator is a
count that starts at 0, and is state of the network. It is an optional last input, and its value
afterwards is an optional last output. Without it every run restarts the sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.errors import ShapeMismatch
from penstock.ir.operations import rules
from penstock.ir.operations.shape import target_shape
from penstock.ir.operations.signature import integer, row, tensor_type
from penstock.ir.operations.spec import AttributeSpec, ShapeContext
from penstock.ir.types import DType, Shape


def _nothing(context: ShapeContext) -> Sequence[Shape]:
    return rules.fill(context)


def _find(context: ShapeContext) -> Sequence[Shape]:
    rules.agree(
        rules.dimension(rules.ranked(context, 0, 1), 0),
        rules.dimension(rules.ranked(context, 1, 1), 0),
        "number of keys and of values",
    )
    return (context.shape(2),)


def _import(context: ShapeContext) -> Sequence[Shape]:
    rules.agree_shapes(context.shape(1), context.shape(2), "keys and values")
    return rules.fill(context)


SEEDS: Final = (integer("seed"), integer("seed2"))
INT64: Final = frozenset({DType.INT64})


def _filled(context: ShapeContext) -> Sequence[Shape]:
    return _with_position(context, 1, target_shape(context, 0))


def _with_position(context: ShapeContext, at: int, shape: Shape) -> Sequence[Shape]:
    if context.has(at):
        rules.ranked(context, at, 0)
    return rules.fill(context, shape, ())


def _samples(context: ShapeContext) -> Sequence[Shape]:
    logits, count = rules.ranked(context, 0, 2), rules.constant_integer(context, 1)
    rules.ranked(context, 1, 0)
    if count is not None and count < 0:
        raise ShapeMismatch(f"{count} samples")
    return _with_position(context, 2, (rules.dimension(logits, 0), count))


ROWS: Final = (
    row(
        "VAR_HANDLE",
        " -> resource: resource",
        rules.declared,
        (AttributeSpec("container", "str", ""), AttributeSpec("shared_name", "str", "")),
        doc="The handle of a variable. Loaders lower it to a state port.",
    ),
    row(
        "READ_VARIABLE",
        "resource: resource -> value: any",
        rules.declared,
        doc="The value of a variable. Loaders lower it to the state input.",
    ),
    row(
        "ASSIGN_VARIABLE",
        "resource: resource, value: any -> ",
        _nothing,
        doc="Sets a variable. Loaders lower it to the state output.",
    ),
    row(
        "HASHTABLE",
        " -> resource: resource",
        rules.declared,
        (integer("table_id"), tensor_type("key_dtype"), tensor_type("value_dtype")),
        doc="The handle of a hash table. Loaders lower it to two state ports, keys and values.",
    ),
    row(
        "HASHTABLE_IMPORT",
        "resource: resource, keys: int|string, values: int|string -> ",
        _import,
        doc="Fills a hash table once. Loaders lower it to the initial values of its state.",
    ),
    row(
        "HASHTABLE_FIND",
        "keys: int|string K, values: int|string V, query: int|string K, default: int|string V "
        "-> found: int|string V",
        _find,
        doc="The values of the queried keys, or the default. Lowered form: the table is given as "
        "two vectors,"
        "keys and values, where TFLite's operator has a handle.",
    ),
    row(
        "HASHTABLE_SIZE",
        "keys: int|string -> size: index",
        rules.fixed((1,)),
        doc="The number of entries of a table. Lowered form: the table is given as its vector of "
        "keys, where"
        "TFLite's operator has a handle.",
    ),
    row(
        "RANDOM_UNIFORM",
        "shape: index, position?: int64 -> output: float, next_position?: int64",
        _filled,
        SEEDS,
        doc="Random numbers uniform in [0, 1), of a given shape.",
    ),
    row(
        "RANDOM_STANDARD_NORMAL",
        "shape: index, position?: int64 -> output: float, next_position?: int64",
        _filled,
        SEEDS,
        doc="Random numbers of mean 0 and deviation 1, of a given shape.",
    ),
    row(
        "MULTINOMIAL",
        "logits: float, num_samples: index, position?: int64 -> samples: index, "
        "next_position?: int64",
        _samples,
        SEEDS,
        doc="For each row of unnormalised log-probabilities, random classes drawn by them.",
    ),
)
