from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock import threads
from penstock.errors import InputError
from penstock.threads import allowed_threads


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of eight processors, all allowed, without a quota."""
    for name in ("OMP_NUM_THREADS", "PENSTOCK_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(threads, "_affinity", lambda: 8)
    monkeypatch.setattr(threads, "_cgroup_quota", lambda: None)


def test_affinity_bounds() -> None:
    assert allowed_threads() == 8


def test_the_quota_of_the_cgroup_bounds_rounded_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_cgroup_quota", lambda: 2.5)
    assert allowed_threads() == 3


@pytest.mark.parametrize(
    ("text", "expected"), [("4", 4), ("4,2", 4), ("64", 8), ("no", 8), ("0", 8)]
)
def test_omp_num_threads_bounds(monkeypatch: pytest.MonkeyPatch, text: str, expected: int) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", text)
    assert allowed_threads() == expected


def test_argument_beats_knob_beats_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setenv("PENSTOCK_NUM_THREADS", "5")
    assert allowed_threads() == 5
    assert allowed_threads(3) == 3


@pytest.mark.parametrize(
    ("content", "expected"),
    [("max 100000\n", None), ("150000 100000\n", 1.5), ("nonsense", None), ("1 0", None)],
)
def test_reading_the_quota(tmp_path: Path, content: str, expected: float | None) -> None:
    from importlib import reload

    fresh = reload(threads)
    file = tmp_path / "cpu.max"
    file.write_text(content)
    assert fresh._cgroup_quota(file) == expected
    assert fresh._cgroup_quota(tmp_path / "absent") is None


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the platform has no CPU affinity")
def test_no_more_than_four_a_core_are_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert [allowed_threads(n) for n in (7, 8, 1000, 10**30)] == [7, 8, 8, 8]
    monkeypatch.setenv("PENSTOCK_NUM_THREADS", "1000")
    assert allowed_threads() == 8


def test_the_real_affinity_is_read() -> None:
    from importlib import reload

    fresh = reload(threads)
    assert fresh._affinity() == len(os.sched_getaffinity(0))


def test_a_negative_knob_is_refused_as_the_argument_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_NUM_THREADS", "-1")
    with pytest.raises(InputError, match="num_threads is -1"):
        allowed_threads()
