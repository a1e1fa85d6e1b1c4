"""Which placement was measured to be best here: stored in the cache directory, sealed with the
user's key.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from penstock.cache.ingredients import derived_token
from penstock.cache.naming import VERDICTS
from penstock.cache.records import Digits, SealedRecords
from penstock.hal import AccuracyClass
from penstock.sealed.files import SYSTEM_FILES, FileSystem

MOST_VERDICTS: Final = 1024
"""Verdicts that are kept; the oldest go first."""

_DOMAIN: Final = b"penstock placement verdict"


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The device of each operation that measuring chose, under *key*, for who asks for the class
    *accuracy*.

    *report* is what was measured, as the writer encoded it, *created* seconds since the epoch,
    *penstock* the version that wrote it, *model* the hexadecimal digest of the model before shapes
    were put into it.
    """

    key: Digits
    accuracy: AccuracyClass
    devices: tuple[str, ...]
    report: msgspec.Raw
    created: float = msgspec.field(default_factory=time.time)
    penstock: str = ""
    model: str = ""


def verdict_key(ingredients: Mapping[str, str]) -> str:
    """64 digits that stand for everything in *ingredients*."""
    return derived_token({**ingredients, "kind": "placement verdict"}).hex()


class Verdicts(SealedRecords[Verdict]):
    """The verdicts below one cache directory. *key* gives the user's key; None takes the key
    store's.

    One that is altered, cut short, of another key or not readable counts as not there.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        files: FileSystem = SYSTEM_FILES,
        key: Callable[[], bytes] | None = None,
    ) -> None:
        super().__init__(directory, VERDICTS, Verdict, _DOMAIN, MOST_VERDICTS, files=files, key=key)
