"""The recorded cases of the corpus, network by network and unit by unit, through
`penstock.compile`.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import CORPUS, IN_CI, NO_CORPUS, corpus_parameters
from tests.golden.cases import Entry, check_compiled, entries, groups

GAPS: dict[str, str] = {}
"""Files that do not run yet, each with its reason; strict: one that starts to pass must leave."""


def test_corpus_has_networks_and_unit_models() -> None:
    if CORPUS is None:
        if IN_CI:
            pytest.fail(NO_CORPUS)
        pytest.skip(NO_CORPUS)
    assert len(entries("network")) >= 60
    assert len(entries("unit")) >= 140


@pytest.mark.parametrize(
    ("entry", "cases"),
    corpus_parameters([*groups("network", GAPS), *groups("unit", GAPS)], arguments=2),
)
def test_recorded_cases(entry: Entry, cases: list[dict[str, Any]]) -> None:
    check_compiled(entry, cases)
