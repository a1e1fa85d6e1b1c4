"""What a comparison of devices finds: a departure, or none, and how it is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from penstock.errors import counted
from penstock.hal import AccuracyClass
from penstock.ir import NDArray
from penstock.runtime.distance import Distance
from penstock.runtime.operations import OperationCase


class Departure(Struct, frozen=True):
    """Where a device's results depart first.

    *operations* are the indexes of one operation, or of the fewest found that depart only when they
    are compiled together. *type* and *name* are the first one's. *distance* is what was measured;
    with *error*, what the device raised instead of giving a result, there is none. *case* is the
    cut-out model with its inputs and what is expected of it.
    """

    operations: tuple[int, ...]
    type: str
    name: str
    device: str
    distance: Distance | None
    error: str
    case: OperationCase

    def show(self) -> str:
        """The departure in words, without a line end."""
        first = f"operation {self.operations[0]} ({self.type}, {self.name!r})"
        if len(self.case.model.subgraphs) > 1:
            first += ", with all that its subgraphs do,"
        if len(self.operations) > 1:
            first += f" to {self.operations[-1]}, only when compiled together,"
        what = self.error if self.distance is None else self.distance.show()
        return f"{first} departs on {self.device}: {what}"


class Comparison(Struct, frozen=True):
    """What came of comparing *device* with *against*.

    *operations* counts the model's operations, *supported* those that the device takes in the class
    *accuracy*; *refused* says of the others why not, by index. *outputs* is the distance of the
    model's own outputs when the device runs what it supports, everything it gets computed by
    itself: roundings of many operations add up in it, and only a *departure* is a fault. *runs*
    counts the device's compiles for the search.
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
        """The comparison in a few lines, without a line end."""
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
            f"but the model's {self.outputs.show()}\n"
            "(the roundings of many operations, each within its class, add up to that: no "
            "operation is at fault)"
        )

    def to_builtins(self) -> dict[str, Any]:
        """The comparison in JSON's types, without the arrays of its case."""
        found: dict[str, Any] = {
            "device": self.device,
            "against": self.against,
            "accuracy": self.accuracy,
            "departs": self.departs,
            "operations": self.operations,
            "supported": self.supported,
            "refused": {str(index): reason for index, reason in self.refused.items()},
            "runs": self.runs,
            "outputs": distance_to_builtins(self.outputs),
            "departure": None,
        }
        if self.departure is not None:
            d = self.departure
            found["departure"] = {
                "operations": list(d.operations),
                "index": d.operations[0],
                "type": d.type,
                "name": d.name,
                "device": d.device,
                "distance": None if d.distance is None else distance_to_builtins(d.distance),
                "error": d.error or None,
            }
        return found


def distance_to_builtins(found: Distance) -> dict[str, Any]:
    """A distance in JSON's types."""
    made: dict[str, Any] = msgspec.to_builtins(found)
    return {**made, "element": list(found.element), "departs": found.departs}


CASE_INPUT: Final = "input{}"
EXPECTED: Final = "expected/"
"""What the names of expected results begin with among the arrays of a case."""

TAKEN: Final = frozenset({"file", "allow_pickle"})
"""Names that `numpy.savez` has arguments of its own for."""


def case_arrays(case: OperationCase, *, as_file: bool = True) -> dict[str, NDArray]:
    """The arrays of *case* by name, as `numpy.savez` takes them: inputs under their own names, or
    `input0`, `input1`, ... where those do not tell them apart, and the expected outputs likewise,
    after `expected/`.

    *as_file* gives those of `case.tflite()`, where some state is inside, else all.
    """
    entry = case.model.entry
    inputs, outputs = case.positions(as_file=as_file)
    given = [entry.operands[entry.inputs[k]].name for k in inputs]
    wanted = [entry.operands[entry.outputs[k]].name for k in outputs]
    if not _tell_apart(given):
        given = [CASE_INPUT.format(k) for k in range(len(inputs))]
    if not _tell_apart(wanted):
        wanted = [str(k) for k in range(len(outputs))]
    return {
        **{name: case.inputs[k] for name, k in zip(given, inputs, strict=True)},
        **{EXPECTED + name: case.expected[k] for name, k in zip(wanted, outputs, strict=True)},
    }


def _tell_apart(names: Sequence[str]) -> bool:
    """Whether each of *names* can stand for one array in an `.npz` file."""
    return len(set(names)) == len(names) and all(
        name and name.isprintable() and name not in TAKEN and not name.startswith(EXPECTED)
        for name in names
    )
