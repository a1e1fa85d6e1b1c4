"""`Operation` and its typed attributes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import NoneType
from typing import Final, TypeAlias

from penstock.arguments import check_kind
from penstock.errors import InvalidAttribute
from penstock.ir.operand import EXTENSION, Origin, extension_key
from penstock.ir.types import Compared

AttributeValue: TypeAlias = (
    "bool | int | float | str | bytes | tuple[int, ...] | tuple[float, ...] | None"
)


class Attributes(Mapping[str, AttributeValue]):
    """An immutable, hashable mapping of attribute names to values, with typed getters.

    A getter raises `InvalidAttribute` if the attribute is absent or has another type. A driver
    therefore never computes with a value of a wrong type.
    """

    __slots__ = ("_items",)

    def __init__(
        self, items: Mapping[str, AttributeValue] | None = None, /, **more: AttributeValue
    ) -> None:
        check_kind(items, (dict, Mapping, NoneType), "attributes are a mapping of names to values")
        merged = {**(items or {}), **more}
        self._items: dict[str, AttributeValue] = {name: merged[name] for name in sorted(merged)}

    def __getitem__(self, name: str) -> AttributeValue:
        return self._items[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(tuple(self._items.items()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Attributes) and self._items == other._items

    def __repr__(self) -> str:
        return f"Attributes({', '.join(f'{k}={v!r}' for k, v in self._items.items())})"

    def integer(self, name: str) -> int:
        value = self._items.get(name)
        if type(value) is not int:
            raise _wrong(self._items, name, "an integer")
        return value

    def number(self, name: str) -> float:
        value = self._items.get(name)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise _wrong(self._items, name, "a number")
        return float(value)

    def flag(self, name: str) -> bool:
        value = self._items.get(name)
        if not isinstance(value, bool):
            raise _wrong(self._items, name, "true or false")
        return value

    def text(self, name: str) -> str:
        value = self._items.get(name)
        if not isinstance(value, str):
            raise _wrong(self._items, name, "a string")
        return value

    def blob(self, name: str) -> bytes:
        value = self._items.get(name)
        if not isinstance(value, bytes):
            raise _wrong(self._items, name, "bytes")
        return value

    def integers(self, name: str) -> tuple[int, ...]:
        value = self._items.get(name)
        if not isinstance(value, tuple) or not all(type(v) is int for v in value):
            raise _wrong(self._items, name, "integers")
        return value  # type: ignore[return-value]  # narrowed element by element above


def restored_attributes(items: dict[str, AttributeValue]) -> Attributes:
    """The attributes that had these *items*, in their order. Nothing is checked."""
    attributes = Attributes.__new__(Attributes)
    attributes._items = items  # noqa: SLF001  # as the constructor would
    return attributes


def _wrong(items: Mapping[str, AttributeValue], name: str, expected: str) -> InvalidAttribute:
    if name in items:
        return InvalidAttribute(f"attribute {name!r} must be {expected}, not {items[name]!r}")
    there = f"the attributes are {', '.join(items)}" if items else "there are none"
    return InvalidAttribute(f"no attribute is named {name!r}; {there}")


NO_ATTRIBUTES: Final = Attributes()


class Operation(Compared, frozen=True, eq=False, gc=False):
    """One computation. *type* is a name of the operation table. *inputs* and *outputs* are indexes
    of the operands of its subgraph.

    A custom operator has the type CUSTOM and the attributes `custom_code` and `custom_options`. An
    operation of a vendor's extension has the type EXTENSION and the attributes `extension` and
    `code`. Origins are ignored when operations are compared.
    """

    type: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    attributes: Attributes = NO_ATTRIBUTES
    origin: Origin | None = None

    def _compared(self) -> tuple[object, ...]:
        return self.type, self.inputs, self.outputs, self.attributes

    @property
    def key(self) -> str:
        """The key by which kernels, policies and the operation table find the operation: the type,
        CUSTOM:<code>, or EXTENSION:<name>:<number>.
        """
        if self.type == "CUSTOM":
            return f"CUSTOM:{self.attributes.text('custom_code')}"
        if self.type == EXTENSION:
            return extension_key(self.attributes.text("extension"), self.attributes.integer("code"))
        return self.type


def extension_of(operation: Operation) -> str | None:
    """The name of the extension of *operation*; None for any other operation."""
    return operation.attributes.text("extension") if operation.type == EXTENSION else None
