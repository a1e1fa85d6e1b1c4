"""The parts of a receipt: steps, kernels, failures, spans, and what the cache did for a step."""

from __future__ import annotations

import enum
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Literal, NamedTuple

import msgspec

from penstock.errors import CacheError, ErrorStatus, NotYetWritten


class CacheCode(enum.Enum):
    """Why the cache missed or did not save: a `CacheError` by name, or the driver's failure."""

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
    DRIVER = "DriverError"


class CacheFault(NamedTuple):
    """Why the cache gave, or took, nothing: the code, None where there is none, and the words."""

    code: CacheCode | None
    words: str


def fault_of(error: CacheError) -> CacheFault:
    """What *error* of the cache says."""
    kinds = (_CODES.get(kind.__name__) for kind in type(error).__mro__)
    return CacheFault(next(filter(None, kinds), None), str(error))


def fault_in(words: str, *, later: bool = False) -> CacheFault:
    """A driver's words about its cache: `<Name>: sentence`. NotYetWritten only if *later*."""
    name, colon, _ = words.partition(":")
    code = _CODES.get(name) if colon else None
    if code is CacheCode.NOT_YET_WRITTEN and not later:
        code = None
    return CacheFault(code, words)


_CODES: Final = {code.value: code for code in CacheCode if code is not CacheCode.DRIVER}


class CacheOutcome(msgspec.Struct, frozen=True):
    """What the compilation cache did for one step, and why.

    The *reason* of a miss begins with the name of a `CacheError` where the cache refused something;
    that of a hit names the artefact, where the driver has several. After a miss, *saved* says
    whether the compiled step is in the cache now, and *not_saved* why not. *code* is that of a
    miss, *not_saved_code* that of *not_saved* where it has one.
    """

    outcome: Literal["hit", "miss", "off"]
    reason: str = ""
    saved: bool = False
    not_saved: str = ""
    code: CacheCode | None = None
    not_saved_code: CacheCode | None = None

    @property
    def is_to_be_written(self) -> bool:
        """Whether the driver has kept the files, to write them when it has compiled."""
        return self.not_saved_code is CacheCode.NOT_YET_WRITTEN

    def __str__(self) -> str:
        text = f"{self.outcome}: {self.reason}" if self.reason else self.outcome
        return f"{text}; not saved: {self.not_saved}" if self.not_saved else text


TO_BE_WRITTEN: Final = fault_of(NotYetWritten("the driver writes it when it has compiled"))
"""Why a step is not saved whose driver has kept the files to write them later."""

CACHE_OFF: Final = CacheOutcome("off", "nothing was compiled")


class Failure(msgspec.Struct, frozen=True):
    """A *device* that could not compile or run a step, and its *error* in one line.

    *status* is the HAL's of that error (`penstock.errors.ErrorStatus`, a number in JSON); None
    where it was no driver's.
    """

    device: str
    error: str
    status: ErrorStatus | None = None

    @property
    def is_unavailable(self) -> bool:
        """Whether the driver's process was dead, or did not answer in time."""
        return self.status is not None and self.status.is_unavailable


class KernelReceipt(msgspec.Struct, frozen=True):
    """What one kernel of a driver took, where the driver knows.

    *operations* are indexes of the plan's operations, *names* their names, `TYPE name`; a fused
    kernel has several. *kernel* is the engine's own name for it.
    """

    kernel: str
    operations: tuple[int, ...]
    names: tuple[str, ...]
    start_ns: int
    duration_ns: int


class StepReceipt(msgspec.Struct, frozen=True):
    """One step: where it ran and for how long.

    *operations* are indexes of the plan's operations; *wall_ns* is what the runtime waited,
    *driver_ns* what the driver says it took (None: it did not say). *fallback_from* names the
    device that should have run it and *error* is what that device answered; *failures* has these
    and every further device that was tried in vain, in order.

    *step* is its index in the plan; None where the whole model ran at once, because a step of it
    could not be repeated by itself. *start_ns* is on the clock of `time.perf_counter_ns`. *kernels*
    are there when the run was asked to `measure`.
    """

    device: str
    operations: tuple[int, ...]
    wall_ns: int
    driver_ns: int | None = None
    cache: CacheOutcome = CACHE_OFF
    fallback_from: str | None = None
    error: str | None = None
    failures: tuple[Failure, ...] = ()
    step: int | None = None
    start_ns: int = 0
    kernels: tuple[KernelReceipt, ...] = ()
    inner: tuple[StepReceipt, ...] = ()
    """What ran in the branches of control flow that the runtime carried out itself; *step* and
    *operations* of these count in the branch's own plan, *part* names the branch. Steps that ran
    again and again are one, their times added up over *runs*.
    """
    part: str = ""
    runs: int = 1
    simulated: bool = False
    """Whether *device* is a simulator or a test double (`Capabilities.simulated`)."""
    device_ns: int | None = None
    """What the hardware took of *driver_ns*; None where the driver did not say."""


class Span(msgspec.Struct, frozen=True):
    """Something that took time: *start_ns* is on the clock of `time.perf_counter_ns`.

    *device* is None where the runtime itself was at work.
    """

    stage: Literal["load", "partition", "compile", "cache"]
    name: str
    device: str | None
    start_ns: int
    duration_ns: int


class Recorder:
    """The spans of one compile, as it goes on."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    @contextmanager
    def time(
        self,
        stage: Literal["load", "partition", "compile", "cache"],
        name: str,
        device: str | None = None,
    ) -> Iterator[None]:
        """Records how long the block takes, however it ends."""
        began = time.perf_counter_ns()
        try:
            yield
        finally:
            self.spans.append(Span(stage, name, device, began, time.perf_counter_ns() - began))
