"""GeneratedTest, by operation, on every driver that computes, in this process and in one of their own: a case of each
type. `tests/soak/soak_vectors.py` has every run of every case.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from pathlib import Path

import pytest

from penstock.nnapi.lowering.registry import rules
from penstock.testing.vectors import Case, RunResult, load_directory
from penstock.testing.vectors.derive import plain_run
from penstock.testing.vectors.runner import run_one
from tests.conformance.drivers import DRIVERS, WRAPPERS, unusable

SEED = 1
LARGEST = 100_000
"""Bytes of the file that a case is taken from: the others are for the soak."""


@pytest.fixture(scope="module")
def cases(corpus: Path) -> dict[str, list[Case]]:
    """By operation, one case of each type of its first input; it occurs there alone, where there is such a case."""
    directory = corpus / "conformance" / "nnapi"
    if not directory.is_dir():
        pytest.skip("the corpus has no conformance/nnapi")
    found: dict[tuple[str, str], list[Case]] = defaultdict(list)
    for path in sorted(directory.rglob("*.npz")):
        if path.stat().st_size > LARGEST:
            continue
        for specification in load_directory(path):
            for case in specification.cases:
                main = case.entry.main
                for operation in case.operations:
                    first = main.operands[main.inputs[0]].type if main.inputs else ""
                    found[operation, first].append(case)
    chosen: dict[str, list[Case]] = defaultdict(list)
    for (operation, _), alike in found.items():
        chosen[operation].append(
            min(alike, key=lambda c: (len(c.operations), zlib.crc32(f"{SEED} {c.name}".encode())))
        )
    return chosen


@pytest.mark.parametrize("operation", sorted(rules()))
@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_generated(wrapper: str, driver: str, operation: str, cases: dict[str, list[Case]]) -> None:
    if (reason := unusable(driver)) is not None:
        pytest.skip(reason)
    results: list[RunResult] = []
    with WRAPPERS[wrapper](driver) as device:
        pools = not device.capabilities.accepts_host_memory
        results = [run_one(plain_run(case), device, pools=pools) for case in cases[operation]]
    assert [f"{r.case}: {r.message}" for r in results if r.outcome == "failed"] == []
    assert results
    if all(result.outcome == "not_covered" for result in results):
        pytest.skip("; ".join(dict.fromkeys(result.message for result in results)))
