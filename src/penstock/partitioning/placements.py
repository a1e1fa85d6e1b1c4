"""Parts of a plan: the place of an operation, single devices as alternatives, measurements."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Literal

from msgspec import Struct, field
from msgspec.structs import force_setattr

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
