"""The operation table: one row for every operation of TFLite and of NNAPI, driver or no driver.

`OPERATIONS` maps a row's key (the operation type, or `CUSTOM:<code>` for a custom operator that
has a row of its own) to its `OperationSpec`. Rows stand in one file an operation family.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Final

from penstock.errors import UnknownOperator
from penstock.ir.operation import Operation
from penstock.ir.operations.spec import (
    AttributeSpec,
    FoldRule,
    OperationSpec,
    Port,
    Requirement,
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
    "Requirement",
    "ShapeContext",
    "ShapeRule",
    "spec_of",
]

FAMILIES: Final = (
    "convolution",
    "arithmetic",
    "activation",
    "shape",
    "pooling",
    "matmul",
    "quantization",
    "layout",
    "joining",
    "reduction",
    "slicing",
    "unary",
    "image",
    "comparison",
    "gather_scatter",
    "recurrent",
    "control_flow",
    "normalization",
    "resource",
    "lookup",
    "detection",
    "signal",
    "random",
    "stablehlo_region",
    "stablehlo",
    "custom",
    "nnapi",
    "nnapi_detection",
)
"""Modules of the rows, those that most networks need first."""


class _Table(Mapping[str, OperationSpec]):
    """The rows by key. Families are imported, in order, when a key is not among those that are:
    a table of everything would be a third of the start-up time, and networks use few families.
    """

    def __init__(self) -> None:
        self._rows: dict[str, OperationSpec] = {}
        self._families: dict[str, tuple[OperationSpec, ...]] = {}

    def _load(self, family: str) -> None:
        if family not in self._families:
            rows: tuple[OperationSpec, ...] = import_module(f"{__name__}.{family}").ROWS
            self._rows.update({row.name: row for row in rows})
            self._families[family] = rows

    def family(self, name: str) -> tuple[OperationSpec, ...]:
        """The rows of one of `FAMILIES`, in their order."""
        self._load(name)
        return self._families[name]

    def __getitem__(self, key: str) -> OperationSpec:
        found = self._rows.get(key)
        if found is not None:
            return found
        for family in ("custom",) if key.startswith("CUSTOM") else FAMILIES:
            self._load(family)
            if key in self._rows:
                return self._rows[key]
        raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        return iter([row.name for family in FAMILIES for row in self.family(family)])

    def __len__(self) -> int:
        return len(list(iter(self)))


OPERATIONS: Final = _Table()


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
