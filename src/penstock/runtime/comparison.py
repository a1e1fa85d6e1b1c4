"""Compares a device with the reference, and bisects to the first operation that departs.

The reference first computes every operation from its real inputs. The device then runs its parts of
the model. Each part gets the reference's values as inputs, and every result inside it is an output,
so that no later operation hides an error. A part that departs is halved, then the first half that
departs, down to one operation.

If no operation departs alone but the device's own run does, parts are compiled without the outputs
in between and halved. A fault found in this way departs only in combination, by more than the
accumulated rounding errors of its operations.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import asdict

from penstock.compilation.failing import driver_message_in
from penstock.distribution import FALLBACK_DEVICE
from penstock.errors import DriverError, InputError, PlacementError, counted
from penstock.execution.state import State
from penstock.hal import AccuracyClass, Device
from penstock.ir import Model, NDArray, infer_shapes
from penstock.partitioning.policy import Policy
from penstock.partitioning.split import Cut, Cutter
from penstock.partitioning.support import collect_support
from penstock.runtime.discovery import AnyDevice, manager
from penstock.runtime.distance import NOTHING, Distance, distance_of
from penstock.runtime.operations import (
    OperationCase,
    arrays_of,
    cases_of,
    distance,
    exposed,
    run_alone,
)


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


COARSE_SHARE: Final = 1 / 127
"""One 8-bit step, as a share of the largest value: the error of floats from quantised values."""
AMPLIFIED: Final = 3.0
"""How many times its operations' single errors a part may be off when compiled as one."""


