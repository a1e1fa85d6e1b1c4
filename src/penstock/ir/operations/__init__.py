"""The operation table: one row for every operation of TFLite and of NNAPI, supported by a driver or
not.

`OPERATIONS` maps a row's key to its `OperationSpec`. The key is the operation type, or
`CUSTOM:<code>` for a custom operator with a row of its own. Each family of operations has a module.
All operations of vendors' extensions share the row EXTENSION.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Final

from penstock.errors import UnknownOperator
from penstock.facade import lazily
from penstock.ir.operation import Operation
from penstock.ir.operations.index import FAMILIES, VERSIONS

if TYPE_CHECKING:
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


__getattr__ = lazily(
    __name__,
    {"spec": ("AttributeSpec FoldRule OperationSpec Port Requirement ShapeContext ShapeRule")},
)


class _Table(Mapping[str, "OperationSpec"]):
    """The rows by key.

    A family's module is imported when one of its rows is first looked up. Importing all modules
    would take a third of the start-up time, and a network uses few families.
    """

    def __init__(self) -> None:
        self._homes = {key: family for family, keys in FAMILIES.items() for key in keys.split()}
        self._rows: dict[str, OperationSpec] = {}
        self._families: dict[str, tuple[OperationSpec, ...]] = {}
        self._versions = {key: newest for newest, keys in VERSIONS.items() for key in keys.split()}

    def family(self, name: str) -> tuple[OperationSpec, ...]:
        """The rows of one of `FAMILIES`, in their order."""
        if name not in self._families:
            rows: tuple[OperationSpec, ...] = import_module(f"{__name__}.{name}").ROWS
            self._rows.update({row.name: row for row in rows})
            self._families[name] = rows
        return self._families[name]

    def newest(self, key: str) -> int:
        """`OperationSpec.versions` of a row, which is not imported for it."""
        return self._versions.get(key, 1)

    def __getitem__(self, key: str) -> OperationSpec:
        if key not in self._rows:
            self.family(self._homes[key])
        return self._rows[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._homes)

    def __len__(self) -> int:
        return len(self._homes)


OPERATIONS: Final = _Table()


def spec_of(operation: Operation) -> OperationSpec:
    """The row of *operation*. A custom operator without its own row gets the row CUSTOM.

    Raises `UnknownOperator` for a type that the table does not have.
    """
    row = OPERATIONS.get(operation.key)
    if row is None:
        row = OPERATIONS.get(operation.type)
    if row is None:
        raise UnknownOperator(f"{operation.type!r} is not an operation of the vocabulary")
    return row
