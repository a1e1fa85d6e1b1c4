"""What the benchmark `coverage` says: networks in parts, and shares of all networks."""

from __future__ import annotations

import pytest

from benchmarks import coverage
from benchmarks.coverage import Coverage, covered, judged
from benchmarks.engines import networks
from penstock.drivers.llvm import LlvmDevice
from penstock.hal import Support
from penstock.ir import Model
from tests.conftest import NO_CORPUS
from tests.support_llvm import needs_llvm


def test_shares_are_of_all_networks_together() -> None:
    found = [
        Coverage("whole", 90, 999.0),
        Coverage("parts", 10, 1.0, 3, 1.0, "WHERE: it has no kernels"),
    ]
    part, operations, macs, whole = judged(found)
    assert (part.measure, part.value, part.note) == ("parts", 30, "WHERE: it has no kernels")
    assert [row.value for row in (operations, macs, whole)] == [3, 0.1, 50]
    assert [row.met for row in (part, operations, macs, whole)] == [None, True, True, False]
    assert judged([]) == []


@needs_llvm
def test_operations_of_another_class_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = networks(["hello_world_int8"])
    if not entries:
        pytest.skip(NO_CORPUS)
    whole = covered(entries[0])
    assert whole.operations > 1
    assert (whole.refused, whole.first) == (0, "")
    assert whole.macs > 0

    def answers(_: LlvmDevice, model: Model) -> list[Support]:
        count = len(model.operations)
        return [Support(True, "", "relaxed"), *[Support(False, "none")] * (count - 1)]

    monkeypatch.setattr(LlvmDevice, "supported_operations", answers)
    parts = covered(entries[0])
    assert parts.refused == whole.operations
    assert parts.refused_macs == whole.macs
    assert parts.first.endswith(": in the class relaxed")


def test_nothing_is_measured_where_the_device_is_unavailable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(LlvmDevice, "unusable", lambda _: "no record")
    assert coverage.rows(quick=True) == []
