"""GeneratedTest on the driver `webgpu`, whose shaders take long to compile: a seeded tenth of the
cases, the other nine in the grid, and at least so many that it takes. `tests/soak/soak_vectors.py`
has every run of every case.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest

from penstock.testing.vectors import load_directory
from penstock.testing.vectors.derive import plain_run
from penstock.testing.vectors.runner import run_one
from tests.support_webgpu import needs_webgpu, software

SEED: Final = 1
PARTS: Final = 10
LEAST_TAKEN: Final = 0.75
"""The share of all cases that the driver takes: 0.81, and 0.58 would be 2,000 of them."""


def parts() -> Iterator[Any]:
    for part in range(PARTS):
        yield pytest.param(part, marks=[pytest.mark.grid] if part else [])


@needs_webgpu
@pytest.mark.parametrize("part", list(parts()))
def test_a_tenth_of_the_cases_is_computed_or_refused(corpus: Path, part: int) -> None:
    directory = corpus / "conformance" / "nnapi"
    if not directory.is_dir():
        pytest.skip("the corpus has no conformance/nnapi")
    cases = [
        case
        for specification in load_directory(directory)
        for case in specification.cases
        if zlib.crc32(f"{SEED} {case.name}".encode()) % PARTS == part
    ]
    with closing(software()) as device:
        results = [run_one(plain_run(case), device, pools=False) for case in cases]
    assert [f"{r.case}: {r.message}" for r in results if r.outcome == "failed"] == []
    outcomes = Counter(result.outcome for result in results)
    assert outcomes["passed"] >= LEAST_TAKEN * len(cases), outcomes
