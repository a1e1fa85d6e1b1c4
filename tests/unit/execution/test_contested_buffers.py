"""The short version of tests/soak/soak_buffers.py."""

from __future__ import annotations

import pytest

from tests.support_buffers import LIMIT, Contest


@pytest.mark.parametrize("where", ["in process", "isolated"])
@pytest.mark.parametrize("name", ["reference", "lab"])
def test_readers_writers_and_resizers_together(name: str, where: str) -> None:
    contest = Contest(name, isolate=where == "isolated", seconds=0.4, seed=5)
    assert not contest.problems
    assert contest.slowest < LIMIT
    assert set(contest.calls) == {
        "read_calm",
        "write",
        "run_into",
        "read",
        "copy_out",
        "come_and_go",
    }
