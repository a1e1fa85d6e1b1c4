"""Stored, sealed verdicts: the best measured placement, what a driver computes wrongly, which
operations a device supports, and what operations cost on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from penstock.cache.naming import ANSWERS, CALIBRATIONS, DRIVER_VERDICTS, LEARNED, VERDICTS
from penstock.cache.records import Record, SealedRecords
from penstock.hal import AccuracyClass, Support
from penstock.ir.form import Form
from penstock.sealed.places import state_directory

MOST_VERDICTS: Final = 1024
MOST_DRIVER_VERDICTS: Final = 256
MOST_ANSWERS: Final = 1024
MOST_CALIBRATIONS: Final = 256
"""Maximum stored verdicts of each kind; the oldest are removed first."""

SHORT: Final = 12
"""Digits of a key in messages."""

Fault: TypeAlias = Literal["wrong", "not_finite", "not_repeatable"]
Words = Annotated[str, msgspec.Meta(max_length=4096)]

FAULTS: Final[dict[Fault, str]] = {
    "wrong": "gives wrong results",
    "not_finite": "gives results that are not finite",
    "not_repeatable": "gives other results each time",
}


class Verdict(Record, frozen=True, kw_only=True):
    """The device of each operation in the fastest measured placement, for one accuracy class.

    *report* has the measurements, as the writer encoded them. *model* is the hexadecimal digest of
    the model before shapes were put into it.
    """

    accuracy: AccuracyClass
    devices: tuple[str, ...]
    report: msgspec.Raw
    model: str = ""


class Verdicts(SealedRecords[Verdict]):
    """The measured placements below one cache directory; see `SealedRecords`."""

    name, kind, domain, most = VERDICTS, Verdict, b"penstock placement verdict", MOST_VERDICTS


class Answers(Record, frozen=True, kw_only=True):
    """The answers of *device* for every operation of one model."""

    device: str
    answers: tuple[Support, ...]


class KeptAnswers(SealedRecords[Answers]):
    """The answers below one cache directory; see `SealedRecords`."""

    name, kind, domain, most = ANSWERS, Answers, b"penstock support answers", MOST_ANSWERS


class Calibration(Record, frozen=True, kw_only=True):
    """What operations cost on *device* of this *version*, with *num_threads*, in one class.

    *costs* are those costs, as the writer encoded them. *samples* is how many small models were
    measured.
    """

    device: str
    version: str
    num_threads: int
    accuracy: AccuracyClass
    samples: int
    costs: msgspec.Raw


class Calibrations(SealedRecords[Calibration]):
    """The measured costs below one cache directory; see `SealedRecords`."""

    name, kind, most = CALIBRATIONS, Calibration, MOST_CALIBRATIONS
    domain = b"penstock calibration"


class ObservedPlan(msgspec.Struct, frozen=True):
    """What runs of one plan took: the device of each operation, the predicted nanoseconds, those of
    the slowest run in the quickest tenth, the distance to the median, and the number of runs.
    """

    devices: tuple[str, ...]
    predicted_ns: int
    ns: int
    spread_ns: int
    runs: int


class Learned(Record, frozen=True, kw_only=True):
    """What runs of one network took, under the key of its measured placement."""

    plans: Annotated[tuple[ObservedPlan, ...], msgspec.Meta(max_length=16)]


class LearnedTimes(SealedRecords[Learned]):
    """The observed times below one cache directory; see `SealedRecords`."""

    name, kind, domain, most = LEARNED, Learned, b"penstock learned times", MOST_VERDICTS


class DriverVerdict(Record, frozen=True, kw_only=True):
    """*version* of *device* computes operations of these *forms* wrongly.

    With several forms, only if all of them are compiled together. *types* are the operations'
    types, in order. *accuracy* is the lowest class that the results violate, *reason* the
    measurement as text.
    """

    device: Words
    version: Words
    forms: Annotated[tuple[Form, ...], msgspec.Meta(min_length=1, max_length=65_536)]
    types: tuple[Words, ...]
    fault: Fault
    accuracy: AccuracyClass
    reason: Words

    def covered(self, forms: Sequence[Form]) -> list[int]:
        """The positions in *forms* that the verdict covers; empty if one is missing."""
        found = [[at for at, form in enumerate(forms) if own.fits(form)] for own in self.forms]
        return sorted({at for each in found for at in each}) if all(found) else []

    @property
    def short(self) -> str:
        return self.key[:SHORT]

    def show(self) -> str:
        """The verdict in one sentence, without a full stop."""
        what = self.types[0] if len(self.types) == 1 else f"{len(self.types)} operations together"
        fault = FAULTS[self.fault]
        return f"shadow verification found that {what} {fault} on this version: {self.reason}"


class DriverVerdicts(SealedRecords[DriverVerdict]):
    """The verdicts on drivers below the state directory; see `SealedRecords`."""

    name, kind, most = DRIVER_VERDICTS, DriverVerdict, MOST_DRIVER_VERDICTS
    domain = b"penstock driver verdict"

    def __init__(self) -> None:
        super().__init__(state_directory())
