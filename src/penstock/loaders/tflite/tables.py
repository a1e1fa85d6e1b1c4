"""Hash tables: lowered to constants.

TFLite imports keys and values into a table once, later imports are ignored, and nothing else changes it. A
table whose import is constant is therefore a pair of constants, and looking something up needs no state:
HASHTABLE_FIND takes keys, values, query and default, HASHTABLE_SIZE the keys.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

from penstock.errors import InvalidOperation
from penstock.ir.operand import Operand
from penstock.loaders.tflite.calls import Key, RawSubgraph, handle_of
from penstock.loaders.tflite.operators import RawOperator

Table: TypeAlias = "tuple[Operand, Operand]"
"""Keys and values, both constants."""


def lower_tables(subgraphs: list[RawSubgraph]) -> None:
    """Rewrites the table operators of every subgraph in place; `resolve_handles` has run."""
    kinds = ("HASHTABLE_IMPORT", "HASHTABLE_FIND", "HASHTABLE_SIZE")
    users = [(s, o) for s in subgraphs for o in s.operators if o.type in kinds]
    tables: dict[Key, Table] = {}
    for subgraph, operator in users:
        if operator.type == "HASHTABLE_IMPORT":
            _import(subgraph, operator, tables)
    copies: dict[tuple[int, Key], tuple[int, int]] = {}
    for subgraph, operator in users:
        if operator.type != "HASHTABLE_IMPORT":
            keys, values = _place(subgraph, operator, tables, copies)
            given = (keys, values) if operator.type == "HASHTABLE_FIND" else (keys,)
            operator.inputs = (*given, *operator.inputs[1:])
    for subgraph in subgraphs:
        subgraph.operators = [
            o for o in subgraph.operators if o.type not in ("HASHTABLE", "HASHTABLE_IMPORT")
        ]


def _import(subgraph: RawSubgraph, operator: RawOperator, tables: dict[Key, Table]) -> None:
    key = handle_of(subgraph, operator)
    if len(operator.inputs) != 3 or min(operator.inputs) < 0:
        raise InvalidOperation("needs a table, keys and values", where=operator.place)
    keys, values = (subgraph.operands[i] for i in operator.inputs[1:])
    if not (keys.is_constant and values.is_constant):
        raise InvalidOperation(
            "imports computed keys or values; only tables with constant content can be lowered",
            where=operator.place,
        )
    if tables.setdefault(key, (keys, values)) != (keys, values):
        raise InvalidOperation("a table is imported with two contents", where=operator.place)


def _place(
    subgraph: RawSubgraph,
    operator: RawOperator,
    tables: dict[Key, Table],
    copies: dict[tuple[int, Key], tuple[int, int]],
) -> tuple[int, int]:
    """Operand indexes of the table's keys and values in the subgraph that uses it."""
    key = handle_of(subgraph, operator)
    if key not in tables:
        raise InvalidOperation("its table is never imported", where=operator.place)
    known = copies.get((subgraph.index, key))
    if known is None:
        known = len(subgraph.operands), len(subgraph.operands) + 1
        subgraph.operands += [replace(o, origin=None) for o in tables[key]]
        copies[subgraph.index, key] = known
    return known
