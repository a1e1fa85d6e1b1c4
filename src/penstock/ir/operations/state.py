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
from penstock.ir.operations.signature import row
from penstock.ir.operations.spec import ShapeContext
from penstock.ir.types import Shape


def _find(context: ShapeContext) -> Sequence[Shape]:
    rules.agree(rules.vector(context, 0), rules.vector(context, 1), "number of keys and of values")
    return (context.shape(2),)


def _import(context: ShapeContext) -> Sequence[Shape]:
    rules.common_shape(context, 1, 2)
    return ()


def _filled(context: ShapeContext) -> Sequence[Shape]:
    return _with_position(context, 1, target_shape(context, 0))


def _with_position(context: ShapeContext, at: int, shape: Shape) -> Sequence[Shape]:
    if context.has(at):
        rules.ranked(context, at, 0)
    return rules.fill(context, shape, ())


def _samples(context: ShapeContext) -> Sequence[Shape]:
    (rows, _), count = rules.dimensions(context, 0, 2), rules.constant_integer(context, 1)
    rules.ranked(context, 1, 0)
    if count is not None and count < 0:
        raise ShapeMismatch(f"{count} samples")
    return _with_position(context, 2, (rows, count))


ROWS: Final = (
    row("""VAR_HANDLE(; container: str, shared_name: str) -> resource: resource
        # The handle of a variable. Loaders lower it to a state port.""")(rules.declared),
    row("""READ_VARIABLE(resource: resource) -> value: any
        # The value of a variable. Loaders lower it to the state input.""")(rules.declared),
    row("""ASSIGN_VARIABLE(resource: resource, value: any) ->
        # Sets a variable. Loaders lower it to the state output.""")(rules.fixed()),
    row("""HASHTABLE(; table_id: int, key_dtype: type, value_dtype: type) -> resource: resource
        # The handle of a hash table. Loaders lower it to two state ports, keys and values.
        """)(rules.declared),
    row("""HASHTABLE_IMPORT(resource: resource, keys: int|string, values: int|string) ->
        # Fills a hash table once. Loaders lower it to the initial values of its state.
        """)(_import),
    row("""HASHTABLE_FIND(keys: int|string K, values: int|string V, query: int|string K,
        default: int|string V) -> found: int|string V
        # The values of the queried keys, or the default. Lowered form: the table is given as two
        vectors, keys and values, where TFLite's operator has a handle.""")(_find),
    row("""HASHTABLE_SIZE(keys: int|string) -> size: index
        # The number of entries of a table. Lowered form: the table is given as its vector of keys,
        where TFLite's operator has a handle.""")(rules.fixed((1,))),
    row("""RANDOM_UNIFORM(shape: index, position?: int64; seed: int, seed2: int) -> output: float,
        next_position?: int64
        # Random numbers uniform in [0, 1), of a given shape.""")(_filled),
    row("""RANDOM_STANDARD_NORMAL(shape: index, position?: int64; seed: int, seed2: int)
        -> output: float, next_position?: int64
        # Random numbers of mean 0 and deviation 1, of a given shape.""")(_filled),
    row("""MULTINOMIAL(logits: float, num_samples: index, position?: int64; seed: int, seed2: int)
        -> samples: index, next_position?: int64
        # For each row of unnormalised log-probabilities, random classes drawn by them.
        """)(_samples),
)
