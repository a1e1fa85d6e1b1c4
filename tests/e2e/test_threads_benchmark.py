"""The benchmark of threads: which networks it measures, and what its rows say."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import threads
from tests.support_llvm import needs_llvm

pytestmark = [needs_llvm, pytest.mark.usefixtures("corpus")]


@pytest.mark.parametrize(("long_s", "count"), [(0.0, 1), (60.0, 0)])
def test_only_networks_that_take_long_are_measured(
    monkeypatch: pytest.MonkeyPatch, corpus: Path, long_s: float, count: int
) -> None:
    path = corpus / "models" / "networks" / "hello_world_int8.tflite"
    monkeypatch.setattr(threads, "LONG_S", long_s)
    monkeypatch.setattr(threads, "networks", lambda: [{"id": "small", "path": str(path)}])
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    found = threads.rows(quick=True)
    assert [row.measure for row in found] == ["small: two threads over one"] * count
    assert all(row.limit == 0.625 and row.value > 0 for row in found)


def test_one_processor_has_nothing_to_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    assert threads.rows(quick=True) == []
