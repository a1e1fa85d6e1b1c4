"""What public functions say of an argument that is none they take."""

from __future__ import annotations

import os

from penstock.errors import InputError


def check_kind(value: object, kind: type | tuple[type, ...], wanted: str) -> None:
    """Raises `InputError`, "*wanted*, not <class of value>", unless *value* is of a *kind*; truth values are no numbers."""
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise InputError(f"{wanted}, not {type(value).__name__}")


def path_of(value: object, wanted: str) -> str:
    """*value*, text or an `os.PathLike`, as text. Raises `InputError`, which begins with *wanted*, for anything else and for
    what no file can be called.
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
