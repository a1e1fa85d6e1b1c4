"""Whatever is done to an NNAPI model, it runs or is refused by name."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from penstock.testing.vectors import load_directory
from penstock.testing.vectors.derive import Run, plain_run
from tests.checked import does_not_raise
from tests.soak.nnapi_mutation import Damaged

MODELS = 60


@cache
def runs(directory: Path) -> list[Run]:
    """The first case of each specification."""
    found = [next(iter(s.cases)) for s in load_directory(directory)]
    return [plain_run(case) for case in found if not case.is_infinite_loop]


@pytest.mark.parametrize("first", range(0, 20 * MODELS, MODELS))
def test_damaged_models_run_or_are_refused_by_name(first: int, corpus: Path) -> None:
    directory = corpus / "conformance" / "nnapi"
    if not directory.is_dir():
        pytest.skip("the corpus has no conformance/nnapi")
    for seed in range(first, first + MODELS):
        try:
            with does_not_raise():
                Damaged.of(runs(directory), seed).trial()
        except Exception as error:
            raise AssertionError(f"damaged model {seed}") from error
