"""`Policy`: what the caller demands of a plan and of the runs made with it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set as AbstractSet
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias, get_args

from msgspec import Struct, field
from msgspec.structs import astuple, force_setattr

from penstock.errors import InputError
from penstock.hal import AccuracyClass

PlacementRule: TypeAlias = Literal["cost", "nnapi"]
WhileCompiling: TypeAlias = Literal["wait", "reference"]
Constraint: TypeAlias = Mapping[str, "str | Collection[str]"]

ANY_OPERATION: Final = "*"


class Policy(Struct, frozen=True):
    """Requirements on placement and runs. Immutable, comparable, picklable.

    *placement* selects the rule that assigns operations to devices. "cost" uses the plan with the
    least predicted total cost, including dispatch and transfers at every boundary, or a plan
    measured before. "nnapi" is NNAPI's local greedy rule (NNAPI section 4.3), which ignores both.

    *accuracy* is the class that every operation's device must meet. *require* and *forbid* map an
    operation type (also `CUSTOM:<code>`), an operation's name or `"*"` to one or more device names.
    An operation runs only on devices in the most specific matching entry of *require* (name before
    type before `"*"`), and on none in any matching entry of *forbid*.

    *min_coverage* is the minimum share of operations, 0 to 1, that are not on the device
    "reference". *max_partitions* limits the steps of a plan (None: no limit). *min_partition_size*
    is the minimum number of operations in a step on a device other than "reference".
    *allow_fallback* lets the other devices, "reference" last, run a step that its device failed to
    compile or to run.

    *shadow* selects runs to compare with the reference: a share from 0 to 1 (float), or the number
    of first runs (int). An operation found wrong is then rejected on that version of its driver
    (docs/shadow.md). *while_compiling* says what a run does before the compile has ended.

    Raises `InputError` for a value outside these rules.
    """

    placement: PlacementRule = "cost"
    accuracy: AccuracyClass = "faithful"
    require: Constraint = field(default_factory=dict)
    forbid: Constraint = field(default_factory=dict)
    min_coverage: float = 0.0
    allow_fallback: bool = True
    max_partitions: int | None = None
    min_partition_size: int = 1
    shadow: float = 0.0
    while_compiling: WhileCompiling = "wait"

    def __post_init__(self) -> None:
        _choice("placement", self.placement, get_args(PlacementRule))
        _choice("accuracy", self.accuracy, get_args(AccuracyClass))
        _choice("while_compiling", self.while_compiling, get_args(WhileCompiling))
        if not isinstance(self.allow_fallback, bool):
            text = f"must be true or false, not {self.allow_fallback!r}"
            raise InputError(f"policy allow_fallback {text}")
        _share("min_coverage", self.min_coverage)
        if self.max_partitions is not None:
            _count("max_partitions", self.max_partitions, 1)
        _count("min_partition_size", self.min_partition_size, 1)
        if isinstance(self.shadow, int):
            _count("shadow", self.shadow, 0)
        else:
            _share("shadow", self.shadow, "; an int is a number of first runs")
        force_setattr(self, "require", _constraint("require", self.require))
        force_setattr(self, "forbid", _constraint("forbid", self.forbid))

    def __hash__(self) -> int:
        values = astuple(self)
        return hash(tuple(v for v in values if not isinstance(v, Mapping)))

    def required(self, kinds: Collection[str], name: str) -> tuple[str, ...] | None:
        """The devices to which the operation is restricted; None for any device."""
        for key in (name, *kinds, ANY_OPERATION):
            if key in self.require:
                return tuple(self.require[key])
        return None

    def forbidden(self, kinds: Collection[str], name: str) -> frozenset[str]:
        """The devices on which the operation must not run."""
        matching = (self.forbid.get(key, ()) for key in (name, *kinds, ANY_OPERATION))
        return frozenset(device for names in matching for device in names)

    def __reduce__(self) -> tuple[Any, ...]:
        # A mapping proxy cannot be pickled.
        return Policy, tuple(dict(v) if isinstance(v, Mapping) else v for v in astuple(self))


def _choice(label: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InputError(f"policy {label} must be one of {', '.join(choices)}, not {value!r}")


def _share(label: str, value: object, hint: str = "") -> None:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1:
        return
    raise InputError(f"policy {label} must be a number from 0 to 1, not {value!r}{hint}")


def _count(label: str, value: object, least: int) -> None:
    if type(value) is not int or value < least:
        raise InputError(f"policy {label} must be an integer of at least {least}, not {value!r}")


def _constraint(label: str, value: object) -> Mapping[str, tuple[str, ...]]:
    if not isinstance(value, Mapping):
        raise InputError(f"policy {label} must map operations to device names, not {value!r}")
    parsed: dict[str, tuple[str, ...]] = {}
    for key, devices in value.items():
        if not isinstance(key, str) or not key:
            text = "is not an operation type, an operation name or '*'"
            raise InputError(f"policy {label}: {key!r} {text}")
        names = (devices,) if isinstance(devices, str) else devices
        is_many = isinstance(names, Collection) and bool(names)
        if not is_many or not all(isinstance(n, str) and n for n in names):
            text = f"must be a device name or several, not {devices!r}"
            raise InputError(f"policy {label}[{key!r}] {text}")
        ordered = sorted(names) if isinstance(names, AbstractSet) else names
        parsed[key] = tuple(dict.fromkeys(ordered))
    return MappingProxyType(parsed)