class Search:
    """The search on one device and one model; *only* restricts the operations on the device."""

    def __init__(
        self,
        model: Model,
        device: Device,
        accuracy: AccuracyClass,
        timeout: float | None,
        progress: Callable[[str], None] | None,
        only: Collection[int] | None = None,
    ) -> None:
        self.model, self.device, self.accuracy = model, device, accuracy
        self.timeout, self.progress, self.runs = timeout, progress, 0
        (answers,) = collect_support(model, [device], Policy(accuracy=accuracy)).candidates
        supports = answers.answers
        self.supported = [
            i
            for i, answer in enumerate(supports)
            if answer.supported and (only is None or i in only)
        ]
        self.refused = {i: a.reason for i, a in enumerate(supports) if not a.supported}
        self.parts = _runs_of(self.supported)
        self._natural, self._exposed = Cutter(model), Cutter(exposed(model))
        self.cases: list[OperationCase] = []
        self.values: dict[int, NDArray] = {}

    def record(
        self, inputs: Mapping[str, Any] | Sequence[Any], against: Device, state: State | None
    ) -> None:
        """Records every operation's real inputs and expected results."""
        for case in cases_of(self.model, inputs, state=state, device=against):
            if self.progress is not None:
                self.progress(f"operation {case.index} on {against.name}")
            self.cases.append(case)
            cut = self._exposed.cut([case.index])
            self.values |= dict(zip(cut.inputs, case.inputs, strict=True))
            self.values |= dict(zip(cut.outputs, case.expected, strict=True))

    def whole(self) -> tuple[Distance, Departure | None]:
        """The distance of the outputs if the device's parts feed each other; a failed part."""
        written = {o for p in self.model.operations for o in p.outputs}
        own = {i: v for i, v in self.values.items() if i not in written}
        starts = {part[0]: part for part in self.parts}
        index = 0
        while index < len(self.cases):
            if (part := starts.get(index)) is None:
                part = range(index, index + 1)
                cut = self._exposed.cut([index])
                given = [own[i] for i in cut.inputs]
                alone = infer_shapes(cut.model, _shapes(given))
                results = run_alone(alone, given, FALLBACK_DEVICE, accuracy="exact")
            else:
                cut = self._natural.cut(list(part))
                found = self._run(cut, [own[i] for i in cut.inputs], part)
                if isinstance(found, str):
                    return NOTHING, self._departure(part, cut, None, found)
                results = found
            own |= dict(zip(cut.outputs, results, strict=True))
            index = part[-1] + 1
        outputs = [i for i in dict.fromkeys(self.model.entry.outputs) if i in written]
        return self.worst(outputs, own), None

    def first(self) -> Departure | None:
        """The first operation that departs when run alone."""
        return next(filter(None, map(self._first_in, self.parts)), None)

    def together(self) -> Departure | None:
        """The shortest found sequence of operations that departs when compiled as one."""
        return next(filter(None, map(self._together_in, self.parts)), None)

    def severity(self, operations: Sequence[int]) -> float:
        """The error of *operations*, compiled as one, in multiples of the limit; 0 if they fail."""
        cut = self._natural.cut(list(operations))
        part = range(operations[0], operations[-1] + 1)
        results = self._run(cut, [self.values[i] for i in cut.inputs], part)
        if isinstance(results, str):
            return 0.0
        return self.worst(cut.outputs, dict(zip(cut.outputs, results, strict=True))).severity

    def _first_in(self, part: range) -> Departure | None:
        cut = self._exposed.cut(list(part))
        results = self._run(cut, [self.values[i] for i in cut.inputs], part)
        suspect = part[0]
        if not isinstance(results, str):
            given = dict(zip(cut.outputs, results, strict=True))
            for suspect in part:
                outputs = [given[o] for o in self.model.operations[suspect].outputs]
                found = distance(self.cases[suspect], outputs, self.accuracy)
                if found.departs:
                    break
            else:
                return None
            if len(part) == 1:
                return self._departure(part, cut, found, "")
        elif len(part) == 1:
            return self._departure(part, cut, None, results)
        first, second = _halves(part)
        # The operations before the suspect gave correct results on the reference's values.
        halves = (second,) if suspect in second else (first, second)
        return next(filter(None, map(self._first_in, halves)), None)

    def _together_in(self, part: range) -> Departure | None:
        cut = self._natural.cut(list(part))
        results = self._run(cut, [self.values[i] for i in cut.inputs], part)
        found: Departure | None = None
        if isinstance(results, str):
            found = self._departure(part, cut, None, results)
        else:
            given = dict(zip(cut.outputs, results, strict=True))
            share = COARSE_SHARE if self._quantises(part) else 0.0
            worst = self.worst(cut.outputs, given, share)
            if worst.severity > len(part) and worst.severity > AMPLIFIED * self._chained(part, cut):
                found = self._departure(part, cut, worst, "")
        if found is None or len(part) == 1:
            return found
        return next(filter(None, map(self._together_in, _halves(part))), found)

    def _quantises(self, part: range) -> bool:
        """Whether an operation of *part* rounds to a quantised type."""
        written = (o for i in part for o in self.model.operations[i].outputs)
        operands = (self.model.operands[o] for o in written)
        return any(o.quantization is not None and o.dtype.is_integer for o in operands)

    def _chained(self, part: range, cut: Cut) -> float:
        """The error at the outputs of *part* if each operation runs on the device's own results."""
        own = dict(self.values)
        for index in part:
            alone = self._exposed.cut([index])
            results = self._run(alone, [own[i] for i in alone.inputs], range(index, index + 1))
            if isinstance(results, str):
                return 0.0
            own |= dict(zip(alone.outputs, results, strict=True))
        share = COARSE_SHARE if self._quantises(part) else 0.0
        return self.worst(cut.outputs, own, share).severity

    def _run(self, cut: Cut, given: Sequence[NDArray], part: range) -> list[NDArray] | str:
        self.runs += 1
        if self.progress is not None:
            self.progress(f"operations {part[0]} to {part[-1]}")
        try:
            return run_alone(
                infer_shapes(cut.model, _shapes(given)),
                given,
                self.device,
                accuracy=self.accuracy,
                timeout=self.timeout,
            )
        except (DriverError, PlacementError) as error:
            return driver_message_in(error, cut.model, part)

    def worst(
        self, operands: Sequence[int], given: Mapping[int, NDArray], share: float = 0.0
    ) -> Distance:
        """The worst distance among *operands*; *share* is the least limit for floats."""
        writers = {o: i for i, p in enumerate(self.model.operations) for o in p.outputs}
        worst = NOTHING
        for position, operand in enumerate(operands):
            case = self.cases[writers[operand]]
            outputs = self.model.operations[case.index].outputs
            mixed = [
                given[o] if o == operand else e for o, e in zip(outputs, case.expected, strict=True)
            ]
            found = distance_of(case.model, case.inputs, mixed, case.expected, self.accuracy)
            if found.measure == "relative" and found.limit < share:
                found = msgspec.structs.replace(found, limit=share)
            if worst.measure == "none" or found.severity > worst.severity:
                worst = msgspec.structs.replace(found, output=position)
        return worst

    def _departure(self, part: range, cut: Cut, found: Distance | None, error: str) -> Departure:
        if len(part) == 1:
            return self.departure(part, self.cases[part[0]], found, error)
        model = infer_shapes(cut.model, _shapes([self.values[i] for i in cut.inputs]))
        case = self.case_of(part, model, cut.inputs, cut.outputs)
        return self.departure(part, case, found, error)

    def case_of(
        self, part: Sequence[int], model: Model, inputs: Sequence[int], outputs: Sequence[int]
    ) -> OperationCase:
        """The case of *model*, which is the operations *part*, with its real operands."""
        first, types = self.cases[part[0]], "+".join(self.cases[i].type for i in part)
        given, wanted = (tuple(self.values[i] for i in ports) for ports in (inputs, outputs))
        return OperationCase(first.index, types, first.name, model, given, wanted)

    def departure(
        self, part: Sequence[int], case: OperationCase, found: Distance | None, error: str = ""
    ) -> Departure:
        """The departure of the operations *part*, which are *case*."""
        first, device = self.cases[part[0]], self.device.name
        return Departure(tuple(part), first.type, first.name, device, found, error, case)


