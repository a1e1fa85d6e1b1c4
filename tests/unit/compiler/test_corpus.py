"""The corpus's small models, after every pass: sound programs, which compute what the reference
device does. `tests/soak/soak_compiler_stages.py` takes all models.
"""

from __future__ import annotations

from typing import Final

import pytest

from tests.conftest import NO_CORPUS
from tests.golden.cases import Entry
from tests.support_compiler import check_stages, corpus_entries, departures, model_of

MOST_MACS: Final = 1_000_000
MOST_BYTES: Final = 1_000_000
"""Models of which the interpreter computes all stages in less than a second."""

LEAST: Final = {"network": 7, "unit": 150}
"""Models of each kind that the compiler must take at least."""


def small(kind: str) -> list[Entry]:
    found = [
        e
        for e in corpus_entries()
        if e["kind"] == kind and (e["macs"] or 0) <= MOST_MACS and e["size"] <= MOST_BYTES
    ]
    if not found:
        pytest.skip(NO_CORPUS)
    return found


@pytest.mark.parametrize("kind", ["network", "unit"])
def test_programs_equal_the_reference_after_every_pass(kind: str) -> None:
    wrong: dict[str, list[str]] = {}
    compared = 0
    for entry in small(kind):
        model = model_of(entry)
        if model is None:
            continue
        compared += 1
        if found := departures(model):
            wrong[entry["id"]] = found
    assert wrong == {}
    assert compared >= LEAST[kind]


@pytest.mark.parametrize("kind", ["network", "unit"])
def test_programs_and_plans_are_sound_after_every_pass(kind: str) -> None:
    models = [m for e in small(kind) if (m := model_of(e)) is not None]
    assert sum(check_stages(model) for model in models) == 10 * len(models)
    assert len(models) >= LEAST[kind]
