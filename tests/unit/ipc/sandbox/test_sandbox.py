"""Each barrier of the sandbox, tried from inside a process that has put itself behind it."""

from __future__ import annotations

import json
import os
import platform
import signal
import socket
import struct
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from penstock.errors import PenstockError
from penstock.ipc import sandbox
from penstock.ipc.sandbox import kernel, seccomp
from penstock.ipc.sandbox.syscalls import ALLOWED, ARCHITECTURES, CHECKED, OF_ITSELF
from tests.support_programs import run_python
from tests.support_ring import ROOT

if sys.platform != "linux":
    pytest.skip("the sandbox is Linux's", allow_module_level=True)

BARRIERS = {
    "read a file": ("landlock", "EACCES"),
    "list a directory": ("landlock", "EACCES"),
    "write a file": ("landlock", "EACCES"),
    "make a file": ("landlock", "EACCES"),
    "remove a file": ("landlock", "EACCES"),
    "truncate a file": ("seccomp", "EPERM"),
    "make a link": ("seccomp", "EPERM"),
    "change a mode": ("seccomp", "EPERM"),
    "change an owner": ("seccomp", "EPERM"),
    "connect": ("seccomp", "EPERM"),
    "make a socket": ("seccomp", "EPERM"),
    "execute a program": ("seccomp", "EPERM"),
    "start a process": ("seccomp", "EPERM"),
    "fork": ("seccomp", "EPERM"),
    "trace a process": ("seccomp", "EPERM"),
    "read a process": ("seccomp", "EPERM"),
    "signal a process": ("seccomp", "EPERM"),
    "limit a process": ("seccomp", "EPERM"),
    "mount": ("seccomp", "EPERM"),
    "another namespace": ("seccomp", "EPERM"),
    "another user": ("seccomp", "EPERM"),
    "a kernel program": ("seccomp", "EPERM"),
    "an io_uring": ("seccomp", "EPERM"),
    "type on the terminal": ("seccomp", "EPERM"),
    "a 32-bit call": ("seccomp", "SIGSYS"),
    "an x32 call": ("seccomp", "SIGSYS"),
    "a call that nobody knows": ("seccomp", "ENOSYS"),
    "core dumps": ("resource limits", "none"),
    "more descriptors": ("resource limits", "EMFILE"),
}
X86_ALONE = {"a 32-bit call", "an x32 call"}


@cache
def tried() -> dict[str, Any]:
    with TemporaryDirectory() as name, socket.create_server(("127.0.0.1", 0)) as server:
        readable, writable, own = (Path(name, n) for n in ("readable", "writable", "own"))
        readable.write_bytes(b"secret")
        writable.write_bytes(b"precious")
        own.mkdir()
        port = server.getsockname()[1]
        done = run(readable, writable, own, port, os.getpid())
        assert done.returncode == 0, done.stderr
        assert writable.read_bytes() == b"precious"
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found


@pytest.mark.parametrize("what", BARRIERS)
def test_a_barrier_holds(what: str) -> None:
    measure, error = BARRIERS[what]
    if what in X86_ALONE and platform.machine() != "x86_64":
        pytest.skip("x86-64's alone")
    holds, detail = tried()["report"][measure]
    if not holds:
        pytest.skip(f"{measure}: {detail}")
    assert (foreign(what) if what in X86_ALONE else tried()["tried"][what]) == error


def foreign(what: str) -> str:
    """What becomes of a process that makes a call of another instruction set: the signal that ends
    it.
    """
    done = run(what)
    return done.stdout if done.returncode >= 0 else signal.Signals(-done.returncode).name


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return run_python(
        "-m",
        "tests.unit.ipc.sandbox.trying",
        *arguments,
        cwd=ROOT,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )


def test_sandbox_allows_what_a_driver_needs() -> None:
    assert tried()["allowed"] == dict.fromkeys(tried()["allowed"], "done")


def test_threads_that_start_later_are_held() -> None:
    if not tried()["report"]["landlock"][0]:
        pytest.skip(tried()["report"]["landlock"][1])
    assert tried()["in a thread"] == "EACCES"


