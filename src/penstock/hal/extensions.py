"""NNAPI's vendor extensions as a driver declares them, and the attributes that calls carry for it
(NNAPI section 8.6).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from penstock.errors import InvalidArgument
from penstock.ir.extension import MAX_CODE, MAX_DATA, MAX_ELEMENT, code_fault, name_fault

MAX_EXTENSIONS: Final = 256
"""Extensions that one device may offer."""

MAX_ATTRIBUTES: Final = 256
"""Attributes that one compilation or execution may carry."""


class ExtensionOperandType(msgspec.Struct, frozen=True):
    """One operand type of an extension: its number *code* within the extension, 0 to 65535, and the
    *byte_size* of a scalar, or of one element of a tensor.
    """

    code: int
    byte_size: int
    is_tensor: bool = True


class Extension(msgspec.Struct, frozen=True):
    """An extension that a device offers: its *name*, a reversed domain name
    (`com.example.fibonacci`), and its operand types.

    Two devices that offer an extension of one name declare the same types, in any order; where they
    do not, nobody can use the extension. Its operations have numbers of 0 to 65535, and are not
    declared: the device's `supported_operations` says which there are, and for which operands.
    """

    name: str
    operand_types: tuple[ExtensionOperandType, ...] = ()

    def type_of(self, code: int) -> ExtensionOperandType | None:
        """The operand type of that number, or None."""
        return next((kind for kind in self.operand_types if kind.code == code), None)


class ExtensionAttribute(msgspec.Struct, frozen=True):
    """A hint to one device: attribute *code* of the *extension*, and its *value* as bytes that the
    driver alone understands.

    A driver checks the value. It ignores attributes that it does not know, and values that make no
    sense.
    """

    extension: str
    code: int
    value: bytes


def fault_of_extensions(extensions: Sequence[Extension]) -> str | None:
    """Which extension, with fields of the right types, nobody can work with, and why; None where
    there is none.
    """
    if len(extensions) > MAX_EXTENSIONS:
        return f"{len(extensions)} extensions are offered; {MAX_EXTENSIONS} are possible"
    names = set[str]()
    for extension in extensions:
        if fault := name_fault(extension.name):
            return fault
        if extension.name in names:
            return f"the extension {extension.name} is offered twice"
        names.add(extension.name)
        codes = set[int]()
        for kind in extension.operand_types:
            where = f"operand type {kind.code} of the extension {extension.name}"
            if not 0 <= kind.code <= MAX_CODE:
                return f"{where}: numbers are 0 to {MAX_CODE}"
            if not 0 < kind.byte_size <= MAX_ELEMENT:
                return f"{where} has {kind.byte_size} bytes; 1 to {MAX_ELEMENT} are possible"
            if kind.code in codes:
                return f"{where} is declared twice"
            codes.add(kind.code)
    return None


def check_attributes(attributes: Iterable[ExtensionAttribute]) -> None:
    """Raises `InvalidArgument` for attributes that no driver need look at: one that is given twice,
    has a name or number that no attribute can have, or a value without a byte or of more than
    `MAX_DATA`.
    """
    seen = set[tuple[str, int]]()
    for attribute in attributes:
        if type(attribute) is not ExtensionAttribute:
            raise InvalidArgument(
                f"an ExtensionAttribute is needed, not {type(attribute).__name__}"
            )
        fault = name_fault(attribute.extension) or code_fault(
            attribute.code, f"the number of an attribute of {attribute.extension}"
        )
        if fault:
            raise InvalidArgument(fault)
        where = f"attribute {attribute.code} of {attribute.extension}"
        value: object = attribute.value
        if not isinstance(value, bytes) or not 0 < len(value) <= MAX_DATA:
            raise InvalidArgument(f"{where}: a value has 1 to {MAX_DATA} bytes")
        if (attribute.extension, attribute.code) in seen:
            raise InvalidArgument(f"{where} is given twice")
        seen.add((attribute.extension, attribute.code))
        if len(seen) > MAX_ATTRIBUTES:
            raise InvalidArgument(f"more than {MAX_ATTRIBUTES} attributes of extensions")
