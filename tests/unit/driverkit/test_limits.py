"""What a call of an engine that ends at its limits says."""

from __future__ import annotations

import threading
import time

import pytest

from penstock.driverkit.engine import compiled_within
from penstock.errors import MissedDeadlinePersistent
from penstock.hal import PrepareConfig


def test_compile_that_its_deadline_ends_says_that_it_was_under_way() -> None:
    never = threading.Event()
    limits = PrepareConfig(deadline_ns=time.monotonic_ns() + 20_000_000)
    words = "the deadline passed while the model was compiled"
    with pytest.raises(MissedDeadlinePersistent, match=words):
        compiled_within(limits, never.wait)
    never.set()
