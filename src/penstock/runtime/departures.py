"""Results of comparing devices: `Departure` and `Comparison`, and their text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from penstock.errors import counted
from penstock.hal import AccuracyClass
from penstock.ir import NDArray
from penstock.runtime.distance import Distance
from penstock.runtime.operations import OperationCase


class Departure(Struct, frozen=True):
    """The first place where a device's results depart.

    *operations* has the index of one operation, or those of the shortest found sequence that
    departs only when compiled together. *type* and *name* are those of the first one. *distance* is
    the measured error. If the device raised an error instead, *error* has it and there is no
    distance. *case* is the extracted model with its inputs and expected results.
    """

    operations: tuple[int, ...]
    type: str
    name: str
    device: str
    distance: Distance | None
    error: str
    case: OperationCase

    def show(self) -> str:
        """The departure as text, without a final newline."""
        first = f"operation {self.operations[0]} ({self.type}, {self.name!r})"
        if len(self.case.model.subgraphs) > 1:
            first += ", with all that its subgraphs do,"
        if len(self.operations) > 1:
            first += f" to {self.operations[-1]}, only when compiled together,"
        what = self.error if self.distance is None else self.distance.show()
        return f"{first} departs on {self.device}: {what}"


class Comparison(Struct, frozen=True):
    """The result of comparing *device* with *against*.

    *operations* counts the model's operations; *supported* counts those that the device supports in
    the class *accuracy*. *refused* has the reasons for the others, by index. *outputs* is the
    distance of the model's outputs when the device runs everything that it supports on its own
    results. Rounding errors of many operations accumulate in it, so only a *departure* is a fault.
    *runs* counts the device's compiles for the search.
    """

    device: str
    against: str
    accuracy: AccuracyClass
    operations: int
    supported: int
    refused: Mapping[int, str]
    outputs: Distance
    departure: Departure | None
    runs: int

    @property
    def departs(self) -> bool:
        """Whether a result departs."""
        return self.departure is not None

    def show(self) -> str:
        """The comparison in a few lines, without a final newline."""
        took = f"{self.device} took {self.supported} of {counted(self.operations, 'operation')}"
        if self.departure is not None:
            return f"{self.departure.show()}\n({took}; found in {counted(self.runs, 'run')})"
        if not self.supported:
            return f"{took}: there is nothing to compare"
        right = f"from {self.against}'s ({self.accuracy})"
        if not self.outputs.departs:
            return f"OK: {took}, and no result departs {right}"
        return (
            f"each operation agrees, the whole model does not: {took}, and none departs {right}, "
            f"but the model's {self.outputs.show()}\n(the roundings of many operations, each "
            "within its class, add up to that: no operation is at fault)"
        )

    def to_builtins(self) -> dict[str, Any]:
        """The comparison in JSON's types, without the arrays of its case."""
        found = {**asdict(self), "departs": self.departs}
        found["refused"] = {str(index): reason for index, reason in self.refused.items()}
        found["outputs"] = distance_to_builtins(self.outputs)
        if (departure := self.departure) is not None:
            made = asdict(departure)
            del made["case"]
            distance = departure.distance
            made["operations"], made["index"] = [*departure.operations], departure.operations[0]
            made["distance"] = None if distance is None else distance_to_builtins(distance)
            made["error"] = departure.error or None
            found["departure"] = made
        return found


def distance_to_builtins(found: Distance) -> dict[str, Any]:
    """A distance in JSON's types."""
    made: dict[str, Any] = msgspec.to_builtins(found)
    return {**made, "element": list(found.element), "departs": found.departs}


CASE_INPUT: Final = "input{}"
EXPECTED: Final = "expected/"
"""Prefix of the names of expected results in a case's arrays."""

TAKEN: Final = frozenset({"file", "allow_pickle"})
"""Names that `numpy.savez` uses for its own arguments."""


def case_arrays(case: OperationCase, *, as_file: bool = True) -> dict[str, NDArray]:
    """The arrays of *case* by name, for `numpy.savez`.

    Inputs have their own names, or `input0`, `input1`, ... if their names are not usable and
    distinct. Expected outputs are named in the same way, after `expected/`. *as_file* selects the
    arrays of `case.tflite()`, which keeps some state internally; otherwise all arrays.
    """
    entry = case.model.entry
    inputs, outputs = case.positions(as_file=as_file)
    given = [entry.operands[entry.inputs[k]].name for k in inputs]
    wanted = [entry.operands[entry.outputs[k]].name for k in outputs]
    if not _are_usable(given):
        given = [CASE_INPUT.format(k) for k in range(len(inputs))]
    if not _are_usable(wanted):
        wanted = [str(k) for k in range(len(outputs))]
    return {
        **{name: case.inputs[k] for name, k in zip(given, inputs, strict=True)},
        **{EXPECTED + name: case.expected[k] for name, k in zip(wanted, outputs, strict=True)},
    }


def _are_usable(names: Sequence[str]) -> bool:
    """Whether *names* are distinct and each can name an array in an `.npz` file."""
    return len(set(names)) == len(names) and all(
        name and name.isprintable() and name not in TAKEN and not name.startswith(EXPECTED)
        for name in names
    )
