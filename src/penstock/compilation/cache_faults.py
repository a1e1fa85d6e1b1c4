"""Why the cache did not load or save an entry: codes and words. A hit needs none of them."""

from __future__ import annotations

import enum
from typing import Final

from msgspec import Struct

from penstock.errors import CacheError, NotYetWritten


class CacheCode(enum.Enum):
    """Why the cache missed or did not save: a `CacheError` by name, or a driver's failure."""

    NO_ENTRY = "NoEntry"
    NOT_YET_WRITTEN = "NotYetWritten"
    INGREDIENT_CHANGED = "IngredientChanged"
    SEAL_BROKEN = "SealBroken"
    WRONG_LENGTH = "WrongLength"
    NOT_REGULAR_FILE = "NotRegularFile"
    UNREADABLE = "Unreadable"
    READ_ONLY = "ReadOnly"
    TOKEN_COLLISION = "TokenCollision"  # noqa: S105  # no password
    FOREIGN_ENTRY = "ForeignEntry"
    OTHER_VERSION = "OtherVersion"
    REGISTRY_MISSING = "RegistryMissing"
    ROLLED_BACK = "RolledBack"
    STORE_UNAVAILABLE = "StoreUnavailable"
    NOT_TRUSTED = "NotTrusted"
    EXPIRED = "Expired"
    DRIVER = "DriverError"


class CacheFault(Struct, frozen=True):
    """Why the cache did not load or save an entry: its code (None if it has none) and the words."""

    code: CacheCode | None
    words: str


def fault_of(error: CacheError) -> CacheFault:
    """*error* of the cache as a `CacheFault`."""
    kinds = (_CODES.get(kind.__name__) for kind in type(error).__mro__)
    return CacheFault(next(filter(None, kinds), None), str(error))


def fault_in(words: str, *, later: bool = False) -> CacheFault:
    """Parses a driver's words about its cache, `<Name>: sentence`; NotYetWritten if *later*."""
    name, colon, _ = words.partition(":")
    code = _CODES.get(name) if colon else None
    if code is CacheCode.NOT_YET_WRITTEN and not later:
        code = None
    return CacheFault(code, words)


_CODES: Final = {code.value: code for code in CacheCode if code is not CacheCode.DRIVER}

TO_BE_WRITTEN: Final = fault_of(NotYetWritten("the driver writes it when it has compiled"))
"""Why a step is not saved yet: the driver keeps the files and writes them later."""
