"""A client without address space: threads that find none for their first step keep no call beyond
its deadline.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import pytest

from penstock.ipc.system import PatientThread
from tests.support_programs import run_python

CLIENT = """
import os, resource, sys, time
from tests.support_chaos_calls import MODEL, Deadline, Rig
from penstock.errors import DeadObject, ResourceExhaustedTransient
import threading

rig = Rig()
rig.run(Deadline(30))
# Stacks that the C library keeps: the next threads have one, and no memory besides.
threads = [threading.Thread(target=time.sleep, args=(0.02,)) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
pid = rig.supervisor.connection().pid
soft, hard = resource.getrlimit(resource.RLIMIT_AS)
began = time.monotonic()
resource.setrlimit(resource.RLIMIT_AS, (1 << 20, hard))
os.kill(pid, 9)
try:
    rig.device.prepare_model(MODEL, Deadline(2).preparation)
except (DeadObject, ResourceExhaustedTransient) as error:
    told = str(error)
finally:
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
assert time.monotonic() - began < 20
assert told
rig.run(Deadline(30))
rig.close()
print("right")
"""


def test_a_client_without_memory_has_an_error_by_the_deadline(tmp_path: Path) -> None:
    pytest.importorskip("resource", reason="limits of resources are Unix's")
    environment = {
        "PENSTOCK_STATE_DIR": str(tmp_path),
        "PYTHONPATH": ":".join(sys.path),
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    done = run_python("-c", CLIENT, env=environment)
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr


def test_a_thread_that_does_not_run_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    thread = PatientThread(time.sleep, 0, name="lost")
    limbo = set(threading.enumerate())
    with monkeypatch.context() as patch:
        for name in ("_start_new_thread", "_start_joinable_thread"):
            patch.setattr(threading, name, lambda *_, **__: None, raising=False)
        began = time.monotonic()
        with pytest.raises(RuntimeError, match="does not run"):
            thread.start_within(0.05)
        assert time.monotonic() - began < 20
    for lost in set(threading.enumerate()) - limbo:
        threading._limbo.pop(lost, None)  # type: ignore[attr-defined]


def test_a_thread_without_memory_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise MemoryError

    for name in ("_start_new_thread", "_start_joinable_thread"):
        monkeypatch.setattr(threading, name, refuse, raising=False)
    with pytest.raises(RuntimeError, match="memory"):
        PatientThread(time.sleep, 0, name="refused").start_within()


def test_a_patient_thread_runs_as_others_do() -> None:
    done: list[int] = []
    thread = PatientThread(done.append, 1, name="patient")
    thread.start_within(10)
    thread.join(10)
    assert done == [1]
    assert thread.daemon
    assert thread.name == "patient"
