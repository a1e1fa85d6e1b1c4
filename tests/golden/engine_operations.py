"""Every operation of a network by itself on an engine, on what it really gets: within a step of the
reference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from penstock.errors import PlacementError
from penstock.hal import AccuracyClass
from penstock.ir import NDArray, infer_shapes
from penstock.testing.operations import cases_of, distance, run_case
from tests.conftest import CORPUS, NO_CORPUS
from tests.golden.arrays import golden
from tests.golden.cases import Entry, load


@dataclass
class Outcome:
    """How many operations an engine took, and a line for each that it computes too far off."""

    taken: int = 0
    departures: list[str] = field(default_factory=list)


def check_operations(
    entry: Entry, engines: Sequence[str], accuracy: AccuracyClass = "faithful"
) -> dict[str, Outcome]:
    """Cuts every operation out of a network, fed its first recorded case, and runs it on each
    engine that takes it.
    """
    if CORPUS is None:
        raise FileNotFoundError(NO_CORPUS)
    model = load(CORPUS / "models" / entry["file"])
    arrays = golden(CORPUS / "models" / entry["golden"]["file"])
    case = entry["golden"]["cases"][0]
    inputs = {k: arrays[f"{case['id']}/in/{k}"] for k in case["inputs"]}
    given: Mapping[str, NDArray] | list[NDArray] = inputs
    if "signature" in case:
        signature, model = (
            model.signatures[case["signature"]],
            model.signature_model(case["signature"]),
        )
        names = {operand: name for name, operand in signature.inputs}
        given = [inputs[names[operand]] for operand in model.entry.ordinary_inputs]
    elif entry["format"] == "tflite":
        given = list(inputs.values())
        # As LiteRT resizes an input beyond what the file declares.
        resized = {int(k): tuple(v) for k, v in case.get("resize_inputs", {}).items()}
        model = infer_shapes(model, resized) if resized else model
    outcomes = {engine: Outcome() for engine in engines}
    for operation in cases_of(model, given):
        for engine, outcome in outcomes.items():
            try:
                results = run_case(operation, engine, accuracy)
            except PlacementError:
                continue
            outcome.taken += 1
            found = distance(operation, results, accuracy)
            if found.departs:
                place = f"operation {operation.index} ({operation.type}, {operation.name!r})"
                outcome.departures.append(f"{entry['id']}, {engine}, {place}: {found.show()}")
    return outcomes
