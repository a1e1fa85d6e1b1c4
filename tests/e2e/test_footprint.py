"""The benchmark of starts: its rows, limits and table."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import footprint, peaks
from benchmarks.footprint import SMALL_NETWORK, document, judged
from tests.support_llvm import needs_llvm


def starts(name: str = "network", **changed: Any) -> dict[str, Any]:
    """The starts of a network within every limit; *changed* replaces some figures."""
    figures = {
        "start_ms": 900.0, "driver_ms": 9.0, "peak_mib": 50.0, "whole": True, "compiles": 0,
        "llvm": False, "code": 300_000, "constants": 4_000_000, "load_ms": 4.0,
    } | changed  # fmt: skip
    return {"id": name, "cold": figures, "warm": figures, "native": {"peak_mib": 40.0}}


def failed(found: dict[str, Any]) -> list[str]:
    return [row.measure.split(": ")[1] for row in judged(found) if row.met is False]


def test_limits_hold_for_networks_that_keep_them() -> None:
    assert failed(starts(SMALL_NETWORK)) == []


def test_each_limit_is_judged() -> None:
    assert failed(starts(start_ms=6001.0)) == ["compiled from nothing"]
    assert failed(starts(SMALL_NETWORK, start_ms=1001.0)) == ["compiled from nothing"]
    assert failed(starts(SMALL_NETWORK, code=400_001)) == ["code"]
    assert failed(starts(SMALL_NETWORK, driver_ms=10.1)) == ["the driver's part of a warm start"]
    assert failed(starts(load_ms=5.1)) == ["load of the entry"]
    assert failed(starts(load_ms=5.1, constants=9_000_000)) == []
    assert failed(starts(llvm=True)) == ["a hit imports LLVM"]
    assert failed(starts(peak_mib=55.1)) == ["peak above native"]
    assert failed(starts(peak_mib=55.1, whole=False)) == []


def test_a_start_that_failed_is_a_row_that_does_not_hold() -> None:
    assert failed(starts() | {"warm": None}) == ["a start failed"]
    assert "**failed**" in [*document([starts() | {"warm": None}])][-1]


def test_the_table_marks_networks_beyond_a_limit() -> None:
    last = [*document([starts(), starts("large", peak_mib=70.0, whole=True)])][-2:]
    assert "over" not in last[0]
    assert last[1].startswith("| large | 0.90 | 300 | 4.00 | 9.0 | 4.0 | 70 | 70 | 40 | +30 |")
    assert "**over**" in last[1]


def test_peaks_of_other_engines_are_judged_and_marked() -> None:
    found = [
        {"id": "near", "device": "xnnpack", "ours": 65.0, "cold": 80.0, "own": 50.0},
        {"id": "far", "device": "openvino-cpu", "ours": 165.1, "cold": 180.0, "own": 150.0},
    ]
    assert [peaks.judged(one).met for one in found] == [True, False]
    assert [*peaks.document(found)][-2:] == [
        "| near | xnnpack | 65 | 80 | 50 | +15 |  |",
        "| far | openvino-cpu | 165 | 180 | 150 | +15 | **over** |",
    ]


@needs_llvm
@pytest.mark.usefixtures("corpus")
def test_a_network_starts_from_nothing_then_from_the_cache() -> None:
    (found,) = footprint.measured(["hello_world_int8"])
    assert found["cold"]["compiles"] == 1
    assert found["cold"]["llvm"]
    assert found["cold"]["code"] > 0
    assert found["warm"]["compiles"] == 0
    assert not found["warm"]["llvm"]
    assert found["warm"]["load_ms"] is not None
    assert found["warm"]["peak_mib"] < found["cold"]["peak_mib"]
