"""Processes that end while an engine compiles in a thread that nobody waits for."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.support_programs import run_python

STATUS = 3

DESTROYED = 7
"""The status of a process whose C library called what its libraries registered for the end."""

needs_glibc = pytest.mark.skipif(sys.platform != "linux", reason="only glibc tells the status")

PROGRAM = """
import atexit, ctypes, sys, threading, time
from penstock.driverkit.lazy_engine import LazyEngine, message_of
from penstock.errors import GeneralFailure

libc = ctypes.CDLL(None)
getattr(libc, "__cxa_atexit")(libc._exit, ctypes.c_void_p({destroyed}), None)
engine = LazyEngine("engine", object, "forked", lambda error: message_of(error, line=0))
inside = threading.Event()

def compile_for(seconds):
    with engine.guarded("compile"):
        inside.set()
        time.sleep(seconds)

def begin(seconds):
    threading.Thread(target=compile_for, args=[seconds], daemon=True).start()
    inside.wait()

{body}
atexit.register(print, "last words")
libc.printf(b"of C, ")
print("unwritten", end=" ")
sys.exit({status})
"""


def ended(body: str) -> subprocess.CompletedProcess[str]:
    """A process that ran *body* with an engine that only sleeps."""
    return run_python("-c", PROGRAM.format(body=body, status=STATUS, destroyed=DESTROYED))


@needs_glibc
def test_process_that_leaves_an_engine_at_work_ends_with_its_own_status_and_all_output() -> None:
    done = ended("begin(1000)")
    assert done.returncode == STATUS
    assert "unwritten last words" in done.stdout
    assert "of C" in done.stdout
    assert done.stderr == ""


@needs_glibc
@pytest.mark.parametrize("body", ["", "begin(0.3)"])
def test_engine_that_ends_soon_costs_no_exit_handler_of_c(body: str) -> None:
    assert ended(body).returncode == DESTROYED


@needs_glibc
def test_daemon_thread_begins_no_compile_once_the_process_is_ending() -> None:
    late = """
from penstock.driverkit import ending

def refused():
    try:
        compile_for(0)
    except GeneralFailure as error:
        print(error, end="; ")

def at_the_end():
    thread = threading.Thread(target=refused, daemon=True)
    ending.before_exit()
    thread.start()
    thread.join()
    compile_for(0)
    print("the main thread compiles", end="; ")

at_the_end()
"""
    done = ended(late)
    assert "the process is ending; the main thread compiles; " in done.stdout


LLVM = """
import sys, time
from functools import partial
from penstock.driverkit.engine import compiled_within
from penstock.drivers.llvm import backend
from penstock.drivers.llvm.isa.record import RECORDS
from penstock.errors import MissedDeadline
from penstock.hal import PrepareConfig

def function(number, size=300):
    lines = ["define void @f%d(ptr %%p) {" % number, "%v0 = load <8 x float>, ptr %p"]
    lines += ["%%v%d = fmul <8 x float> %%v%d, %%v%d" % (k + 1, k, k // 2) for k in range(size)]
    return "\\n".join([*lines, "store <8 x float> %%v%d, ptr %%p" % size, "ret void", "}"])

backend.compile_object(function(0, 1), RECORDS["avx2"])
text = "\\n".join(function(number) for number in range(400))
limits = PrepareConfig(deadline_ns=time.monotonic_ns() + int(float(sys.argv[1]) * 1e9))
try:
    compiled_within(limits, partial(backend.compile_object, text, RECORDS["avx2"]))
except MissedDeadline:
    print("left behind")
"""


@needs_glibc
@pytest.mark.parametrize("seconds", [0.2, 0.5, 0.8])
def test_process_that_leaves_llvm_at_work_ends_with_status_zero(seconds: float) -> None:
    pytest.importorskip("llvmlite")
    done = run_python("-c", LLVM, seconds)
    assert done.returncode == 0, signal.strsignal(-done.returncode)
    assert done.stdout == "left behind\n"
    assert done.stderr == ""
