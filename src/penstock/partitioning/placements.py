"""Parts of a plan: the place of an operation, single devices as alternatives, measurements."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct, field
from msgspec.structs import force_setattr

from penstock.distribution import FALLBACK_DEVICE
from penstock.errors import Refusal
from penstock.hal import AccuracyClass


class Placement(Struct, frozen=True):
    """The device of one operation.

    *index* is its index in the planned model's entry subgraph; *name* is `Subgraph.operation_name`.
    *refusals* has the reason for every other device. *accuracy* is the class that *device* declares
    for it.
    """

    index: int
    type: str
    name: str
    device: str
    refusals: Mapping[str, Refusal] = field(default_factory=dict)
    accuracy: AccuracyClass = "faithful"

    def __post_init__(self) -> None:
        force_setattr(self, "refusals", MappingProxyType(dict(self.refusals)))

    @property
    def reasons(self) -> Mapping[str, str]:
        """*refusals* as text."""
        return MappingProxyType({name: str(why) for name, why in self.refusals.items()})

    def __hash__(self) -> int:
        return hash((self.index, self.type, self.name, self.device, self.accuracy))

    def __reduce__(self) -> tuple[Any, ...]:
        # A mapping proxy cannot be pickled.
        refusals = dict(self.refusals)
        return Placement, (self.index, self.type, self.name, self.device, refusals, self.accuracy)


class Worst(Struct, frozen=True):
    """Upper bound of a step's time on any engine, in nanoseconds of one processor core.

    *total* is that of all operations. *most* is that of the longest, which has the index
    *operation* (`penstock.partitioning.work.times_of`).
    """

    total: float
    most: float
    operation: int


class Alternative(Struct, frozen=True):
    """The plan of one device alone, with the others as substitutes for what it does not support.

    *operations* is how many it runs, *steps* how many the plan has. *predicted_ns* and
    *predicted_energy* are as in `ExecutionPlan`.
    """

    device: str
    operations: int
    steps: int
    predicted_ns: int | None
    predicted_energy: int | None = None


class Measured(Struct, frozen=True):
    """The measurement of one candidate placement.

    *name* identifies it: a device's name for that device with the others as substitutes,
    "predicted" for the plan predicted to be best, else the assumption that was varied. *median_ns*
    and *spread_ns* (interquartile range) are for one run, out of *runs* runs. *energy_uj* and its
    spread are microjoules, if measured. *error* says why it was dropped.
    """

    name: str
    median_ns: int
    spread_ns: int
    runs: int
    energy_uj: float | None = None
    energy_spread_uj: float | None = None
    error: str | None = None


PREDICTED: Final = "predicted"
"""Name of the plan that was predicted to be best, among the measured ones."""


class Tuned(Struct, frozen=True):
    """The result of measuring placements on this machine: *candidates*, the *winner*'s name, and
    why.

    If nothing was measured, *candidates* is empty, the plan is the predicted one, and *reason* says
    why. *created* is the time of the measurement, in seconds since the epoch. *compiles* counts the
    driver compiles for it. *stored* says that an earlier call measured. *outcome* is "only" if
    there is no other placement, "unmeasured" if nothing was measured. *shapes* are the input shapes
    that were assumed, as text, if those of the plan are unknown.
    """

    candidates: tuple[Measured, ...]
    winner: str
    reason: str
    compiles: int = 0
    stored: bool = False
    created: float | None = None
    outcome: Literal["measured", "only", "unmeasured"] = "measured"
    shapes: str = ""


MOST_REMEDIES: Final = 4
"""Maximum remedies of a slow plan, and operation types that its note names."""

Kind: TypeAlias = Literal["accuracy", "install", "devices", "policy", "tune", "failure"]


class Remedy(Struct, frozen=True):
    """*devices* would take *share* of a plan's multiply-accumulates from the reference device.

    *fix* is what lets them: a command, an option, or the fault that is in the way. *accuracy* is
    the class that they need; empty if it is no laxer than the policy's. Without devices none was
    asked.
    """

    kind: Kind
    devices: tuple[str, ...]
    share: float
    fix: str = ""
    accuracy: str = ""

    @property
    def summary(self) -> str:
        """The devices and the fix, in few words."""
        needed = [self.fix, f'accuracy="{self.accuracy}"' if self.accuracy else ""]
        return ": ".join(filter(None, [", ".join(self.devices), ", ".join(filter(None, needed))]))

    def __str__(self) -> str:
        if not self.devices:
            return self.fix
        needed = [self.fix, asking_for(self.accuracy) if self.accuracy else ""]
        told = ", and ".join(filter(None, needed))
        return f"{', '.join(self.devices)} would take {_percent(self.share)}: {told}"


def asking_for(accuracy: str) -> str:
    """How to ask for a class, in the words of the programming interface and the command line."""
    return f'Policy(accuracy="{accuracy}") (--accuracy {accuracy})'


class Slow(Struct, frozen=True):
    """*share* of a plan's multiply-accumulates is on the reference device.

    *types* are the types of these operations, those with most first. *remedies* are empty if no
    engine that is known here has any of these operations.
    """

    share: float
    types: tuple[str, ...]
    remedies: tuple[Remedy, ...] = ()

    @property
    def summary(self) -> str:
        """The share and the first remedy, in few words."""
        text = f"slow: {_percent(self.share)} of the multiply-accumulates on {FALLBACK_DEVICE}"
        return f"{text} ({self.remedies[0].summary})" if self.remedies else text

    def __str__(self) -> str:
        types = ", ".join(self.types[:MOST_REMEDIES])
        if (more := len(self.types) - MOST_REMEDIES) > 0:
            types += f" and {more} more"
        share = f"{_percent(self.share)} of the multiply-accumulates"
        text = f"slow: {share} run on {FALLBACK_DEVICE} ({types})"
        if not self.remedies:
            return f"{text}: no other device here has these operations"
        return "; ".join([text, *map(str, self.remedies)])


def _percent(share: float) -> str:
    return f"{100 * share:.0f}%"
