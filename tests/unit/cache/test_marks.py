from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.cache import claim
from penstock.cache.claim import is_marked, mark
from penstock.sealed.locks import lock

pytestmark = [
    pytest.mark.usefixtures("no_descriptor_leaks"),
    pytest.mark.skipif(sys.platform != "linux", reason="the platform has no marks on open files"),
]


@pytest.fixture
def openings(tmp_path: Path) -> Iterator[list[int]]:
    """Three open file descriptions of one file."""
    path = tmp_path / "lock"
    path.touch()
    made = [os.open(path, os.O_RDWR) for _ in range(3)]
    yield made
    for fd in made:
        os.close(fd)


def test_a_mark_lives_as_long_as_a_duplicate(openings: list[int]) -> None:
    marked, other, _ = openings
    assert not is_marked(other)
    assert mark(marked)
    assert is_marked(other)
    kept = os.dup(marked)
    openings[0] = os.open(os.devnull, os.O_RDONLY)
    os.close(marked)
    assert is_marked(other)
    os.close(kept)
    assert not is_marked(other)


def test_other_openings_come_and_go(openings: list[int]) -> None:
    assert mark(openings[0])
    os.close(os.open(f"/proc/self/fd/{openings[1]}", os.O_RDWR))
    assert is_marked(openings[2])
    assert mark(openings[1])


def test_marks_and_locks_do_not_wait_for_each_other(openings: list[int]) -> None:
    marked, other, third = openings
    assert lock(other, exclusive=True, timeout=0)
    assert mark(marked)
    assert not lock(third, exclusive=False, timeout=0)
    assert lock(other, exclusive=False, timeout=0)
    assert lock(marked, exclusive=False, timeout=0)


def test_unmarkable_openings_count_as_marked(
    monkeypatch: pytest.MonkeyPatch, openings: list[int]
) -> None:
    assert not mark(-1 & 0x7FFFFFFF)
    assert is_marked(-1 & 0x7FFFFFFF)
    monkeypatch.setattr(claim, "_SUPPORTED", False)
    assert not mark(openings[0])
    assert is_marked(openings[0])
