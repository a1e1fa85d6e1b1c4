"""Rows of variables and hash tables.

Loaders lower them to state inputs and outputs of the model: a lowered model has none of these
operations but HASHTABLE_FIND and HASHTABLE_SIZE, which read a table as two tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.ir.operations.attributes import integer, tensor_type
from penstock.ir.operations.rules import (
    agree,
    agree_shapes,
    declared,
    dimension,
    fill,
    fixed,
    ranked,
)
from penstock.ir.operations.spec import AttributeSpec, OperationSpec, Port, ShapeContext
from penstock.ir.operations.types import INDEX, INT, RESOURCE
from penstock.ir.types import DType, Shape

HANDLE: Final = Port("resource", RESOURCE)
KEY: Final = INT | {DType.STRING}


def _nothing(context: ShapeContext) -> Sequence[Shape]:
    return fill(context)


def _find(context: ShapeContext) -> Sequence[Shape]:
    agree(
        dimension(ranked(context, 0, 1), 0),
        dimension(ranked(context, 1, 1), 0),
        "number of keys and of values",
    )
    return (context.shape(2),)


def _import(context: ShapeContext) -> Sequence[Shape]:
    agree_shapes(context.shape(1), context.shape(2), "keys and values")
    return fill(context)


ROWS: Final = (
    OperationSpec(
        "VAR_HANDLE",
        (),
        (HANDLE,),
        declared,
        (AttributeSpec("container", "str", ""), AttributeSpec("shared_name", "str", "")),
        doc="The handle of a variable. Loaders lower it to a state port.",
    ),
    OperationSpec(
        "READ_VARIABLE",
        (HANDLE,),
        (Port("value"),),
        declared,
        doc="The value of a variable. Loaders lower it to the state input.",
    ),
    OperationSpec(
        "ASSIGN_VARIABLE",
        (HANDLE, Port("value")),
        (),
        _nothing,
        doc="Sets a variable. Loaders lower it to the state output.",
    ),
    OperationSpec(
        "HASHTABLE",
        (),
        (HANDLE,),
        declared,
        (integer("table_id"), tensor_type("key_dtype"), tensor_type("value_dtype")),
        doc="The handle of a hash table. Loaders lower it to two state ports, keys and values.",
    ),
    OperationSpec(
        "HASHTABLE_IMPORT",
        (HANDLE, Port("keys", KEY), Port("values", KEY)),
        (),
        _import,
        doc="Fills a hash table once. Loaders lower it to the initial values of its state.",
    ),
    OperationSpec(
        "HASHTABLE_FIND",
        (
            Port("keys", KEY, "K"),
            Port("values", KEY, "V"),
            Port("query", KEY, "K"),
            Port("default", KEY, "V"),
        ),
        (Port("found", KEY, "V"),),
        _find,
        doc="The values of the queried keys, or the default. Lowered form: the table is given as two vectors, "
        "keys and values, where TFLite's operator has a handle.",
    ),
    OperationSpec(
        "HASHTABLE_SIZE",
        (Port("keys", KEY),),
        (Port("size", INDEX),),
        fixed((1,)),
        doc="The number of entries of a table. Lowered form: the table is given as its vector of keys, where "
        "TFLite's operator has a handle.",
    ),
)
