"""Checks of arguments, and text for their errors."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final, TypeGuard

from penstock.errors import InputError, MissedDeadlinePersistent

LONGEST_SECONDS: Final = 2_000_000.0
"""About 23 days. System calls take a wait time of 31 bits in milliseconds."""


def check_kind(value: object, kind: type | tuple[type, ...], wanted: str) -> None:
    """Raises `InputError`, "*wanted*, not <class of value>", unless *value* is of a *kind*.

    A bool does not count as a number.
    """
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise InputError(f"{wanted}, not {type(value).__name__}")


def path_of(value: object, wanted: str) -> str:
    """*value*, a string or `os.PathLike`, as a string.

    Raises `InputError`, which begins with *wanted*, for another type and for an impossible file
    name.
    """
    try:
        if not isinstance(value, str | os.PathLike):
            raise TypeError
        path = os.fsdecode(os.fspath(value))
    except TypeError:
        raise InputError(f"{wanted}, not {type(value).__name__}") from None
    try:
        plain = b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        plain = False
    if not plain:
        raise InputError(f"{wanted}, and {path!r} is none: no file can be called so")
    return path


def is_number(value: object) -> TypeGuard[float]:
    """Whether *value* is a number. NaN and bool are not."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value  # noqa: PLR0124  # NaN is not


def deadline_of(timeout: object, now_ns: int) -> int | None:
    """The monotonic deadline *timeout* seconds from now; None above `LONGEST_SECONDS`.

    Raises `InputError` for what is no number, `MissedDeadlinePersistent` if no time is left.
    """
    if timeout is None:
        return None
    if not is_number(timeout):
        raise InputError(f"timeout must be a number of seconds, not {timeout!r}")
    if timeout <= 0:
        raise MissedDeadlinePersistent(f"a timeout of {timeout} s leaves no time")
    return None if timeout > LONGEST_SECONDS else now_ns + int(timeout * 1e9)


def there_are(names: Sequence[str]) -> str:
    """`there are 'a', 'b'`; for one name `there is only 'a'`, for none `there are none`."""
    shown = ", ".join(map(repr, names)) or "none"
    return f"there is only {shown}" if len(names) == 1 else f"there are {shown}"
