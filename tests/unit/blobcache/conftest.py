"""No test of the cache leaves a descriptor open."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _no_leaks(no_descriptor_leaks: None) -> None:
    """Asked for by every test of this directory."""
