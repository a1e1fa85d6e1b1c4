"""Hash tables: lowered to constants, or to state.

TFLite imports keys and values into a table once, later imports are ignored, and nothing else
changes it. A table whose import is constant is therefore a pair of constants, and looking something
up needs no state: HASHTABLE_FIND takes keys, values, query and default, HASHTABLE_SIZE the keys.
The keys and values of every other table are state, which its first import fills.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec.structs import replace

from penstock.errors import InvalidOperation
from penstock.ir.operand import Operand
from penstock.loaders.tflite.calls import handle_of
from penstock.loaders.tflite.operators import Key, RawOperator, RawSubgraph

Table: TypeAlias = "tuple[Operand, Operand]"
"""Keys and values, both constants."""


def lower_tables(subgraphs: list[RawSubgraph]) -> None:
    """Rewrites the operators of tables with constant content in place; `resolve_handles` has run.

    The operators of other tables stay as they are, for `states`.
    """
    kinds = ("HASHTABLE_IMPORT", "HASHTABLE_FIND", "HASHTABLE_SIZE")
    users = [(s, o) for s in subgraphs for o in s.operators if o.type in kinds]
    tables: dict[Key, Table | None] = {}
    for subgraph, operator in users:
        if operator.type == "HASHTABLE_IMPORT":
            key, content = handle_of(subgraph, operator), _content(subgraph, operator)
            if tables.setdefault(key, content) != content:
                tables[key] = None
    copies: dict[tuple[int, Key], tuple[int, int]] = {}
    for subgraph, operator in users:
        key = handle_of(subgraph, operator)
        if key not in tables:
            raise InvalidOperation("its table is never imported", where=operator.place)
        table = tables[key]
        if operator.type != "HASHTABLE_IMPORT" and table is not None:
            keys, values = _place(subgraph, key, table, copies)
            given = (keys, values) if operator.type == "HASHTABLE_FIND" else (keys,)
            operator.inputs = (*given, *operator.inputs[1:])
    for subgraph in subgraphs:
        subgraph.operators = [
            o
            for o in subgraph.operators
            if o.type != "HASHTABLE"
            and not (o.type == "HASHTABLE_IMPORT" and tables[handle_of(subgraph, o)] is not None)
        ]


def _content(subgraph: RawSubgraph, operator: RawOperator) -> Table | None:
    """The keys and values that an import brings, where both are constants."""
    if len(operator.inputs) != 3 or min(operator.inputs) < 0:
        raise InvalidOperation("needs a table, keys and values", where=operator.place)
    keys, values = (subgraph.operands[i] for i in operator.inputs[1:])
    return (keys, values) if keys.is_constant and values.is_constant else None


def _place(
    subgraph: RawSubgraph,
    key: Key,
    table: Table,
    copies: dict[tuple[int, Key], tuple[int, int]],
) -> tuple[int, int]:
    """Operand indexes of the table's keys and values in the subgraph that uses it."""
    known = copies.get((subgraph.index, key))
    if known is None:
        known = len(subgraph.operands), len(subgraph.operands) + 1
        subgraph.operands += [replace(o, origin=None) for o in table]
        copies[subgraph.index, key] = known
    return known
