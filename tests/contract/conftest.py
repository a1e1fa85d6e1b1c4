"""Temporary files of the contract suites in memory, where there is such a thing: each save waits
for the disk.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def quick_disk() -> Iterator[Path]:
    memory = Path("/dev/shm")
    usable = memory.is_dir() and os.access(memory, os.W_OK)
    with tempfile.TemporaryDirectory(dir=memory if usable else None) as directory:
        yield Path(directory)


@pytest.fixture(autouse=True)
def on_quick_disk(quick_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(quick_disk))
    monkeypatch.setenv("PENSTOCK_STATE_DIR", str(quick_disk / "state"))