def test_sandbox_reports_missing_protection(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(kernel, "syscall", refused)
    monkeypatch.setattr(kernel, "prctl", refused)
    policy = sandbox.SandboxPolicy()
    for measure in (kernel.apply_landlock(policy), seccomp.apply(), kernel.drop_privileges()):
        assert not measure.holds
        assert measure.detail
    report = sandbox.SandboxReport((kernel.apply_landlock(policy),))
    assert report.missing == report.measures
    assert report.lines() == (
        ("landlock", "missing: the kernel has no Landlock, or it is switched off"),
    )


def test_an_architecture_without_a_table_has_no_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert not seccomp.apply().holds
    assert not seccomp.detect().holds


def test_detecting_changes_nothing() -> None:
    before = Path("/proc/self/status").read_text("ascii")
    names = [m.name for m in sandbox.detect().measures]
    assert names == ["namespaces", "no new privileges", "resource limits", "landlock", "seccomp"]
    for line in ("NoNewPrivs", "Seccomp:"):
        after = Path("/proc/self/status").read_text("ascii")
        assert _field(before, line) == _field(after, line)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_filter_decides_as_its_table_says(name: str) -> None:
    architecture = ARCHITECTURES[name]
    program, column = seccomp.instructions(architecture, 77), architecture.column

    def decide(number: int, *arguments: int, audit: int = architecture.audit) -> int:
        return _run(program, struct.pack("<IIQ6Q", number, audit, 0, *_six(arguments)))

    refuse, absent, allow, kill = 0x50001, 0x50026, 0x7FFF0000, 0x80000000
    listed = {numbers[column] for numbers in ALLOWED.values()}
    checked = {numbers[column] for numbers, _ in CHECKED.values()}
    for number in set(range(architecture.last + 1)) - checked - {435}:
        assert decide(number, 77) == (allow if number in listed else refuse)
    for number in range(architecture.last + 1, architecture.last + 50):
        assert decide(number) == absent
    assert decide(435) == absent
    assert decide(0, audit=0x40000003) == kill
    assert decide(0x40000000) == decide(0x40000000 + 39) == (kill if not column else absent)
    assert decide(2**32 - 1) == absent

    def of(name: str) -> int:
        number = CHECKED[name][0][column]
        assert number is not None
        return number

    for its in ("kill", "tgkill", *OF_ITSELF):
        assert decide(of(its), 77) == allow
        assert decide(of(its), 78) == decide(of(its), 2**32 - 1) == refuse
        assert decide(of(its), 0) == (allow if its in OF_ITSELF else refuse)
    assert decide(of("clone"), 17) == decide(of("clone"), 0x4D0F00 | 0x20000000) == refuse
    assert decide(of("clone"), 0x3D0F00) == allow
    assert decide(of("ioctl"), 0, 0x5412) == decide(of("ioctl"), 0, 0x541C) == refuse
    assert decide(of("ioctl"), 0, 0x40086602) == decide(of("ioctl"), 0, 0x40087602) == refuse
    assert decide(of("ioctl"), 0, 0x8912) == refuse
    assert decide(of("ioctl"), 0, 0x5413) == decide(of("ioctl"), 0, 0xC0106442) == allow
    assert decide(of("socketpair"), 1, 1 | 0x80800) == decide(of("socketpair"), 1, 5) == allow
    assert decide(of("socketpair"), 1, 2) == decide(of("socketpair"), 2, 1) == refuse
    assert decide(of("sendto"), 3, 4, 5, 0, 0, 0) == allow
    assert decide(of("sendto"), 3, 4, 5, 0, 1 << 40, 16) == refuse
    assert decide(of("sendto"), 3, 4, 5, 0, 1, 16) == refuse
    assert decide(of("fcntl"), 3, 1030) == allow
    assert {decide(of("fcntl"), 3, command) for command in (8, 10, 15, 1024, 1026)} == {refuse}
    assert decide(of("prctl"), 15) == allow
    assert decide(of("prctl"), 1) == decide(of("prctl"), 62) == refuse
    assert decide(of("personality"), 0xFFFFFFFF) == allow
    assert decide(of("personality"), 0x40000) == refuse
    assert decide(of("setpriority"), 0, 77) == decide(of("setpriority"), 0, 0) == allow
    assert decide(of("setpriority"), 0, 78) == decide(of("setpriority"), 2, 0) == refuse
    assert decide(of("membarrier"), 8) == allow
    assert decide(of("membarrier"), 1) == refuse


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_no_call_has_two_numbers_and_no_number_two_calls(name: str) -> None:
    column = ARCHITECTURES[name].column
    every = [*ALLOWED.values(), *(numbers for numbers, _ in CHECKED.values())]
    known = [n for numbers in every if (n := numbers[column]) is not None]
    assert len(known) == len(set(known))
    assert max(known) <= ARCHITECTURES[name].last
    assert not set(ALLOWED) & set(CHECKED)


def _run(program: list[tuple[int, int, int, int]], data: bytes) -> int:
    """The kernel's classic packet filter, as far as these programs need it."""
    at = accumulator = 0
    while True:
        code, if_true, if_false, constant = program[at]
        at += 1
        match code:
            case seccomp.LOAD:
                accumulator = int.from_bytes(data[constant : constant + 4], "little")
            case seccomp.RETURN:
                return constant
            case seccomp.EQUAL:
                at += if_true if accumulator == constant else if_false
            case seccomp.AT_LEAST:
                at += if_true if accumulator >= constant else if_false
            case seccomp.AND:
                accumulator &= constant
            case seccomp.JUMP:
                at += constant
            case _:
                raise PenstockError(f"instruction {code:#x}")


def _six(arguments: tuple[int, ...]) -> list[int]:
    return [*arguments, *[0] * (6 - len(arguments))]


def _field(status: str, name: str) -> str:
    return next(line for line in status.splitlines() if line.startswith(name))


def test_temporary_files_are_swept_once_their_process_is_gone(tmp_path: Path) -> None:
    program = (
        "import os, sys, tempfile; from penstock.ipc.sandbox.policy import scratch_directory; "
        "own = scratch_directory(); open(os.path.join(tempfile.gettempdir(), 'x'), 'w').close(); "
        "print(own, flush=True); sys.stdin.read()"
    )
    environment = {**os.environ, "PENSTOCK_STATE_DIR": str(tmp_path)}

    def start() -> tuple[subprocess.Popen[str], Path]:
        process = subprocess.Popen(
            [sys.executable, "-c", program],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        return process, Path(process.stdout.readline().strip())

    first, of_first = start()
    second, of_second = start()
    assert (of_first / "x").is_file()
    assert of_first != of_second
    assert of_first.stat().st_mode & 0o777 == 0o700
    first.kill()
    first.communicate()
    third, of_third = start()
    assert not of_first.exists()
    assert of_second.exists()
    assert of_third.exists()
    for process in (second, third):
        process.communicate()
