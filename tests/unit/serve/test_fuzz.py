"""Damaged requests end with an answer or a named error: the short version of the soak."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.soak.request_mutation import Victim


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Victim]:
    with Victim(tmp_path) as made:
        yield made


def test_damaged_requests_are_answered_or_refused_by_name(victim: Victim) -> None:
    outcomes = {victim.try_one(f"short/{number}") for number in range(1500)}
    assert {"rest, answered", "rest, InvalidRequest", "rpc, answered"} <= outcomes
    assert {outcome.rpartition(" ")[2] for outcome in outcomes} <= {
        *("answered", "InvalidRequest", "RequestTooLarge", "UnknownModel", "message"),
        "DeadlinePassed",
    }
