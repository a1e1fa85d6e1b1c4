"""Devices are measured in the background: once, slowly, and no longer than the program runs."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import penstock
from penstock import knobs
from penstock.cache.naming import CALIBRATIONS
from penstock.cache.store import Store
from penstock.ir import Model
from penstock.partitioning.costs import cell_of
from penstock.partitioning.plan import SHIPPED_COSTS, ExecutionPlan
from penstock.runtime.calibration import background, calibrating, later, samples, timing
from penstock.runtime.calibration.background import Ended, Pauses
from penstock.runtime.calibration.later import Task
from penstock.runtime.calibration.samples import STEP
from tests.support_programs import run_python
from tests.support_waiting import eventually
from tests.unit.partitioning.models import chain


@pytest.fixture
def unbegun(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No timer was made in this process, and the knob allows one."""
    monkeypatch.setattr(later, "_begun", threading.Event())
    with knobs.override(calibrate="background"):
        yield


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """One sample of few runs."""
    first = next(iter(samples.samples()))
    assert first.cell == STEP
    monkeypatch.setattr(calibrating, "samples", lambda: [first])
    monkeypatch.setattr(timing, "BATCHES", 1)
    monkeypatch.setattr(timing, "BATCH_NS", 1)


def never(_: object) -> None:
    pytest.fail("this is not called")


def plan_of(model: Model) -> ExecutionPlan:
    with penstock.compile(model, devices=["reference"], cache=None) as compiled:
        return compiled.plan


@pytest.mark.usefixtures("unbegun")
def test_one_process_measures_the_plans_devices_with_its_cells_first() -> None:
    plan, given, done = plan_of(chain(["ADD", "RELU"])), list[Task](), threading.Event()

    def start(task: Task) -> None:
        given.append(task)
        done.set()

    for _ in range(2):
        later.measure_later(plan, "/cache", 2, start, delay=0.0)
    assert done.wait(10)
    cells = tuple(cell_of(plan.model.entry, operation) for operation in plan.model.operations)
    assert given == [Task("/cache", ("reference",), "faithful", 2, cells, os.getpid())]


@pytest.mark.usefixtures("unbegun")
def test_knob_forbids_it() -> None:
    with knobs.override(calibrate="never"):
        later.measure_later(plan_of(chain(["ADD"])), "/cache", 1, never, delay=0.0)
    assert not later._begun.is_set()


@pytest.mark.parametrize(
    ("executable", "expected"),
    [
        ("/usr/bin/python3.11", True),
        ("/opt/pypy3", True),
        ("/opt/program", False),
        ("", False),
        (None, False),
    ],
)
def test_only_an_interpreter_is_started_as_one(executable: str | None, expected: bool) -> None:
    assert later.is_python(executable) is expected


def task(directory: Path, *devices: str) -> Task:
    return Task(str(directory), devices, "faithful", 1, (), os.getpid())


@pytest.mark.usefixtures("quick")
def test_only_devices_without_costs_are_measured(tmp_path: Path) -> None:
    slept: list[float] = []
    wanted = task(tmp_path, "reference", "no-such-device")
    assert background.perform(wanted, lambda: True, slept.append) == ["reference"]
    assert len(list((tmp_path / CALIBRATIONS).iterdir())) == 1
    assert len(slept) == 1
    assert background.perform(wanted, lambda: True, slept.append) == []


@pytest.mark.usefixtures("quick")
def test_nothing_is_kept_once_the_program_has_ended(tmp_path: Path) -> None:
    given = task(tmp_path, "reference", "reference")
    assert background.perform(given, lambda: False, never) == []
    assert not (tmp_path / CALIBRATIONS).exists()


@pytest.mark.usefixtures("quick")
def test_a_second_process_leaves_the_work_to_the_first(tmp_path: Path) -> None:
    locks = Store(str(tmp_path)).locks
    held = locks.take(background.LOCK, exclusive=True, create=True, timeout=0.0)
    assert held is not None
    try:
        assert background.perform(task(tmp_path, "reference"), lambda: True, never) == []
    finally:
        os.close(held)
    assert background.perform(task(tmp_path, "reference"), lambda: True, lambda _: None)


def test_pauses_leave_nine_tenths_of_the_time() -> None:
    clock, slept = iter([0.0, 2.0, 2.0, 5.0, 5.0]), list[float]()
    pause = Pauses(lambda: True, slept.append, lambda: next(clock))
    pause()
    pause()
    assert slept == pytest.approx([18.0, 27.0])


def test_a_pause_ends_with_the_program() -> None:
    alive = iter([True, False])
    pause = Pauses(lambda: next(alive), lambda _: None)
    with pytest.raises(Ended):
        pause()


def test_a_process_of_its_own_ends_when_its_parent_is_another(tmp_path: Path) -> None:
    given = Task(str(tmp_path), ("reference",), "faithful", 1, (), parent=1)
    began = time.monotonic()
    text = msgspec.json.encode(given).decode()
    run_python("-m", background.__name__, text, check=True)
    assert time.monotonic() - began < 30
    assert not (tmp_path / CALIBRATIONS).exists()


@pytest.mark.usefixtures("unbegun")
def test_a_compile_with_a_cache_begins_it_if_costs_are_shipped_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []
    monkeypatch.setattr(later, "measure_later", lambda plan, *_: begun.append(plan.basis))
    model = chain(["ADD"])
    for devices, cache in (
        (["llvm", "reference"], None),
        (["llvm", "reference"], tmp_path),
    ):
        with penstock.compile(model, devices=devices, cache=cache):
            pass
    assert len(begun) == 1
    assert SHIPPED_COSTS in begun[0]


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="the system has no /proc")
def test_a_process_of_its_own_ends_within_seconds_of_its_program(tmp_path: Path) -> None:
    """Also in the middle of a sample, or of the pause after it."""
    work = """
import sys, time
from penstock.runtime.calibration import background
background.perform = lambda *_: time.sleep(60)
background.main(sys.argv[1:])
"""
    program = f"""
import os, subprocess, sys, time, msgspec
from penstock.runtime.calibration.later import Task
text = msgspec.json.encode(Task({str(tmp_path)!r}, (), "faithful", 1, (), os.getpid())).decode()
quiet = subprocess.DEVNULL
child = subprocess.Popen([sys.executable, "-c", {work!r}, text], stdout=quiet, stderr=quiet)
print(child.pid, flush=True)
time.sleep(2)
os._exit(0)
"""
    done = run_python("-c", program, check=True)
    stat = Path("/proc") / done.stdout.split()[0] / "stat"

    def is_gone() -> bool:
        try:
            return stat.read_text().rsplit(")", 1)[1].split()[0] == "Z"
        except OSError:
            return True

    assert eventually(is_gone, 10)
