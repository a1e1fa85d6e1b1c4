"""The operation table: one row for every operation of TFLite and of NNAPI, driver or no driver.

`OPERATIONS` maps a row's key (the operation type, or `CUSTOM:<code>` for a custom operator that
has a row of its own) to its `OperationSpec`. Rows stand in one file an operation family.
"""

from __future__ import annotations

from importlib import import_module
from typing import Final

from penstock.errors import UnknownOperator
from penstock.ir.operation import Operation
from penstock.ir.operations.spec import (
    AttributeSpec,
    FoldRule,
    OperationSpec,
    Port,
    ShapeContext,
    ShapeRule,
)

__all__ = [
    "FAMILIES",
    "OPERATIONS",
    "AttributeSpec",
    "FoldRule",
    "OperationSpec",
    "Port",
    "ShapeContext",
    "ShapeRule",
    "spec_of",
]

FAMILIES: Final = (
    "arithmetic",
    "comparison",
    "unary",
    "activation",
    "normalization",
    "convolution",
    "pooling",
    "matmul",
    "shape",
    "slicing",
    "layout",
    "joining",
    "gather_scatter",
    "reduction",
    "quantization",
    "image",
    "control_flow",
    "recurrent",
    "resource",
    "random",
    "lookup",
    "signal",
    "detection",
    "stablehlo",
    "stablehlo_region",
    "custom",
)


def _collect() -> dict[str, OperationSpec]:
    table: dict[str, OperationSpec] = {}
    for family in FAMILIES:
        for row in import_module(f"{__name__}.{family}").ROWS:
            if row.name in table:
                raise RuntimeError(f"operation table: two rows are named {row.name}")
            table[row.name] = row
    return table


OPERATIONS: Final = _collect()


def spec_of(operation: Operation) -> OperationSpec:
    """The row of *operation*; a custom operator without one of its own gets the row CUSTOM.

    Raises `UnknownOperator` for a type outside the vocabulary.
    """
    row = OPERATIONS.get(operation.key)
    if row is None:
        row = OPERATIONS.get(operation.type)
    if row is None:
        raise UnknownOperator(f"{operation.type!r} is not an operation of the vocabulary")
    return row