def _runs_of(indexes: Sequence[int]) -> list[range]:
    """Splits *indexes*, in ascending order, into ranges without gaps."""
    found: list[range] = []
    for index in indexes:
        if found and found[-1].stop == index:
            found[-1] = range(found[-1].start, index + 1)
        else:
            found.append(range(index, index + 1))
    return found


def _halves(part: range) -> tuple[range, range]:
    middle = part[len(part) // 2]
    return range(part[0], middle), range(middle, part[-1] + 1)


def _shapes(arrays: Sequence[NDArray]) -> dict[int, tuple[int, ...]]:
    return {at: np.shape(array) for at, array in enumerate(arrays)}


def compare(
    model: Model,
    inputs: Mapping[str, Any] | Sequence[Any],
    device: AnyDevice,
    against: AnyDevice = FALLBACK_DEVICE,
    *,
    accuracy: AccuracyClass = "faithful",
    state: State | None = None,
    timeout: float | None = None,
    progress: Callable[[str], None] | None = None,
) -> Comparison:
    """Finds the first operation of *model* whose result on *device* departs from that on *against*.

    *inputs* are those of `CompiledModel.run`; the device's support is queried for their shapes.
    Variables start at their initial values, or at those of *state*, which receives the new values.
    *against* computes what it supports, and the reference device the rest. An operation with
    subgraphs (IF, WHILE) counts as one. Operations that the device does not support in the class
    *accuracy* are not compared. *timeout*, in seconds, is the deadline of each run. *progress* is
    called for each part that is tried.

    All values of one run are held in memory at once. Raises `InputError` for inputs that do not
    fit, `ShapeMismatch` if their shapes contradict each other, `PlacementError` for a device that
    is unknown or unusable, and any error of *against*.
    """
    (candidate,) = manager.choose([device])
    (judge,) = manager.choose([against])
    if candidate.name == judge.name:
        raise InputError(f"{candidate.name} would be compared with itself")
    arrays = arrays_of(model, inputs)
    model = infer_shapes(model, {at: array.shape for at, array in enumerate(arrays)})
    search = Search(model, candidate, accuracy, timeout, progress)
    search.record(arrays, judge, state)
    outputs, failed = search.whole()
    departure = search.first()
    if departure is None and (failed is not None or outputs.departs):
        departure = search.together() or failed
    names, refused = (candidate.name, judge.name), search.refused
    counts = len(model.operations), len(search.supported)
    return Comparison(*names, accuracy, *counts, refused, outputs, departure, search.runs)
