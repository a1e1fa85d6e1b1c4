"""What test processes report of their tests, and of those that hang."""

from __future__ import annotations

import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.conftest import ROOT
from tests.hangs import Hangs
from tests.reports import Together, apart
from tests.support_programs import run_python

CONFTEST = """
import pytest
from tests.reports import send_together

def pytest_sessionstart(session):
    send_together(session.config)
"""
TESTS = """
import os
import warnings
import pytest

def test_passes():
    print("said")

def test_fails():
    assert os.getpid() == 0

@pytest.mark.skip(reason="because")
def test_skips():
    pass

def test_warns():
    warnings.warn("careful")

def test_dies():
    os._exit(3)
"""


def test_events_of_a_test_arrive_in_order_in_one_message() -> None:
    sent: list[tuple[str, dict[str, object]]] = []
    send = Together(sent.append)
    events: list[tuple[str, dict[str, object]]] = [
        ("logstart", {"nodeid": "a"}),
        ("testreport", {"data": {"outcome": "passed", "longrepr": None, "duration": 0.5}}),
        ("logfinish", {"nodeid": "a"}),
        ("runtest_protocol_complete", {"item_index": 7, "duration": 0.5}),
    ]
    send("collectionstart")
    assert [name for name, _ in sent] == ["collectionstart"]
    for name, values in events[:-1]:
        send(name, **values)
    assert len(sent) == 1
    send("unscheduled", indices=[1])  # the thread that listens says so in the middle of a test
    send(events[-1][0], **events[-1][1])
    assert len(sent) == 3

    received: list[object] = []
    receive = apart(lambda _, event: received.append(event))
    for event in [*sent, None]:
        receive(None, event)
    asked = ("unscheduled", {"indices": [1]})
    assert received == [("collectionstart", {}), asked, *events, None]


def test_reports_sent_together_are_those_sent_one_by_one(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = ["-m", "pytest", "-rA", "-n1", "-p", "no:randomly", str(tmp_path)]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    done = run_python(
        *command,
        *("-p", "no:cacheprovider", "-p", "no:hypothesispytest"),
        cwd=tmp_path,
        env=environment | {"PYTHONPATH": str(ROOT)},
    )
    said = done.stdout
    outcomes = set(re.findall(r"^(\w+) .*?test_some\.py(?:::(\w+)|:\d+)", said, re.MULTILINE))
    assert {
        ("PASSED", "test_passes"),
        ("FAILED", "test_fails"),
        ("FAILED", "test_dies"),
    } <= outcomes
    assert "assert os.getpid() == 0" in said
    assert "UserWarning: careful" in said
    assert "crashed while running 'test_some.py::test_dies'" in said
    assert "2 failed, 2 passed, 1 skipped, 1 warning" in said


def test_importing_compiles_the_modules_of_tests_and_collects_none(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    done = run_python(
        *("-m", "pytest", "-p", "tests.importing", "--collect-only", "-qq", tmp_path),
        env={k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"},
        cwd=ROOT,
    )
    assert done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED, done.stdout + done.stderr
    assert [path.name.split(".")[0] for path in tmp_path.rglob("*.pyc")] == ["test_some"]


def test_one_thread_watches_the_tests_of_some_seconds(
    monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config
) -> None:
    now = iter((100.0, 109.0, 110.0, 115.0, 115.0, 116.0))
    started: list[object] = []
    monkeypatch.setattr("tests.hangs.time", SimpleNamespace(monotonic=lambda: next(now)))
    monkeypatch.setattr(
        "tests.hangs.faulthandler",
        SimpleNamespace(dump_traceback_later=lambda seconds, **_: started.append(seconds)),
    )
    hangs = Hangs(pytestconfig)
    counts = []
    for turn in range(6):
        if turn == 4:
            hangs.pytest_exception_interact()
        next(hangs.pytest_runtest_protocol())
        counts.append(len(started))
    assert counts == [1, 1, 2, 2, 3, 3]
    assert set(started) == {600}
