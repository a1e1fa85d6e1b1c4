"""The judge: whether Penstock's plan and every engine used directly are within an accuracy class.

Whole outputs are compared on every recorded case whose shapes the subject can be prepared for,
otherwise on the race's inputs. The class's rule for networks applies.

In `faithful`, each operation is also run alone, on the values that it receives in the network. The
class's rule for operations applies. An engine that cannot run an operation alone is not judged by
it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from benchmarks.competitors import Array, Make

if TYPE_CHECKING:
    from penstock.testing.operations import OperationCase
    from tests.golden.engine_rules import Judged

SHOWN: Final = 3
"""How many operations beyond the class are named. All are counted."""

Alone: TypeAlias = Callable[["OperationCase"], Sequence[Array] | None]
"""A subject's results for one operation; None if it cannot run the operation alone."""


@dataclass(frozen=True)
class Verdict:
    """Whether a subject is within the class on a network.

    *cases* is the number of compared cases. *outputs* says why one of them is beyond the class;
    None if all are within. *judged* of *operations* ran alone. *beyond* of those are beyond the
    class; *departures* names the first few.
    """

    cases: int
    outputs: str | None
    operations: int = 0
    judged: int = 0
    beyond: int = 0
    departures: tuple[str, ...] = ()

    @property
    def in_outputs(self) -> bool:
        """Whether whole outputs are within the class."""
        return self.outputs is None

    @property
    def in_class(self) -> bool:
        """Whether every operation that ran alone is within the class, too."""
        return self.in_outputs and not self.beyond

    def why(self) -> str:
        """Describes what is beyond the class; empty if all is within."""
        if self.outputs is not None:
            return self.outputs
        if not self.beyond:
            return ""
        more = f" and {self.beyond - len(self.departures)} more" if self.beyond > SHOWN else ""
        return "; ".join(self.departures) + more

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "in_outputs": self.in_outputs, "in_class": self.in_class}


def recorded_cases(path: Path, _: Sequence[Array]) -> Iterator[tuple[Sequence[Array], Judged]]:
    """The recorded inputs of the network, and the expected outputs."""
    from tests.golden.recorded import cases_of_file

    yield from cases_of_file(path)


def cases_of_race(path: Path, inputs: Sequence[Array]) -> Iterator[tuple[Sequence[Array], Judged]]:
    """The race's *inputs* and LiteRT's outputs for them; empty if LiteRT cannot read it."""
    from tests.golden.cases import entries
    from tests.golden.unrecorded import judged_on

    if path.suffix == ".tflite":
        for entry in entries("network"):
            if Path(entry["file"]).name == path.name:
                yield inputs, judged_on(entry, inputs)


def judge_outputs(
    make: Make, path: Path, threads: int, accuracy: str, inputs: Sequence[Array]
) -> Verdict:
    """Whole outputs of a subject. Each case uses a new instance, so no state is carried over."""
    from tests.golden.engine_rules import judge

    compared = 0
    failure: Exception | None = None
    for find in (recorded_cases, cases_of_race):
        for given, judged in find(path, inputs):
            try:
                call = make(path, threads, given)
            except Exception as error:  # noqa: BLE001  # an engine that cannot take this shape
                failure = error
                continue
            got = [np.array(output) for output in call(given)]
            compared += 1
            try:
                judge(got, judged, accuracy)  # type: ignore[arg-type]  # given on the command line
            except AssertionError as error:
                return Verdict(compared, str(error).splitlines()[0])
        if compared:
            return Verdict(compared, None)
    if failure is not None:
        raise failure
    return Verdict(0, None)


def judge_operations(alone: Alone, path: Path, outputs: Verdict) -> Verdict:
    """*outputs*, and every operation of the network alone, by the rule of `faithful`."""
    from penstock.runtime.distance import distance_of

    operations = judged = 0
    departures = []
    for case in operations_of(path):
        operations += 1
        got = alone(case)
        if got is None:
            continue
        judged += 1
        expected = case.expected if len(got) == len(case.expected) else case.tflite_expected
        found = distance_of(case.model, case.inputs, got, expected, "faithful")
        if found.departs:
            place = f"operation {case.index} ({case.type}, {case.name!r})"
            departures.append(f"{place}: {found.show()}")
    return Verdict(
        outputs.cases,
        outputs.outputs,
        operations,
        judged,
        len(departures),
        tuple(departures[:SHOWN]),
    )


def operations_of(path: Path) -> Iterator[OperationCase]:
    """The operations of a network on its first recorded inputs; empty without recorded inputs."""
    import penstock
    from penstock.ir import infer_shapes
    from penstock.testing.operations import cases_of
    from tests.golden.recorded import cases_of_file

    inputs = next((given for given, _ in cases_of_file(path)), None)
    if inputs is None:
        return
    model = penstock.load(path)
    if path.suffix == ".tflite":
        # LiteRT resizes an input beyond the declared shape in the same way.
        model = infer_shapes(model, {k: array.shape for k, array in enumerate(inputs)})
    yield from cases_of(model, inputs)


def alone_by(make: Make, threads: int) -> Alone:
    """An engine on single operations: its results for each operation as a file."""

    def run(case: OperationCase) -> list[Array] | None:
        with tempfile.TemporaryDirectory() as scratch:
            file = Path(scratch, "operation.tflite")
            try:
                file.write_bytes(case.tflite())
                given = case.tflite_inputs
                got = [np.array(output) for output in make(file, threads, given)(given)]
            # Whatever an engine raises of a file that it cannot read.
            except Exception:  # noqa: BLE001
                return None
        expected = case.tflite_expected
        return got if [a.shape for a in got] == [a.shape for a in expected] else None

    return run
