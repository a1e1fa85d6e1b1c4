"""NNAPI's operation vectors on the reference device: the count that passes, and only rises.

`ratchet.json` names every case that does not pass, and every derived run that is not covered, with
the reason. It speaks of the set in the corpus alone.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import PenstockError
from penstock.hal import Device
from penstock.runtime.discovery import manager
from penstock.testing.loopback import LoopbackDevice
from penstock.testing.vectors import Case, Report, load_directory, run_vectors
from penstock.testing.vectors.derive import Run, dynamic_output_shape, plain_run
from penstock.testing.vectors.runner import execute, run_one
from tests.checked import does_not_raise
from tests.soak.soak_nnapi import mutated

RATCHET: dict[str, Any] = json.loads((Path(__file__).parent / "ratchet.json").read_text("utf-8"))
SHARE = 23
"""Of the cases, one in this many is run over the wire, and with dimensions that only the
run tells.
"""


@pytest.fixture(scope="module")
def cases(corpus: Path) -> list[Case]:
    directory = corpus / RATCHET["set"]
    if not directory.is_dir():
        pytest.skip(f"the corpus has no {RATCHET['set']}")
    return [case for specification in load_directory(directory) for case in specification.cases]


@pytest.fixture(scope="module")
def reference() -> Device:
    return manager.choose(["reference"])[0]


@pytest.fixture(scope="module")
def report(cases: list[Case], reference: Device) -> Report:
    return run_vectors(cases, reference)


def test_the_ratchet_speaks_of_this_set(cases: list[Case]) -> None:
    assert len(cases) == RATCHET["cases"], "the set has changed: count anew, and write ratchet.json"
    assert len({case.name for case in cases}) == len(cases)
    assert len(frozenset().union(*(case.operations for case in cases))) == 107


def test_no_operation_vector_fails(report: Report) -> None:
    assert [f"{r.case} ({r.run}): {r.message}" for r in report.failures] == []


def test_the_count_does_not_fall(report: Report) -> None:
    assert report.passed >= RATCHET["passed"]
    assert report.runs["passed"] >= RATCHET["runs"]


def test_the_count_is_raised_with_what_passes(report: Report) -> None:
    assert report.passed == RATCHET["passed"], "more passes than ratchet.json says: raise it"
    assert report.runs["passed"] == RATCHET["runs"], (
        "more runs pass than ratchet.json says: raise it"
    )


def test_uncovered_operation_vectors_are_listed_with_reasons(report: Report) -> None:
    rest = {r.case: r.message for r in report.uncovered if r.run == "plain"}
    runs = {f"{r.case} ({r.run})": r.message for r in report.uncovered if r.run != "plain"}
    assert rest == RATCHET["rest"]
    assert runs == RATCHET["uncovered_runs"]
    assert RATCHET["passed"] + len(rest) == RATCHET["cases"]


def test_messages_and_pools_change_nothing(cases: list[Case], reference: Device) -> None:
    found = run_vectors(cases[::SHARE], LoopbackDevice(reference), pools=True)
    assert [f"{r.case} ({r.run}): {r.message}" for r in found.failures] == []
    assert found.passed == len(cases[::SHARE])


def test_unknown_dimensions_change_nothing(cases: list[Case], reference: Device) -> None:
    """The dimensions of tensors that come with a run, and of outputs, are unknown when the model is
    lowered.
    """
    for case in cases[1::SHARE]:
        if not case.entry.expect_failure:
            result = run_one(_opened(dynamic_output_shape(plain_run(case))), reference)
            assert result.outcome != "failed", f"{case.name}: {result.message}"


@pytest.mark.parametrize("seed", range(0, 600, 100))
def test_changed_models_run_or_fail_by_name(
    cases: list[Case], reference: Device, seed: int
) -> None:
    """`tests/soak/soak_nnapi.py` in small."""
    by_operation: dict[str, list[Case]] = {}
    for case in cases:
        for operation in case.operations:
            by_operation.setdefault(operation, []).append(case)
    for at in range(seed, seed + 100):
        with does_not_raise(), suppress(PenstockError):
            execute(mutated(by_operation, at), reference)


def _opened(run: Run) -> Run:
    main = run.model.main
    operands = tuple(
        replace(o, dimensions=(None,) * len(o.dimensions))
        if at in main.inputs and o.dimensions and o.channel_quantization is None
        else o
        for at, o in enumerate(main.operands)
    )
    return replace(run, model=replace(run.model, main=replace(main, operands=operands)))
