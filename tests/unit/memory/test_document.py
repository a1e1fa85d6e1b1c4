"""docs/memory.md: its code runs and prints what the page shows, and it speaks of what there is."""

from __future__ import annotations

import re

import penstock
from penstock import memory
from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "memory.md").read_text("utf-8")


def test_the_page_names_every_kind_and_only_what_there_is() -> None:
    assert all(f"| `{kind}` |" in PAGE for kind in memory.MEMORY_KINDS)
    named = set(re.findall(r"`(MemoryPool|HardwareBuffer|PoolLayout)\.(\w+)`", PAGE))
    assert named
    assert all(hasattr(getattr(memory, owner), member) for owner, member in named)
    assert hasattr(penstock.CompiledModel, "input_memory")
