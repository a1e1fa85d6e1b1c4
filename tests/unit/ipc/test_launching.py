"""A driver's process is started in namespaces of its own, and without where the kernel refuses
them.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import pytest

from tests.support_programs import run_python

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="drivers run in processes of their own on Linux only"
)

PROGRAM = """
import json, os, signal, sys
from penstock.ipc.host.broker import launch, status_of
from penstock.ipc.sandbox import kernel

def refuse(*_):
    raise OSError(1, "Operation not permitted")

how, end = sys.argv[1:]
if how == "refused":
    kernel.enter_namespaces = refuse

def drive(apart, ready):
    if apart.holds and how == "no view":
        refuse()
    if apart.holds and how == "dies":
        os._exit(5)
    ready()
    print(json.dumps([apart.holds, apart.detail, os.getpid()]), flush=True)
    if end == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(int(end))

status = status_of(launch(drive, apart=how != "off"))
print(json.dumps([os.WIFSIGNALED(status), status]))
"""


def launched(how: str, end: str = "7") -> tuple[list[Any], list[Any]]:
    """What the driver's process says of itself, and its parent of its end."""
    done = run_python("-c", PROGRAM, how, end)
    assert done.returncode == 0, done.stderr
    said, ended = map(json.loads, done.stdout.splitlines())
    return said, ended


def test_in_namespaces_the_driver_is_the_second_process() -> None:
    (holds, detail, pid), (signalled, status) = launched("on")
    if not holds:
        pytest.skip(detail)
    assert pid == 2
    assert (signalled, os.waitstatus_to_exitcode(status)) == (False, 7)


@pytest.mark.parametrize("how", ["on", "off", "refused"])
def test_launcher_reports_the_signal_that_ended_the_driver(how: str) -> None:
    _, (signalled, status) = launched(how, "kill")
    assert signalled
    assert os.WTERMSIG(status) == 9


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("refused", "the kernel refuses them: Operation not permitted"),
        ("no view", "the kernel refuses them: Operation not permitted"),
        ("dies", "the kernel refuses them: the process that tried them ended"),
        ("off", "switched off by the knob namespaces"),
    ],
)
def test_driver_starts_without_unavailable_namespaces(how: str, reason: str) -> None:
    (holds, detail, pid), (_, status) = launched(how)
    assert not holds
    assert pid > 2
    assert os.waitstatus_to_exitcode(status) == 7
    if how == "no view" and "Operation" not in detail:
        pytest.skip(detail)
    assert detail == reason
