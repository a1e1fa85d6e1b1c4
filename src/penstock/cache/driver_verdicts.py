"""Which operations a driver's version was found to compute wrongly here: kept in the state
directory, sealed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from penstock.cache.ingredients import derived_token
from penstock.cache.naming import DRIVER_VERDICTS
from penstock.cache.records import Digits, SealedRecords
from penstock.hal import AccuracyClass
from penstock.ir.digest import Form
from penstock.sealed.files import SYSTEM_FILES, FileSystem
from penstock.sealed.places import state_directory

MOST_DRIVER_VERDICTS: Final = 256
SHORT: Final = 12
"""Digits of a key that messages show."""

Fault: TypeAlias = Literal["wrong", "not_finite", "not_repeatable"]
Words = Annotated[str, msgspec.Meta(max_length=4096)]

FAULTS: Final[dict[Fault, str]] = {
    "wrong": "gives wrong results",
    "not_finite": "gives results that are not finite",
    "not_repeatable": "gives other results each time",
}

_DOMAIN: Final = b"penstock driver verdict"


class DriverVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """That *version* of *device* computes operations of these *forms* wrongly.

    Of several forms it does so only where all of them are compiled together. *types* are the
    operations' types, in order, *accuracy* the least class that the results break, *reason* what
    was measured, in words. *created* is in seconds since the epoch, *penstock* the version that
    found it.
    """

    key: Digits
    device: Words
    version: Words
    forms: Annotated[tuple[Form, ...], msgspec.Meta(min_length=1, max_length=65_536)]
    types: tuple[Words, ...]
    fault: Fault
    accuracy: AccuracyClass
    reason: Words
    created: float = msgspec.field(default_factory=time.time)
    penstock: str = ""

    def covered(self, forms: Sequence[Form]) -> list[int]:
        """The positions among *forms*, those of a model's operations, that it is about; none where
        not all of its own are there.
        """
        found = [[at for at, form in enumerate(forms) if own.fits(form)] for own in self.forms]
        return sorted({at for each in found for at in each}) if all(found) else []

    @property
    def short(self) -> str:
        """The beginning of *key*."""
        return self.key[:SHORT]

    def show(self) -> str:
        """The verdict in one sentence, without a full stop."""
        what = self.types[0] if len(self.types) == 1 else f"{len(self.types)} operations together"
        return f"shadow verification found that {what} {FAULTS[self.fault]} on this version: {self.reason}"


def driver_verdict_key(device: str, version: str, forms: Sequence[Form]) -> str:
    """64 digits for these forms on that version of the device."""
    told = msgspec.json.encode(forms).decode()
    ingredients = {"device": device, "version": version, "forms": told}
    return derived_token({**ingredients, "kind": "driver verdict"}).hex()


class DriverVerdicts(SealedRecords[DriverVerdict]):
    """The verdicts below *directory*, None for the state directory; as `SealedRecords`."""

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        files: FileSystem = SYSTEM_FILES,
        key: Callable[[], bytes] | None = None,
    ) -> None:
        super().__init__(
            state_directory() if directory is None else directory,
            DRIVER_VERDICTS,
            DriverVerdict,
            _DOMAIN,
            MOST_DRIVER_VERDICTS,
            files=files,
            key=key,
        )
