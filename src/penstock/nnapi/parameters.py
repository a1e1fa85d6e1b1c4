"""Checks and converts arguments of callers. A wrong argument raises `NnapiError`."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from enum import IntEnum
from numbers import Real
from typing import Final, TypeVar

from penstock.errors import counted
from penstock.ir.operand import MAX_CODE, MAX_DATA
from penstock.ir.types import Shape
from penstock.nnapi.codes import bad_data, unexpected_null

Code = TypeVar("Code", bound=IntEnum)
Handle = TypeVar("Handle")

MAX_LISTED: Final = 1 << 20
"""Greatest length of a caller's list. Real models stay far below it."""


def given(value: Handle | None, what: str) -> Handle:
    """*value*; UNEXPECTED_NULL for None."""
    if value is None:
        raise unexpected_null(what)
    return value


def instance(value: object, kind: type[Handle], what: str) -> Handle:
    """*value*, which must be a *kind*."""
    value = given(value, what)
    if not isinstance(value, kind):
        name = (
            f"penstock.{'memory' if kind.__name__ == 'HardwareBuffer' else 'nnapi'}.{kind.__name__}"
        )
        raise bad_data(f"a {name} is needed, not {type(value).__name__}")
    return value


def whole(value: object, what: str, low: int = -(2**31), high: int = 2**32 - 1) -> int:
    """A whole number from *low* to *high*."""
    given(value, what)
    try:
        number = operator.index(value)  # type: ignore[arg-type]  # anything may be passed
    except TypeError:
        raise bad_data(f"{what} must be a whole number, not {type(value).__name__}") from None
    if isinstance(value, bool) or not low <= number <= high:
        raise bad_data(f"{what} is {value!r}; {low} to {high} are possible")
    return number


def nanoseconds(value: object, what: str) -> int:
    """A duration in nanoseconds: 64 bits."""
    return whole(value, what, 0, 2**64 - 1)


def real(value: object, what: str) -> float:
    """A number; the type of its operand limits the range."""
    if isinstance(given(value, what), bool) or not isinstance(value, Real):
        raise bad_data(f"{what} must be a number, not {type(value).__name__}")
    try:
        return float(value)
    except OverflowError:
        raise bad_data(f"{what} is beyond every float") from None


def listed(values: object, what: str, entry: str = "") -> list[object]:
    """The entries of a list, none of which may be None if *entry* names one."""
    given(values, what)
    if isinstance(values, str | bytes | bytearray) or not isinstance(values, Iterable):
        raise bad_data(f"{what} must be a list, not {type(values).__name__}")
    found: list[object] = []
    try:
        for value in values:
            if len(found) == MAX_LISTED:
                raise bad_data(f"{what} has more than {MAX_LISTED} entries")
            found.append(given(value, entry) if entry else value)
    except TypeError:
        raise bad_data(f"{what} cannot be read as a list") from None
    return found


def indexes(values: object, what: str, count: int) -> tuple[int, ...]:
    """Operand indexes below *count*."""
    return tuple(index(v, what, count) for v in listed(values, what))


def index(value: object, what: str, count: int) -> int:
    """One operand index below *count*."""
    number = whole(value, what, -(2**63), 2**63)
    if not 0 <= number < count:
        raise bad_data(f"{what} {number}: the model has {counted(count, 'operand')}")
    return number


def dimensions(values: object, *, tensor: bool) -> Shape:
    """Dimensions: 0 and None are unknown; an empty list is a scalar, or an unknown rank."""
    given = [] if values is None else listed(values, "the dimensions")
    found = tuple(None if v is None else whole(v, "a dimension", 0) or None for v in given)
    return None if tensor and not found else found


def code_within(value: object, what: str) -> int:
    """A number within an extension: 16 bits."""
    return whole(value, what, 0, MAX_CODE)


def extension_bytes(data: object, length: object, what: str) -> bytes:
    """*length* bytes of the buffer *data*, all without *length*; b"" for None.

    Raises BAD_DATA for an empty buffer and for more than `MAX_DATA`, UNEXPECTED_NULL for a length
    without a buffer.
    """
    size = None if length is None else whole(length, f"the length of {what}", 0, 2**63)
    if data is None:
        if size:
            raise unexpected_null(f"{what} of {size} bytes")
        return b""
    try:
        # `bytes` would accept a number as a count; `memoryview` rejects it.
        view = memoryview(data)  # type: ignore[arg-type]  # anything may be passed
        content = view.tobytes()
    except TypeError:
        raise bad_data(f"{what} must be a buffer, not {type(data).__name__}") from None
    if size is not None and size > len(content):
        raise bad_data(f"{size} bytes of {what}, which has {len(content)}")
    content = content[:size]
    if not 0 < len(content) <= MAX_DATA:
        raise bad_data(f"{what} has {len(content)} bytes; 1 to {MAX_DATA} are possible")
    return content


def code(kind: type[Code], value: object, what: str) -> Code:
    """A member of *kind*, given as a member or its number."""
    number = whole(value, what)
    try:
        return kind(number)
    except ValueError:
        names = ", ".join(f"{member.value} ({member.name})" for member in kind)
        raise bad_data(f"{what} {number} is none of {names}") from None


def flag(value: object, what: str) -> bool:
    """True or false, also given as 1 or 0."""
    given(value, what)
    if isinstance(value, bool):
        return value
    if isinstance(value, int) and value in {0, 1}:
        return bool(value)
    raise bad_data(f"{what} must be true or false, not {value!r}")


def text(value: object, what: str) -> str:
    """A string."""
    given(value, what)
    if not isinstance(value, str):
        raise bad_data(f"{what} must be text, not {type(value).__name__}")
    return value
