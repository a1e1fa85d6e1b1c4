"""The judge of a module's tests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.differential.judge import Judge


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    """LiteRT in a process of its own, one for a module."""
    if os.name != "posix":
        pytest.skip("the judge's process inherits a descriptor, which needs POSIX")
    with Judge() as running:
        yield running
